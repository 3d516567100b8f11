package grpcshaper

import (
	"context"
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
// also be called by handlers, with the context of their call.
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
	release, err := k.Acquire(ctx, n)
	release()
	return err
}

func (k perKey) Acquire(ctx context.Context, n int) (release func(), err error) {
	switch {
	case n < 0:
		return nothing, shaper.ErrNegativeCost
	case n == 0:
		return nothing, ctx.Err()
	}
	b, err := k.bucketOf(ctx, methodOf(ctx))
	if err != nil {
		return nothing, err
	}
	return b.Acquire(ctx, n)
}

// bucketOf returns the bucket of a call.
func (k perKey) bucketOf(ctx context.Context, method string) (bucket, error) {
	key, err := k.key(ctx, method)
	switch {
	case err == nil:
		return keyBucket{k.group.Limiter(key).(bucket)}, nil
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
	if err == nil || err == ctx.Err() {
		return release, err
	}
	if _, refused := err.(*shaper.RejectError); !refused {
		err = &ownFault{"limits of a call", err}
	}
	return release, err
}

// An open bucket lets every call through.
type open struct{}

func (open) Acquire(ctx context.Context, _ int) (release func(), err error) {
	return nothing, ctx.Err()
}

func (open) Hold(time.Duration) {}
