package shaper_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/watch"
)

// This file tests guarantee 6 (prediction) and the fields of a refusal.

func TestADeadlineAtTheDepartureIsTooLate(t *testing.T) {
	for _, c := range []struct {
		left time.Duration
		want string
	}{
		{300 * ms, "0s d late, retry 1ns"}, // It would leave just then.
		{300*ms + 1, "300ms d left"},
		{time.Second, "300ms d left"},
		{100 * ms, "0s d late, retry 200.000001ms"},
	} {
		play(t, "10/s depth 9", func(g *stage) {
			g.arriveAll("a", "b", "c")
			g.saw("0s a left")
			g.arriveWithin(c.left, "d", 1)
			g.at(time.Second)
			require.Contains(t, g.log, c.want)
		})
	}
}

func TestAMissedDeadlineIsDeadlineExceeded(t *testing.T) {
	play(t, "10/s depth 9 wait 1s", func(g *stage) {
		g.arriveAll("a")
		ctx, cancel := context.WithTimeout(context.Background(), 50*ms)
		defer cancel()
		err := g.Wait(ctx)
		require.ErrorIs(t, err, shaper.ErrTooLate)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, ctx.Err(), "predicted, not passed")

		err = g.WaitN(context.Background(), 1)
		require.NoError(t, err)
		for range 10 {
			go func() { _ = g.Wait(context.Background()) }()
		}
		synctest.Wait()
		err = g.Wait(context.Background())
		require.ErrorIs(t, err, shaper.ErrQueueFull)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, g.Close())
	})
}

// A deadline may have passed on a context that has not noticed.
func TestAPassedDeadlineOnALiveContextIsTooLate(t *testing.T) {
	play(t, "10/s depth 9", func(g *stage) {
		for _, ago := range []time.Duration{0, 1, time.Hour, 290 * 365 * 24 * time.Hour} {
			err := g.Wait(overdue{context.Background(), time.Now().Add(-ago)})
			require.ErrorIs(t, err, shaper.ErrTooLate)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		require.EqualValues(t, 4, g.Stats().TooLate)
		require.Zero(t, g.Stats().Level)
	})
}

// On the real clock too, where time goes on between the reading of the deadline
// and the lock, and a deadline may lie further back than a duration reaches.
func TestADeadlineOfAnotherAgeIsTooLate(t *testing.T) {
	s := must(shaper.New(shaper.Limits{Rate: 1e6, Depth: 9}))
	for _, deadline := range []time.Time{{}, time.Unix(0, 0), time.Now(), time.Now().Add(math.MinInt64)} {
		require.ErrorIs(t, s.Wait(overdue{context.Background(), deadline}), shaper.ErrTooLate, "%v", deadline)
	}
	require.NoError(t, s.Wait(overdue{context.Background(), time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC)}))
}

// A deadline without a reading of the monotonic clock is one of the wall clock.
func TestADeadlineOnTheWallClock(t *testing.T) {
	s := must(shaper.New(shaper.Limits{Rate: 1. / 3600, Depth: 9}))
	require.NoError(t, s.Wait(overdue{context.Background(), time.Now().Round(0).Add(time.Hour)}))
	require.ErrorIs(t, s.Wait(overdue{context.Background(), time.Now().Round(0).Add(time.Hour / 2)}), shaper.ErrTooLate)
}

// overdue is a context that states a deadline and does not end by it.
type overdue struct {
	context.Context
	deadline time.Time
}

func (c overdue) Deadline() (time.Time, bool) { return c.deadline, true }

func TestMaxWaitBoundsThePredictedWait(t *testing.T) {
	play(t, "10/s depth 9 wait 200ms", func(g *stage) {
		g.arriveAll("a", "b", "c", "d") // c would wait just as long as it may.
		g.saw("0s a left", "0s d late, retry 100ms")
		g.at(50 * ms)
		g.arriveAll("e")
		g.at(time.Second)
		g.saw("50ms e late, retry 50ms", "100ms b left", "200ms c left")
	})
}

