package shaper_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// This file tests which requests leave a Chain, and what they cost. chain_seat_test.go
// tests its seats, and chain_http_test.go tests it with Middleware and Transport.

// arriveFor is arrive for a Limiter other than the stage's own.
func (g *stage) arriveFor(l shaper.Limiter, name string, n int) {
	ctx, cancel := context.WithCancel(context.Background())
	g.cancels[name] = cancel
	go func() { g.note(name + " " + outcome(l.WaitN(ctx, n))) }()
	synctest.Wait()
}

func TestAChainAsksInOrderAndStopsAtARefusal(t *testing.T) {
	var asked []int
	refusal := errors.New("no")
	link := func(i int, err error) shaper.Limiter {
		return limiterFunc(func(_ context.Context, n int) error {
			asked = append(asked, i*10+n)
			return err
		})
	}
	links := []shaper.Limiter{link(1, nil), link(2, nil), link(3, refusal), link(4, nil)}
	c := shaper.Chain(links...)
	links[0] = nil // The Chain has a copy of the slice.
	require.Equal(t, refusal, c.WaitN(t.Context(), 7))
	require.Equal(t, []int{17, 27, 37}, asked)

	asked = nil
	release, err := acquirerOf(c)(t.Context(), 7)
	require.Equal(t, refusal, err)
	release()
	require.Equal(t, []int{17, 27, 37}, asked)
}

// acquirerOf returns the method Acquire of a Limiter that has one.
func acquirerOf(l shaper.Limiter) func(context.Context, int) (func(), error) {
	return l.(interface {
		Acquire(context.Context, int) (func(), error)
	}).Acquire
}

func TestARequestThatHasLeftTheFirstLimiterWaitsForTheNext(t *testing.T) {
	play(t, "1/s depth 2", func(g *stage) {
		tenant := mustMake(g.t, limitsOf(g.t, "2/s depth 9"))
		c := shaper.Chain(tenant, g.Shaper)
		for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
			g.arriveFor(c, name, 1)
		}
		g.at(time.Minute)
		// Requests come to the second Limiter every 500 ms. When f comes, d and e are in line there.
		g.saw("0s a left", "1s b left", "2s c left", "3s d left", "4s e left", "2.5s f full, retry 500ms")
		require.EqualValues(t, 6, tenant.Stats().Departed)
		require.EqualValues(t, 5, g.Stats().Departed)
	})
}

func TestARefusalByALaterLimiterReturnsNothingToEarlierOnes(t *testing.T) {
	play(t, "1 per 60s", func(g *stage) {
		tenant := mustMake(g.t, limitsOf(g.t, "1 per 1h burst 3"))
		c := shaper.Chain(tenant, g.Shaper)
		require.True(t, g.Allow())
		g.at(10 * time.Second)
		g.arriveFor(c, "a", 1)
		g.saw("10s a full, retry 50s") // the RetryAfter of the Limiter that refused
		require.EqualValues(t, 1, tenant.Stats().Departed)
		g.arriveFor(c, "b", 1)
		g.arriveFor(c, "c", 1)
		g.at(time.Minute)
		before := g.Stats()
		g.arriveFor(c, "d", 1)
		g.saw("10s b full, retry 50s", "10s c full, retry 50s", "1m0s d full, retry 59m10s")
		require.Equal(t, before, g.Stats(), "the second was not asked")
	})
}

func TestAContextEndsInALaterLine(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		tenant := mustMake(g.t, limitsOf(g.t, "10/s burst 9 depth 9"))
		c := shaper.Chain(tenant, g.Shaper)
		for _, name := range []string{"a", "gone", "b"} {
			g.arriveFor(c, name, 1)
		}
		g.at(400 * ms)
		g.cancel("gone")
		g.at(time.Minute)
		g.saw("0s a left", "400ms gone cancelled", "1s b left")
		require.EqualValues(t, 3, tenant.Stats().Departed)
		require.EqualValues(t, 0, tenant.Stats().Abandoned)
		require.EqualValues(t, 1, g.Stats().Abandoned)
	})
}

