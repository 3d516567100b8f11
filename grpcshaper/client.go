package grpcshaper

import (
	"context"

	"google.golang.org/grpc"

	"example.com/leakybucket/shaper"
)

// UnaryClientInterceptor returns an interceptor that lets each unary call wait for l before
// it is sent. When the server refuses a call and says when to try again, the line waits for
// that time ([WithMaxHold]). l may be any Limiter, or [PerKey] of a Group.
func UnaryClientInterceptor(l shaper.Limiter, opts ...Option) grpc.UnaryClientInterceptor {
	g := newGate("UnaryClientInterceptor", l, opts)
	return func(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		p, waits, err := g.passageOf(ctx, method)
		if err != nil {
			return refused(ctx, err, 0)
		}
		if !waits {
			return invoker(ctx, method, request, reply, cc, opts...)
		}
		release, err := p.enter(ctx, request)
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
// refuses a stream and says when to try again, the line waits for that time ([WithMaxHold]).
// l may be any Limiter, or [PerKey] of a Group; the key of a stream is asked for once.
func StreamClientInterceptor(l shaper.Limiter, opts ...Option) grpc.StreamClientInterceptor {
	g := newGate("StreamClientInterceptor", l, opts)
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		p, waits, err := g.passageOf(ctx, method)
		if err != nil {
			return nil, refused(ctx, err, 0)
		}
		if !waits {
			return streamer(ctx, desc, cc, method, opts...)
		}
		s := &clientStream{passage: p, desc: desc, caller: ctx}
		if !g.eachMessage() {
			release, err := p.enter(ctx, nil)
			if err != nil {
				return nil, refused(ctx, err, 0)
			}
			s.opening.take(release)
		}
		return s.open(cc, streamer, opts)
	}
}