// A change of the rate refuses nobody who has been admitted: he waits until
// his context ends.
func TestASlowerRateDoesNotRefuseThoseInLine(t *testing.T) {
	play(t, "10/s depth 9 wait 200ms", func(g *stage) {
		g.arriveAll("a")
		g.arriveWithin(150*ms, "b", 1)
		g.arriveAll("c")
		g.set("1/s depth 9 wait 200ms")
		g.at(10 * time.Second)
		g.saw("0s a left", "150ms b expired", "1s c left")
	})
}

func TestNothingReachesBeyondTheHorizon(t *testing.T) {
	play(t, "1 per 100d depth 99", func(g *stage) {
		g.arriveAll("a", "b", "c", "d", "e")
		g.saw("0s a left", "0s e late, retry 840h0m0s")
		g.set("1 per 365d depth 99")
		g.arriveAll("f")
		// The line now reaches four years ahead.
		g.saw("0s f late, retry 26280h0m0s")
		require.NoError(t, g.Close())
	})
}

func TestWhyARequestIsRefused(t *testing.T) {
	play(t, "1/s", func(g *stage) {
		g.arriveAll("a")
		err := g.Wait(context.Background())
		require.EqualError(t, err, "shaper: queue is full (retry after 1s)")
		require.True(t, errors.Unwrap(err) == shaper.ErrQueueFull)
		require.EqualError(t, g.WaitN(context.Background(), 2), "shaper: costs more than can ever fit")
		require.NoError(t, g.Close())
		require.EqualError(t, g.Wait(context.Background()), "shaper: closed")
		require.EqualError(t, &shaper.RejectError{}, "shaper: refused", "somebody's own, in a test of his handler")
	})
}

func TestForecastTellsWhatWaitWouldMeet(t *testing.T) {
	play(t, "10/s burst 2 depth 2", func(g *stage) {
		expect := func(n int, want time.Duration) {
			t.Helper()
			wait, err := g.Forecast(n)
			require.NoError(t, err)
			require.Equal(t, want, wait)
		}
		expect(0, 0)
		expect(1, 0)
		expect(9, 0)
		g.arrive("two", 2)
		expect(1, 100*ms)
		expect(2, 200*ms)
		expect(3, 200*ms)
		g.arriveAll("a", "b")
		_, err := g.Forecast(1)
		require.EqualError(t, err, "shaper: queue is full (retry after 100ms)")
		_, err = g.Forecast(-1)
		require.True(t, err == shaper.ErrNegativeCost)
		require.EqualValues(t, 1, g.Stats().Departed, "it takes nothing")
		require.Zero(t, g.Stats().Refused, "and counts nothing")
		require.NoError(t, g.Close())
		_, err = g.Forecast(1)
		require.ErrorIs(t, err, shaper.ErrClosed)
		expect(0, 0)
	})
}

// The promise of RetryAfter: a lone caller who waits that long is admitted, and
// one who comes a nanosecond sooner is not.
func TestRetryAfterIsTrueAndNoLongerThanNeeded(t *testing.T) {
	t.Parallel()
	times := rounds(200, 5_000, 20_000)
	r := rand.New(rand.NewPCG(1, 2))
	tried := 0
	for range times {
		l := shaper.Limits{Rate: []rate.Limit{7, 50, 0.3, 1e6, 1.0 / 3}[r.IntN(5)], Burst: r.IntN(5), Depth: r.IntN(4)}
		if r.IntN(2) == 0 {
			l.MaxWait = time.Duration(r.Int64N(int64(5*time.Second/time.Duration(l.Rate+1)))) + 1
		}
		for _, early := range []time.Duration{0, 1} {
			playLimits(t, l, func(g *stage) {
				for range r.IntN(8) {
					g.arrive("x", 1+r.IntN(3))
				}
				if r.IntN(4) == 0 { // A line that is longer than it may be.
					l.Depth = min(l.Depth, 1)
					require.NoError(t, g.SetLimits(l))
				}
				n := 1 + r.IntN(3)
				left := time.Duration(r.Int64N(int64(10*time.Second))) + 1
				ask := func() error {
					ctx, cancel := context.WithTimeout(context.Background(), left)
					defer cancel()
					return g.WaitN(ctx, n)
				}
				var rejected *shaper.RejectError
				if err := ask(); errors.As(err, &rejected) && rejected.RetryAfter > early {
					time.Sleep(rejected.RetryAfter - early)
					err = ask()
					if early == 0 {
						require.NoError(t, err, "%v, cost %d, %v left, after %v", l, n, left, rejected)
					} else {
						require.Error(t, err, "%v, cost %d, %v left, 1ns before %v", l, n, left, rejected)
					}
					tried++
				}
				require.NoError(t, g.Close())
			})
		}
	}
	require.Greater(t, tried, times/10, "the states were too tame to try anything")
}

