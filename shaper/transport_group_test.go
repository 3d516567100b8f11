package shaper_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// A line that could not be held, because the Limits of its key could not be had at that
// moment, must not let a retry go at once to an API that has asked for a pause.
func TestARetryPausesThoughTheLineOfItsKeyCouldNotBeHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		fails := false
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
			if fails {
				fails = false
				return shaper.Limits{}, errors.New("no answer")
			}
			return shaper.Limits{Rate: 1, Depth: 5}, nil
		})
		require.NoError(t, err)
		defer g.Close()
		var sent []time.Duration
		api := roundTripFunc(func(r *http.Request) (*http.Response, error) {
			sent = append(sent, time.Since(start))
			response := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}
			if len(sent) == 1 {
				time.Sleep(3 * time.Second) // The bucket is drained and deleted meanwhile.
				fails = true
				response.StatusCode = http.StatusTooManyRequests
				response.Header.Set("Retry-After", "30")
			}
			return response, nil
		})
		client := http.Client{Transport: &shaper.Transport{Limiter: g.Limiter("a"), Base: api, Retry: true}}
		response, err := client.Get("http://api.example/")
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, response.StatusCode)
		require.Equal(t, []time.Duration{0, 33 * time.Second}, sent)
	})
}

// A playedLine is a kind of line in which the requests of a Transport wait in a timeline.
type playedLine struct {
	name     string
	of       func(*shaper.Shaper) shaper.Limiter // nil: the line of the key "a" of a Group
	opts     func() []shaper.GroupOption
	overflow bool // key "a" shares a bucket
}

var (
	linesOfShapers = []playedLine{
		{name: "a Shaper", of: func(s *shaper.Shaper) shaper.Limiter { return s }},
		{name: "a Shaper with a cost of its own", of: func(s *shaper.Shaper) shaper.Limiter { return shaper.Priced(s, one) }},
	}
	linesOfKeys = []playedLine{
		{name: "a bucket of its own"},
		{name: "a bucket that keys share", overflow: true, opts: func() []shaper.GroupOption { return []shaper.GroupOption{shaper.WithMaxKeys(1)} }},
		{name: "a bucket that processes share", opts: func() []shaper.GroupOption {
			return []shaper.GroupOption{shaper.WithBuckets(buckettest.NewMemory(), ownKey, shared.Options{})}
		}},
	}
)

// playTransportOf is playTransport for each kind of line. The timeline gets what shuts down the
// Shaper or the Group, and the Group if there is one.
func playTransportOf(t *testing.T, lines []playedLine, limits string, timeline func(u *upstream, shutdown func(context.Context) error, g *shaper.Group[string])) {
	t.Helper()
	for _, kind := range lines {
		t.Run(kind.name, func(t *testing.T) {
			playTransport(t, "inf", func(u *upstream) {
				l := limitsOf(u.stage.t, limits)
				u.rounds = true // Round trips to a Bucket take some microseconds.
				if kind.of != nil {
					s := mustMake(u.stage.t, l)
					u.Limiter = kind.of(s)
					timeline(u, s.Shutdown, nil)
					require.NoError(u.stage.t, s.Close())
					return
				}
				var opts []shaper.GroupOption
				if kind.opts != nil {
					opts = kind.opts()
				}
				g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return l, nil }, opts...)
				require.NoError(u.stage.t, err)
				if kind.overflow {
					g.Limiter("it fills the table").Hold(time.Hour)
				}
				u.Limiter = g.Limiter("a")
				timeline(u, g.Shutdown, g)
				if kind.overflow {
					require.NotZero(u.stage.t, g.Stats().Overflowed)
				}
				require.NoError(u.stage.t, g.Close())
			})
		})
	}
}

