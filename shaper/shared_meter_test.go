package shaper_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
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
		require.Equal(t, shaper.BucketShared, st.Bucket.State, "it says nothing about the Bucket")
		require.NoError(t, st.Bucket.Err)
	})
}

// A seat is taken while the Bucket is asked, so that no more leave than may be in flight, and
// is given back if the Bucket refuses, fails or panics.
func TestSeatOfARefusedMeterCallIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(ms, ms)
		s, err := shaper.New(shaper.Limits{Rate: 10, Burst: 2, InFlight: 1}, shaper.WithBucket(m, "k"))
		require.NoError(t, err)
		defer s.Close()
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
		s, err := shaper.New(shaper.Limits{Rate: 10, Burst: 5, Depth: 9}, shaper.WithBucket(m, "key"),
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
