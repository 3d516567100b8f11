package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// This file tests which requests leave a Chain, its seats, a Chain with Middleware and Transport,
// Limiters with a cost of their own, and the methods that are looked for in a Limiter.

// arriveFor is arrive for a Limiter other than the stage's own.
func (g *stage) arriveFor(l shaper.Limiter, name string, n int) {
	ctx := g.cancellable(name)
	g.calls(name, func() error { return l.WaitN(ctx, n) })
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
	for name, call := range limiterCalls {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			deaf := limiterFunc(func(context.Context, int) error { cancel(); return nil })
			c := shaper.Chain(deaf, limiterFunc(func(context.Context, int) error {
				t.Error("asked")
				return nil
			}))
			require.Equal(t, context.Canceled, call(c, ctx, 1))
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

func TestMiddlewareOfAChain(t *testing.T) {
	play(t, "1/s depth 1", func(g *stage) {
		tenant := mustMake(g.t, limitsOf(g.t, "1 per 10s burst 3"))
		v := newSite(g, shaper.Chain(tenant, g.Shaper), shaper.WithHeaders(shaper.HeaderRateLimit))
		for _, name := range []string{"a", "b", "c", "d"} {
			v.visit(name)
		}
		g.at(time.Minute)
		g.saw("0s a runs", "0s a 200",
			"0s c 429, retry 1",  // the site's line is full
			"0s d 429, retry 10", // c has used up the tenant's Burst
			"1s b runs", "1s b 200")
		// There is no one bucket whose state the fields could show.
		policy, state := fieldsOf(v, "e")
		require.Empty(t, policy)
		require.Empty(t, state)
		require.NoError(t, g.Close())
		g.saw("1m0s e runs")
		require.Equal(t, "503, retry 1", statusLine(answerOf(v, t.Context(), "f")))
	})
}

func TestTransportOfAChain(t *testing.T) {
	playTransport(t, "2/s depth 9", func(u *upstream) {
		tenant := mustMake(u.stage.t, limitsOf(u.stage.t, "1/s depth 9"))
		u.Limiter = shaper.Chain(tenant, u.Shaper)
		u.script["a"] = []string{"429 -\nRateLimit: \"default\";r=0;t=30"}
		u.call("a", "b", "c")
		require.Equal(t, u.start.Add(30*time.Second), tenant.Stats().HeldUntil)
		require.Equal(t, u.start.Add(30*time.Second), u.Stats().HeldUntil)
		u.at(time.Hour)
		u.saw("0s a sent", "0s a 429: body", "30s b sent", "30s b 200: body", "31s c sent", "31s c 200: body")
	})
}

// A request that is sent again has left each line before, so it enters each at the head.
func TestARetryThroughAChainEntersEachLineAtTheHead(t *testing.T) {
	playTransport(t, "2/s depth 9", func(u *upstream) {
		tenants := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 1, Depth: 2}, nil }))
		defer tenants.Close()
		u.Limiter = shaper.Chain(u.Shaper, shaper.Chain(tenants.Limiter("a")), rate.NewLimiter(rate.Inf, 1))
		u.Retry = true
		u.took = ms
		u.script["a"] = []string{refusedFor30}
		u.call("a", "b", "c")
		u.at(time.Hour)
		// The line of the tenant is full when the retry comes to it: b and c have left the first one.
		u.saw("0s a sent", "30.001s a sent", "30.002s a 200: body", "31.001s b sent", "31.002s b 200: body", "32.001s c sent", "32.002s c 200: body")
	})
}

// If no Limiter of a Chain can be held, the Chain is treated like x/time's limiter
// alone: only the request that was asked to hold back waits.
func TestARetryThroughAChainThatCannotHoldWaitsByItself(t *testing.T) {
	playTransport(t, "inf", func(u *upstream) {
		u.Limiter = shaper.Chain(rate.NewLimiter(1, 1), shaper.Chain(rate.NewLimiter(1, 1)))
		u.Retry = true
		u.script["a"] = []string{refusedFor30}
		u.call("a")
		u.at(time.Hour)
		u.saw("0s a sent", "30s a sent", "30s a 200: body")
	})
}

