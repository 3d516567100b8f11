package shaper_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"time"

	"example.com/leakybucket/shaper"
)

// wait makes one call with one of several kinds of contexts, and says whether
// the shaper is closed.
func (st *storm) wait(n int) (closed bool) {
	ctx, cancel := someContext()
	defer cancel()
	var reject *shaper.RejectError
	switch err := st.pass(ctx, n); {
	case err == nil:
		st.departed.Add(1)
	case errors.As(err, &reject):
		st.refused.Add(1)
		runtime.Gosched()
		return reject.Reason == shaper.ErrClosed
	case err == ctx.Err():
		// Abandoned in the line, or done before the call, which is not counted.
		st.gone.Add(1)
	default:
		st.wrong.Add(1)
	}
	return false
}

func (st *storm) capped() bool { return st.limits[0].InFlight > 0 }

// pass is one call, and with a cap a visit upstream.
func (st *storm) pass(ctx context.Context, n int) error {
	if !st.capped() {
		return st.s.WaitN(ctx, n)
	}
	visit := func(context.Context) error {
		if st.upstream.Add(1) > stormCap {
			st.wrong.Add(1)
		}
		runtime.Gosched()
		st.upstream.Add(-1)
		return nil
	}
	if rand.N(2) == 0 {
		return st.s.Do(ctx, n, visit)
	}
	release, err := st.s.Acquire(ctx, n)
	defer release()
	if err == nil {
		err = visit(ctx)
	}
	return err
}

// someContext is one that ends by itself, by somebody, or not before cancel.
func someContext() (ctx context.Context, cancel func()) {
	kind := rand.N(4)
	if kind == 0 {
		return context.WithTimeout(context.Background(), rand.N(time.Millisecond))
	}
	ctx, end := context.WithCancel(context.Background())
	if kind > 1 {
		return ctx, end
	}
	timer := time.AfterFunc(rand.N(200*time.Microsecond), end)
	return ctx, func() {
		timer.Stop()
		end()
	}
}