// A foreign Limiter need not look at the context after its wait.
func TestALaterLimiterIsNotAskedWhenTheContextHasEnded(t *testing.T) {
	for name, call := range map[string]func(l shaper.Limiter, ctx context.Context) error{
		"WaitN":   func(l shaper.Limiter, ctx context.Context) error { return l.WaitN(ctx, 1) },
		"Acquire": func(l shaper.Limiter, ctx context.Context) error { _, err := acquirerOf(l)(ctx, 1); return err },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			deaf := limiterFunc(func(context.Context, int) error { cancel(); return nil })
			c := shaper.Chain(deaf, limiterFunc(func(context.Context, int) error {
				t.Error("asked")
				return nil
			}))
			require.Equal(t, context.Canceled, call(c, ctx))
		})
	}
}

// A Chain makes the checks of a Shaper, in the same order, before it asks any Limiter: a
// negative cost would let more through x/time's limiter, and a cost of 0 can wait there.
func TestAChainLooksAtACallBeforeItAsks(t *testing.T) {
	unasked := limiterFunc(func(context.Context, int) error {
		t.Error("asked")
		return nil
	})
	for name, c := range map[string]shaper.Limiter{"of one": shaper.Chain(unasked), "of none": shaper.Chain()} {
		t.Run(name, func(t *testing.T) {
			acquire := acquirerOf(c)
			for _, row := range []struct {
				ctx  context.Context
				n    int
				want error
			}{
				{closedContext(), -1, shaper.ErrNegativeCost},
				{t.Context(), -1, shaper.ErrNegativeCost},
				{closedContext(), 0, context.Canceled},
				{closedContext(), 1, context.Canceled},
				{t.Context(), 0, nil},
			} {
				require.Equal(t, row.want, c.WaitN(row.ctx, row.n))
				release, err := acquire(row.ctx, row.n)
				require.Equal(t, row.want, err)
				release()
			}
		})
	}
	none := shaper.Chain()
	require.NoError(t, none.WaitN(t.Context(), 1e9))
	wait, err := none.Forecast(1)
	require.NoError(t, err)
	require.Zero(t, wait)
}

type forecaster interface {
	Forecast(n int) (time.Duration, error)
}

// If a Chain with a nil Limiter lacked a method, a caller that looks for the method would
// panic or do without it, and would never learn that a Limiter is nil.
func TestANilInAChainIsAnErrorOfEveryCall(t *testing.T) {
	for name, c := range map[string]shaper.Limiter{
		"Chain":            shaper.Chain(failing(nil), nil, failing(nil)),
		"Chain in a Chain": shaper.Chain(failing(nil), shaper.Chain(failing(nil), nil)),
	} {
		t.Run(name, func(t *testing.T) {
			const want = "shaper: Chain: Limiter 1 is nil"
			for range 2 {
				require.EqualError(t, c.WaitN(t.Context(), 1), want)
				release, err := acquirerOf(c)(t.Context(), 1)
				require.EqualError(t, err, want)
				release()
				wait, err := c.(forecaster).Forecast(1)
				require.EqualError(t, err, want)
				require.Zero(t, wait)
				c.(interface{ Hold(time.Duration) }).Hold(time.Second)
			}
			h := shaper.Middleware(c)(nil)
			require.Equal(t, "503, retry 1", statusLine(answerOf(h, t.Context(), "")))
			r, err := http.NewRequest("GET", "http://upstream/", nil)
			require.NoError(t, err)
			_, err = shaper.Transport{Limiter: c, Retry: true}.RoundTrip(r)
			require.EqualError(t, err, want)
		})
	}
}

// A nil pointer in a Limiter is not a nil Limiter, because the methods of some types work
// on it. For a nil *Shaper Chain itself panics and says why; other types may panic when
// they are called.
func TestANilPointerInAChainPanics(t *testing.T) {
	require.PanicsWithValue(t, "shaper: this Shaper is nil or zero and can't be used; make one with shaper.New", func() {
		shaper.Chain((*shaper.Shaper)(nil))
	})
	c := shaper.Chain((*rate.Limiter)(nil))
	require.Panics(t, func() { _ = c.WaitN(t.Context(), 1) })
	require.NoError(t, shaper.Chain((*idle)(nil)).WaitN(t.Context(), 1))
}

// An idle is a Limiter whose methods work on a nil pointer.
type idle struct{}

