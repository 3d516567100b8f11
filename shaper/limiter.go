package shaper

import "context"

// A Limiter blocks until the caller may spend n units. *Shaper is one, and so
// is x/time's *rate.Limiter.
type Limiter interface {
	WaitN(ctx context.Context, n int) error
}
