package shaper_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

func TestMiddlewareOfAChain(t *testing.T) {
	play(t, "1/s depth 1", func(g *stage) {
		tenant := mustMake(g.t, limitsOf(g.t, "1 per 10s burst 3"))
		v := newSite(g, shaper.Chain(tenant, g.Shaper), shaper.WithRateLimitHeaders())
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
	h.ServeHTTP(struct {
		http.ResponseWriter
		http.Hijacker
	}{httptest.NewRecorder(), hijackerFunc(func() error { return nil })}, httptest.NewRequest("GET", "/hijacks", nil))
	require.Equal(t, 2, ran)
	require.Equal(t, "200", statusLine(answerOf(h, t.Context(), "")))
	require.Equal(t, []int{0, 0}, seatsOf(first, second))
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