// A request that was refused is sent once more when the hold is over, ahead of all newcomers and of
// the line as it was. A key must answer its callers as a Shaper does: a retry that entered as a
// newcomer would be refused by the Depth, or wait behind the whole line.
func TestARetryEntersTheLineOfItsKeyAtTheHead(t *testing.T) {
	playTransportOf(t, slices.Concat(linesOfShapers, linesOfKeys), "1/s depth 3", func(u *upstream, _ func(context.Context) error, _ *shaper.Group[string]) {
		u.Retry = true
		u.took = 500 * time.Millisecond
		u.script["b"] = []string{refusedFor30}
		u.call("a", "b", "c", "d")
		u.at(1200 * time.Millisecond)
		u.call("e", "f") // The line is full: its bound is for newcomers.
		u.at(time.Minute)
		u.saw("0s a sent", "500ms a 200: body", "1s b sent", "1.2s f full, retry 800ms",
			"31.5s b sent", "32s b 200: body", "32.5s c sent", "33s c 200: body", "33.5s d sent", "34s d 200: body",
			"34.5s e sent", "35s e 200: body")
	})
}

// A bucket that was drained while the upstream took its time is not there any more when its
// request comes back.
func TestARetryFindsItsKeyWithoutABucket(t *testing.T) {
	playTransportOf(t, linesOfKeys, "10/s", func(u *upstream, _ func(context.Context) error, _ *shaper.Group[string]) {
		u.Retry = true
		u.took = 3 * time.Second
		u.script["a"] = []string{"429 -"}
		u.script["b"] = []string{refusedFor30}
		u.call("a")
		u.at(10 * time.Second)
		u.call("b")
		u.at(time.Minute)
		u.saw("0s a sent", "3s a sent", "6s a 200: body", "10s b sent", "43s b sent", "46s b 200: body")
	})
}

// During a Shutdown a retry enters its line as long as any line leaves, and Shutdown waits for it.
func TestARetryOnAKeyDuringAShutdown(t *testing.T) {
	playTransportOf(t, slices.Concat(linesOfShapers, linesOfKeys), "1/s depth 5", func(u *upstream, shutdown func(context.Context) error, _ *shaper.Group[string]) {
		u.Retry = true
		u.took = 500 * time.Millisecond
		u.script["a"] = []string{refusedFor30}
		u.script["c"] = []string{refusedFor30}
		u.call("a", "b", "c")
		go func() { u.note("shut down " + outcome(shutdown(context.Background()))) }()
		synctest.Wait()
		u.at(2 * time.Minute)
		u.saw("0s a sent", "30.5s a sent", "31s a 200: body", "31.5s b sent", "32s b 200: body", "32.5s c sent",
			"32.5s shut down left", "33s c 429, retry 30: body")
	})
}

// The line of a key that has emptied begins anew with a retry while another key's line leaves.
// It may be the last one to end then, and no request in it may be lost at the end of the other.
func TestARetryBeginsTheLineOfItsKeyAnewDuringAShutdown(t *testing.T) {
	playTransportOf(t, linesOfKeys, "1/s depth 5", func(u *upstream, shutdown func(context.Context) error, g *shaper.Group[string]) {
		u.Retry = true
		u.took = 2500 * time.Millisecond
		u.script["a"] = []string{refusedFor30}
		for range 4 {
			go func() {
				if g.Wait(context.Background(), "other") == nil {
					u.note("other left")
				}
			}()
			synctest.Wait()
		}
		u.call("a")
		u.at(2 * time.Second)
		go func() { u.note("shut down " + outcome(shutdown(context.Background()))) }()
		u.at(2 * time.Minute)
		u.saw("0s other left", "0s a sent", "1s other left", "2s other left", "3s other left",
			"32.5s a sent", "32.5s shut down left", "35s a 200: body")
	})
}

// A bucket of its own, which the table has room for by now, lets a key leave behind the line that
// it has shared. A retry is ahead of that line.
func TestARetryStaysAheadOfTheLineThatItsKeyShares(t *testing.T) {
	playTransport(t, "inf", func(u *upstream) {
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 1, Depth: 9}, nil }, shaper.WithMaxKeys(1))
		require.NoError(u.stage.t, err)
		defer g.Close()
		g.Limiter("it fills the table").Hold(2 * time.Second)
		u.Limiter, u.Retry, u.took = g.Limiter("a"), true, 3500*time.Millisecond
		u.script["a"] = []string{"429 -"}
		u.call("a", "b", "c", "d", "e", "f")
		u.at(time.Minute)
		u.saw("0s a sent", "1s b sent", "2s c sent", "3s d sent", "4s a sent", "4.5s b 200: body", "5s e sent", "5.5s c 200: body",
			"6s f sent", "6.5s d 200: body", "7.5s a 200: body", "8.5s e 200: body", "9.5s f 200: body")
	})
}

