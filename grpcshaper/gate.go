package grpcshaper

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"example.com/leakybucket/shaper"
)

// A gate is what the calls of one interceptor pass.
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
}

// passageOf returns the passage of a call; ok reports whether there is one, and not a method
// that is skipped.
func (g *gate) passageOf(ctx context.Context, method string) (p passage, ok bool, err error) {
	if g.skip(method) {
		return passage{}, false, nil
	}
	p = passage{gate: g, bucket: g.bucket, method: method}
	if g.keyed != nil {
		p.bucket, err = g.keyed.bucketOf(ctx, method)
	}
	return p, true, err
}

// enter lets a call or a message wait. release must be called when it has ended; it is never
// nil. The error is that of the Limiter.
func (p passage) enter(ctx context.Context, message any) (release func(), err error) {
	n := p.cost(ctx, p.method, message)
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
