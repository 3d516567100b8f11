package shaper_test

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// An outage is a process whose shared bucket in memory fails when a timeline says so.
type outage struct {
	*processes
	*shaper.Shaper

	mu    sync.Mutex
	came  int
	ends  []callEnd     // of calls, in the order in which they returned
	told  []callEnd     // by the hooks Refused and Abandoned
	began time.Duration // when the Bucket counted as unavailable for the last time
	back  time.Duration // when it could be asked again for the last time
}

// A callEnd is when and how the call with a number has returned, counted from the start.
type callEnd struct {
	number int
	at     time.Duration
	waited time.Duration
	err    error
}

// callNumber is the key of a call's number in its context.
type callNumber struct{}

// during runs a timeline in a bubble, with a Shaper that is 1 ms away from its Bucket.
func during(t *testing.T, limits string, timeline func(o *outage), opts ...any) {
	t.Helper()
	share(t, 0, limits, 2*ms, func(p *processes) {
		o := &outage{processes: p}
		ended := func(ctx context.Context, e shaper.Event) {
			o.mu.Lock()
			defer o.mu.Unlock()
			number, _ := ctx.Value(callNumber{}).(int)
			o.told = append(o.told, callEnd{number, e.At.Sub(o.start), e.Waited, e.Err})
		}
		trace := &shaper.Trace{Refused: ended, Abandoned: ended, Bucket: func(_ context.Context, e shared.Event) {
			o.mu.Lock()
			defer o.mu.Unlock()
			if at := e.At.Sub(o.start); e.State == shared.StateShared {
				o.back = at
			} else {
				o.began = at
			}
		}}
		o.Shaper = p.add(p.Memory, append(opts, shaper.WithTrace(trace))...)
		timeline(o)
	})
}

// enter lets n requests come, one after the other, and returns the number of the first.
func (o *outage) enter(ctx context.Context, n int) (first int) {
	first = o.came + 1
	for range n {
		o.came++
		number, came := o.came, time.Since(o.start)
		go func() {
			err := o.Wait(context.WithValue(ctx, callNumber{}, number))
			o.mu.Lock()
			defer o.mu.Unlock()
			at := time.Since(o.start)
			o.ends = append(o.ends, callEnd{number, at, at - came, err})
		}()
		synctest.Wait()
	}
	return first
}

// breaks makes all calls fail from now on, and lets time pass until the Bucket counts as
// unavailable.
func (o *outage) breaks() {
	o.Fail(faultOf(buckettest.FailBefore))
	o.untilState(shared.StateDown)
}

// beginsWith makes the Bucket fail from the start on, and lets n requests enter the line before it
// counts as unavailable, which takes three calls of 250 ms.
func (o *outage) beginsWith(ctx context.Context, n int) {
	o.Fail(faultOf(buckettest.LoseRequest))
	o.enter(ctx, n)
	o.at(750 * ms)
	require.Equal(o.t, 750*ms, o.began)
}

// mends lets calls succeed again, and time pass until one has.
func (o *outage) mends() {
	o.Fail(nil)
	o.untilState(shared.StateShared)
}

func (o *outage) untilState(state shared.State) {
	for range 10_000 {
		if o.Stats().Bucket.State == state {
			return
		}
		time.Sleep(ms)
		synctest.Wait()
	}
	require.Equal(o.t, state, o.Stats().Bucket.State)
}

// refusedInLine returns the numbers of the calls that have been refused with ErrUnavailable, in
// order, and requires that this was at one instant, and that the hooks say the same as the calls.
func (o *outage) refusedInLine(at time.Duration) (numbers []int) {
	o.t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.ends {
		if e.err == nil {
			continue
		}
		require.Equal(o.t, shaper.ErrUnavailable, refusal(o.t, e.err).Reason)
		require.Equal(o.t, at, e.at, "call %d", e.number)
		require.Positive(o.t, refusal(o.t, e.err).RetryAfter)
		require.Contains(o.t, o.told, e)
		numbers = append(numbers, e.number)
	}
	slices.Sort(numbers) // Those that are woken at one instant may return in any order.
	return numbers
}

func numbersFrom(first, n int) (all []int) {
	for i := range n {
		all = append(all, first+i)
	}
	return all
}