func (*idle) WaitN(context.Context, int) error { return nil }

func TestForecastOfAChain(t *testing.T) {
	play(t, "1 per 10s depth 1", func(g *stage) {
		tenant := mustMake(g.t, limitsOf(g.t, "1 per 3s depth 2"))
		other := rate.NewLimiter(1, 1)
		c := shaper.Chain(other, shaper.Chain(tenant), g.Shaper)
		expect := func(wait time.Duration, n int, word string) {
			t.Helper()
			got, err := c.Forecast(n)
			require.Equal(t, word, outcome(err))
			require.Equal(t, wait, got)
		}
		expect(0, 1, "left")
		g.arriveFor(tenant, "a", 1)
		expect(3*time.Second, 1, "left")
		require.True(t, g.Allow())
		expect(10*time.Second, 1, "left")
		g.arrive("b", 1)
		expect(0, 1, "full, retry 10s")
		g.arriveFor(tenant, "c", 1)
		g.arriveFor(tenant, "d", 1)
		expect(0, 1, "full, retry 3s") // the first refusal
		expect(0, 0, "left")
		expect(0, -1, shaper.ErrNegativeCost.Error())
		st := tenant.Stats()
		require.Equal(t, [3]uint64{1, 0, 2}, [3]uint64{st.Departed, st.Refused, uint64(st.Waiting)}, "nothing is taken or counted")
		require.InDelta(t, 1, other.Tokens(), 0)
		require.NoError(t, tenant.Close())
		g.at(time.Minute)
	})
}

// A Hold holds every Limiter that can be held, also in a Chain within a Chain.
func TestHoldOfAChain(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		tenant := mustMake(g.t, limitsOf(g.t, "1/s depth 9"))
		c := shaper.Chain(rate.NewLimiter(1, 1), shaper.Chain(tenant), g.Shaper)
		hold := c.Hold
		hold(time.Minute)
		require.Equal(t, g.start.Add(time.Minute), tenant.Stats().HeldUntil)
		require.Equal(t, g.start.Add(time.Minute), g.Stats().HeldUntil)
		hold(0)
		require.Zero(t, tenant.Stats().HeldUntil)
		require.Zero(t, g.Stats().HeldUntil)
	})
}

func TestAChainWithAnothersLimiter(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		c := shaper.Chain(rate.NewLimiter(rate.Every(2*time.Second), 1), g.Shaper)
		for _, name := range []string{"a", "b", "c"} {
			g.arriveFor(c, name, 1)
		}
		g.at(time.Minute)
		g.saw("0s a left", "2s b left", "4s c left")
	})
}

// The tenant's bucket comes before the site's, so a tenant that has used up its own
// takes nothing from the others.
func TestTenantThenSite(t *testing.T) {
	playKeys(t, "1 per 10s burst 2", func(g *groupStage) {
		site := mustMake(g.t, limitsOf(g.t, "1/s depth 9"))
		for _, name := range []string{"a1", "a2", "a3", "a4", "b1", "b2"} {
			g.stage.arriveFor(shaper.Chain(g.Limiter(name[:1]), site), name, 1)
		}
		g.at(time.Minute)
		g.saw("0s a1 left", "1s a2 left", "0s a3 full, retry 10s", "0s a4 full, retry 10s", "2s b1 left", "3s b2 left")
		require.EqualValues(t, 4, site.Stats().Departed)
	})
}

// Many goroutines call one Chain at once. Each request that leaves the Chain has left each
// of its Limiters.
func TestAChainIsSafeForConcurrentUse(t *testing.T) {
	play(t, "1000/s depth 99", func(g *stage) {
		tenant := mustMake(g.t, limitsOf(g.t, "2000/s depth 99"))
		c := shaper.Chain(tenant, shaper.Chain(g.Shaper))
		var callers sync.WaitGroup
		for range 10 {
			callers.Go(func() {
				for range 20 {
					if err := c.WaitN(context.Background(), 1); err != nil {
						t.Errorf("WaitN: %v", err)
					}
				}
			})
		}
		callers.Wait()
		require.Equal(t, 199*ms, time.Since(g.start))
		require.EqualValues(t, 200, tenant.Stats().Departed)
		require.EqualValues(t, 200, g.Stats().Departed)
	})
}