// Each refusal is remembered with its instant, its reason and what its caller was told; only
// the latest 64 are.
func TestRefusalsAreTheLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustMake(t, shaper.Limits{Rate: 100, Depth: 1, MaxWait: 15 * msec})
		require.Empty(t, s.Refusals())
		t0 := time.Now()
		enters(s.WaitN, 1, 1)
		soon, cancel := context.WithTimeout(t.Context(), 5*msec)
		defer cancel()
		var want []watch.Refusal
		refused := func(n int, err error) {
			t.Helper()
			var rejected *shaper.RejectError
			require.ErrorAs(t, err, &rejected)
			want = append(want, watch.Refusal{At: time.Now(), Reason: rejected.Reason, RetryAfter: rejected.RetryAfter, Cost: n})
			require.Equal(t, want, s.Refusals())
		}
		refused(2, s.WaitN(t.Context(), 2))
		time.Sleep(msec)
		refused(7, s.WaitN(soon, 7))
		require.False(t, s.Allow())
		want = append(want, watch.Refusal{At: t0.Add(msec), Reason: shaper.ErrQueueFull, RetryAfter: 19 * msec, Cost: 1})
		require.Equal(t, want, s.Refusals())
		refused(math.MaxInt, s.WaitN(t.Context(), math.MaxInt))
		require.NoError(t, s.Close())
		synctest.Wait()
		want = append(want, watch.Refusal{At: time.Now(), Reason: shaper.ErrClosed, Cost: 1})
		require.Equal(t, want, s.Refusals(), "Close has refused the one that waited")
		for n := range 100 {
			refused(1+n, s.WaitN(t.Context(), 1+n))
			if len(want) == 64 {
				want = want[1:]
			}
		}
		require.Equal(t, uint64(105), s.Stats().Refused)
	})
}

// A Group tells the key of each refusal, also of those that Close refuses in line and of
// those for which there was no bucket. A dry run tells what would have been refused.
func TestRefusalsOfAGroupTellTheKey(t *testing.T) {
	for _, dry := range []bool{false, true} {
		bubble(t, fmt.Sprintf("dry=%v", dry), func(t *testing.T) {
			failure := errors.New("no limits")
			opts := []shaper.GroupOption{}
			if dry {
				opts = append(opts, shaper.WithDryRun())
			}
			g, err := shaper.NewGroup(func(key string) (shaper.Limits, error) {
				if key == "broken" {
					return shaper.Limits{}, failure
				}
				return shaper.Limits{Rate: 1, Depth: 1}, nil
			}, opts...)
			require.NoError(t, err)
			require.Empty(t, g.Refusals())
			_ = g.Wait(t.Context(), "broken")
			require.Empty(t, g.Refusals(), "an error of the limits function is no refusal")
			enters(g.Limiter("a").WaitN, 1, 1)
			enters(g.Limiter("b").WaitN, 1, 1, 5)
			now := time.Now()
			require.Equal(t, dry, g.Allow("a"))
			want := []watch.Refusal{
				{At: now, Reason: shaper.ErrQueueFull, RetryAfter: time.Second, Cost: 5, Key: "b"},
				{At: now, Reason: shaper.ErrQueueFull, RetryAfter: 2 * time.Second, Cost: 1, Key: "a"},
			}
			if dry {
				want[1].RetryAfter = time.Second // A caller of Wait would be told that, too.
			}
			require.Equal(t, want[0], g.Refusals()[0])
			require.Equal(t, "a", g.Refusals()[1].Key)
			require.NoError(t, g.Close())
			synctest.Wait()
			keys := map[any]int{}
			for _, r := range g.Refusals()[2:] {
				require.Equal(t, shaper.ErrClosed, r.Reason)
				keys[r.Key]++
			}
			if dry {
				require.Empty(t, keys, "those in the shadow have left long ago")
			} else {
				require.Equal(t, map[any]int{"a": 1, "b": 1}, keys)
			}
			for n := range 64 {
				_ = g.WaitN(t.Context(), fmt.Sprint("key ", n), 1+n)
			}
			for n, r := range g.Refusals() {
				require.Equal(t, watch.Refusal{At: now, Reason: shaper.ErrClosed, Cost: 1 + n, Key: fmt.Sprint("key ", n)}, r)
			}
		})
	}
}

