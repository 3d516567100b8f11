package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
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