// A limits function that hangs, as the database behind it does, must not keep a caller that has
// given up, although the response is there already.
func TestARoundTripEndsWithItsContextThoughTheLimitsOfItsKeyHang(t *testing.T) {
	for name, answer := range map[string]string{"a hold": refusedFor30, "a retry without a hold": "429 -", "a hold of a served request": "200 OK\nRateLimit: \"a\";r=0;t=30"} {
		for _, maxKeys := range []int{1, 2} {
			t.Run(fmt.Sprint(name, ", keys: ", maxKeys), func(t *testing.T) {
				playTransport(t, "inf", func(u *upstream) {
					goesOn := make(chan struct{})
					g, err := shaper.NewGroup(func(key string) (shaper.Limits, error) {
						if key == "a" && time.Since(u.start) > time.Second {
							<-goesOn
						}
						return shaper.Limits{Rate: 1, Depth: 9}, nil
					}, shaper.WithMaxKeys(maxKeys))
					require.NoError(t, err)
					defer g.Close()
					g.Limiter("it fills the table").Hold(time.Hour)
					u.Limiter, u.Retry, u.took = g.Limiter("a"), true, 3*time.Second
					if answer[0] == '2' {
						u.HoldFor = func(*http.Response) time.Duration { return 30 * time.Second }
					}
					u.script["a"] = []string{answer}
					ctx, cancel := context.WithCancel(context.Background())
					u.callWith(u.request(ctx, "a", nil), true)
					u.at(5 * time.Second)
					u.saw("0s a sent")
					cancel()
					want := "5s a cancelled"
					if answer[0] == '2' {
						want = "5s a 200: body"
					}
					u.saw(want)
					close(goesOn)
					synctest.Wait()
					wait, err := g.Limiter("a").Forecast(1)
					require.NoError(t, err)
					if name == "a retry without a hold" {
						require.Zero(t, wait)
					} else {
						require.Equal(t, 28*time.Second, wait, "the hold of 30 s that began at 3 s is in force")
					}
				})
			})
		}
	}
}

// A panic of the limits function belongs to the goroutine of the call, where it can be recovered.
// If the caller has gone, it must not end the program.
func TestAPanicOfTheLimitsOfAKeyInAHoldReachesTheCallerOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		called := 0
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
			called++
			switch called {
			case 1, 3, 6: // A call needs a bucket. The others are for holds.
				return shaper.Limits{Rate: 1, Depth: 9}, nil
			case 4:
				time.Sleep(time.Minute)
			}
			panic("no limits")
		})
		require.NoError(t, err)
		defer g.Close()
		c := shaper.Transport{Limiter: g.Limiter("a"), Base: roundTripFunc(func(r *http.Request) (*http.Response, error) {
			time.Sleep(3 * time.Second) // The bucket is drained and deleted meanwhile.
			return answerOfText(refusedFor30, r)
		})}
		call := func(ctx context.Context) error {
			r, err := http.NewRequestWithContext(ctx, "GET", "http://api.example/", nil)
			require.NoError(t, err)
			_, err = c.RoundTrip(r)
			return err
		}
		require.PanicsWithValue(t, "no limits", func() { _ = call(t.Context()) })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		require.NoError(t, call(ctx))
		require.Equal(t, 10*time.Second, time.Since(start))
		time.Sleep(time.Hour)
		require.True(t, g.Allow("a"), "the next call asks again")
		require.Equal(t, 6, called)
	})
}

// holds is a Limiter that admits every request and records the holds it is asked for.
type holds []time.Duration

func (h *holds) WaitN(context.Context, int) error { return nil }
func (h *holds) Hold(d time.Duration)             { *h = append(*h, d) }

