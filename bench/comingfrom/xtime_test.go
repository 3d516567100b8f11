package comingfrom

import (
	"context"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

var xTime = []row{
	{"`rate.NewLimiter(r, b)`", func(t *testing.T) {
		theirs := rate.NewLimiter(10, 3)
		ours := must(shaper.New(shaper.Limits{Rate: 10, Burst: 3, Depth: 100}))
		same := evenly(8, 3, 100*time.Millisecond)
		require.Equal(t, same, departures(t, 8, func() error { return theirs.Wait(ctx) }))
		require.Equal(t, same, departures(t, 8, func() error { return ours.Wait(ctx) }))
	}},
	{"`Allow()`, `AllowN(now, n)`", func(t *testing.T) {
		theirs, ours := rate.NewLimiter(2, 4), newShaper("2/s burst 4")
		passed := 0
		for step := range 60 {
			cost := step%3 + 1
			may := ours.AllowN(cost)
			require.Equal(t, theirs.AllowN(time.Now(), cost), may, "step %d", step)
			if may {
				passed++
			}
			time.Sleep(time.Duration(step%5) * 250 * time.Millisecond)
		}
		require.Greater(t, passed, 10)
		require.Less(t, passed, 50)
	}},
	{"`Wait(ctx)`, `WaitN(ctx, n)`", func(t *testing.T) {
		// Five wait, and the one at the head gives up. Behind it all move up here, and none there.
		behind := func(wait func(context.Context) error) []time.Duration {
			require.NoError(t, wait(ctx))
			head, giveUp := context.WithCancel(ctx)
			go func() { _ = wait(head) }()
			synctest.Wait()
			time.AfterFunc(100*time.Millisecond, giveUp)
			return departures(t, 3, func() error { return wait(ctx) })
		}
		require.Equal(t, []time.Duration{2 * time.Second, 3 * time.Second, 4 * time.Second}, behind(rate.NewLimiter(1, 1).Wait))
		require.Equal(t, []time.Duration{1 * time.Second, 2 * time.Second, 3 * time.Second}, behind(newShaper("1/s depth 9").Wait))

		// Who can't leave before its deadline is refused at once by both.
		for _, wait := range []func(context.Context) error{rate.NewLimiter(1, 0).Wait, newShaper("1/h depth 9").Wait} {
			began := time.Now()
			soon, cancel := context.WithTimeout(ctx, time.Second)
			_ = wait(soon)
			require.Error(t, wait(soon))
			require.Equal(t, began, time.Now())
			cancel()
		}
	}},
	{"`WaitN(ctx, n)` with n > b", func(t *testing.T) {
		require.Error(t, rate.NewLimiter(1, 3).WaitN(ctx, 4))
		ours := newShaper("1/s burst 3 depth 9")
		require.NoError(t, ours.WaitN(ctx, 2))
		require.Equal(t, []time.Duration{2 * time.Second}, departures(t, 1, func() error { return ours.WaitN(ctx, 4) }))
		require.ErrorIs(t, newShaper("1/s burst 3").WaitN(ctx, 4), shaper.ErrTooCostly)
	}},
	{"`Reserve()`, `ReserveN(now, n)`, `Delay()`", func(t *testing.T) {
		theirs, ours := rate.NewLimiter(10, 2), newShaper("10/s burst 2 depth 9")
		for range 5 {
			wait, err := ours.Forecast(1)
			require.NoError(t, err)
			require.Equal(t, theirs.Reserve().Delay(), wait)
			go func() { _ = ours.Wait(ctx) }() // A forecast takes nothing.
			synctest.Wait()
		}
		time.Sleep(time.Second)
	}},
	{"`Reservation.Cancel()`", func(t *testing.T) {
		theirs, ours := rate.NewLimiter(1, 1), newShaper("1/s depth 9")
		require.True(t, theirs.Allow())
		require.True(t, ours.Allow())
		r := theirs.Reserve()
		held, cancel := context.WithCancel(ctx)
		go func() { _ = ours.Wait(held) }()
		synctest.Wait()
		r.Cancel()
		cancel()
		synctest.Wait()
		wait, err := ours.Forecast(1)
		require.NoError(t, err)
		require.Equal(t, time.Second, wait)
		require.Equal(t, time.Second, theirs.Reserve().Delay())
	}},
	{"`SetLimit(r)`, `SetBurst(b)`", func(t *testing.T) {
		theirs, ours := rate.NewLimiter(1, 1), newShaper("1/s depth 9 wait 1min")
		waits := map[string][]time.Duration{}
		for name, wait := range map[string]func(context.Context) error{"theirs": theirs.Wait, "ours": ours.Wait} {
			require.NoError(t, wait(ctx))
			time.AfterFunc(500*time.Millisecond, func() {
				theirs.SetLimit(10)
				require.NoError(t, ours.UpdateLimits(func(l shaper.Limits) shaper.Limits {
					l.Rate = 10
					return l
				}))
			})
			waits[name] = departures(t, 2, func() error { return wait(ctx) })
			theirs.SetLimit(1)
			require.NoError(t, ours.UpdateLimits(func(l shaper.Limits) shaper.Limits {
				l.Rate = 1
				return l
			}))
			time.Sleep(time.Minute)
		}
		require.Equal(t, []time.Duration{time.Second, 2 * time.Second}, waits["theirs"], "who waits already sleeps on")
		require.Equal(t, []time.Duration{550 * time.Millisecond, 650 * time.Millisecond}, waits["ours"])
		require.Equal(t, "1/s depth 9 wait 1min", ours.Limits().String(), "the others are as they were")
	}},
	{"`Tokens()`", func(t *testing.T) {
		theirs, ours := rate.NewLimiter(2, 4), newShaper("2/s burst 4")
		for step := range 20 {
			st := ours.Stats()
			require.InDelta(t, theirs.Tokens(), float64(st.Limits.Burst)-st.Level, 1e-9)
			require.Equal(t, int(math.Floor(theirs.Tokens())), st.Free)
			require.Equal(t, theirs.AllowN(time.Now(), step%3), ours.AllowN(step%3))
			time.Sleep(250 * time.Millisecond)
		}
	}},
}

// take is Take as a call that may fail, which it can't.
func take(l ratelimit.Limiter) func() error {
	return func() error {
		l.Take()
		return nil
	}
}

// afterARest returns the waits of callers that come when a limiter has not been used for a minute.
func afterARest(t *testing.T, callers int, wait func() error) []time.Duration {
	t.Helper()
	require.NoError(t, wait())
	time.Sleep(time.Minute)
	waits := departures(t, callers, wait)
	slices.Sort(waits) // Callers of Take have no order.
	return waits
}

var uber = []row{
	{"`ratelimit.New(n)`", func(t *testing.T) {
		same := evenly(30, 11, 10*time.Millisecond)
		require.Equal(t, same, afterARest(t, 30, take(ratelimit.New(100))))
		ours := must(shaper.New(shaper.Limits{Rate: 100, Burst: 11, Depth: 100}))
		require.Equal(t, same, afterARest(t, 30, func() error { return ours.Wait(ctx) }))
	}},
	{"`Take()`", func(t *testing.T) {
		theirs, ours := ratelimit.New(10, ratelimit.WithoutSlack), newShaper("10/s depth 100")
		require.Equal(t, evenly(5, 1, 100*time.Millisecond), departures(t, 5, take(theirs)))
		require.Equal(t, evenly(5, 1, 100*time.Millisecond), departures(t, 5, func() error { return ours.Wait(ctx) }))
	}},
	{"`WithSlack(k)`", func(t *testing.T) {
		same := evenly(9, 4, 10*time.Millisecond)
		require.Equal(t, same, afterARest(t, 9, take(ratelimit.New(100, ratelimit.WithSlack(3)))))
		ours := must(shaper.New(shaper.Limits{Rate: 100, Burst: 3 + 1, Depth: 100}))
		require.Equal(t, same, afterARest(t, 9, func() error { return ours.Wait(ctx) }))
	}},
}

// redisRate is the heading of the rows that need a server, and so run in real time. The limits are so slow that
// nothing drains while they run.
const redisRate = "go-redis/redis_rate"

var onRedis = []row{
	{"`redis_rate.NewLimiter(rdb)`, `Allow(ctx, key, limit)`", func(t *testing.T) {
		theirs, ours := newRedisRivals(t)
		limit := redis_rate.PerHour(5)
		require.Equal(t, 5, count(9, func() bool { return must(theirs.Allow(ctx, "a", limit)).Allowed == 1 }))
		require.Equal(t, 5, count(9, allows(ours, "a")))
	}},
	{"`Result.Remaining`, `ResetAfter`", func(t *testing.T) {
		theirs, ours := newRedisRivals(t)
		result := must(theirs.AllowN(ctx, "a", redis_rate.PerHour(5), 3))
		require.True(t, ours.AllowN("a", 3))
		st := ours.Limiter("a").Stats()
		require.Equal(t, result.Remaining, st.Free)
		require.InDelta(t, result.ResetAfter.Seconds(), time.Until(st.EmptyAt).Seconds(), 30)
		require.InDelta(t, 36*time.Minute.Seconds(), result.ResetAfter.Seconds(), 30)
	}},
	{"`Result.RetryAfter`", func(t *testing.T) {
		theirs, ours := newRedisRivals(t)
		limit := redis_rate.PerHour(5)
		must(theirs.AllowN(ctx, "a", limit, 5))
		require.True(t, ours.AllowN("a", 5))
		result := must(theirs.Allow(ctx, "a", limit))
		var refused *shaper.RejectError
		require.ErrorAs(t, ours.Wait(ctx, "a"), &refused)
		require.InDelta(t, result.RetryAfter.Seconds(), refused.RetryAfter.Seconds(), 30)
		require.InDelta(t, 12*time.Minute.Seconds(), refused.RetryAfter.Seconds(), 30)
	}},
}

func TestEachRowRunsBothOnRedis(t *testing.T) {
	for _, r := range onRedis {
		t.Run(r.call, r.both)
	}
}

// newRedisRivals returns both on one server that is empty, each with 5 an hour.
func newRedisRivals(t *testing.T) (*redis_rate.Limiter, *shaper.Group[string]) {
	client := redis.NewClient(&redis.Options{Addr: servers.StartRedis(t).Addr})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	ours := newGroup(t, "5/h burst 5", shaper.WithBuckets(redisbucket.New(client), func(key string) string { return key }, shared.Options{}))
	return redis_rate.NewLimiter(client), ours
}
