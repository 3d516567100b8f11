package grpcshaper

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

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

// An Option changes the interceptors of this package. One that does not concern an
// interceptor changes nothing there, so a client or server can use the same for both kinds.
type Option func(*options)

type options struct {
	cost         func(ctx context.Context, fullMethod string, message any) int
	skip         func(fullMethod string) bool
	eachReceived bool
	eachSent     bool
	retrySpread  time.Duration
	maxHold      time.Duration
}

const defaultMaxHold = time.Minute

func newOptions(opts []Option) options {
	o := options{maxHold: defaultMaxHold}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	if o.cost == nil {
		o.cost = func(context.Context, string, any) int { return 1 }
	}
	if o.skip == nil {
		o.skip = func(string) bool { return false }
	}
	return o
}

// eachMessage reports whether the messages of a stream wait, instead of its opening.
func (o options) eachMessage() bool { return o.eachReceived || o.eachSent }

// WithCost sets the function that returns the cost of a call. By default, or with nil, a
// call costs 1. fullMethod is like "/package.Service/Method". message is the request of a
// unary call, the message of a stream ([WithEachReceived], [WithEachSent]), and nil at the
// opening of a stream.
//
// A cost of 0 lets the call or message pass untouched. If the cost comes from the message,
// bound it: all calls behind it wait for cost / Rate. A negative cost is a mistake, which is
// answered with the code Internal.
func WithCost(cost func(ctx context.Context, fullMethod string, message any) int) Option {
	return func(o *options) { o.cost = cost }
}

// WithSkip sets a function that reports whether calls of a method pass untouched. By
// default, or with nil, none do. fullMethod is like "/package.Service/Method". The function
// [HealthChecks] is one.
func WithSkip(skip func(fullMethod string) bool) Option {
	return func(o *options) { o.skip = skip }
}

// HealthChecks reports whether a method is one of the standard health service,
// grpc.health.v1.Health. It is for [WithSkip]: a health check that waits behind the load
// looks like a failure.
func HealthChecks(fullMethod string) bool {
	return strings.HasPrefix(fullMethod, "/grpc.health.v1.Health/")
}

// WithEachReceived lets each message that a stream receives wait before it is handed on,
// and the opening of the stream pass. While a message waits, the stream receives no other,
// so that gRPC's flow control slows the sender down. A stream thus has one message at most
// in the line: with a [shaper.Limits.Depth] of the number of streams, and without a MaxWait,
// no message is refused. A message that is refused ends its stream.
//
// With [shaper.Limits.InFlight] set, a message is in flight until the next one is asked for,
// or the stream has ended. Together with [WithEachSent] a received message is in flight only
// until the stream sends one, because a stream that waits for a seat must not hold another.
// Unary calls wait as always.
func WithEachReceived() Option { return func(o *options) { o.eachReceived = true } }

// WithEachSent lets each message that a stream sends wait before it is sent, and the opening
// of the stream pass. A message that is refused ends its stream.
//
// With [shaper.Limits.InFlight] set, a message is in flight until SendMsg has returned.
// Unary calls wait as always. Together with [WithEachReceived] each message waits, whatever
// its direction.
func WithEachSent() Option { return func(o *options) { o.eachSent = true } }

// WithRetrySpread adds a random time from 0 to d to the RetryInfo of each refusal of a
// server, so that clients which were refused together do not come back together. The
// [shaper.RejectError] stays exact. The default is 0. A d above 365 days
// counts as 365 days.
func WithRetrySpread(d time.Duration) Option {
	return func(o *options) { o.retrySpread = min(max(0, d), 365*24*time.Hour) }
}

// WithMaxHold sets the longest time for which the RetryInfo of a server's refusal holds the
// line of a client. The default is one minute. With 0 or less, refusals hold nothing.
//
// The bucket that is held is the one for which the call has waited. Within a [shaper.Chain]
// or [shaper.Priced] a [PerKey] is not held; use two interceptors instead of such a Chain.
func WithMaxHold(d time.Duration) Option { return func(o *options) { o.maxHold = d } }

// A refusal is the error of a call that was not admitted: a status of gRPC which wraps the
// error of the Limiter.
type refusal struct {
	status     *status.Status
	err        error
	retryAfter time.Duration // 0: trying again does not help, or it is unknown when
}

