package grpcshaper

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"

	"example.com/leakybucket/shaper"
)

// UnaryServerInterceptor returns an interceptor that lets each unary call wait for l before
// its handler runs. l may be any Limiter, or [PerKey] of a Group.
func UnaryServerInterceptor(l shaper.Limiter, opts ...Option) grpc.UnaryServerInterceptor {
	g := newGate("UnaryServerInterceptor", l, opts)
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		p, waits, err := g.passageOf(ctx, info.FullMethod, request, true)
		if err == nil && waits {
			var release func()
			release, err = p.enter(ctx, p.n)
			defer release()
		}
		if err != nil {
			err = refused(ctx, err, g.retrySpread)
			// It fails if no server has made the context, as in a test of the caller's.
			_ = grpc.SetTrailer(ctx, pushback(err))
			return nil, err
		}
		return handler(ctx, request)
	}
}

// StreamServerInterceptor returns an interceptor that lets each stream wait for l before its
// handler runs, or each of its messages ([WithEachReceived], [WithEachSent]). l may be any
// Limiter, or [PerKey] of a Group; the key of a stream is asked for once.
func StreamServerInterceptor(l shaper.Limiter, opts ...Option) grpc.StreamServerInterceptor {
	g := newGate("StreamServerInterceptor", l, opts)
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		ctx := stream.Context()
		p, waits, err := g.passageOf(ctx, info.FullMethod, nil, !g.eachMessage())
		if err == nil && waits && g.eachMessage() {
			s := &serverStream{ServerStream: stream, passage: p}
			defer s.received.end()
			return s.outcome(handler(server, s))
		}
		if err == nil && waits {
			var release func()
			release, err = p.enter(ctx, p.n)
			defer release()
		}
		if err != nil {
			err = refused(ctx, err, g.retrySpread)
			stream.SetTrailer(pushback(err))
			return err
		}
		return handler(server, stream)
	}
}

// A serverStream is a stream whose messages wait.
type serverStream struct {
	grpc.ServerStream
	passage
	received seat                  // of the message that the handler has
	ended    atomic.Pointer[error] // the refusal that has ended the stream; nil: none has
}

func (s *serverStream) RecvMsg(m any) error {
	if !s.eachReceived {
		return s.ServerStream.RecvMsg(m)
	}
	s.received.giveBack()
	if ended := s.ended.Load(); ended != nil {
		return *ended
	}
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	release, err := s.enter(m)
	if err == nil {
		s.received.take(release)
	}
	return err
}

func (s *serverStream) SendMsg(m any) error {
	if !s.eachSent {
		return s.ServerStream.SendMsg(m)
	}
	if ended := s.ended.Load(); ended != nil {
		return *ended
	}
	s.received.giveBack() // Else a stream would wait for the seat that it has itself.
	release, err := s.enter(m)
	if err != nil {
		return err
	}
	defer release()
	return s.ServerStream.SendMsg(m)
}

// enter lets a message wait. If that is refused the stream has ended: the handler gets the
// same error from then on.
func (s *serverStream) enter(m any) (release func(), err error) {
	ctx := s.Context()
	release, err = s.passage.enter(ctx, s.cost(ctx, s.method, m))
	if err != nil {
		err = refused(ctx, err, s.retrySpread)
		if s.ended.CompareAndSwap(nil, &err) {
			s.SetTrailer(pushback(err))
		}
	}
	return release, err
}

// outcome returns the error of the handler. If a message was refused, and the handler has
// not noticed, that refusal is the outcome: a success would hide that a message is missing.
func (s *serverStream) outcome(err error) error {
	if ended := s.ended.Load(); ended != nil && err == nil {
		return *ended
	}
	return err
}