// If any of the lines is full, the refusal does not wait for a small body, and the
// limits of a key are not asked for before the request enters.
func TestABodyIsReadAheadForAChain(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 9)
	tenants, err := shaper.NewGroup(func(key string) (shaper.Limits, error) {
		asked <- key
		return shaper.Limits{Rate: 1, Burst: 9}, nil
	})
	require.NoError(t, err)
	defer tenants.Close()
	for _, row := range []struct {
		name  string
		depth int
		came  int // times that limits were asked for
	}{{"full", 0, 0}, {"not full", 1, 1}} {
		t.Run(row.name, func(t *testing.T) {
			e := newBlindEntrance(t, row.depth)
			e.Config.ReadTimeout = time.Minute
			e.limiter = shaper.Chain(e.Shaper, tenants.Limiter(row.name))
			e.open()
			if row.depth == 0 {
				e.visit(post("/", "he")).reads(429)
			} else {
				v := e.visit(post("/", "he"))
				e.waiting(1)
				v.send("llo")
				e.admit("inf depth 1")
				v.reads(200)
			}
			require.Len(t, asked, row.came)
		})
	}
}

// After its slot a call asks its context once, and only then counts as having left. If
// the context were asked again and had ended, the slot would be spent on a request that
// is not sent.
func TestAContextIsNotAskedAgainWhenTheSlotIsSpent(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		group := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return g.Limits(), nil }))
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

// If a Chain or a Priced with a nil Limiter lacked a method, a caller that looks for the method
// would panic or do without it, and would never learn that a Limiter is nil.
func TestANilLimiterIsAnErrorOfEveryCall(t *testing.T) {
	const noLimiter, noCost = "shaper: Priced: the Limiter is nil", "shaper: Priced: cost is nil, must be a function"
	other := rate.NewLimiter(1, 1)
	const second = "shaper: Chain: Limiter 1 is nil"
	free := func(int) int { return 0 }
	for _, c := range []struct {
		l    shaper.Limiter
		want string
	}{
		{shaper.Priced(nil, one), noLimiter}, {shaper.Priced(other, nil), noCost},
		{shaper.Priced(shaper.Chain(other, nil), one), second}, {shaper.Priced(shaper.Chain(other, nil), free), second},
		{shaper.Chain(shaper.Priced(other, nil)), noCost}, {shaper.Chain(shaper.Priced(nil, one), other), noLimiter},
		{shaper.Chain(other, nil, other), second}, {shaper.Chain(other, shaper.Chain(other, nil)), second}, {shaper.Priced(shaper.Chain(shaper.Priced(other, nil)), free), noCost},
	} {
		for n := range 2 {
			require.EqualError(t, c.l.WaitN(t.Context(), n), c.want)
			release, err := acquirerOf(c.l)(t.Context(), n)
			require.EqualError(t, err, c.want)
			release()
			wait, err := c.l.(forecaster).Forecast(n)
			require.EqualError(t, err, c.want)
			require.Zero(t, wait)
		}
		c.l.(interface{ Hold(time.Duration) }).Hold(time.Second)
		require.Equal(t, "503, retry 1", statusLine(answerOf(shaper.Middleware(c.l)(nil), t.Context(), "")))
		r, err := http.NewRequest("GET", "http://upstream/", nil)
		require.NoError(t, err)
		_, err = shaper.Transport{Limiter: c.l, Retry: true}.RoundTrip(r)
		require.EqualError(t, err, c.want)
	}
	require.PanicsWithValue(t, "shaper: this Shaper is nil or zero and can't be used; make one with shaper.New", func() {
		shaper.Priced((*shaper.Shaper)(nil), one)
	})
}