// Somebody whose context never ends would wait for as long as the store is away, which nobody
// knows: the caller, a client of a proxy, hangs.
func TestARequestInLineIsAnsweredThoughTheStoreIsAway(t *testing.T) {
	for _, patience := range []time.Duration{shared.DefaultPatience, 100 * ms, time.Nanosecond, time.Hour} {
		o := shared.Options{Patience: patience}
		if patience == shared.DefaultPatience {
			o.Patience = 0
		}
		during(t, "10/s depth 99", func(o *outage) {
			o.enter(context.Background(), 30)
			o.at(time.Second)
			o.breaks()
			at := o.began + patience
			if patience > ms {
				o.at(at - 1)
				require.Positive(t, o.Stats().Waiting)
				require.Empty(t, o.refusedInLine(0))
			}
			o.at(max(at, time.Since(o.start)))
			require.Zero(t, o.Stats().Waiting)
			refused := o.refusedInLine(at)
			left := 30 - len(refused)
			require.Equal(t, numbersFrom(left+1, 30-left), refused, "those who stay keep their order, and leave first")
			st := o.Stats()
			require.EqualValues(t, left, st.Departed)
			require.EqualValues(t, 30-left, st.Refused)
			require.EqualValues(t, 30-left, st.Unavailable)
			require.Zero(t, st.Abandoned)
			require.Len(t, o.Refusals(), 30-left)
			for _, r := range o.Refusals() {
				require.Equal(t, shaper.ErrUnavailable, r.Reason)
				require.Equal(t, at, r.At.Sub(o.start))
			}
			if patience > ms {
				newcomer := refusal(t, o.Wait(o.t.Context()))
				require.Equal(t, shaper.ErrUnavailable, newcomer.Reason)
				require.Equal(t, newcomer.RetryAfter, refusal(t, o.ends[29].err).RetryAfter)
			}
		}, o)
	}
}

// The Bucket is back a moment before the patience ends.
func TestAnOutageThatEndsInTimeCostsNobodyItsPlace(t *testing.T) {
	during(t, "10/s depth 99", func(o *outage) {
		first := o.enter(o.t.Context(), 40)
		o.at(ms * 950)
		o.breaks()
		o.mends()
		require.Less(t, o.back, o.began+99*ms)
		o.at(8 * time.Second)
		require.Len(t, o.ends, 40)
		for i, e := range o.ends {
			require.NoError(t, e.err)
			require.Equal(t, first+i, e.number)
		}
		require.Zero(t, o.Stats().Refused)
	}, shared.Options{Patience: 99 * ms})
}

// Patience counts within one outage: those who have come through one begin anew in the next.
func TestShortOutagesDoNotAddUp(t *testing.T) {
	during(t, "10/s depth 99", func(o *outage) {
		o.enter(o.t.Context(), 99)
		for range 4 {
			time.Sleep(time.Second)
			o.breaks()
			o.at(o.began + 1500*ms)
			o.mends()
			require.Greater(t, o.Stats().Waiting, 20)
		}
		o.at(30 * time.Second)
		require.Len(t, o.ends, 99)
		require.Empty(t, o.refusedInLine(0))
	}, shared.Options{Patience: 4 * time.Second})
}

// A request that comes when the Bucket is about to be asked again may try. It waits from then on.
func TestARequestThatCameDuringAProbeWaitsFromThenOn(t *testing.T) {
	during(t, "10/s depth 99", func(o *outage) {
		o.Fail(faultOf(buckettest.FailBefore))
		o.enter(o.t.Context(), 1)
		began := o.began
		o.at(began + time.Second)
		require.Equal(t, []int{1}, o.refusedInLine(began+time.Second))
		after := refusal(t, o.ends[0].err).RetryAfter
		o.at(began + time.Second + after)
		came := time.Since(o.start)
		o.ends = nil
		o.Fail(faultOf(buckettest.LoseRequest)) // The probe takes 250 ms, and others come meanwhile.
		second := o.enter(o.t.Context(), 1)
		require.Equal(t, 1, o.Stats().Waiting)
		require.Equal(t, shaper.ErrUnavailable, refusal(t, o.Wait(o.t.Context())).Reason, "one at a time may try")
		o.at(came + time.Second - 1)
		require.Equal(t, 1, o.Stats().Waiting)
		o.at(came + time.Second)
		require.Equal(t, []int{second}, o.refusedInLine(came+time.Second))
		require.Equal(t, began, o.began, "it is one outage")
	}, shared.Options{Patience: time.Second})
}

