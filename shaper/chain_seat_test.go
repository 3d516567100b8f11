package shaper_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// acquireFor is acquire for a Limiter other than the stage's own.
func (g *stage) acquireFor(l shaper.Limiter, name string) {
	ctx, cancel := context.WithCancel(context.Background())
	g.cancels[name] = cancel
	go func() {
		release, err := acquirerOf(l)(ctx, 1)
		g.mu.Lock()
		g.releases[name] = release
		g.mu.Unlock()
		g.note(name + " " + outcome(err))
	}()
	synctest.Wait()
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

// After its slot a call asks its context once, and only then counts as having left. If
// the context were asked again and had ended, the slot would be spent on a request that
// is not sent.
func TestAContextIsNotAskedAgainWhenTheSlotIsSpent(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		group, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return g.Limits(), nil })
		require.NoError(t, err)
		defer group.Close()
		for _, row := range []struct {
			l     shaper.Limiter
			asked int // at entry, and after the wait
		}{
			{g.Shaper, 2}, {group.Limiter("a"), 2},
			{shaper.Chain(g.Shaper), 3}, {shaper.Chain(group.Limiter("a")), 3}, // the third time when the Limiter itself is entered
		} {
			time.Sleep(2 * time.Second)
			require.True(t, g.Allow()) // so that the next request waits
			require.True(t, group.Allow("a"))
			ctx := newLateCancel()
			u := upstream{stage: g, Transport: shaper.Transport{Limiter: row.l}}
			u.Base = roundTripFunc(u.answer)
			_, err := u.RoundTrip(u.request(ctx, "a", nil))
			require.NoError(t, err)
			require.Equal(t, row.asked, ctx.asked, "%T", row.l)
		}
	})
}
