package shaper_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// A request whose context never ends waits on something else than a channel. These tests end
// its wait before its goroutine has begun to sleep, while the hook Enqueued still runs.

// withSlowEntries makes a Shaper whose hook Enqueued takes as long as *takes says. If that is
// negative, the hook panics at its end.
func withSlowEntries(t *testing.T, l shaper.Limits, takes *time.Duration) *shaper.Shaper {
	t.Helper()
	s, err := shaper.New(l, shaper.WithTrace(&shaper.Trace{Enqueued: func(context.Context, shaper.Event) {
		time.Sleep(max(*takes, -*takes))
		if *takes < 0 {
			panic("the hook")
		}
	}}))
	require.NoError(t, err)
	return s
}

// The first wait makes the parker that the second one uses again, and both end at the end of the
// hook.
func TestASlotThatComesBeforeARequestSleepsIsNotMissed(t *testing.T) {
	for _, ctx := range []context.Context{context.Background(), context.TODO()} {
		synctest.Test(t, func(t *testing.T) {
			takes := 3 * time.Second
			s := withSlowEntries(t, shaper.Limits{Rate: 1, Depth: 1}, &takes)
			began := time.Now()
			for i := range 4 {
				require.True(t, s.Allow())
				require.NoError(t, s.Wait(ctx))
				require.Equal(t, time.Duration(i+1)*takes, time.Since(began))
			}
			takes = 0
			require.NoError(t, s.Wait(ctx))
			require.NoError(t, s.Wait(ctx))
			require.Equal(t, 13*time.Second, time.Since(began), "no news of an earlier wait is left")
		})
	}
}

func TestCloseBeforeARequestSleepsIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes := 3 * time.Second
		s := withSlowEntries(t, shaper.Limits{Rate: 0.1, Depth: 1}, &takes)
		require.True(t, s.Allow())
		var waits sync.WaitGroup
		var became error
		waits.Go(func() { became = s.Wait(context.Background()) })
		time.Sleep(time.Second)
		require.NoError(t, s.Close())
		waits.Wait()
		require.ErrorIs(t, became, shaper.ErrClosed)
	})
}

// The slot of a request whose hook panics goes to the next one, whose wait uses the same memory
// and is not ended by news of the earlier one.
func TestAPanicOfTheHookAfterTheSlotWakesNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes := time.Duration(0)
		s := withSlowEntries(t, shaper.Limits{Rate: 1, Depth: 1}, &takes)
		ctx := context.Background()
		require.True(t, s.Allow())
		require.NoError(t, s.Wait(ctx))
		takes = -1500 * time.Millisecond
		require.Panics(t, func() { _ = s.Wait(ctx) })
		takes = 0
		require.True(t, s.Allow(), "the slot has been given back")
		began := time.Now()
		require.NoError(t, s.Wait(ctx))
		require.Equal(t, time.Second, time.Since(began))
	})
}

// What such a request waits on is used again by the next one.
func TestAWaitWithoutAnEndAllocatesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustMake(t, shaper.Limits{Rate: 1, Depth: 1})
		ctx := context.Background()
		require.True(t, s.Allow())
		began := time.Now()
		require.Less(t, testing.AllocsPerRun(100, func() { _ = s.Wait(ctx) }), 1.)
		require.Equal(t, 101*time.Second, time.Since(began), "each has waited")
	})
}

// The benchmarks compare with x/time/rate, each in the same table: their names
// are key=value pairs, so that benchstat -col /limiter sets them side by side.
// No test depends on a figure of theirs; what may not allocate is a test.

