package shaper_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// A request ends when its connection is hijacked, so all caps let the next one in.
func TestAHijackFreesAllSeatsOfAChain(t *testing.T) {
	first, second := limitedInFlight(t, 1, 0), limitedInFlight(t, 1, 0)
	c := shaper.Chain(first, second)
	ran := 0
	h := shaper.Middleware(c)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ran++
		require.Equal(t, []int{1, 1}, seatsOf(first, second))
		if r.URL.Path != "/hijacks" {
			return
		}
		_, _, err := w.(http.Hijacker).Hijack()
		require.NoError(t, err)
		require.Equal(t, []int{0, 0}, seatsOf(first, second))
		require.Equal(t, "200", statusLine(answerOf(shaper.Middleware(c)(http.HandlerFunc(
			func(http.ResponseWriter, *http.Request) { ran++ })), t.Context(), "")))
	}))
	h.ServeHTTP(hijackable(nil), httptest.NewRequest("GET", "/hijacks", nil))
	require.Equal(t, 2, ran)
	require.Equal(t, "200", statusLine(answerOf(h, t.Context(), "")))
	require.Equal(t, []int{0, 0}, seatsOf(first, second))
}

// acquireFor is acquire for a Limiter other than the stage's own.
func (g *stage) acquireFor(l shaper.Limiter, name string) {
	ctx := g.cancellable(name)
	g.calls(name, func() error {
		release, err := acquirerOf(l)(ctx, 1)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.releases[name] = release
		return err
	})
}

// seatsOf returns how many requests have a seat of each Shaper.
func seatsOf(shapers ...*shaper.Shaper) (seats []int) {
	for _, s := range shapers {
		seats = append(seats, s.Stats().InFlight)
	}
	return seats
}

func TestTheSeatsOfAChainAreGivenBackTogetherOnce(t *testing.T) {
	play(t, "inf depth 9 inflight 2", func(g *stage) {
		tenant := mustMake(g.t, limitsOf(g.t, "inf depth 9 inflight 2"))
		free := mustMake(g.t, limitsOf(g.t, "inf")) // without a cap, so it gives no seats
		other := &semaphore{limiterFunc: failing(errors.New("not to be called"))}
		c := shaper.Chain(tenant, free, other, shaper.Chain(g.Shaper), noRelease{}, rate.NewLimiter(rate.Inf, 1))
		for _, name := range []string{"a", "b", "c"} {
			g.acquireFor(c, name)
		}
		g.saw("0s a left", "0s b left")
		require.Equal(t, []int{2, 2}, seatsOf(tenant, g.Shaper))
		g.release("a", "a")
		g.saw("0s c left")
		require.Equal(t, []int{2, 2}, seatsOf(tenant, g.Shaper))
		require.EqualValues(t, 1, other.released.Load())
		g.release("a", "b", "c", "b")
		require.Equal(t, []int{0, 0}, seatsOf(tenant, g.Shaper))
		require.EqualValues(t, 3, other.released.Load())
	})
}

func TestASeatIsGivenBackWhenALaterLimiterDoesNotAdmit(t *testing.T) {
	failure := errors.New("engine is down")
	for _, row := range []struct {
		name string
		last func(cancel func()) shaper.Limiter
		want string
	}{
		{"refused", func(func()) shaper.Limiter { return failing(failure) }, failure.Error()},
		{"panics", func(func()) shaper.Limiter {
			return limiterFunc(func(context.Context, int) error { panic(failure) })
		}, "panic: " + failure.Error()},
		{"context ended unseen", func(cancel func()) shaper.Limiter {
			return limiterFunc(func(context.Context, int) error { cancel(); return nil })
		}, "cancelled"},
		{"context ended unseen, with a seat", func(cancel func()) shaper.Limiter {
			return &semaphore{acquire: cancel}
		}, "cancelled"},
	} {
		t.Run(row.name, func(t *testing.T) {
			play(t, "inf depth 9 inflight 1", func(g *stage) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				other := &semaphore{}
				last := row.last(cancel)
				c := shaper.Chain(other, g.Shaper, last)
				func() {
					defer func() {
						if p := recover(); p != nil {
							g.note("panic: " + p.(error).Error())
						}
					}()
					release, err := acquirerOf(c)(ctx, 1)
					release() // It is never nil, and does nothing here.
					g.note(outcome(err))
				}()
				g.saw("0s " + row.want)
				require.Equal(t, []int{0}, seatsOf(g.Shaper))
				require.EqualValues(t, 1, other.released.Load())
				if s, ok := last.(*semaphore); ok {
					require.EqualValues(t, 1, s.released.Load())
				}
			})
		})
	}
}

// A request that waits in a later line is in flight for an earlier cap, until its context
// ends.
func TestASeatIsHeldWhileTheRequestWaitsInALaterLine(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		tenant := mustMake(g.t, limitsOf(g.t, "inf depth 9 inflight 2"))
		c := shaper.Chain(tenant, g.Shaper)
		for _, name := range []string{"a", "b", "c"} {
			g.acquireFor(c, name)
		}
		require.Equal(t, 1, tenant.Stats().Waiting)
		g.at(300 * ms)
		g.cancel("b")
		require.Zero(t, tenant.Stats().Waiting)
		require.Equal(t, []int{2}, seatsOf(tenant))
		g.at(time.Minute)
		g.saw("0s a left", "300ms b cancelled", "1s c left")
		g.release("a", "b", "c")
		require.Equal(t, []int{0}, seatsOf(tenant))
	})
}

// brittle is a Limiter whose release panics.
type brittle struct{ limiterFunc }

func (brittle) Acquire(context.Context, int) (release func(), err error) {
	return func() { panic("brittle") }, nil
}

func TestAReleaseThatPanicsKeepsNoOtherSeat(t *testing.T) {
	play(t, "inf inflight 1", func(g *stage) {
		last := mustMake(g.t, limitsOf(g.t, "inf inflight 1"))
		release, err := acquirerOf(shaper.Chain(g.Shaper, brittle{}, last))(context.Background(), 1)
		require.NoError(t, err)
		require.PanicsWithValue(t, "brittle", release)
		require.Equal(t, []int{0, 0}, seatsOf(g.Shaper, last))
	})
}

// A cap needs to know when a request ends, and WaitN does not tell it.
func TestWaitNOfAChainWithACapSaysToUseAcquire(t *testing.T) {
	s := mustMake(t, limitsOf(t, "inf inflight 1"))
	require.ErrorContains(t, shaper.Chain(failing(nil), s).WaitN(t.Context(), 1), "Acquire")
	require.Zero(t, s.Stats().InFlight)
}