// With a negative patience those in line wait until their contexts end; and so they do in no outage.
func TestWithoutPatienceOnlyTheContextEndsAWait(t *testing.T) {
	for _, patience := range []time.Duration{-1, -time.Hour, math.MinInt64, 8 * time.Hour} {
		during(t, "10/s depth 99", func(o *outage) {
			ctx, cancel := context.WithTimeout(o.t.Context(), 7*time.Hour)
			defer cancel()
			o.beginsWith(ctx, 5)
			o.at(7*time.Hour - 1)
			require.Equal(t, 5, o.Stats().Waiting)
			o.at(7 * time.Hour)
			require.Len(t, o.ends, 5)
			for _, e := range o.ends {
				require.Equal(t, context.DeadlineExceeded, e.err)
			}
			require.EqualValues(t, 5, o.Stats().Abandoned)
		}, shared.Options{Patience: patience})
	}
}

// Where the fallback lets requests leave, none has to be refused.
func TestPatienceChangesNothingInALocalOrOpenFallback(t *testing.T) {
	for _, f := range []shared.Fallback{shared.FallbackOpen, shared.FallbackLocal(10)} {
		during(t, "10/s depth 99", func(o *outage) {
			o.enter(o.t.Context(), 30)
			o.at(time.Second)
			o.Fail(faultOf(buckettest.FailBefore))
			o.at(40 * time.Second)
			require.NotZero(t, o.began)
			require.Len(t, o.ends, 30)
			require.Empty(t, o.refusedInLine(0))
		}, shared.Options{Fallback: f, Patience: ms})
	}
}

// A context that ends when the patience does: the call has one outcome, which every count agrees on.
func TestPatienceAndContextThatEndAtOneInstant(t *testing.T) {
	for _, late := range []time.Duration{-1, 0, 1} {
		during(t, "10/s depth 99", func(o *outage) {
			ctx, cancel := context.WithDeadline(o.t.Context(), o.start.Add(1750*ms+late))
			defer cancel()
			o.beginsWith(ctx, 8)
			o.at(2 * time.Second)
			st := o.Stats()
			require.EqualValues(t, 8, st.Unavailable+st.Abandoned)
			require.Equal(t, st.Unavailable, st.Refused)
			abandoned := uint64(0)
			for _, e := range o.ends {
				if e.err == context.DeadlineExceeded {
					abandoned++
				}
				require.Contains(t, o.told, e)
			}
			require.Len(t, o.told, 8)
			require.Equal(t, st.Abandoned, abandoned)
			switch late {
			case -1:
				require.EqualValues(t, 8, st.Abandoned)
			case 1:
				require.EqualValues(t, 8, st.Unavailable)
			}
		}, shared.Options{Patience: time.Second})
	}
}

// The end of a line by its patience is the end of a drain; a Close need not wait for it.
func TestShutdownInAnOutageEndsWithThePatience(t *testing.T) {
	during(t, "10/s depth 99", func(o *outage) {
		o.beginsWith(o.t.Context(), 9)
		require.NoError(t, o.Shutdown(context.Background()))
		require.LessOrEqual(t, time.Since(o.start), 6*time.Second, "a question that is under way takes 250 ms at most")
		synctest.Wait()
		require.Len(t, o.refusedInLine(5750*ms), 9)
		require.ErrorIs(t, o.Wait(o.t.Context()), shaper.ErrClosed)
	})
	during(t, "10/s depth 99", func(o *outage) {
		o.beginsWith(o.t.Context(), 9)
		require.NoError(t, o.Close())
		synctest.Wait()
		require.Len(t, o.ends, 9)
		for _, e := range o.ends {
			require.ErrorIs(t, e.err, shaper.ErrClosed)
		}
		require.Zero(t, o.Stats().Unavailable)
	})
}

