package shaper_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// holds is a Limiter that admits every request and records the holds it is asked for.
type holds []time.Duration

func (h *holds) WaitN(context.Context, int) error { return nil }
func (h *holds) Hold(d time.Duration)             { *h = append(*h, d) }

// holdFor returns the hold that a Transport takes from an answer, or 0 for none.
func holdFor(t *testing.T, answer *http.Response, maxHold time.Duration, whenExhausted bool) time.Duration {
	var asked holds
	transport := shaper.Transport{Limiter: &asked, MaxHold: maxHold, HoldWhenExhausted: whenExhausted, Base: roundTripFunc(
		func(*http.Request) (*http.Response, error) { return answer, nil })}
	r, err := http.NewRequest("GET", "http://upstream/", nil)
	require.NoError(t, err)
	got, err := transport.RoundTrip(r)
	require.NoError(t, err)
	require.Same(t, answer, got)
	if len(asked) == 0 {
		return 0
	}
	require.Len(t, asked, 1)
	require.Positive(t, asked[0], "a hold of 0 would end those of others")
	return asked[0]
}

// A refusal holds the line for as long as it asks, by the one field or the other. An
// answer that was served does so only with HoldWhenExhausted. How the fields are read is
// tested in package httpfield.
func TestResponsesThatHoldTheLine(t *testing.T) {
	const day = 24 * time.Hour
	const exhausted = `RateLimit: "a";r=0;t=30`
	for _, tt := range []struct {
		response      string
		want          time.Duration // with a MaxHold of a year; 0: none
		whenExhausted time.Duration // the same with HoldWhenExhausted
	}{
		{"429 -\nRetry-After: 5", 5 * time.Second, 5 * time.Second},
		{"503 -\nRetry-After: 5", 5 * time.Second, 5 * time.Second},
		{"429 -\nRetry-After: Wed, 01 Jan 9999 00:00:00 GMT", 365 * day, 365 * day},
		{"429 -\nRetry-After: 99999999999999999999999999", 365 * day, 365 * day},
		{"429 -\nRateLimit: \"a\";r=0;t=999999999999999", 365 * day, 365 * day},
		{"429 -\n" + exhausted, 30 * time.Second, 30 * time.Second},
		{"503 -\n" + exhausted, 30 * time.Second, 30 * time.Second},
		// If both are there, Retry-After counts; if it is malformed, RateLimit does.
		{"429 -\nRetry-After: 5\n" + exhausted, 5 * time.Second, 5 * time.Second},
		{"429 -\nRetry-After: soon\n" + exhausted, 30 * time.Second, 30 * time.Second},
		{"429 -\nRetry-After: 0\n" + exhausted, 30 * time.Second, 30 * time.Second},

		// No field says for how long.
		{"429 -", 0, 0},
		{"503 -", 0, 0},
		{"429 -\nRetry-After: soon", 0, 0},
		{"503 -\nRateLimit: \"a\";r=0", 0, 0},
		{"429 -\nRateLimit: \"a\";r=1;t=30", 0, 0},

		// An answer that was served, or that failed for another reason.
		{"200 OK", 0, 0},
		{"200 OK\n" + exhausted, 0, 30 * time.Second},
		{"404 -\n" + exhausted, 0, 30 * time.Second},
		{"500 -\n" + exhausted, 0, 30 * time.Second},
		// With these statuses Retry-After means something else.
		{"200 OK\nRetry-After: 5", 0, 0},
		{"301 -\nRetry-After: 5", 0, 0},
		{"500 -\nRetry-After: 5", 0, 0},
		{"502 -\nRetry-After: 5", 0, 0},
		{"200 OK\nRetry-After: 5\n" + exhausted, 0, 30 * time.Second},
	} {
		t.Run(tt.response, func(t *testing.T) {
			response, err := answerOfText(tt.response, nil)
			require.NoError(t, err)
			require.Equal(t, tt.want, holdFor(t, response, 365*day, false))
			require.Equal(t, tt.whenExhausted, holdFor(t, response, 365*day, true))
		})
	}
}

// No upstream can stop a client for longer than MaxHold.
func TestMaxHoldBoundsWhatIsTakenFromAnAnswer(t *testing.T) {
	for _, tt := range []struct{ maxHold, asked, want time.Duration }{
		{0, 59 * time.Second, 59 * time.Second},
		{0, 61 * time.Second, time.Minute},
		{time.Hour, 59 * time.Minute, 59 * time.Minute},
		{time.Hour, 61 * time.Minute, time.Hour},
		{ms, time.Second, ms},
	} {
		for _, form := range []string{"429 -\nRetry-After: %d", "200 OK\nRateLimit: \"a\";r=0;t=%d"} {
			answer, err := answerOfText(fmt.Sprintf(form, tt.asked/time.Second), nil)
			require.NoError(t, err)
			require.Equal(t, tt.want, holdFor(t, answer, tt.maxHold, true))
		}
	}
}