// A refusal in line is told with its own instant, not with that at which a hook has let its call go.
func TestARefusalInLineIsRememberedAtItsInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := shaper.Limits{Rate: 1, Depth: 1}
		slow := shaper.WithTrace(&shaper.Trace{Refused: func(context.Context, shaper.Event) { time.Sleep(time.Minute) }})
		s := must(shaper.New(limits, slow))
		g := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return limits, nil }, slow))
		for range 2 {
			go s.Wait(context.Background())
			go g.Wait(context.Background(), "key")
			synctest.Wait()
		}
		time.Sleep(ms)
		closed := time.Now()
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
		time.Sleep(time.Hour)
		for _, found := range [][]watch.Refusal{s.Refusals(), g.Refusals()} {
			require.Len(t, found, 1)
			require.Equal(t, shaper.ErrClosed, found[0].Reason)
			require.Equal(t, closed, found[0].At)
		}
	})
}

// Whoever answers in a form of their own says the same as WriteError.
func TestAnAnswerIsWhatIsWritten(t *testing.T) {
	r := httptest.NewRequest("GET", "/", nil)
	for _, err := range []error{
		&shaper.RejectError{Reason: shaper.ErrQueueFull, RetryAfter: 1500 * ms},
		&shaper.RejectError{Reason: shaper.ErrTooLate, RetryAfter: 1},
		&shaper.RejectError{Reason: shaper.ErrTooCostly},
		&shaper.RejectError{Reason: shaper.ErrClosed, RetryAfter: time.Minute},
		&shaper.RejectError{Reason: shaper.ErrUnavailable, RetryAfter: time.Second},
		fmt.Errorf("wrapped: %w", &shaper.RejectError{Reason: shaper.ErrQueueFull, RetryAfter: 3 * time.Second}),
		shaper.ErrNegativeCost, shaper.ErrBody, context.Canceled, context.DeadlineExceeded, errors.New("another"),
	} {
		t.Run(err.Error(), func(t *testing.T) {
			a, w := shaper.AnswerTo(r, err), httptest.NewRecorder()
			shaper.WriteError(w, r, err)
			var body struct{ Title, Detail string }
			if w.Body.Len() > 0 {
				require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
			}
			after, _ := strconv.Atoi(w.Header().Get("Retry-After"))
			require.Equal(t, shaper.Answer{
				Status: w.Code, Title: body.Title, Detail: body.Detail, RetryAfter: time.Duration(after) * time.Second,
			}, a)
		})
	}
}

// The random part of Retry-After is drawn once, so that all that a client may heed say one time.
func TestOneSpreadIsForAllThatAreTold(t *testing.T) {
	s := must(shaper.New(shaper.Limits{Rate: 0.1}))
	require.True(t, s.Allow())
	h := shaper.Middleware(s, shaper.WithRetrySpread(1000*time.Hour), shaper.WithHeaders(shaper.HeaderRateLimit),
		shaper.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error) {
			require.Equal(t, shaper.AnswerTo(r, err), shaper.AnswerTo(r, err))
			w.Header().Set("Answer", strconv.Itoa(int(shaper.AnswerTo(r, err).RetryAfter/time.Second)))
			shaper.WriteError(w, r, err)
		}))(http.NotFoundHandler())
	seen := map[string]bool{}
	for range 10 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		after := w.Header().Get("Retry-After")
		require.Equal(t, after, w.Header().Get("Answer"))
		require.Contains(t, w.Header().Get("Ratelimit"), ";t="+after)
		seen[after] = true
	}
	require.Greater(t, len(seen), 5)
}
