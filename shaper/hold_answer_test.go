package shaper_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// holds is a Limiter that admits everybody and keeps the holds it is asked for.
type holds []time.Duration

func (h *holds) WaitN(context.Context, int) error { return nil }
func (h *holds) Hold(d time.Duration)             { *h = append(*h, d) }

// holdFor is the hold that a Transport takes from an answer, or 0 for none.
func holdFor(t testing.TB, answer *http.Response, maxHold time.Duration, whenExhausted bool) time.Duration {
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

// What an answer asks for is held, and nothing else is. The bubble's clock
// starts at midnight of 1 January 2000.
func TestAnswersThatHoldTheLine(t *testing.T) {
	const day = 24 * time.Hour
	for _, tt := range []struct {
		answer string
		want   time.Duration // with a MaxHold of a year and HoldWhenExhausted; 0: none
	}{
		{"429 -\nRetry-After: 5", 5 * time.Second},
		{"503 -\nRetry-After: 5", 5 * time.Second},
		{"429 -\nRetry-After:  007 ", 7 * time.Second},
		{"429 -\nRetry-After: 31536001", 365 * day}, // MaxHold
		{"429 -\nRetry-After: 99999999999999999999999999", 365 * day},

		// Nobody has asked.
		{"429 -", 0},
		{"503 -", 0},
		{"200 OK", 0},
		// There it means something else.
		{"200 OK\nRetry-After: 5", 0},
		{"301 -\nRetry-After: 5", 0},
		{"500 -\nRetry-After: 5", 0},
		// Garbage, nothing, and the past.
		{"429 -\nRetry-After: 0", 0},
		{"429 -\nRetry-After: -5", 0},
		{"429 -\nRetry-After: +5", 0},
		{"429 -\nRetry-After: 5.5", 0},
		{"429 -\nRetry-After: 5s", 0},
		{"429 -\nRetry-After: 5, 6", 0},
		{"429 -\nRetry-After: 0x5", 0},
		{"429 -\nRetry-After: ٥", 0},
		{"429 -\nRetry-After: soon", 0},
		{"429 -\nRetry-After:", 0},
		{"429 -\nRetry-After: Sat, 01 Jan 2000 00:00:00 GMT", 0},
		{"429 -\nRetry-After: Fri, 31 Dec 1999 23:59:59 GMT", 0},
		{"429 -\nRetry-After: Sat, 01 Jan 2000 00:00:07", 0},

		// Dates in each of the three forms that a recipient has to know.
		{"429 -\nRetry-After: Sat, 01 Jan 2000 00:00:07 GMT", 7 * time.Second},
		{"503 -\nRetry-After: Saturday, 01-Jan-00 00:00:07 GMT", 7 * time.Second},
		{"503 -\nRetry-After: Sat Jan  1 00:00:07 2000", 7 * time.Second},
		{"429 -\nRetry-After: Wed, 01 Jan 9999 00:00:00 GMT", 365 * day},
		// The upstream's own clock counts, if it has told it.
		{"429 -\nDate: Sat, 01 Jan 2022 00:00:00 GMT\nRetry-After: Sat, 01 Jan 2022 00:00:07 GMT", 7 * time.Second},
		{"429 -\nDate: Sat, 01 Jan 2022 00:00:00 GMT\nRetry-After: Sat, 01 Jan 2000 00:00:07 GMT", 0},
		{"429 -\nDate: today\nRetry-After: Sat, 01 Jan 2000 00:00:07 GMT", 7 * time.Second},

		// RateLimit, on any status.
		{"200 OK\nRateLimit: \"default\";r=0;t=30", 30 * time.Second},
		{"404 -\nRateLimit: \"default\";r=0;t=30", 30 * time.Second},
		{"429 -\nRateLimit: \"default\";r=0;t=30", 30 * time.Second},
		{"503 -\nRateLimit: \"default\";r=0;t=30", 30 * time.Second},
		{"200 OK\nRateLimit: \"a\";r=0;t=3, \"b\";r=0;t=9, \"c\";r=0;t=5", 9 * time.Second},
		{"200 OK\nRateLimit: \"a\";r=0;t=3\nRateLimit: \"b\";r=0;t=9", 9 * time.Second},
		{"200 OK\nRateLimit: \"a\";r=5;t=30, \"b\";r=0;t=9", 9 * time.Second},
		{"200 OK\nRateLimit: \"a\";t=9;r=0;pk=:cHsdsRa894==:", 9 * time.Second},
		{"200 OK\nRateLimit: default;r=0;t=9", 9 * time.Second},
		{"200 OK\nRateLimit: \"a\"; r=0;  t=9;x;y=?1;z=1.5;s=\"\\\"\";k=wo/rd", 9 * time.Second},
		{"200 OK\nRateLimit: \"a\";r=1;r=0;t=1;t=9", 9 * time.Second}, // The last counts.
		{"200 OK\nRateLimit: \"a\";r=0;t=999999999999999", 365 * day},
		// The fields of a refusal, and which of them counts.
		{"429 -\nRetry-After: 5\nRateLimit: \"a\";r=0;t=30", 5 * time.Second},
		{"200 OK\nRetry-After: 5\nRateLimit: \"a\";r=0;t=30", 30 * time.Second},
		{"429 -\nRetry-After: soon\nRateLimit: \"a\";r=0;t=30", 30 * time.Second},

		// Something remains, or nobody says until when, or it is over.
		{"200 OK\nRateLimit: \"a\";r=1;t=30", 0},
		{"200 OK\nRateLimit: \"a\";r=0", 0},
		{"200 OK\nRateLimit: \"a\";t=30", 0},
		{"200 OK\nRateLimit: \"a\";r=0;t=0", 0},
		{"200 OK\nRateLimit: \"a\";r=0;t=-5", 0},
		{"200 OK\nRateLimit: \"a\";r=-1;t=5", 0},
		{"200 OK\nRateLimit: \"a\";r=0;t=5.0", 0},
		{"200 OK\nRateLimit: \"a\";r=0.0;t=5", 0},
		{"200 OK\nRateLimit: \"a\";r;t=5", 0},
		{"200 OK\nRateLimit: \"a\";r=\"0\";t=5", 0},
		// Malformed in any part.
		{"200 OK\nRateLimit:", 0},
		{"200 OK\nRateLimit: r=0;t=30", 0},
		{"200 OK\nRateLimit: limit=10, remaining=0, reset=30", 0},
		{"200 OK\nRateLimit: \"a\";r=0;t=30,", 0},
		{"200 OK\nRateLimit: ,\"a\";r=0;t=30", 0},
		{"200 OK\nRateLimit: \"a\";r=0;t=30 \"b\"", 0},
		{"200 OK\nRateLimit: \"a\";r=0;t=30;", 0},
		{"200 OK\nRateLimit: \"a\";r=0;t=30;R=1", 0},
		{"200 OK\nRateLimit: \"a\";r=0;t=30;-x=1", 0},
		{"200 OK\nRateLimit: \"a\";r=0;t= 30", 0},
		{"200 OK\nRateLimit: \"a\";r=0;t=", 0},
		{"200 OK\nRateLimit: \"a\";r=0;t=1234567890123456", 0},
		{"200 OK\nRateLimit: \"a\";r=0;t=30;x=1.", 0},
		{"200 OK\nRateLimit: \"a\";r=0;t=30;x=?2", 0},
		{"200 OK\nRateLimit: \"a\";r=0;t=30;x=:!:", 0},
		{"200 OK\nRateLimit: \"a\";r=0;t=30;x=:QQ==", 0},
		{"200 OK\nRateLimit: \"a\";r=0;t=30;x=\"", 0},
		{"200 OK\nRateLimit: \"a\";r=0;t=30;x=\"\\x\"", 0},
		{"200 OK\nRateLimit: \"ä\";r=0;t=30", 0},
		{"200 OK\nRateLimit: 5;r=0;t=30", 0},
		{"200 OK\nRateLimit: (\"a\");r=0;t=30", 0},
		// The older fields mean a span here and an instant there.
		{"200 OK\nRateLimit-Limit: 10\nRateLimit-Remaining: 0\nRateLimit-Reset: 30", 0},
		{"200 OK\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 30", 0},
	} {
		t.Run(tt.answer, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answer, err := answerOfText(tt.answer, nil)
				require.NoError(t, err)
				require.Equal(t, tt.want, holdFor(t, answer, 365*day, true))
				want := tt.want
				if answer.StatusCode != 429 && answer.StatusCode != 503 {
					want = 0
				}
				require.Equal(t, want, holdFor(t, answer, 365*day, false), "by default only a refusal holds")
			})
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

// One 429 holds everyone behind it, in their order, those of no cost excepted;
// who has left already is on his way.
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

// What a request of no cost learns holds the others too.
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

// Two shapers of the same numbers in a row, the second of which tells its state:
// each response says that nothing remains for a second, as the field knows no
// shorter time, though the next slot comes in 100 ms. If that held the line, the
// 21 requests would take 10 s.
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

// Of an upstream that refuses nothing but counts what comes too early, so that
// HoldWhenExhausted is set, each answer holds the line.
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

// The later end of two holds counts, and the line has left by the bucket's rule
// when it is over.
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

// A RateLimit field as its grammar has it: the slow and obvious reader.
var (
	sfString    = `"(?:[ !#-\[\]-~]|\\["\\])*"`
	sfWord      = "[A-Za-z*][-!#$%&'*+.^_`|~0-9A-Za-z:/]*"
	sfValue     = `(?:-?[0-9]{1,12}\.[0-9]{1,3}|-?[0-9]{1,15}|` + sfString + `|:(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?:|\?[01]|` + sfWord + `)`
	sfParameter = `; *([a-z*][-a-z0-9_.*]*)(?:=(` + sfValue + `))?`
	sfItem      = `(?:` + sfString + `|` + sfWord + `)(?:` + sfParameter + `)*`
	sfList      = regexp.MustCompile(`^ *` + sfItem + `(?:[ \t]*,[ \t]*` + sfItem + `)* *$`)
	sfItems     = regexp.MustCompile(sfItem)
	sfName      = regexp.MustCompile(`^(?:` + sfString + `|` + sfWord + `)`)
	sfParams    = regexp.MustCompile(sfParameter)
)

func exhaustedByGrammar(field string) (longest time.Duration) {
	if !sfList.MatchString(field) {
		return 0
	}
	for _, item := range sfItems.FindAllString(field, -1) {
		values := map[string]string{}
		for _, p := range sfParams.FindAllStringSubmatch(item[len(sfName.FindString(item)):], -1) {
			values[p[1]] = p[2]
		}
		r, errR := strconv.ParseInt(values["r"], 10, 64)
		t, errT := strconv.ParseInt(values["t"], 10, 64)
		if errR == nil && errT == nil && r == 0 && t > 0 {
			longest = max(longest, min(time.Duration(t), 3600)*time.Second)
		}
	}
	return longest
}

func FuzzARateLimitFieldIsReadAsItsGrammarHasIt(f *testing.F) {
	for _, field := range []string{
		`"default";r=0;t=30`, `"a";r=0;t=3, b;t=9;r=-0;pk=:cHsdsRa894==:`, `"a\"b";r=5; t=1;x="\\",	c;r=0;t=007`,
		`"a";r=0;t=30;x=?1;y=1.25;z=wo/rd`, `a=b`, `"a";r=0;t=30,`, `";r=0;t=5";r=0;t=6`, ` "a";r=0;t=1 `, `*;*=1;r=0;t=4`,
	} {
		f.Add(field)
	}
	f.Fuzz(func(t *testing.T, field string) {
		answer := &http.Response{StatusCode: 200, Body: http.NoBody, Header: http.Header{"Ratelimit": {field}}}
		require.Equal(t, exhaustedByGrammar(field), holdFor(t, answer, time.Hour, true), strings.ToValidUTF8(field, "?"))
	})
}