// While a Hold keeps the line, nobody in it needs the Bucket. But patience ends all the same, so
// the Bucket must be asked: else those in line would be refused for an outage that is over.
func TestAHeldLineLearnsThatTheBucketIsBack(t *testing.T) {
	during(t, "10/s depth 99", func(o *outage) {
		o.beginsWith(o.t.Context(), 9)
		o.Hold(time.Minute)
		o.at(3 * time.Second)
		o.Fail(nil)
		o.at(59 * time.Second)
		require.Equal(t, 9, o.Stats().Waiting)
		require.Equal(t, shared.StateShared, o.Stats().Bucket.State)
		o.at(62 * time.Second)
		require.Len(t, o.ends, 9)
		require.Empty(t, o.refusedInLine(0))
	})
}

// Nor do those in line need the Bucket while slots are leased for them. If a Hold then lets these
// pass, and the key that has found the outage is gone, the line must ask all the same.
func TestAHeldLineWithSlotsLearnsThatTheBucketIsBack(t *testing.T) {
	for _, cost := range []int{1, 20} {
		synctest.Test(t, func(t *testing.T) {
			m := buckettest.NewMemory()
			m.SetDelay(ms, ms)
			g := sharedGroup(t, m, shaper.Limits{Rate: rate.Limit(100 * cost), Depth: 200}, shared.Options{Patience: time.Second})
			left := make(chan error, 100)
			for range cap(left) {
				go func() { left <- g.WaitN(context.Background(), "held", cost) }()
			}
			held := func() int64 {
				st, _ := g.StatsOf("held")
				return st.Bucket.Held
			}
			for i := 0; held() <= int64(5*cost); i++ { // Until two batches are leased.
				require.Less(t, i, 1000)
				time.Sleep(ms)
			}
			g.Limiter("held").Hold(time.Minute)
			time.Sleep(ms)
			m.Fail(faultOf(buckettest.FailBefore))
			ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
			defer cancel()
			require.ErrorIs(t, g.Wait(ctx, "other"), context.DeadlineExceeded)
			require.Equal(t, shared.StateDown, g.Stats().Bucket.State)
			m.Fail(nil)
			time.Sleep(70 * ms) // Until the first probe.
			require.Equal(t, shared.StateShared, g.Stats().Bucket.State)
			time.Sleep(time.Minute + 2*time.Second)
			require.Len(t, left, cap(left))
			for range cap(left) {
				require.NoError(t, <-left)
			}
			b := g.Stats().Bucket
			require.EqualValues(t, 100*cost, b.Leased-b.Dropped-b.GivenBack, "every unit is accounted for")
		})
	}
}

// A retry stands before the others, and has come later: it waits from then on.
func TestARetryHasAPatienceOfItsOwn(t *testing.T) {
	during(t, "1/s depth 9", func(o *outage) {
		transport := shaper.Transport{Limiter: o.Shaper, Retry: true, Base: roundTripFunc(func(*http.Request) (*http.Response, error) {
			time.Sleep(4 * time.Second)
			return &http.Response{StatusCode: http.StatusTooManyRequests}, nil
		})}
		type result struct {
			status int
			at     time.Duration
		}
		returned := make(chan result, 1)
		go func() {
			r, err := http.NewRequestWithContext(o.t.Context(), http.MethodGet, "http://upstream.invalid/", nil)
			if err != nil {
				t.Error(err)
				return
			}
			response, err := transport.RoundTrip(r)
			if err != nil {
				t.Error(err)
				return
			}
			returned <- result{response.StatusCode, time.Since(o.start)}
		}()
		o.at(2 * ms)
		require.EqualValues(t, 1, o.Stats().Departed)
		o.enter(o.t.Context(), 6)
		o.breaks()
		require.Less(t, o.began, 4*time.Second)
		o.at(4002 * ms)
		waiting := o.Stats().Waiting
		require.Greater(t, waiting, 2)
		require.Zero(t, o.Stats().OldestWait, "the retry is the head")
		o.at(o.began + 5*time.Second)
		require.Len(t, o.refusedInLine(o.began+5*time.Second), waiting-1)
		require.Equal(t, 1, o.Stats().Waiting)
		require.Equal(t, result{http.StatusTooManyRequests, 9002 * ms}, <-returned, "the response that there is")
		require.EqualValues(t, waiting, o.Stats().Unavailable, "the retry counts as one more call")
	})
}

