package shaper_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// In an outage a request in line is refused when its patience or its bound ends, whichever comes first; at one
// instant it is the outage that it is told of.
func TestInAnOutagePatienceAndBoundEndWaitsWhicheverComesFirst(t *testing.T) {
	const ends = 1750 * ms // of the patience: the outage begins at 750 ms
	for _, test := range []struct {
		bound time.Duration
		at    time.Duration
		why   error
	}{
		{ends - 1, ends - 1, shaper.ErrTooLate},
		{ends, ends, shaper.ErrUnavailable},
		{ends + 1, ends, shaper.ErrUnavailable},
	} {
		during(t, "10/s depth 99", func(o *outage) {
			o.beginsWith(o.t.Context(), 4)
			o.at(3 * time.Second)
			require.Len(t, o.ends, 4)
			for _, e := range o.ends {
				require.Equal(t, test.at, e.at)
				require.Equal(t, test.why, refusal(t, e.err).Reason)
				require.Positive(t, refusal(t, e.err).RetryAfter)
				require.Contains(t, o.told, e)
			}
			st := o.Stats()
			require.EqualValues(t, 4, st.Refused)
			require.EqualValues(t, 4, st.TooLate+st.Unavailable)
			require.Equal(t, test.why == shaper.ErrTooLate, st.TooLate == 4)
		}, shared.Options{Patience: time.Second}, shaper.WithLineTimeout(test.bound))
	}
}

// A client that comes back sooner would be refused again.
func TestABoundInAnOutageTellsWhenTheBucketIsAskedAgain(t *testing.T) {
	for _, patience := range []time.Duration{-1, time.Hour} {
		during(t, "10/s depth 99", func(o *outage) {
			o.beginsWith(o.t.Context(), 4)
			o.at(9 * time.Second)
			require.Len(t, o.ends, 4)
			newcomer := refusal(t, o.Wait(o.t.Context()))
			require.Equal(t, shaper.ErrUnavailable, newcomer.Reason)
			for _, e := range o.ends {
				require.Equal(t, 9*time.Second, e.at)
				require.Equal(t, shaper.ErrTooLate, refusal(t, e.err).Reason)
				require.Equal(t, newcomer.RetryAfter, refusal(t, e.err).RetryAfter)
			}
		}, shared.Options{Patience: patience}, shaper.WithLineTimeout(9*time.Second))
	}
}

// With a fallback the line goes on, at another rate, and those who can't leave in time are refused.
func TestABoundHoldsInAFallback(t *testing.T) {
	during(t, "10/s depth 99", func(o *outage) {
		o.beginsWith(o.t.Context(), 5)
		o.at(20 * time.Second)
		left := 0
		for _, e := range o.ends {
			require.LessOrEqual(t, e.waited, 3*time.Second)
			if e.err == nil {
				left++
				continue
			}
			require.Equal(t, 3*time.Second, e.at)
			require.Equal(t, shaper.ErrTooLate, refusal(t, e.err).Reason)
		}
		require.Len(t, o.ends, 5)
		require.Equal(t, 3, left)
	}, shared.Options{Fallback: shared.FallbackLocal(10)}, shaper.WithLineTimeout(3*time.Second))
}

// Units that come when nobody is in line any more are for others.
func TestABoundThatComesWhileTheBucketIsAskedKeepsNothingLeased(t *testing.T) {
	during(t, "100/s depth 99", func(o *outage) {
		o.SetDelay(50*ms, 50*ms)
		o.enter(o.t.Context(), 3)
		o.at(60 * ms)
		require.Len(t, o.ends, 3)
		for _, e := range o.ends {
			require.Equal(t, 60*ms, e.at)
			require.Equal(t, shaper.ErrTooLate, refusal(t, e.err).Reason)
		}
		o.at(time.Second)
		b := o.Stats().Bucket
		require.Positive(t, b.Leased)
		require.Equal(t, b.Leased, b.GivenBack+b.Dropped)
		o.SetDelay(ms, ms)
		require.NoError(t, o.Wait(o.t.Context()), "the line goes on")
	}, shaper.WithLineTimeout(60*ms))
}

// Whoever waits longer than the prediction, as other processes take their share, is refused at the bound.
func TestOtherProcessesMakeNoWaitLongerThanItsBound(t *testing.T) {
	share(t, 2, "10/s depth 99", 2*ms, func(p *processes) {
		var mu sync.Mutex
		var waits []string
		for range 10 { // Alone the last would leave after 0.9 s.
			go func() {
				came := time.Now()
				err := p.wait(context.Background(), 0, 1)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					waits = append(waits, fmt.Sprint(time.Since(came), " ", refusal(t, err).Reason))
				}
			}()
			synctest.Wait()
		}
		stop := p.saturate(20, 1)
		time.Sleep(3 * time.Second)
		stop()
		mu.Lock()
		defer mu.Unlock()
		require.NotEmpty(t, waits)
		require.Less(t, len(waits), 9)
		require.Len(t, slices.Compact(waits), 1)
		require.Equal(t, "1s shaper: would leave too late", waits[0])
	}, shaper.WithLineTimeout(time.Second))
}

// In a Group of shared buckets each key is asked for by itself, and each request has its own bound.
func TestBoundsInAGroupOfSharedBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(ms, ms)
		g := sharedGroup(t, m, shaper.Limits{Rate: 10, Depth: 99}, shared.Options{Patience: time.Hour}, shaper.WithLineTimeout(2*time.Second))
		require.NoError(t, g.Wait(t.Context(), "a"))
		require.NoError(t, g.Wait(t.Context(), "b"))
		start := time.Now()
		m.Fail(faultOf(buckettest.LoseRequest)) // It counts as an outage after 500 ms.
		var all sync.WaitGroup
		for i, key := range []string{"a", "b", "a", "b"} {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 10 * ms)
				err := g.Wait(context.Background(), key)
				require.Equal(t, shaper.ErrTooLate, refusal(t, err).Reason)
				require.Equal(t, 2*time.Second, time.Since(start)-time.Duration(i)*10*ms)
			})
		}
		all.Wait()
		require.EqualValues(t, 4, g.Stats().TooLate)
		m.Fail(nil)
		time.Sleep(5 * time.Second)
		require.NoError(t, g.Wait(t.Context(), "a"))
		require.NoError(t, g.Close())
	})
}