// holdFor returns the hold that a Transport takes from an answer, or 0 for none.
func holdFor(t *testing.T, answer *http.Response, maxHold time.Duration) time.Duration {
	var asked holds
	transport := shaper.Transport{Limiter: &asked, MaxHold: maxHold, Base: roundTripFunc(
		func(*http.Request) (*http.Response, error) { return answer, nil })}
	r := must(http.NewRequest("GET", "http://upstream/", nil))
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

// A refusal holds the line for as long as it asks, by the one field or the other. How the fields are read is
// tested in package httpfield.
func TestResponsesThatHoldTheLine(t *testing.T) {
	const day = 24 * time.Hour
	const exhausted = `RateLimit: "a";r=0;t=30`
	for _, tt := range []struct {
		response string
		want     time.Duration // with a MaxHold of a year
	}{
		{"429 -\nRetry-After: 5", 5 * time.Second},
		{"503 -\nRetry-After: 5", 5 * time.Second},
		{"429 -\nRetry-After: Wed, 01 Jan 9999 00:00:00 GMT", 365 * day},
		{"429 -\nRetry-After: 99999999999999999999999999", 365 * day},
		{"429 -\nRateLimit: \"a\";r=0;t=999999999999999", 365 * day},
		{"429 -\n" + exhausted, 30 * time.Second},
		{"503 -\n" + exhausted, 30 * time.Second},
		// If both are there, Retry-After counts; if it is malformed, RateLimit does.
		{"429 -\nRetry-After: 5\n" + exhausted, 5 * time.Second},
		{"429 -\nRetry-After: soon\n" + exhausted, 30 * time.Second},
		{"429 -\nRetry-After: 0\n" + exhausted, 30 * time.Second},
	} {
		t.Run(tt.response, func(t *testing.T) {
			response, err := answerOfText(tt.response, nil)
			require.NoError(t, err)
			require.Equal(t, tt.want, holdFor(t, response, 365*day))
		})
	}
	for _, none := range []string{
		// No field says for how long.
		"429 -", "503 -", "429 -\nRetry-After: soon", "503 -\nRateLimit: \"a\";r=0", "429 -\nRateLimit: \"a\";r=1;t=30",
		// With these statuses Retry-After means something else.
		"200 OK", "200 OK\nRetry-After: 5", "301 -\nRetry-After: 5", "500 -\nRetry-After: 5", "502 -\nRetry-After: 5",
		// What was served, or failed for another reason, may have been the last that was left.
		"200 OK\n" + exhausted, "404 -\n" + exhausted, "500 -\n" + exhausted, "200 OK\nRetry-After: 5\n" + exhausted,
	} {
		response, err := answerOfText(none, nil)
		require.NoError(t, err)
		require.Zero(t, holdFor(t, response, 365*day), none)
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
		for _, form := range []string{"429 -\nRetry-After: %d", "503 -\nRateLimit: \"a\";r=0;t=%d"} {
			answer, err := answerOfText(fmt.Sprintf(form, tt.asked/time.Second), nil)
			require.NoError(t, err)
			require.Equal(t, tt.want, holdFor(t, answer, tt.maxHold))
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

// This file holds what Group.Transport and ByHost promise.

// A host that is written in several ways is one host, or it would have as many rates; and two servers are two.
func TestByHostKnowsAHostByAnySpelling(t *testing.T) {
	for _, tt := range []struct{ url, host, want string }{
		{"http://example.com/a", "", "example.com"},
		{"http://EXAMPLE.com/a", "", "example.com"},
		{"http://example.com:80", "", "example.com"},
		{"https://example.com:443", "", "example.com"},
		{"HTTPS://example.com:443", "", "example.com"},
		{"http://example.com:443", "", "example.com:443"},
		{"https://example.com:80", "", "example.com:80"},
		{"https://example.com:8443", "", "example.com:8443"},
		{"https://example.com.", "", "example.com"},
		{"https://example.com.:443", "", "example.com"},
		{"https://Example.Com.:8443", "", "example.com:8443"},
		{"https://example.com..", "", "example.com."},
		{"http://example.com:", "", "example.com"},
		{"http://192.0.2.1:80", "", "192.0.2.1"},
		{"http://[2001:DB8::1]", "", "[2001:db8::1]"},
		{"http://[2001:DB8::1]:80", "", "[2001:db8::1]"},
		{"http://[2001:db8::1]:443", "", "[2001:db8::1]:443"},
		{"https://[2001:db8::1]:443", "", "[2001:db8::1]"},
		{"ftp://example.com:80", "", "example.com:80"},
		{"//example.com:80", "", "example.com"},
		{"http://example.com", "other.example", "example.com"}, // A client's request goes to the URL's, whatever it says.
		{"/a", "Example.com.:80", "example.com"},
		{"/a", "example.com:443", "example.com:443"},
		{"https:/a", "example.com:443", "example.com"},
		{"/a", "", ""},
		{"/a", strings.Repeat("x", 9000), shaper.Join(strings.Repeat("x", 9000))},
	} {
		u := must(url.Parse(tt.url))
		got, err := shaper.ByHost()(&http.Request{URL: u, Host: tt.host})
		require.NoError(t, err)
		require.Equal(t, tt.want, got, "%s %s", tt.url, tt.host)
	}
	got, err := shaper.ByHost()(&http.Request{Host: "example.com:443", TLS: new(tls.ConnectionState)})
	require.NoError(t, err)
	require.Equal(t, "example.com", got, "a request that has come to a server by TLS")
}

// playHosts runs a timeline with a Transport of a Group, whose keys are the hosts of URLs.
func playHosts(t *testing.T, timeline func(u *upstream, g *shaper.Group[string], send func(name, host string)), opts ...shaper.GroupOption) {
	t.Helper()
	playTransport(t, "inf", func(u *upstream) {
		g, err := shaper.NewGroup(func(key string) (shaper.Limits, error) {
			if key == "unknown" {
				return shaper.Limits{}, errors.New("who is that?")
			}
			return shaper.Limits{Rate: 1, Depth: 9}, nil
		}, opts...)
		require.NoError(t, err)
		defer g.Close()
		u.Limiter = nil
		timeline(u, g, func(name, host string) {
			r := u.request(context.Background(), name, nil)
			r.URL.Host = host
			u.callWith(r, true)
		})
	})
}

// Each host has a line of its own. A refusal of one holds that one, and the request that it refused is sent again ahead
// of that line alone.
func TestEachHostIsPacedHeldAndRetriedAlone(t *testing.T) {
	playHosts(t, func(u *upstream, g *shaper.Group[string], send func(name, host string)) {
		u.Retry = true
		u.Transport = g.Transport(shaper.ByHost(), u.Transport).(shaper.Transport)
		u.script["a1"] = []string{"429 Too Many Requests\nRetry-After: 5"}
		send("a1", "a.example")
		send("a2", "A.example.:80")
		send("b1", "b.example")
		send("b2", "b.example")
		u.at(time.Minute)
		u.saw("0s a1 sent", "0s b1 sent", "0s b1 200: body", "1s b2 sent", "1s b2 200: body",
			"5s a1 sent", "5s a1 200: body", "6s a2 sent", "6s a2 200: body")
	})
}

// A request of no cost is sent at once: there is no line that it would wait in, and none that it could hold.
func TestARequestOfNoCostAsksForNoKey(t *testing.T) {
	playHosts(t, func(u *upstream, g *shaper.Group[string], send func(name, host string)) {
		u.Cost, u.Retry = costInQuery, true
		u.Actual = func(*http.Response) func() int { panic("it is not settled") }
		u.Transport = g.Transport(func(*http.Request) (string, error) { panic("it has no key") }, u.Transport).(shaper.Transport)
		u.script["free"] = []string{"429 Too Many Requests\nRetry-After: 5"}
		u.callWith(u.request(context.Background(), "free?cost=0", nil), true)
		u.at(time.Minute)
		u.saw("0s free sent", "0s free 429, retry 5: body")
		require.Zero(t, g.Stats().Keys)
		body := &closing{Reader: strings.NewReader("x")}
		u.callWith(u.request(context.Background(), "free?cost=0", body), true)
		u.saw("1m0s free sent with x", "1m0s free 200: body")
		require.Equal(t, 1, body.closed, "Base closes it, which may still send it when the response has come")
		_, err := u.RoundTrip(u.request(context.Background(), "a?cost=-1", nil))
		require.Equal(t, shaper.ErrNegativeCost, err)
	})
}

// What can't be used fails each request with a sentence, before anything is sent, and closes its body.
func TestWhatAKeyedTransportCantUseFailsEachRequest(t *testing.T) {
	noKey := errors.New("no key")
	for _, tt := range []struct {
		key  shaper.KeyFunc
		t    func(*shaper.Transport)
		host string
		want string
	}{
		{nil, func(*shaper.Transport) {}, "a", "shaper: Group.Transport needs a function that tells the key of a request"},
		{shaper.ByHost(), func(t *shaper.Transport) { t.Limiter = shaper.Chain() }, "a", "shaper: Group.Transport: Transport.Limiter must be nil: a request waits for the bucket of its key"},
		{shaper.ByHost(), func(t *shaper.Transport) { t.Key = shaper.ByHost() }, "a", "shaper: Group.Transport: Transport.Key must be nil: Group.Transport has the function for the key"},
		{shaper.ByHost(), func(t *shaper.Transport) { t.MaxHold = -1 }, "a", "shaper: Transport.MaxHold is -1ns, must not be negative"},
		{func(*http.Request) (string, error) { return "", noKey }, func(*shaper.Transport) {}, "a", "shaper: key of a request: no key"},
		{shaper.ByHost(), func(*shaper.Transport) {}, "unknown", "who is that?"},
	} {
		playHosts(t, func(u *upstream, g *shaper.Group[string], _ func(name, host string)) {
			tt.t(&u.Transport)
			var rt http.RoundTripper
			if tt.key == nil {
				rt = g.Transport(nil, u.Transport)
			} else {
				rt = g.Transport(tt.key, u.Transport)
			}
			body := &closing{Reader: strings.NewReader("x")}
			r := u.request(context.Background(), "a", body)
			r.URL.Host = tt.host
			_, err := rt.RoundTrip(r)
			require.ErrorContains(t, err, tt.want)
			require.Equal(t, 1, body.closed)
			u.saw()
		})
	}
	playHosts(t, func(u *upstream, g *shaper.Group[string], _ func(name, host string)) {
		_, err := g.Transport(func(*http.Request) (string, error) { return "", noKey }, u.Transport).RoundTrip(u.request(context.Background(), "a", nil))
		require.ErrorIs(t, err, noKey)
		require.Equal(t, "no-key", shaper.Reason(err))
	})
}

// closing is a body that counts how often it is closed.
type closing struct {
	io.Reader
	closed int
}

func (c *closing) Close() error {
	c.closed++
	return nil
}

// A dry run refuses nobody, and says what it would have done.
func TestADryRunOfAKeyedTransportSendsARequestWithoutAKey(t *testing.T) {
	playHosts(t, func(u *upstream, g *shaper.Group[string], _ func(name, host string)) {
		rt := g.Transport(func(*http.Request) (string, error) { return "", errors.New("no key") }, u.Transport)
		ctx := shaper.ContextWithVerdict(context.Background())
		answer, err := rt.RoundTrip(u.request(ctx, "a", nil))
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		v, ok := shaper.VerdictOf(ctx)
		require.True(t, ok)
		require.ErrorContains(t, v.Err, "no key")
	}, shaper.WithDryRun())
}

// The attempt that a Middleware has reserved for does not wait again, by way of a Group as by way of a Shaper.
func TestAKeyedTransportSendsWhatAMiddlewareHasReserved(t *testing.T) {
	playHosts(t, func(u *upstream, g *shaper.Group[string], _ func(name, host string)) {
		byHost := func(*http.Request) (string, error) { return "a", nil }
		client := g.Transport(byHost, u.Transport)
		site := g.Middleware(byHost, shaper.WithReserve())(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer, err := client.RoundTrip(u.request(r.Context(), "inner", nil))
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
		}))
		site.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		synctest.Wait()
		u.saw("0s inner sent")
		st, ok := g.StatsOf("a")
		require.True(t, ok)
		require.EqualValues(t, 1, st.Departed)
	})
}

func TestAKeyedTransportClosesIdleConnections(t *testing.T) {
	playHosts(t, func(u *upstream, g *shaper.Group[string], _ func(name, host string)) {
		base := new(idleBase)
		u.Base = base
		(&http.Client{Transport: g.Transport(shaper.ByHost(), u.Transport)}).CloseIdleConnections()
		require.Equal(t, 1, base.closed)
	})
	var none *shaper.Group[string]
	require.Panics(t, func() { none.Transport(shaper.ByHost(), shaper.Transport{}) })
}