// Each key's line is ended at the instant of its own requests, and the keys of another server notice
// nothing.
func TestTheLinesOfAGroupAreAnsweredThoughTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := sharded{buckettest.NewMemory()}
		m.SetDelay(ms, ms)
		var told sync.Map
		g := sharedGroup(t, m, shaper.Limits{Rate: 1, Depth: 9}, shared.Options{Patience: 2 * time.Second},
			shaper.WithTrace(&shaper.Trace{Refused: func(_ context.Context, e shaper.Event) { told.Store(e.Key, e) }}))
		start := time.Now()
		refused, left := make(chan error, 1), make(chan error, 2)
		go func() { refused <- g.Wait(context.Background(), "down1") }() // Its three failures open the circuit breaker of its server at once.
		for range cap(left) {
			go func() { left <- g.Wait(context.Background(), "up 1") }()
		}
		rejected := refusal(t, <-refused)
		require.Equal(t, 2*time.Second, time.Since(start))
		require.Positive(t, rejected.RetryAfter)
		require.LessOrEqual(t, rejected.RetryAfter, 3*time.Second)
		require.Equal(t, shared.StateDown, g.Stats().Bucket.State)
		synctest.Wait()
		require.Len(t, left, 2)
		require.NoError(t, errors.Join(<-left, <-left))
		st := g.Stats()
		require.Equal(t, []uint64{1, 1, 2}, []uint64{st.Unavailable, st.Refused, st.Departed})
		require.Len(t, g.Refusals(), 1)
		r := g.Refusals()[0]
		require.Equal(t, shaper.ErrUnavailable, r.Reason)
		require.Equal(t, "down1", r.Key)
		require.Equal(t, start.Add(2*time.Second), r.At)
		e, _ := told.Load("down1")
		require.Equal(t, 2*time.Second, e.(shaper.Event).Waited)
		require.ErrorIs(t, e.(shaper.Event).Err, shaper.ErrUnavailable)
		time.Sleep(3 * time.Second)
	})
}

// A line in which all wait for a seat does not need the Bucket. Its patience ends like the patience
// of the others, so it must learn that the outage is over, though the key that has found it is
// gone.
func TestALineThatWaitsForASeatLearnsThatTheBucketIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(ms, ms)
		g := sharedGroup(t, m, shaper.Limits{Rate: 10, Depth: 9, InFlight: 1})
		release, err := g.Acquire(t.Context(), "a", 1)
		require.NoError(t, err)
		left := make(chan error, 2)
		for range cap(left) {
			go func() {
				done, err := g.Acquire(context.Background(), "a", 1)
				done()
				left <- err
			}()
		}
		time.Sleep(time.Second)
		m.Fail(faultOf(buckettest.FailBefore))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = g.Acquire(ctx, "b", 1)
		require.Equal(t, context.DeadlineExceeded, err)
		require.Equal(t, shared.StateDown, g.Stats().Bucket.State)
		m.Fail(nil)
		time.Sleep(30 * time.Second)
		require.Equal(t, 2, g.Stats().Waiting)
		require.Equal(t, shared.StateShared, g.Stats().Bucket.State)
		release()
		require.NoError(t, <-left)
		require.NoError(t, <-left)
		require.NoError(t, g.Close())
	})
}

// The drain of a Group ends with the patience of the last in its lines.
func TestShutdownOfAGroupInAnOutageEndsWithThePatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.Fail(faultOf(buckettest.FailBefore))
		g := sharedGroup(t, m, shaper.Limits{Rate: 10, Depth: 9})
		start := time.Now()
		done := make(chan error, 1)
		go func() { done <- g.Wait(context.Background(), "key") }()
		synctest.Wait()
		require.NoError(t, g.Shutdown(context.Background()))
		require.Equal(t, 5*time.Second, time.Since(start))
		require.ErrorIs(t, <-done, shaper.ErrUnavailable)
		require.EqualValues(t, 1, g.Stats().Unavailable)
		require.EqualValues(t, 1, g.Stats().Refused)
	})
}