func mustMake(tb testing.TB, l shaper.Limits) *shaper.Shaper {
	tb.Helper()
	s := must(shaper.New(l))
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// A wait allocates nothing once its shaper is warm, a call that may leave at
// once never does, and a refusal makes its error.
func TestCallsAllocateNothingOnceWarm(t *testing.T) {
	inABubble := func(name string, want float64, l shaper.Limits, call func(context.Context, *shaper.Shaper) bool) {
		bubble(t, name, func(t *testing.T) {
			s := mustMake(t, l)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			wrong := 0
			got := testing.AllocsPerRun(1000, func() {
				if !call(ctx, s) {
					wrong++
				}
			})
			require.LessOrEqual(t, got, want)
			require.LessOrEqual(t, wrong, 1, "of all calls only the first may come to something else")
		})
	}
	waits := func(ctx context.Context, s *shaper.Shaper) bool {
		before := s.Stats().TotalWait
		return s.Wait(ctx) == nil && s.Stats().TotalWait > before
	}
	inABubble("wait", 0, shaper.Limits{Rate: 1000, Depth: 1}, waits)
	inABubble("wait at a high rate", 0, shaper.Limits{Rate: 1e9, Depth: 1}, waits)
	leaves := func(ctx context.Context, s *shaper.Shaper) bool { return s.Wait(ctx) == nil }
	refused := func(ctx context.Context, s *shaper.Shaper) bool { return s.Wait(ctx) != nil }
	inABubble("wait that leaves at once", 0, shaper.Limits{Rate: rate.Inf, Depth: 1}, leaves)
	inABubble("wait within the burst", 0, shaper.Limits{Rate: 1, Burst: 2000, Depth: 1}, leaves)
	inABubble("refusal", 1, shaper.Limits{Rate: 1}, refused)
	inABubble("allow", 0, shaper.Limits{Rate: 1, Burst: 2000}, func(_ context.Context, s *shaper.Shaper) bool {
		return s.Allow()
	})
	inABubble("allow refused", 1, shaper.Limits{Rate: 1}, func(_ context.Context, s *shaper.Shaper) bool {
		return !s.Allow()
	})
}

// eachParallelism runs call alone and from 64 goroutines.
func eachParallelism(b *testing.B, name string, make func(b *testing.B) (call func())) {
	b.Run(name+"/goroutines=1", func(b *testing.B) {
		call := make(b)
		b.ReportAllocs()
		for b.Loop() {
			call()
		}
	})
	b.Run(name+"/goroutines=64", func(b *testing.B) {
		call := make(b)
		b.SetParallelism(max(1, 64/runtime.GOMAXPROCS(0)))
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				call()
			}
		})
	})
}

// BenchmarkRefusal is a call that is turned away. Of the shaper it gets a
// RejectError with an exact RetryAfter; x/time refuses only whose deadline is
// too near, with a text.
func BenchmarkRefusal(b *testing.B) {
	// Three a day: nothing leaves while this runs.
	const perSecond, depth = 3. / (24 * 60 * 60), 100
	soon, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	eachParallelism(b, "call=Wait/limiter=shaper", func(b *testing.B) func() {
		s := mustMake(b, shaper.Limits{Rate: perSecond, Depth: depth})
		holdLine(b, s, depth)
		return func() { _ = s.Wait(context.Background()) }
	})
	eachParallelism(b, "call=Wait-deadline/limiter=shaper", func(b *testing.B) func() {
		s := mustMake(b, shaper.Limits{Rate: perSecond, Depth: depth})
		holdLine(b, s, depth-1)
		return func() { _ = s.Wait(soon) }
	})
	eachParallelism(b, "call=Wait-deadline/limiter=x-time", func(*testing.B) func() {
		l := rate.NewLimiter(perSecond, 1)
		l.Allow()
		return func() { _ = l.Wait(soon) }
	})
	eachParallelism(b, "call=Allow/limiter=shaper", func(b *testing.B) func() {
		s := mustMake(b, shaper.Limits{Rate: perSecond})
		s.Allow()
		return func() { s.Allow() }
	})
	eachParallelism(b, "call=Allow/limiter=x-time", func(*testing.B) func() {
		l := rate.NewLimiter(perSecond, 1)
		l.Allow()
		return func() { l.Allow() }
	})
}

// holdLine makes n requests wait until the shaper is closed.
func holdLine(b *testing.B, s *shaper.Shaper, n int) {
	b.Helper()
	var wg sync.WaitGroup
	s.Allow()
	for range n {
		wg.Go(func() { _ = s.Wait(context.Background()) })
	}
	for s.Stats().Waiting < n {
		runtime.Gosched()
	}
	b.Cleanup(func() { _ = s.Close(); wg.Wait() })
}

