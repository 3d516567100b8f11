package shaper_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// This file holds guarantee 6 (prediction) and what a refusal says.

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
	s, err := shaper.New(shaper.Limits{Rate: 1e6, Depth: 9})
	require.NoError(t, err)
	for _, deadline := range []time.Time{{}, time.Unix(0, 0), time.Now(), time.Now().Add(math.MinInt64)} {
		require.ErrorIs(t, s.Wait(overdue{context.Background(), deadline}), shaper.ErrTooLate, "%v", deadline)
	}
	require.NoError(t, s.Wait(overdue{context.Background(), time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC)}))
}

// A deadline without a reading of the monotonic clock is one of the wall clock.
func TestADeadlineOnTheWallClock(t *testing.T) {
	s, err := shaper.New(shaper.Limits{Rate: 1. / 3600, Depth: 9})
	require.NoError(t, err)
	require.NoError(t, s.Wait(overdue{context.Background(), time.Now().Round(0).Add(time.Hour)}))
	require.ErrorIs(t, s.Wait(overdue{context.Background(), time.Now().Round(0).Add(time.Hour / 2)}), shaper.ErrTooLate)
}

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
	times := rounds(300, 5_000, 20_000)
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
