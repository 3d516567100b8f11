package limitwords_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/shaper"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limitsOf parses limits that a test relies on.
func limitsOf(t *testing.T, text string) shaper.Limits {
	t.Helper()
	l, err := shaper.ParseLimits(text)
	require.NoError(t, err)
	return l
}

func TestLimitsInWords(t *testing.T) {
	for text, want := range map[string]string{
		"50/s depth 100":                 "one request leaves every 20 ms; 100 may wait, the last for 2 s; request 102 of a simultaneous burst is refused",
		"50/s":                           "one request leaves every 20 ms; none may wait; request 2 of a simultaneous burst is refused",
		"50/s burst 10":                  "10 requests leave at once, then one every 20 ms; none may wait; request 11 of a simultaneous burst is refused",
		"50/s burst 10 depth 100":        "10 requests leave at once, then one every 20 ms; 100 may wait, the last for 2 s; request 111 of a simultaneous burst is refused",
		"50/s depth 1":                   "one request leaves every 20 ms; one may wait, for 20 ms; request 3 of a simultaneous burst is refused",
		"50/s depth 100 wait 1s":         "one request leaves every 20 ms; 100 may wait, none longer than 1 s: 50 of a simultaneous burst; request 52 of a simultaneous burst is refused",
		"50/s burst 3 depth 9 wait 19ms": "3 requests leave at once, then one every 20 ms; 9 may wait, none longer than 19 ms: none of a simultaneous burst; request 4 of a simultaneous burst is refused",
		"50/s depth 1 wait 19ms":         "one request leaves every 20 ms; one may wait, not longer than 19 ms: none of a simultaneous burst; request 2 of a simultaneous burst is refused",
		"1 per 365d depth 2":             "one request leaves every 365 days; 2 may wait, none longer than 365 days: 1 of a simultaneous burst; request 3 of a simultaneous burst is refused",
		"50/s depth 9 inflight 4":        "at most 4 are in flight at the same time; one request leaves every 20 ms; 9 may wait, the last for at least 180 ms; request 11 of a simultaneous burst is refused",
		"50/s depth 9 wait 1ms inflight 4": "at most 4 are in flight at the same time; one request leaves every 20 ms; " +
			"9 may wait, if the rate lets them leave within 1 ms: none of a simultaneous burst; request 2 of a simultaneous burst is refused",
		"50/s depth 1 wait 1ms inflight 4": "at most 4 are in flight at the same time; one request leaves every 20 ms; " +
			"one may wait, if the rate lets it leave within 1 ms: none of a simultaneous burst; request 2 of a simultaneous burst is refused",
		"50/s burst 8 inflight 4":         "at most 4 are in flight at the same time; 4 requests leave at once, 4 more as these end, then one every 20 ms; none may wait; request 5 of a simultaneous burst is refused",
		"50/s burst 8 depth 9 inflight 4": "at most 4 are in flight at the same time; 4 requests leave at once, 4 more as these end, then one every 20 ms; 9 may wait, the last for at least 100 ms; request 14 of a simultaneous burst is refused",
		"50/s burst 8 depth 4 inflight 4": "at most 4 are in flight at the same time; 4 requests leave at once, 4 more as these end, then one every 20 ms; 4 may wait for others to end; request 9 of a simultaneous burst is refused",
		"50/s burst 8 depth 1 inflight 1": "only one is in flight at a time; one request leaves at once, 7 more as it ends, then one every 20 ms; one may wait for another to end; request 3 of a simultaneous burst is refused",
		"inf depth 3 inflight 4":          "at most 4 are in flight at the same time; 3 may wait for others to end; request 8 of a simultaneous burst is refused",
		"inf inflight 4":                  "at most 4 are in flight at the same time; none may wait; request 5 of a simultaneous burst is refused",
		"inf depth 3":                     "every request leaves at once; none waits and none is refused",
	} {
		t.Run(text, func(t *testing.T) {
			require.Equal(t, want, strings.Join(limitwords.Of(limitsOf(t, text)), "; "))
		})
	}
}

// A count that no int holds is no count at all: nothing must be said of request
// -9223372036854775808.
func TestCountsThatDoNotFitAreNotSaid(t *testing.T) {
	for _, l := range []shaper.Limits{
		{Rate: rate.Inf, Depth: math.MaxInt, InFlight: math.MaxInt},
		{Rate: rate.Inf, Depth: math.MaxInt - 3, InFlight: 4},
		{Rate: 50, Depth: math.MaxInt - 3, InFlight: 4, Burst: 1_000_000_000},
		{Rate: 1e9, Burst: 1_000_000_000, Depth: math.MaxInt, MaxWait: time.Second},
	} {
		require.NoError(t, l.Validate())
		require.NotContains(t, strings.Join(limitwords.Of(l), "; "), "-", l)
		require.Positive(t, limitwords.BurstOf(l).Admitted())
	}
	require.Equal(t, limitwords.Burst{AtOnce: 1, Waiting: 2_000_000_000, LastWait: 2 * time.Second},
		limitwords.BurstOf(shaper.Limits{Rate: 1e9, Depth: math.MaxInt, MaxWait: 2 * time.Second}))
}

