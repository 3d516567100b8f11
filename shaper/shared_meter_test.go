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
	"example.com/leakybucket/shaper/shared"
)

// refusal returns the RejectError of a call.
func refusal(t *testing.T, err error) *shaper.RejectError {
	t.Helper()
	rejected, ok := errors.AsType[*shaper.RejectError](err)
	require.True(t, ok, "%v", err)
	return rejected
}

// With a Depth of 0 each call is one question that asks for now, and a call that comes after
// RetryAfter is let through: not a microsecond earlier, and not refused again.
func TestMeterAsksOnceAndItsRetryAfterIsExact(t *testing.T) {
	for _, limits := range []string{"3/s", "3/s burst 4", "30000/s", "7/min burst 2"} {
		share(t, 2, limits, 0, func(p *processes) {
			burst := max(1, p.limits.Burst)
			for range burst {
				require.NoError(t, p.wait(p.t.Context(), 0, 1), limits)
			}
			for range 20 {
				err := p.wait(p.t.Context(), 1, 1)
				require.ErrorIs(t, err, shaper.ErrQueueFull, limits)
				after := refusal(t, err).RetryAfter
				time.Sleep(after - us)
				require.Equal(t, us, refusal(t, p.wait(p.t.Context(), 1, 1)).RetryAfter, limits)
				time.Sleep(us)
				require.NoError(t, p.wait(p.t.Context(), 1, 1), limits)
			}
			takes, givenBack := p.takes()
			require.Len(t, takes, burst+60, limits)
			require.Empty(t, givenBack, limits)
			for _, e := range takes {
				require.Zero(t, e.Take.Ahead)
				require.Equal(t, [2]int64{1, 1}, [2]int64{e.Take.Cost, e.Take.First})
			}
			p.check()
		})
	}
}

// A deadline that has passed is too late, whatever the Bucket would say.
func TestAPassedDeadlineAsksNoBucket(t *testing.T) {
	share(t, 1, "10/s", 0, func(p *processes) {
		err := p.wait(overdue{p.t.Context(), time.Now()}, 0, 1)
		require.ErrorIs(t, err, shaper.ErrTooLate)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		takes, _ := p.takes()
		require.Empty(t, takes)
		p.check()
	})
}

// AllowN asks for itself too, but where requests wait it neither asks nor overtakes, and is
// told to come when they have left.
func TestMeterNeverOvertakesTheLine(t *testing.T) {
	share(t, 1, "10/s depth 9", 2*ms, func(p *processes) {
		s := p.all[0]
		require.True(t, s.AllowN(1))
		require.Equal(t, 2*ms, time.Since(p.start))
		p.arrive(0, 1, 1, 1)
		p.at(50 * ms)
		p.ClearLog()
		require.False(t, s.AllowN(1))
		takes, _ := p.takes()
		require.Empty(t, takes)
		refused := s.Refusals()[0]
		require.Equal(t, shaper.ErrQueueFull, refused.Reason)
		require.InDelta(t, 350*ms, refused.RetryAfter, float64(3*ms), "the third of the line leaves at 301 ms")
		p.at(time.Second)
		require.Len(t, p.instants(), 4)
		p.check()
	})
}

// A caller that goes while the Bucket is asked gets its context's error, and counts as
// abandoned; also if the answer has just come.
func TestCallerThatGoesWhileItAsksIsAbandoned(t *testing.T) {
	share(t, 1, "10/s", 20*ms, func(p *processes) {
		for _, after := range []time.Duration{5 * ms, 15 * ms, 19 * ms} {
			ctx, cancel := context.WithTimeout(p.t.Context(), after)
			err := p.wait(ctx, 0, 1)
			require.Equal(t, context.DeadlineExceeded, err)
			cancel()
			time.Sleep(time.Second)
		}
		gone := newLateCancel() // It goes as the answer comes.
		go func() {
			time.Sleep(15 * ms)
			gone.end()
		}()
		require.Equal(t, context.Canceled, p.wait(gone, 0, 1))
		st := p.all[0].Stats()
		require.Equal(t, uint64(4), st.Abandoned)
		require.Zero(t, st.Departed+st.Refused)
		require.Equal(t, shared.StateShared, st.Bucket.State, "it says nothing about the Bucket")
		require.NoError(t, st.Bucket.Err)
	})
}

// A seat is taken while the Bucket is asked, so that no more leave than may be in flight, and
// is given back if the Bucket refuses, fails or panics.
func TestSeatOfARefusedMeterCallIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(ms, ms)
		s := sharedShaper(t, m, shaper.Limits{Rate: 10, Burst: 2, InFlight: 1})
		results := make(chan error, 2)
		for range 2 { // Both find the bucket empty, but there is one seat.
			go func() {
				release, err := s.Acquire(t.Context(), 1)
				results <- err
				time.Sleep(10 * ms)
				release()
			}()
		}
		first, second := <-results, <-results
		require.ErrorIs(t, errors.Join(first, second), shaper.ErrQueueFull)
		require.True(t, first == nil || second == nil)
		time.Sleep(20 * ms)
		require.Zero(t, s.Stats().InFlight)

		release, err := s.Acquire(t.Context(), 1)
		require.NoError(t, err)
		release()
		_, err = s.Acquire(t.Context(), 1) // The Bucket refuses it.
		require.ErrorIs(t, err, shaper.ErrQueueFull)
		require.Zero(t, s.Stats().InFlight)

		m.Fail(func(int, string) buckettest.Fault { return buckettest.FailBefore })
		_, err = s.Acquire(t.Context(), 1)
		require.ErrorIs(t, err, shaper.ErrUnavailable)
		m.Fail(func(int, string) buckettest.Fault { panic("the client") })
		require.PanicsWithValue(t, "the client", func() { _, _ = s.Acquire(t.Context(), 1) })
		require.Zero(t, s.Stats().InFlight)
		m.Fail(nil)
		time.Sleep(time.Second)
		release, err = s.Acquire(t.Context(), 1)
		require.NoError(t, err)
		release()
	})
}

