package grpcshaper

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/status"

	"example.com/leakybucket/shaper"
)

// PerKey returns a [shaper.Limiter] that lets each call wait for the bucket of its key. It
// is for the interceptors of this package:
//
//	clients, err := shaper.NewGroup(limitsOf)
//	…
//	grpcshaper.UnaryServerInterceptor(grpcshaper.PerKey(clients, grpcshaper.ByPeer()))
//
// In a [shaper.Chain] it works too, except for holds ([WithMaxHold]). On a server it may
// also be called by handlers, with the context of their call: by Acquire if the limits of a key
// have an InFlight, which WaitN refuses, as that of a Shaper does.
//
// If key returns an error, the call is refused: with that error, if it has a status, as from
// status.Error(codes.Unauthenticated, "no API key"), else with the code Internal. (If g is a
// dry run the call is let through.) A call of cost 0 passes untouched.
func PerKey(g *shaper.Group[string], key KeyFunc) shaper.Limiter {
	if g == nil {
		panic("grpcshaper: PerKey needs a Group")
	}
	if key == nil {
		panic("grpcshaper: PerKey needs a function that tells the key of a call")
	}
	g.Limiter("") // It panics if NewGroup has not made g. A panic in a call would end the server.
	return perKey{g, key}
}

// A perKey is what [PerKey] returns.
type perKey struct {
	group *shaper.Group[string]
	key   KeyFunc
}

func (k perKey) WaitN(ctx context.Context, n int) error {
	b, err := k.bucketFor(ctx, n)
	if err != nil {
		return err
	}
	return b.WaitN(ctx, n)
}

func (k perKey) Acquire(ctx context.Context, n int) (release func(), err error) {
	b, err := k.bucketFor(ctx, n)
	if err != nil {
		return nothing, err
	}
	return b.Acquire(ctx, n)
}

// bucketFor returns the bucket of a call of cost n. One of cost 0 has no key.
func (k perKey) bucketFor(ctx context.Context, n int) (bucket, error) {
	switch {
	case n < 0:
		return nil, shaper.ErrNegativeCost
	case n == 0:
		return open{}, nil
	}
	return k.bucketOf(ctx, methodOf(ctx))
}

// bucketOf returns the bucket of a call.
func (k perKey) bucketOf(ctx context.Context, method string) (bucket, error) {
	key, err := k.key(ctx, method)
	switch {
	case err == nil:
		return keyBucket{k.group.Limiter(key)}, nil
	case k.group.Stats().DryRun:
		return open{}, nil
	}
	if _, ok := status.FromError(err); ok {
		return nil, err
	}
	return nil, &ownFault{"key of a call", err}
}

// A keyBucket is the bucket of a key of a Group. It tells the failures of the function that
// returns the Limits of a key from refusals, whatever error the function wraps.
type keyBucket struct{ bucket }

func (b keyBucket) Acquire(ctx context.Context, n int) (release func(), err error) {
	release, err = b.bucket.Acquire(ctx, n)
	return release, b.outcome(ctx, err)
}

func (b keyBucket) WaitN(ctx context.Context, n int) error {
	return b.outcome(ctx, b.bucket.WaitN(ctx, n))
}

// outcome returns the error of a call. The failure of the function wraps the function's error. An
// error that wraps none says that the caller has to use Acquire.
func (b keyBucket) outcome(ctx context.Context, err error) error {
	if err == nil || err == ctx.Err() {
		return err
	}
	if _, refused := err.(*shaper.RejectError); refused || errors.Unwrap(err) == nil {
		return err
	}
	return &ownFault{"limits of a call", err}
}

// An open bucket lets every call through.
type open struct{}

func (open) Acquire(ctx context.Context, _ int) (release func(), err error) {
	return nothing, ctx.Err()
}

func (open) WaitN(ctx context.Context, _ int) error { return ctx.Err() }

func (open) Hold(time.Duration) {}
