package shaper_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
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
		tenants, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 1, Depth: 2}, nil })
		require.NoError(t, err)
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
	group, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: rate.Inf}, nil })
	require.NoError(t, err)
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
			r, err := http.NewRequestWithContext(t.Context(), "GET", "http://upstream/", nil)
			require.NoError(t, err)
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
		dry, err := shaper.New(limitsOf(g.t, "1 per 1h depth 1"), shaper.WithDryRun())
		require.NoError(t, err)
		group, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return limitsOf(g.t, "1 per 1h"), nil }, shaper.WithDryRun())
		require.NoError(t, err)
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
