package grpcshaper

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/leakybucket/shaper"
)

// A gate has the bucket of one interceptor, and its options.
type gate struct {
	bucket bucket  // of all calls
	keyed  *perKey // not nil: each call has the bucket of its key instead
	options
}

// A bucket is a Limiter of package shaper. What [shaper.Chain] makes of any Limiter is one.
type bucket interface {
	shaper.Limiter
	Acquire(ctx context.Context, n int) (release func(), err error)
	Hold(d time.Duration)
}

func newGate(name string, l shaper.Limiter, opts []Option) *gate {
	if l == nil {
		panic("grpcshaper: " + name + " needs a Limiter; to let every call pass, leave the interceptor out")
	}
	g := &gate{options: newOptions(opts)}
	if keyed, ok := l.(perKey); ok {
		g.keyed = &keyed
	} else {
		// A Chain of one knows what each kind of Limiter can do, and calls Acquire only of
		// those that mean it.
		g.bucket = shaper.Chain(l)
	}
	return g
}

// A passage is what one call has to pass: the bucket of its key, with the context of the
// call.
type passage struct {
	*gate
	bucket bucket
	method string
	n      int // what the call costs, unless its messages wait
}

// passageOf returns the passage of a call with a request, which is nil for a stream; whole reports whether the
// call waits, and not its messages. ok reports whether there is a passage, and not a method that is skipped.
func (g *gate) passageOf(ctx context.Context, method string, request any, whole bool) (p passage, ok bool, err error) {
	if g.skip(method) {
		return passage{}, false, nil
	}
	p = passage{gate: g, bucket: g.bucket, method: method}
	if whole {
		p.n = g.cost(ctx, method, request)
	}
	switch {
	case g.keyed == nil:
	case whole && p.n == 0: // It passes untouched, and its key is not asked for.
		p.bucket = open{}
	default:
		p.bucket, err = g.keyed.bucketOf(ctx, method)
	}
	return p, true, err
}

// enter lets a call or a message of cost n wait. release must be called when it has ended; it is never
// nil. The error comes from the Limiter.
func (p passage) enter(ctx context.Context, n int) (release func(), err error) {
	switch {
	case n < 0:
		// In a dry run a call without a key has no bucket that would notice.
		return nothing, shaper.ErrNegativeCost
	case n == 0:
		return nothing, nil
	}
	return p.bucket.Acquire(context.WithValue(ctx, methodKey{}, p.method), n)
}

func nothing() {}

// methodKey is the key of the method in the context with which a Limiter is called, for a
// [PerKey] in a [shaper.Chain].
type methodKey struct{}

// methodOf returns the method of the call that a context belongs to, or "" if it is unknown.
func methodOf(ctx context.Context) string {
	if method, ok := ctx.Value(methodKey{}).(string); ok {
		return method
	}
	method, _ := grpc.Method(ctx) // It is known on a server only.
	return method
}

// heed holds the line if the error with which a call has ended asks for a hold.
func (p passage) heed(err error) {
	if err == nil || p.maxHold <= 0 {
		return
	}
	if _, ok := errors.AsType[*refusal](err); ok {
		return // It is not the server's, but that of another interceptor in this process.
	}
	st, ok := status.FromError(err)
	if !ok || st.Code() != codes.ResourceExhausted && st.Code() != codes.Unavailable {
		return
	}
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok && info.GetRetryDelay().CheckValid() == nil {
			if d := info.GetRetryDelay().AsDuration(); d > 0 {
				p.bucket.Hold(min(d, p.maxHold))
				return
			}
		}
	}
}

// A seat holds what must be released when a stream, or a message of it, has ended. It is
// safe for concurrent use, because a stream may end while it waits for a message.
type seat struct {
	mu      sync.Mutex
	release func() // nil: nothing is held
	over    bool   // the stream has ended
}

// take keeps release for later. If the stream has ended it is called at once.
func (s *seat) take(release func()) {
	s.mu.Lock()
	over := s.over
	if !over {
		s.release = release
	}
	s.mu.Unlock()
	if over {
		release()
	}
}

// giveBack calls the release that is held, if there is one, outside of the lock.
func (s *seat) giveBack() {
	s.mu.Lock()
	release := s.release
	s.release = nil
	s.mu.Unlock()
	if release != nil {
		release()
	}
}

// end is giveBack for the end of the stream.
func (s *seat) end() {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.giveBack()
}