// An answer that comes later than a slot may be used lets nobody through: many that are late
// would leave together.
func TestLateAnswersDoNotLeaveInABunch(t *testing.T) {
	share(t, 1, "100/s slack 20ms", 2*ms, func(p *processes) {
		require.NoError(t, p.wait(p.t.Context(), 0, 1))
		p.at(100 * ms)
		for i := range 10 {
			p.at(100*ms + time.Duration(i)*15*ms)
			p.SetDelay(ms, 180*ms-time.Duration(i)*15*ms)
			go func() { _ = p.wait(context.Background(), 0, 1) }()
			synctest.Wait()
		}
		p.SetDelay(ms, ms)
		p.at(2 * time.Second)
		worst := p.pace().Worst(p.departures())
		require.LessOrEqual(t, worst.Excess(), int64(0), "%v", worst)
		require.Zero(t, p.all[0].Stats().Waiting)
	})
}

// SetLimits while a call asks must not make it fail: the Bucket has answered.
func TestNewLimitsWhileAskingAreNoFailure(t *testing.T) {
	share(t, 1, "10/s", 20*ms, func(p *processes) {
		s := p.all[0]
		results := make(chan error, 1)
		go func() { results <- p.wait(context.Background(), 0, 1) }()
		p.at(15 * ms)
		require.NoError(t, s.SetLimits(shaper.Limits{Rate: 20}))
		require.NoError(t, <-results)
		go func() { results <- p.wait(context.Background(), 0, 1) }()
		p.at(35 * ms)
		require.NoError(t, s.SetLimits(shaper.Limits{Rate: 5}))
		require.ErrorIs(t, <-results, shaper.ErrQueueFull)
		require.Zero(t, s.Stats().Unavailable)
	})
}

// The line may form while AllowN asks, and its Departed hook is told of those in it.
func TestMeterToldOfALineThatFormsWhileItAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(20*ms, 20*ms)
		told := make(chan int, 3)
		s, err := shaper.New(shaper.Limits{Rate: 10, Burst: 5, Depth: 9}, shaper.WithBucket(m, "key", shared.Options{}),
			shaper.WithTrace(&shaper.Trace{Departed: func(_ context.Context, e shaper.Event) { told <- e.Waiting }}))
		require.NoError(t, err)
		defer s.Close()
		allowed := make(chan bool, 1)
		go func() { allowed <- s.Allow() }()
		time.Sleep(10 * ms)
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- s.Wait(t.Context()) }()
		}
		synctest.Wait()
		require.Equal(t, 2, s.Stats().Waiting)
		require.True(t, <-allowed)
		require.Equal(t, 2, <-told)
		require.NoError(t, <-done)
		require.NoError(t, <-done)
	})
}

// A pool is a Bucket with a few connections: a call waits until one is free, and has failed if
// its context ends before.
type pool struct {
	*buckettest.Memory
	free chan struct{}
}

func poolOf(m *buckettest.Memory, connections int) pool {
	return pool{m, make(chan struct{}, connections)}
}

func (p pool) Take(ctx context.Context, t shared.Take) (shared.Taken, error) {
	select {
	case p.free <- struct{}{}:
	case <-ctx.Done():
		return shared.Taken{}, ctx.Err()
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
			require.Equal(t, shared.StateShared, st.Bucket.State)
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
// context's error at once, and the units taken for it are dropped. The others get their answers.
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

// While the Bucket can't be asked, whoever waits for an answer gets the answer of the fallback. A
// seat is taken by those alone that have left.
func TestASpikeOfAMeterInAnOutage(t *testing.T) {
	for _, fallback := range []shared.Fallback{shared.FallbackClosed, shared.FallbackOpen} {
		synctest.Test(t, func(t *testing.T) {
			m := buckettest.NewMemory()
			m.Fail(faultOf(buckettest.LoseRequest))
			s := sharedShaper(t, m, shaper.Limits{Rate: 10, Burst: 5, InFlight: 50}, shared.Options{Fallback: fallback})
			var calls sync.WaitGroup
			for range 5 {
				for range 40 {
					calls.Go(func() {
						release, err := s.Acquire(t.Context(), 1)
						if err != nil {
							if !errors.Is(err, shaper.ErrUnavailable) && fallback == shared.FallbackClosed {
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
			require.Equal(t, fallback == shared.FallbackClosed, st.Bucket.State == shared.StateDown)
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
		s := sharedShaper(t, m, shaper.Limits{Rate: 10, Burst: 5, InFlight: 50})
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
