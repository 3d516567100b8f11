package comingfrom

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/ratelimit"

	"example.com/leakybucket/shaper"
)

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
