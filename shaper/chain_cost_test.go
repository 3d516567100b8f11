package shaper_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// one is the cost of a request where requests are counted.
func one(int) int { return 1 }

// An API allows 500 requests and 200,000 tokens a minute. A Chain that charged 1,000 requests for
// a request of 1,000 tokens would wait two minutes for the second one.
func TestEachLimiterOfAChainHasACostOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		requests := mustMake(t, limitsOf(t, "500/min burst 500 depth 9"))
		tokens := mustMake(t, limitsOf(t, "200000/min burst 200000 depth 9"))
		c := shaper.Chain(shaper.Priced(requests, one), tokens)
		require.NoError(t, c.WaitN(t.Context(), 1000))
		require.Equal(t, [2]float64{1, 1000}, [2]float64{requests.Stats().Level, tokens.Stats().Level})
		require.NoError(t, c.WaitN(t.Context(), 2000))
		require.Zero(t, time.Since(start))
		require.Equal(t, [2]float64{2, 3000}, [2]float64{requests.Stats().Level, tokens.Stats().Level})
	})
}

// costCalls are the ways in which a request of cost n comes to a Limiter and leaves it.
var costCalls = map[string]func(l shaper.Limiter, n int) error{
	"WaitN":            func(l shaper.Limiter, n int) error { return limiterCalls["WaitN"](l, context.Background(), n) },
	"Acquire":          func(l shaper.Limiter, n int) error { return limiterCalls["Acquire"](l, context.Background(), n) },
	"WaitN of a Chain": func(l shaper.Limiter, n int) error { return shaper.Chain(l).WaitN(context.Background(), n) },
	"Middleware": func(l shaper.Limiter, n int) error {
		h := shaper.Middleware(l, shaper.WithCost(func(*http.Request) int { return n }))(http.NotFoundHandler())
		if got := statusLine(answerOf(h, context.Background(), "")); got != "404" {
			return fmt.Errorf("%s", got)
		}
		return nil
	},
	"Transport": func(l shaper.Limiter, n int) error {
		r, err := http.NewRequest("GET", "http://api/", nil)
		if err != nil {
			return err
		}
		_, err = shaper.Transport{Limiter: l, Cost: func(*http.Request) int { return n }, Base: roundTripFunc(func(r *http.Request) (*http.Response, error) {
			return answerOfText("200 OK", r)
		})}.RoundTrip(r)
		return err
	},
}

func TestACostOfItsOwnIsChargedByEveryLimiterInEveryWay(t *testing.T) {
	half := func(n int) int { return n / 2 }
	for name, call := range costCalls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := mustMake(t, limitsOf(t, "1/s burst 100"))
				g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return s.Limits(), nil })
				require.NoError(t, err)
				defer g.Close()
				other := rate.NewLimiter(1, 100)
				for _, l := range []shaper.Limiter{s, g.Limiter("a"), other, shaper.Priced(shaper.Chain(s), half)} {
					require.NoError(t, call(shaper.Priced(l, half), 41))
				}
				require.EqualValues(t, 30, s.Stats().Level)
				st, _ := g.StatsOf("a")
				require.EqualValues(t, 20, st.Level)
				require.EqualValues(t, 80, other.Tokens())
			})
		})
	}
}

// A cost of 0 passes a Limiter without a place in its line, also x/time's, where it can wait.
func TestARequestThatCostsALimiterNothingPassesIt(t *testing.T) {
	free := func(int) int { return 0 }
	for name, call := range costCalls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, other := mustMake(t, limitsOf(t, "1/s depth 1 inflight 1")), rate.NewLimiter(1, 1)
				s.Hold(time.Hour)
				require.True(t, other.Allow())
				for _, l := range []shaper.Limiter{s, other, shaper.Chain(s, other)} {
					start := time.Now()
					require.NoError(t, call(shaper.Priced(l, free), 5))
					require.Zero(t, time.Since(start))
				}
				require.Zero(t, s.Stats().Departed)
			})
		})
	}
	ctx := closedContext()
	require.Equal(t, context.Canceled, shaper.Priced(rate.NewLimiter(1, 1), free).WaitN(ctx, 1))
}

