package shaper_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// A pool is a Bucket with a few connections: a call waits until one is free, and has failed if
// its context ends before.
type pool struct {
	*buckettest.Memory
	free chan struct{}
}

func poolOf(m *buckettest.Memory, connections int) pool {
	return pool{m, make(chan struct{}, connections)}
}

func (p pool) Take(ctx context.Context, t shaper.Take) (shaper.Taken, error) {
	select {
	case p.free <- struct{}{}:
	case <-ctx.Done():
		return shaper.Taken{}, ctx.Err()
	}
	defer func() { <-p.free }()
	return p.Memory.Take(ctx, t)
}

// A spike of a meter must not wait for connections one by one: all of it is asked for in a few
// round trips, and nobody is told that the Bucket can't be asked.
func TestASpikeOfAMeterIsNoOutage(t *testing.T) {
	for _, c := range []struct {
		limits string
		cost   int
		leave  int
	}{{"1/min burst 150", 1, 150}, {"1/min burst 150", 7, 21}, {"1/min", 1, 1}, {"1/min burst 5000", 1, 1000}, {"1/min burst 150 depth 9", 1, 150}} {
		share(t, 0, c.limits, 0, func(p *processes) {
			p.SetDelay(20*ms, 20*ms)
			s := p.add(poolOf(p.Memory, 4))
			var left atomic.Int32
			var calls sync.WaitGroup
			for range 1000 {
				calls.Go(func() {
					if s.AllowN(c.cost) {
						left.Add(1)
					}
				})
			}
			calls.Wait()
			require.EqualValues(t, c.leave, left.Load(), c.limits)
			st := s.Stats()
			require.EqualValues(t, 1000-c.leave, st.Refused, c.limits)
			require.Zero(t, st.Unavailable, c.limits)
			require.Zero(t, st.Bucket.Failures, c.limits)
			require.Equal(t, shaper.BucketShared, st.Bucket.State)
			require.LessOrEqual(t, time.Since(p.start), 160*ms, "four round trips")
			require.EqualValues(t, c.leave*c.cost, st.Bucket.Leased)
			p.check()
		})
	}
}

// Several processes that take the room from each other at once leave no room unused, and none is
// used twice.
func TestASpikeOfMetersInSeveralProcesses(t *testing.T) {
	share(t, 4, "1/min burst 100", 40*ms, func(p *processes) {
		var left atomic.Int32
		var calls sync.WaitGroup
		for i := range 400 {
			calls.Go(func() {
				if p.all[i%4].Allow() {
					left.Add(1)
				}
			})
		}
		calls.Wait()
		require.EqualValues(t, 100, left.Load())
		p.check()
	})
}

// Requests of a meter are asked for together, but each has its own caller: one that goes gets its
// context's error at once, and what was taken for it is dropped. The others get their answers.
func TestOneCallerThatGoesDoesNotEndTheQuestionOfOthers(t *testing.T) {
	share(t, 1, "1/min burst 100", 40*ms, func(p *processes) {
		results := make(chan error, 10)
		var gone [2]context.CancelFunc
		for i := range 10 {
			ctx := p.t.Context()
			if i == 3 || i == 7 {
				ctx, gone[i/5] = context.WithCancel(ctx)
			}
			go func() { results <- p.wait(ctx, 0, 1) }()
			synctest.Wait()
		}
		p.at(20 * ms)
		gone[0]() // before it is asked for
		synctest.Wait()
		require.Equal(t, context.Canceled, <-results)
		p.at(60 * ms)
		require.NoError(t, <-results)
		gone[1]() // meanwhile
		synctest.Wait()
		require.Equal(t, context.Canceled, <-results)
		p.at(80 * ms)
		for range 7 {
			require.NoError(t, <-results)
		}
		st := p.all[0].Stats()
		require.EqualValues(t, 8, st.Departed)
		require.EqualValues(t, 2, st.Abandoned)
		require.EqualValues(t, 1, st.Bucket.Dropped)
		require.EqualValues(t, 2, st.Bucket.RoundTrips)
		require.Zero(t, st.Bucket.Failures)
	})
}

// If all have gone the call ends, too, and says nothing about the Bucket.
func TestAQuestionForNobodyEnds(t *testing.T) {
	share(t, 1, "1/min burst 100", 40*ms, func(p *processes) {
		require.NoError(t, p.wait(p.t.Context(), 0, 1))
		ctx, cancel := context.WithCancel(p.t.Context())
		results := make(chan error, 5)
		for range 5 {
			go func() { results <- p.wait(ctx, 0, 1) }()
			synctest.Wait()
		}
		cancel()
		for range 5 {
			require.Equal(t, context.Canceled, <-results)
		}
		require.Zero(t, p.all[0].Stats().Bucket.Failures)
		require.Zero(t, p.all[0].Stats().Unavailable)
		require.NoError(t, p.wait(p.t.Context(), 0, 1))
	})
}

// While the Bucket can't be asked, whoever waits for an answer gets that of the fallback. A seat
// is taken by those alone that have left.
func TestASpikeOfAMeterInAnOutage(t *testing.T) {
	for _, fallback := range []shaper.Fallback{shaper.FallbackClosed, shaper.FallbackOpen} {
		synctest.Test(t, func(t *testing.T) {
			m := buckettest.NewMemory()
			m.Fail(faultOf(buckettest.LoseRequest))
			s, err := shaper.New(shaper.Limits{Rate: 10, Burst: 5, InFlight: 50}, shaper.WithBucket(m, "k"), shaper.WithFallback(fallback))
			require.NoError(t, err)
			defer s.Close()
			var calls sync.WaitGroup
			for range 5 {
				for range 40 {
					calls.Go(func() {
						release, err := s.Acquire(t.Context(), 1)
						if err != nil {
							if !errors.Is(err, shaper.ErrUnavailable) && fallback == shaper.FallbackClosed {
								t.Error(err)
							}
							return
						}
						time.Sleep(ms)
						release()
					})
				}
				calls.Wait()
			}
			st := s.Stats()
			require.Zero(t, st.InFlight)
			require.EqualValues(t, 200, st.Departed+st.Refused)
			require.Equal(t, fallback == shaper.FallbackClosed, st.Bucket.State == shaper.BucketDown)
		})
	}
}

// A Bucket that panics is told to callers, each of them, and none waits for ever.
func TestABucketThatPanicsIsToldToEachCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.Fail(func(int, string) buckettest.Fault {
			time.Sleep(ms)
			panic("the client")
		})
		s, err := shaper.New(shaper.Limits{Rate: 10, Burst: 5, InFlight: 50}, shaper.WithBucket(m, "k"))
		require.NoError(t, err)
		defer s.Close()
		told := make(chan any, 10)
		for range 10 {
			go func() {
				defer func() { told <- recover() }()
				_, _ = s.Acquire(t.Context(), 1)
			}()
		}
		for range 10 {
			require.Equal(t, "the client", <-told)
		}
		require.Zero(t, s.Stats().InFlight)
	})
}