// One 429 holds all requests that wait, and they keep their order. A request of cost 0
// does not wait.
func TestOne429HoldsTheWholeLine(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.script["b"] = []string{"429 Too Many Requests\nRetry-After: 30"}
		u.call("a", "b", "c", "d", "e")
		u.at(2 * time.Second)
		u.saw("0s a sent", "0s a 200: body", "1s b sent", "1s b 429, retry 30: body")
		require.Equal(t, u.start.Add(31*time.Second), u.Stats().HeldUntil)
		wait, err := u.Forecast(1)
		require.NoError(t, err)
		require.Equal(t, 32*time.Second, wait)
		u.cancel("d")
		u.Cost = costInQuery
		u.callWith(u.request(context.Background(), "free?cost=0", nil), true)
		u.at(time.Minute)
		u.saw("2s d cancelled", "2s free sent", "2s free 200: body",
			"31s c sent", "31s c 200: body", "32s e sent", "32s e 200: body")
	})
}

// A request of cost 0 can be refused too, and that refusal holds the others.
func TestAnAnswerToARequestOfNoCostHoldsTheLine(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.Cost = costInQuery
		u.script["free"] = []string{"429 -\nRateLimit: \"a\";r=0;t=30"}
		u.callWith(u.request(context.Background(), "free?cost=0", nil), true)
		u.call("a")
		u.at(time.Minute)
		u.saw("0s free sent", "0s free 429: body", "30s a sent", "30s a 200: body")
	})
}

// Two shapers with the same limits stand in a row, and the second adds RateLimit fields.
// Each response says that nothing remains for a second, because the field has no shorter
// time, although the next slot comes in 100 ms. If that held the line, the 21 requests
// would take 10 s.
func TestTwoOfOursDoNotSlowEachOther(t *testing.T) {
	playTransport(t, "10/s burst 2 depth 5", func(u *upstream) {
		server := mustMake(u.t, limitsOf(u.t, "10/s burst 2"))
		site := newSite(u.stage, server, shaper.WithRateLimitHeaders())
		u.Base = roundTripFunc(func(r *http.Request) (*http.Response, error) {
			return answerOf(site, r.Context(), ""), nil
		})
		var last *http.Response
		for range 21 {
			var err error
			last, err = u.RoundTrip(u.request(context.Background(), "", nil))
			require.NoError(u.t, err)
			require.Equal(u.t, "200", statusLine(last))
		}
		require.Equal(u.t, 1900*ms, time.Since(u.start))
		require.Equal(u.t, `"default";r=0;t=1`, last.Header.Get("RateLimit"))
	})
}

// With HoldWhenExhausted, which is for an upstream that refuses nothing but counts what
// comes too early, each answer holds the line.
func TestAServedAnswerHoldsTheLineIfWanted(t *testing.T) {
	const exhausted = "200 OK\nRateLimit: \"a\";r=0;t=1"
	playTransport(t, "10/s depth 5", func(u *upstream) {
		u.script["a"] = []string{exhausted, exhausted, exhausted, exhausted, exhausted, exhausted}
		u.HoldWhenExhausted = true
		u.fetch("a", "a", "a")
		u.at(10 * time.Second)
		u.saw("0s a sent", "0s a 200", "1s a sent", "1s a 200", "2s a sent", "2s a 200")
		u.HoldWhenExhausted = false
		u.fetch("a", "a", "a")
		u.at(time.Minute)
		u.saw("10s a sent", "10s a 200", "10.1s a sent", "10.1s a 200", "10.2s a sent", "10.2s a 200")
	})
}

// Of two holds the one that ends later counts. After it the line leaves by the bucket's
// rule.
func TestTheLaterOfTwoHoldsCounts(t *testing.T) {
	playTransport(t, "1/s burst 3 depth 5", func(u *upstream) {
		u.script["a"] = []string{"429 -\nRetry-After: 10"}
		u.script["b"] = []string{"503 -\nRetry-After: 30"}
		u.script["c"] = []string{"429 -\nRetry-After: 5"}
		u.took = time.Second
		u.call("a", "b", "c", "d")
		u.at(time.Second)
		u.saw("0s a sent", "0s b sent", "0s c sent", "1s a 429, retry 10: body", "1s b 503, retry 30: body",
			"1s c 429, retry 5: body", "1s d sent")
		u.call("e", "f")
		u.at(time.Minute)
		u.saw("2s d 200: body", "31s e sent", "31s f sent", "32s e 200: body", "32s f 200: body")
	})
}