// A request of no tokens is a request all the same.
func TestARequestOfCost0IsChargedWhereEachRequestIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests, other := mustMake(t, limitsOf(t, "1/s burst 9")), rate.NewLimiter(1, 1)
		require.True(t, other.Allow())
		l := shaper.Priced(requests, one)
		for i, c := range []shaper.Limiter{l, shaper.Chain(l, other), shaper.Chain(other, shaper.Chain(l))} {
			require.NoError(t, c.WaitN(t.Context(), 0))
			require.EqualValues(t, 2*i+1, requests.Stats().Level)
			release, err := acquirerOf(c)(t.Context(), 0)
			require.NoError(t, err)
			release()
			require.EqualValues(t, 2*i+2, requests.Stats().Level)
		}
	})
}

func TestANegativeCostOfItsOwnIsAMistake(t *testing.T) {
	s := mustMake(t, limitsOf(t, "1/s burst 9"))
	asked := 0
	l := shaper.Priced(s, func(n int) int { asked++; return -n })
	for name, call := range costCalls {
		want := shaper.ErrNegativeCost.Error()
		if name == "Middleware" {
			want = "500"
		}
		require.ErrorContains(t, call(l, 1), want, name)
		require.ErrorContains(t, call(l, -1), want, name)
	}
	require.Equal(t, len(costCalls), asked, "the function is not called for a negative cost")
	_, err := l.(forecaster).Forecast(1)
	require.Equal(t, shaper.ErrNegativeCost, err)
	require.Zero(t, s.Stats().Departed)
}

// What a Chain, a Middleware and a Transport look for in a Limiter is found behind the cost, too.
func TestACostOfItsOwnHidesNothingOfALimiter(t *testing.T) {
	play(t, "1/s depth 2 inflight 1", func(g *stage) {
		l := shaper.Priced(g.Shaper, one)
		require.ErrorContains(t, l.WaitN(t.Context(), 9), "use Acquire")
		release, err := acquirerOf(l)(t.Context(), 9)
		require.NoError(t, err)
		require.Equal(t, 1, l.(interface{ Stats() shaper.Stats }).Stats().InFlight)

		// A seat is given back when a later Limiter refuses, or the request ends.
		closed := mustMake(t, limitsOf(t, "1/s"))
		require.NoError(t, closed.Close())
		release()
		g.at(time.Second)
		_, err = acquirerOf(shaper.Chain(l, closed))(t.Context(), 9)
		require.ErrorIs(t, err, shaper.ErrClosed)
		require.Zero(t, g.Stats().InFlight)

		l.(interface{ Hold(time.Duration) }).Hold(time.Minute)
		require.Equal(t, g.start.Add(61*time.Second), g.Stats().HeldUntil)
		wait, err := l.(forecaster).Forecast(9)
		require.NoError(t, err)
		require.Equal(t, time.Minute, wait)
		policy, state := fieldsOf(newSite(g, l, shaper.WithHeaders(shaper.HeaderRateLimit)), "a")
		require.NotEmpty(t, policy)
		require.NotEmpty(t, state)
		require.NoError(t, g.Close())
	})
	other := shaper.Priced(rate.NewLimiter(1, 1), one)
	_, ok := other.(interface{ Stats() shaper.Stats })
	require.False(t, ok, "x/time's Limiter has no Stats")
}

func TestACostOfItsOwnInADryRunLeavesItsVerdict(t *testing.T) {
	play(t, "1/s", func(g *stage) {
		l := shaper.Priced(g.Shaper, one)
		for _, want := range []string{"left", "full, retry 1s"} {
			ctx := shaper.ContextWithVerdict(t.Context())
			require.NoError(t, shaper.Chain(l).WaitN(ctx, 9))
			v, ok := shaper.VerdictOf(ctx)
			require.True(t, ok)
			require.Equal(t, want, outcome(v.Err))
		}
		h := shaper.Middleware(l, shaper.WithVerdictHeader("X-Verdict"))(http.NotFoundHandler())
		require.NotEmpty(t, answerOf(h, t.Context(), "").Header.Get("X-Verdict"))
	}, shaper.WithDryRun())
}
