package shaper_test

import (
	"cmp"
	"context"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper"
)

func TestWindow(t *testing.T) {
	for _, test := range []struct {
		n     int
		w     time.Duration
		burst int
		want  shaper.Limits
		text  string
	}{
		{100, time.Minute, 20, shaper.Limits{Rate: 80 / 60.02, Burst: 20}, "1 per 750250us burst 20 depth 0 slack 20ms"},
		{20, time.Minute, 0, shaper.Limits{Rate: 19 / 60.02}, "19 per 60020ms depth 0 slack 20ms"},
		{20, time.Minute, 1, shaper.Limits{Rate: 19 / 60.02, Burst: 1}, "19 per 60020ms burst 1 depth 0 slack 20ms"},
		{2, 1, 0, shaper.Limits{Rate: 1e9 / 20_000_001.}, "49.99999750000013/s depth 0 slack 20ms"},
		{201, day, 200, shaper.Limits{Rate: 1 / 86400.02, Burst: 200}, "1 per 86400020ms burst 200 depth 0 slack 20ms"},
		{math.MaxInt32, math.MaxInt64, 1, shaper.Limits{Rate: (math.MaxInt32 - 1) / 9223372036.874775807, Burst: 1},
			"0.23283064343652432/s burst 1 depth 0 slack 20ms"},
	} {
		l, err := shaper.Window(test.n, test.w, test.burst)
		require.NoError(t, err)
		test.want.Slack = shaper.DefaultSlack
		require.Equal(t, test.want, l)
		require.Equal(t, test.text, l.String())
		require.Equal(t, l, limitsOf(t, test.text))
	}
}

func TestWindowNamesTheWrongArgument(t *testing.T) {
	for _, test := range []struct {
		n     int
		w     time.Duration
		burst int
		want  string
	}{
		{1, time.Minute, 0, "n is 1, must be at least 2"},
		{math.MinInt, time.Minute, -1, "n is -9223372036854775808, must be at least 2"},
		{2, 0, 0, "w is 0s, must be above 0"},
		{2, -time.Second, 0, "w is -1s, must be above 0"},
		{2, time.Minute, -1, "burst is -1, must not be negative"},
		{2, time.Minute, 2, "burst is 2, must be below n, which is 2"},
		{100, time.Minute, 101, "burst is 101, must be below n, which is 100"},
		{1e9, time.Nanosecond, 0, "n is 1000000000, too many for w: Limits.Rate is 4.9999997"},
		{math.MaxInt, 36500 * day, 0, "n is 9223372036854775807, too many for w: Limits.Rate is 2.9"},
		{2, 366 * day, 0, "w is 8784h0m0s, too long for n: Limits.Rate is 3.16"},
		{732, 366 * day, 366, "burst is 366, too much for n and w: Limits.Burst is 366, which at Limits.Rate 1.1"},
	} {
		l, err := shaper.Window(test.n, test.w, test.burst)
		require.ErrorContains(t, err, "shaper: Window: "+test.want)
		require.Zero(t, l)
	}
}

// What guarantee 1 lets leave in a window of w, by the exact rate of the schedule, is n and no more, also where
// n is so large that a rate can't be told from the next one.
func TestWindowAllowsExactlyN(t *testing.T) {
	r := rand.New(rand.NewPCG(38, 4))
	valid := 0
	for range 5000 {
		n, w := int(1<<r.IntN(56))+r.IntN(1000), time.Duration(math.Exp(r.Float64()*math.Log(1<<62)))
		burst := r.IntN(1 << r.IntN(40))
		l, err := shaper.Window(n, w, burst)
		if err != nil {
			continue
		}
		valid++
		span := new(big.Rat).SetInt64(int64(w))
		span.Add(span, new(big.Rat).SetInt64(int64(l.Slack)))
		span.Quo(span, exact.IntervalOf(l.Rate).Rat())
		most := new(big.Int).Quo(span.Num(), span.Denom()).Int64() + int64(max(burst, 1))
		require.LessOrEqual(t, most, int64(n), "%d in %v burst %d", n, w, burst)
		require.GreaterOrEqual(t, most+int64(n)>>47+1, int64(n), "%d in %v burst %d", n, w, burst)
	}
	require.Greater(t, valid, 1000)
}

// A departure is a cost, and when it left.
type departed struct{ at, cost int64 }

// mostInAnyWindow returns the largest cost that left in a closed window that begins at a departure.
func mostInAnyWindow(all []departed, w time.Duration) (most int64) {
	in, end := int64(0), 0
	for _, first := range all {
		for ; end < len(all) && all[end].at <= first.at+int64(w); end++ {
			in += all[end].cost
		}
		most = max(most, in)
		in -= first.cost
	}
	return most
}

// The line is never empty, so as much leaves as the promise lets leave. In virtual time nothing is late:
// TestNoWindowHoldsMoreThanItPromisesHoweverLate is the same where Slack counts.
func TestNoWindowHoldsMoreThanItPromises(t *testing.T) {
	t.Parallel()
	const departures, callers = 100_000, 10
	for text, promise := range map[string]struct {
		n int64
		w time.Duration
	}{
		"100 in 1min burst 20":           {100, time.Minute},
		"20 in 1min":                     {20, time.Minute},
		"1000 in 1s slack 3ms burst 100": {1000, time.Second},
	} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limitsOf(t, text)
				l.Depth = callers
				began := time.Now()
				var mu sync.Mutex
				var all []departed
				s, err := shaper.New(l, shaper.WithTrace(&shaper.Trace{Departed: func(_ context.Context, e shaper.Event) {
					mu.Lock()
					defer mu.Unlock()
					all = append(all, departed{int64(e.At.Sub(began)), int64(e.Cost)})
				}}))
				require.NoError(t, err)
				var wg sync.WaitGroup
				for i := range callers {
					wg.Go(func() {
						r := rand.New(rand.NewPCG(38, uint64(i)))
						for range departures / callers {
							_ = s.WaitN(t.Context(), 1+r.IntN(max(l.Burst, 1))) // What is refused is missing below.
						}
					})
				}
				wg.Wait()
				require.NoError(t, s.Close())
				require.Len(t, all, departures)
				slices.SortFunc(all, func(a, b departed) int { return cmp.Compare(a.at, b.at) })
				most := mostInAnyWindow(all, promise.w)
				require.LessOrEqual(t, most, promise.n)
				require.GreaterOrEqual(t, most, promise.n*99/100, "much less leaves than may")
			})
		})
	}
}