// A type that embeds a Shaper has the Shaper's methods too, by which a Chain could pass
// over the type's own WaitN. With a cap that WaitN is not used, because only Acquire keeps
// the cap.
func TestAChainAsksTheWaitNThatIsAboutAShapers(t *testing.T) {
	for limits, want := range map[string]int{"inf": 1, "inf inflight 1": 0} {
		t.Run(limits, func(t *testing.T) {
			asked := 0
			s := mustMake(t, limitsOf(t, limits))
			release, err := acquirerOf(shaper.Chain(ownWait{s, &asked}))(t.Context(), 1)
			require.NoError(t, err)
			require.Equal(t, want, asked)
			require.Equal(t, 1-want, s.Stats().InFlight)
			release()
			require.Zero(t, s.Stats().InFlight)
		})
	}
}

// A Transport looks for the methods of its Limiter at each request, because the field may
// be set to another one. For a Shaper that allocates nothing, and for any other Limiter
// at most one object beside the Limiter's own.
func TestATransportAllocatesLittlePerRequest(t *testing.T) {
	free, capped := mustMake(t, limitsOf(t, "inf")), mustMake(t, limitsOf(t, "inf inflight 1"))
	group := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: rate.Inf}, nil }))
	defer group.Close()
	answer := &http.Response{StatusCode: 200, Body: http.NoBody}
	base := roundTripFunc(func(*http.Request) (*http.Response, error) { return answer, nil })
	for name, row := range map[string]struct {
		l    shaper.Limiter
		want float64
	}{
		"Shaper":       {free, 0},
		"with a cap":   {capped, 1}, // its release
		"key of Group": {group.Limiter("a"), 1},
		"Chain":        {shaper.Chain(free, free), 2},
		"x/time":       {rate.NewLimiter(rate.Inf, 1), 1},
	} {
		t.Run(name, func(t *testing.T) {
			transport := &shaper.Transport{Limiter: row.l, Base: base}
			r := must(http.NewRequestWithContext(t.Context(), "GET", "http://upstream/", nil))
			failed := 0
			got := testing.AllocsPerRun(1000, func() {
				if _, err := transport.RoundTrip(r); err != nil {
					failed++
				}
			})
			require.LessOrEqual(t, got, row.want)
			require.Zero(t, failed)
		})
	}
}

// In a dry run no request waits and none is refused, so the Forecast of a Chain must leave
// it out.
func TestForecastOfAChainLeavesOutDryRuns(t *testing.T) {
	play(t, "1 per 10s depth 9", func(g *stage) {
		dry := must(shaper.New(limitsOf(g.t, "1 per 1h depth 1"), shaper.WithDryRun()))
		group := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return limitsOf(g.t, "1 per 1h"), nil }, shaper.WithDryRun()))
		defer group.Close()
		key := group.Limiter("a")
		require.True(t, g.Allow())
		require.NoError(t, dry.Wait(t.Context()))
		require.NoError(t, key.WaitN(t.Context(), 1))
		for name, l := range map[string]shaper.Limiter{
			"Shaper": dry, "key of a Group": key, "Chain": shaper.Chain(dry), "Shaper inside": ownWait{dry, new(int)},
		} {
			wait, err := shaper.Chain(l, g.Shaper).Forecast(1)
			require.NoError(t, err, name)
			require.Equal(t, 10*time.Second, wait, name)
		}
	})
}

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
		bubble(t, name, func(t *testing.T) {
			s := mustMake(t, limitsOf(t, "1/s burst 100"))
			g := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return s.Limits(), nil }))
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
	}
}

// A cost of 0 passes a Limiter without a place in its line, also x/time's, where it can wait.
func TestARequestThatCostsALimiterNothingPassesIt(t *testing.T) {
	free := func(int) int { return 0 }
	for name, call := range costCalls {
		bubble(t, name, func(t *testing.T) {
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
