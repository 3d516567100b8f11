package grpcshaper

import (
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"example.com/leakybucket/shaper"
)

// A clientStream is a stream that has waited, or whose messages wait. Several things may
// notice its end, and all of them call end:
//
//   - gRPC itself, by OnFinish. That includes the Close of the ClientConn, which nothing
//     else would notice. OnFinish is experimental, and an interceptor behind this one may
//     return a stream of its own that does not call it; hence the others.
//   - RecvMsg with an error, or with the only message that the stream has.
//   - Header and SendMsg with an error, except for io.EOF of SendMsg: the status is then
//     still to be received.
//   - The end of the context.
type clientStream struct {
	grpc.ClientStream
	passage
	desc *grpc.StreamDesc

	caller context.Context // what the caller has given
	ctx    context.Context // ends with the stream
	cancel context.CancelFunc
	once   sync.Once // for end

	opening  seat                  // of the stream itself
	received seat                  // of the message that the caller has
	refusal  atomic.Pointer[error] // the refusal of a message, which has ended the stream; nil: none has
}

// open opens the stream.
func (s *clientStream) open(cc *grpc.ClientConn, streamer grpc.Streamer, opts []grpc.CallOption) (grpc.ClientStream, error) {
	s.ctx, s.cancel = context.WithCancel(s.caller)
	context.AfterFunc(s.ctx, func() { s.end(s.ctx.Err()) })
	opened := false
	defer func() {
		if !opened { // The streamer has panicked.
			s.end(nil)
		}
	}()
	stream, err := streamer(s.ctx, s.desc, cc, s.method, append(slices.Clip(opts), grpc.OnFinish(s.end))...)
	opened = err == nil
	if err != nil {
		s.end(err)
		return nil, err
	}
	s.ClientStream = stream
	return s, nil
}

// end ends the stream with its status, which is nil or io.EOF after a success. The hold
// comes before the release, which lets the next stream leave.
func (s *clientStream) end(err error) {
	s.once.Do(func() {
		s.heed(err)
		s.opening.end()
		s.received.end()
		s.cancel()
	})
}

func (s *clientStream) Header() (metadata.MD, error) {
	header, err := s.ClientStream.Header()
	if err != nil {
		s.end(err)
	}
	return header, err
}

func (s *clientStream) RecvMsg(m any) error {
	s.received.giveBack()
	err := s.ClientStream.RecvMsg(m)
	if err != nil || !s.desc.ServerStreams {
		s.end(err)
	}
	if err != nil {
		return s.outcome(err)
	}
	if !s.eachReceived {
		return nil
	}
	// It waits for the caller's context, because after the only message of a stream its own
	// has ended.
	release, err := s.enter(s.caller, s.cost(s.caller, s.method, m))
	if err != nil {
		return s.refuse(err)
	}
	s.received.take(release)
	return nil
}

func (s *clientStream) SendMsg(m any) error {
	if s.eachSent {
		s.received.giveBack() // Else a stream would wait for the seat that it has itself.
		release, err := s.enter(s.ctx, s.cost(s.ctx, s.method, m))
		switch {
		case err == nil:
			defer release()
		case s.ctx.Err() != nil && s.caller.Err() == nil:
			return io.EOF // The stream has ended meanwhile. RecvMsg tells its status.
		default:
			return s.refuse(err)
		}
	}
	err := s.ClientStream.SendMsg(m)
	if err != nil && err != io.EOF {
		s.end(err)
	}
	return err
}

// refuse ends the stream because a message of it was not admitted.
func (s *clientStream) refuse(err error) error {
	err = refused(s.caller, err, 0)
	s.refusal.CompareAndSwap(nil, &err)
	s.end(err)
	return err
}

// outcome returns the error with which the stream has ended: the refusal of a message, if
// that was it, and not that the stream was cancelled thereby.
func (s *clientStream) outcome(err error) error {
	if refusal := s.refusal.Load(); refusal != nil {
		return *refusal
	}
	return err
}

// UnaryClientInterceptor returns an interceptor that lets each unary call wait for l before
// it is sent. When the server refuses a call and says when to try again, the line waits for
// that time ([WithMaxHold]). l may be any Limiter, or [PerKey] of a Group.
func UnaryClientInterceptor(l shaper.Limiter, opts ...Option) grpc.UnaryClientInterceptor {
	g := newGate("UnaryClientInterceptor", l, opts)
	return func(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		p, waits, err := g.passageOf(ctx, method, request, true)
		if err != nil {
			return refused(ctx, err, 0)
		}
		if !waits {
			return invoker(ctx, method, request, reply, cc, opts...)
		}
		release, err := p.enter(ctx, p.n)
		defer release()
		if err != nil {
			return refused(ctx, err, 0)
		}
		err = invoker(ctx, method, request, reply, cc, opts...)
		p.heed(err) // before the release, which lets the next call leave
		return err
	}
}

// StreamClientInterceptor returns an interceptor that lets each stream wait for l before it
// is opened, or each of its messages ([WithEachReceived], [WithEachSent]). When the server
// refuses a stream and says when to try again, the line waits until then ([WithMaxHold]).
// l may be any Limiter, or [PerKey] of a Group; the key of a stream is asked for once.
func StreamClientInterceptor(l shaper.Limiter, opts ...Option) grpc.StreamClientInterceptor {
	g := newGate("StreamClientInterceptor", l, opts)
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		p, waits, err := g.passageOf(ctx, method, nil, !g.eachMessage())
		if err != nil {
			return nil, refused(ctx, err, 0)
		}
		if !waits {
			return streamer(ctx, desc, cc, method, opts...)
		}
		s := &clientStream{passage: p, desc: desc, caller: ctx}
		if !g.eachMessage() {
			release, err := p.enter(ctx, p.n)
			if err != nil {
				return nil, refused(ctx, err, 0)
			}
			s.opening.take(release)
		}
		return s.open(cc, streamer, opts)
	}
}