// The words are compared with a shaper that meets a burst, for limits that reach every branch, on
// both sides of its edge.
func TestTheWordsAreTrue(t *testing.T) {
	seen := map[string]bool{}
	for _, pace := range []string{"inf", "50/s", "7/s", "20/min", "0.7/s", "1 per 365d", "1000000000/s", "999999999.5/s"} {
		for _, burst := range []int{0, 1, 2, 5} {
			for _, depth := range []int{0, 1, 2, 5} {
				for _, inFlight := range []int{0, 1, 3, 7} {
					l := limitsOf(t, pace)
					l.Burst, l.Depth, l.InFlight = burst, depth, inFlight
					if l.Validate() != nil {
						continue // A burst of a year's intervals is too long to drain.
					}
					for _, wait := range waits(l) {
						l.MaxWait = wait
						compareWithShaper(t, l, seen)
					}
				}
			}
		}
	}
	r := rand.New(rand.NewPCG(13, 3))
	for range 300 {
		l := shaper.Limits{
			Rate:  rate.Limit(math.Exp(r.Float64()*30 - 15)),
			Burst: r.IntN(8), Depth: r.IntN(8), InFlight: max(0, r.IntN(12)-4),
		}
		every := waits(l)
		l.MaxWait = every[r.IntN(len(every))]
		compareWithShaper(t, l, seen)
	}
	require.Len(t, seen, 14, "the forms that the words take: %v", seen)
}

// waits returns values for MaxWait: none, and those around one interval and around two.
func waits(l shaper.Limits) []time.Duration {
	every := []time.Duration{0, 1, time.Second}
	if l.Rate != rate.Inf {
		for k := range 2 {
			wait := time.Duration(math.Ceil(float64(k+1) / float64(l.Rate) * 1e9))
			every = append(every, wait-1, wait, wait+1)
		}
	}
	return every
}

var (
	longestWait = regexp.MustCompile(`may wait, (?:the last )?for (?:at least )?([^;]+)`)
	number      = regexp.MustCompile(`\d[\d.]* ?(?:[nmµ]?s|min|h|days)?\b`)
)

// compareWithShaper sends more than fits to a shaper at one instant.
func compareWithShaper(t *testing.T, l shaper.Limits, seen map[string]bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		all := limitwords.Of(l)
		burst, words := limitwords.BurstOf(l), strings.Join(all, "; ")
		sent := 17 // more than any of these limits admits, unless they admit all
		s, err := shaper.New(l)
		require.NoError(t, err)
		defer s.Close()

		began, allHere := time.Now(), make(chan struct{})
		left := make([]time.Duration, sent)
		const refused, waits = -1, -2
		for i := range left {
			left[i] = waits
			go func() {
				release, err := s.Acquire(t.Context(), 1)
				if rejection, ok := errors.AsType[*shaper.RejectError](err); ok {
					if errors.Is(rejection, shaper.ErrClosed) {
						t.Error(err)
					}
					left[i] = refused
					return
				}
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
					return
				}
				left[i] = time.Since(began)
				<-allHere
				release()
			}()
			synctest.Wait()
		}
		atOnce, waiting, firstRefused := 0, 0, 0
		for i, at := range left {
			switch {
			case at == 0:
				atOnce++
			case at == waits:
				waiting++
			case firstRefused == 0:
				firstRefused = i + 1
			}
		}
		close(allHere)
		s.Shutdown(t.Context())
		synctest.Wait()
		last := time.Duration(0)
		for _, at := range left {
			last = max(last, at)
		}

		if burst.AtOnce == math.MaxInt {
			require.Equal(t, sent, atOnce, "%v", l)
			require.Contains(t, words, "none waits and none is refused")
		} else {
			require.Equal(t, burst, limitwords.Burst{AtOnce: atOnce, Waiting: waiting, LastWait: last}, "%v", l)
			require.Contains(t, words, fmt.Sprintf("request %d of a simultaneous burst is refused", firstRefused), "%v", l)
		}
		if waiting == 0 && !strings.Contains(words, "none of a simultaneous burst") {
			require.True(t, strings.Contains(words, "none may wait") || burst.AtOnce == math.MaxInt, "%v: %s", l, words)
		}
		if m := longestWait.FindStringSubmatch(words); m != nil {
			require.Equal(t, limitwords.Seconds(last.Seconds()), m[1], "%v", l)
		}
		// The form is the text without the numbers.
		seen[number.ReplaceAllString(strings.Join(all[max(0, len(all)-2):], "; "), "N")] = true
	})
}

func TestSeconds(t *testing.T) {
	for want, seconds := range map[string]float64{
		"0 s": 0, "1 ns": 1e-9, "999 ns": 999e-9, "1 µs": 999.6e-9, "2 µs": 2e-6, "20 ms": 0.02, "333 ms": 1.0 / 3, "999 ms": 0.99949, "1 s": 0.9995,
		"17.8 ms": 0.01778, "2.26 s": 2.264, "90 s": 90, "2 min": 120, "100 min": 6000,
		"47 h": 47 * 3600, "2 days": 48 * 3600, "1000 days": 86_400_000,
	} {
		require.Equal(t, want, limitwords.Seconds(seconds))
	}
}