// BenchmarkWakeOrder lets a line leave in batches, and reports the share of those
// who run after somebody who left later: they leave in order, but goroutines
// that are made ready together need not run in it. The batches of a ticker with a
// coarse timer are ten, one a millisecond; the batch of a caller who changes the
// limits is the whole line.
func BenchmarkWakeOrder(b *testing.B) {
	for _, c := range []struct {
		name string
		line int
		then shaper.Limits
	}{
		{"by=ticker", 1000, shaper.Limits{Rate: 10_000, Depth: 1000}},
		{"by=caller", 16, shaper.Limits{Rate: rate.Inf}},
	} {
		b.Run(c.name, func(b *testing.B) {
			overtaken, total := 0, 0
			for b.Loop() {
				s, err := shaper.New(shaper.Limits{Rate: 1.0 / 3600, Depth: c.line}, shaper.WithCoarseTimer())
				if err != nil {
					b.Fatal(err)
				}
				s.Allow()
				ran := make(chan int, c.line)
				for i := range c.line {
					go func() { _ = s.Wait(context.Background()); ran <- i }()
					for s.Stats().Waiting <= i {
						runtime.Gosched()
					}
				}
				if err := s.SetLimits(c.then); err != nil {
					b.Fatal(err)
				}
				latest := -1
				for range c.line {
					i := <-ran
					if i < latest {
						overtaken++
					}
					latest = max(latest, i)
				}
				total += c.line
			}
			b.ReportMetric(100*float64(overtaken)/float64(total), "overtaken_%")
		})
	}
}

// While a request waits, departures and Stats.Missed add up to rate × time, however
// late the machine wakes the ticker. The naive queue neither makes lateness up nor
// counts it (TestNaiveLosesTheTicksOfLateWakeUps).
func TestLatenessIsMadeUpOrCounted(t *testing.T) {
	const perSecond, waiters = 10_000, 500
	const interval = time.Second / perSecond
	for _, slack := range []time.Duration{time.Microsecond, 2 * time.Millisecond, shaper.DefaultSlack} {
		t.Run(slack.String(), func(t *testing.T) {
			var mu sync.Mutex
			var last time.Time
			limits := shaper.Limits{Rate: 1. / 3600, Depth: waiters, Slack: slack}
			s, err := shaper.New(limits, shaper.WithTrace(&shaper.Trace{
				Departed: func(_ context.Context, e shaper.Event) {
					mu.Lock()
					defer mu.Unlock()
					if e.At.After(last) {
						last = e.At
					}
				},
			}))
			require.NoError(t, err)
			require.NoError(t, s.Wait(t.Context()))
			var wg sync.WaitGroup
			for range waiters {
				wg.Go(func() { _ = s.Wait(t.Context()) })
			}
			for s.Stats().Waiting < waiters {
				runtime.Gosched()
			}

			// The level is still 1, to within a ten-thousandth, so that the first
			// is due an interval after the change and the last waiters intervals.
			limits.Rate = perSecond
			earliest := time.Now()
			level := s.Stats().Level
			require.NoError(t, s.SetLimits(limits))
			latest := time.Now()
			wg.Wait()

			missed := s.Stats().Missed
			t.Logf("missed %.1f of %d", missed, waiters)
			span := time.Duration((waiters - 1 + level + missed) * float64(interval))
			require.GreaterOrEqual(t, last.Sub(earliest)+interval/1000, span, "left too early")
			require.LessOrEqual(t, last.Sub(latest)-interval/1000, span+slack, "left late, and not counted")
			require.NoError(t, s.Close())
		})
	}
}

// BenchmarkSettle reserves, and settles the oldest of so many that are open, which is the one that has most to
// walk.
func BenchmarkSettle(b *testing.B) {
	for _, open := range []int{1, 100, 4096} {
		b.Run(fmt.Sprintf("open=%d", open), func(b *testing.B) {
			s := mustMake(b, shaper.Limits{Rate: 1000, Burst: 1e9})
			settles := make([]func(int), open)
			for i := range settles {
				settles[i], _ = s.Reserve(context.Background(), 100)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i = (i + 1) % open {
				settles[i](99)
				settles[i], _ = s.Reserve(context.Background(), 100)
			}
			if forfeited := s.Stats().Forfeited; forfeited > 0 {
				b.Fatal(forfeited, " units were forfeited, so less was walked than was meant")
			}
		})
	}
}