// Error returns the Limiter's error. What a server sends to a client is the message of the
// status.
func (r *refusal) Error() string { return r.err.Error() }

// Unwrap returns the Limiter's error.
func (r *refusal) Unwrap() error { return r.err }

// GRPCStatus returns what gRPC makes of the error.
func (r *refusal) GRPCStatus() *status.Status { return r.status }

// An ownFault is the failure of a function of the program, for keys or limits.
type ownFault struct {
	what string
	err  error
}

func (f *ownFault) Error() string { return "grpcshaper: " + f.what + ": " + f.err.Error() }
func (f *ownFault) Unwrap() error { return f.err }

// refused returns the error with which a call ends that a Limiter has not admitted. An error
// that carries a status is returned as it is. spread is the most that is added to the time
// after which a client may try again.
func refused(ctx context.Context, err error, spread time.Duration) error {
	if _, ok := errors.AsType[*ownFault](err); !ok {
		if _, ok := status.FromError(err); ok {
			return err
		}
	}
	code, message := answerTo(ctx, err)
	r := &refusal{status: status.New(code, message), err: err}
	if e, ok := errors.AsType[*shaper.RejectError](err); ok && e.RetryAfter > 0 && code != codes.Internal {
		r.retryAfter = e.RetryAfter + min(rand.N(spread+1), math.MaxInt64-e.RetryAfter)
		// It fails only for the code OK.
		r.status, _ = r.status.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(r.retryAfter)})
	}
	return r
}

// A said is the code and the message of a call that a Limiter has not admitted.
type said struct {
	code    codes.Code
	message string
}

// saidOf has them for each reason that is not the end of a context.
var saidOf = map[string]said{
	"negative-cost": {codes.Internal, "the cost of the call could not be determined"},
	"blocked":       {codes.ResourceExhausted, "calls are refused for a time, because too many have come"},
	"no-line":       {codes.ResourceExhausted, "more calls have come than the limit allows"},
	"queue-full":    {codes.ResourceExhausted, "too many calls are waiting already"},
	"too-late":      {codes.ResourceExhausted, "the call would have to wait too long, or has waited too long"},
	"too-costly":    {codes.ResourceExhausted, "the call costs more than can ever fit: trying again does not help"},
	"unavailable":   {codes.Unavailable, "the shared rate limit cannot be asked now"},
	"closed":        {codes.Unavailable, "no more calls are taken"},
}

// answerTo returns the code and the message of a call that a Limiter has not admitted. It
// looks for refusals first, because a refusal of a call that would have missed its deadline
// is [context.DeadlineExceeded] too.
func answerTo(ctx context.Context, err error) (codes.Code, string) {
	_, ownFault := errors.AsType[*ownFault](err)
	refusal, rejected := errors.AsType[*shaper.RejectError](err)
	known, ok := saidOf[shaper.Reason(err)]
	switch {
	case ownFault:
		return codes.Internal, "the limits of the call could not be determined"
	case rejected && refusal.Timeout(): // It is no timeout if a Bucket did not answer in time.
		return codes.DeadlineExceeded, "the call would have to wait beyond its deadline"
	case ok:
		return known.code, known.message
	case ctx.Err() == context.Canceled:
		return codes.Canceled, "the call was cancelled while it waited"
	case ctx.Err() != nil:
		return codes.DeadlineExceeded, "the deadline of the call passed while it waited"
	}
	// The context errors of a Limiter whose own context has ended are here as well: this
	// call is still there.
	return codes.Unavailable, "the call could not be admitted"
}

// pushback returns the trailer that tells a client when the retries of its service config
// may try again (gRFC A6). A negative number forbids that. It is nil if the error says
// nothing about it.
func pushback(err error) metadata.MD {
	const trailer = "grpc-retry-pushback-ms"
	r, ok := errors.AsType[*refusal](err)
	switch {
	case !ok:
		return nil
	case r.retryAfter > 0:
		ms := min((r.retryAfter-1)/time.Millisecond+1, math.MaxInt32) // gRFC A6 has 32 bits, which are 24 days.
		return metadata.Pairs(trailer, strconv.FormatInt(int64(ms), 10))
	case shaper.Reason(err) == "too-costly":
		return metadata.Pairs(trailer, "-1")
	}
	return nil
}
