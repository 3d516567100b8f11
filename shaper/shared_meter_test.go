package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

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

// in returns an instant or a span, in microseconds.
func in(r shared.BucketRate, a shared.Instant) *big.Rat {
	part := big.NewRat(a.Part, r.Parts)
	return part.Add(part, new(big.Rat).SetInt64(a.Micros))
}

// unitOf returns the time of a cost unit, in microseconds.
func unitOf(r shared.BucketRate) *big.Rat {
	return in(r, shared.Instant{Micros: r.Micros, Part: r.Part})
}

func TestABucketRateIsExactlyTheRateThatPeopleWrite(t *testing.T) {
	for _, c := range []struct {
		rate  rate.Limit
		exact *big.Rat // time of a unit in microseconds
	}{
		{1e9, big.NewRat(1, 1000)},
		{30_000, big.NewRat(100, 3)},
		{10, big.NewRat(100_000, 1)},
		{3, big.NewRat(1_000_000, 3)},
		{1, big.NewRat(1_000_000, 1)},
		{7. / 9, big.NewRat(9_000_000, 7)},
		{0.1, big.NewRat(10_000_000, 1)},
		{1. / 3, big.NewRat(3_000_000, 1)},
		{100. / 60, big.NewRat(600_000, 1)},
		{999_999_937, big.NewRat(1_000_000, 999_999_937)}, // the greatest denominator there is: a prime
		{1. / (365 * 24 * 60 * 60), big.NewRat(365*24*60*60*1_000_000, 1)},
	} {
		r := shaper.BucketRateOf(shaper.Limits{Rate: c.rate, Burst: 5}, 42)
		require.Zerof(t, unitOf(r).Cmp(c.exact), "%v per second: %+v", float64(c.rate), r)
		require.Equal(t, int64(42), r.Version)
		require.Equal(t, int64(5), r.Burst)
	}
	require.Equal(t, int64(1), shaper.BucketRateOf(shaper.Limits{Rate: 1}, 0).Burst)
}

// Engines are never faster than the process's own bucket would be; and they can hold each
// number that they are given.
func TestABucketRateIsNeverAboveTheRate(t *testing.T) {
	t.Parallel()
	count := rounds(700, 10_000, 20_000)
	random := rand.New(rand.NewPCG(1, 2))
	for range count {
		r := rate.Limit(math.Exp(math.Log(1./(365*24*60*60)) + random.Float64()*math.Log(365*24*60*60*1e9)))
		if (shaper.Limits{Rate: r}).Validate() != nil {
			continue
		}
		got := shaper.BucketRateOf(shaper.Limits{Rate: r}, 1)
		require.True(t, got.Parts >= 1 && got.Parts <= 1e12 && got.Part >= 0 && got.Part < got.Parts && got.Micros >= 0)

		exact := new(big.Rat).SetFloat64(float64(r))
		exact.Mul(exact.Inv(exact), big.NewRat(1_000_000, 1))
		reading := new(big.Rat).Mul(exact, big.NewRat(1, 1<<49)) // A float stands for the simplest fraction beside it.
		late := new(big.Rat).Sub(unitOf(got), exact)
		require.LessOrEqualf(t, late.Cmp(new(big.Rat).Add(reading, big.NewRat(1, 1e12))), 0, "%v: %+v", float64(r), got)
		require.GreaterOrEqualf(t, late.Cmp(reading.Neg(reading)), 0, "%v: %+v", float64(r), got)
	}
}

// bucketRates are rates whose arithmetic is hard in some way.
var bucketRates = []shared.BucketRate{
	{Version: 1, Micros: 333_333, Part: 1, Parts: 3, Burst: 1},
	{Version: 1, Micros: 33, Part: 1, Parts: 3, Burst: 7},
	{Version: 1, Micros: 1_285_714, Part: 2, Parts: 7, Burst: 2},
	{Version: 1, Part: 1, Parts: 1000, Burst: 1_000_000},
	{Version: 1, Micros: 100, Parts: 1, Burst: 1},
	{Version: 1, Micros: 314, Part: 159_265_358_979, Parts: 1e12, Burst: 3},
	{Version: 1, Micros: 2, Part: 999_999_999_999, Parts: 1e12, Burst: 100},
	{Version: 1, Part: 1, Parts: 1e12, Burst: 5},
	{Version: 1, Micros: 365 * 24 * 60 * 60 * 1_000_000, Part: 999, Parts: 1000, Burst: 1},
}

// A state with numbers at the ends of their ranges is sound, and one beyond them is none.
func TestAStateIsDamagedOnlyBeyondItsRanges(t *testing.T) {
	take := shared.Take{Key: "k", Cost: 1, First: 1, Rate: bucketRates[0]}
	for _, c := range []struct {
		name      string
		empty, at int64
		cold      bool
	}{
		{"it reached 0 at the beginning of 1970", 0, 1, false},
		{"it reached 0 before 1970", -1, 1, true},
		{"it was never written", 0, 0, true},
		{"the latest that there is", 1 << 53, 1 << 53, false},
		{"it reaches 0 too late", 1<<53 + 1, 1 << 53, true},
		{"it was written too late", 1 << 53, 1<<53 + 1, true},
	} {
		l := shared.BucketLevel{Empty: shared.Instant{Micros: c.empty}, Rate: take.Rate, At: c.at}
		_, taken := take.Apply(l, max(1, c.at))
		require.Equal(t, c.cold, taken.Cold, c.name)
	}
}

// A change of the rate keeps the level in cost units, and lets nobody leave before those who
// may hold slots of the old rate.
func TestANewRateBeginsBehindTheSlotsOfTheOld(t *testing.T) {
	const now = 1_800_000_000_000_000
	old := shared.BucketRate{Version: 1, Micros: 100_000, Parts: 1, Burst: 1} // 10/s
	for _, c := range []struct {
		name      string
		oldBurst  int64
		micros    int64 // time of a unit at the new rate
		burst     int64
		empty     int64 // of the old rate, from now
		want      int64 // of the new rate, from now
		nextAtOld int64 // when the next request of cost 1 could have left at the old rate, from now
	}{
		{"nothing is taken", 1, 1000, 5, 0, 0, 0},
		{"the level was 0 long ago", 1, 1000, 5, -7_000_000, 0, 0},
		{"slower: the level is kept", 1, 200_000, 1, 300_000, 600_000, 300_000},
		{"the same rate", 1, 100_000, 1, 300_000, 300_000, 300_000},
		{"faster: slots at 0, 100 and 200 ms may be held", 1, 1000, 1, 300_000, 300_000, 300_000},
		{"faster, with a burst", 1, 1000, 5, 300_000, 304_000, 300_000},
		{"faster, and nobody holds a slot: the level of 3 is kept", 5, 1000, 5, 300_000, 3000, 0},
		{"faster, and the burst is spent: 4 of it are left at 100 ms", 5, 1000, 1, 500_000, 104_000, 100_000},
		{"a request of cost 1000 leaves at 2 s", 1, 1000, 1, 102_000_000, 2_000_000 + 1_000_000, 2_000_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, next := old, shared.BucketRate{Version: 2, Micros: c.micros, Parts: 1, Burst: c.burst}
			old.Burst = c.oldBurst
			got := next.Rescale(old, shared.Instant{Micros: now + c.empty}, now)
			require.Equal(t, shared.Instant{Micros: now + c.want}, got)
			if c.nextAtOld > 0 {
				require.GreaterOrEqual(t, c.want-(c.burst-1)*c.micros, c.nextAtOld)
			}
		})
	}
}

// A rescaling is exact to the microsecond for every rate.
func TestRescaleIsNeverEarly(t *testing.T) {
	const now = 1_800_000_000_000_000
	random := rand.New(rand.NewPCG(5, 6))
	longest := new(big.Rat).SetInt64(1 << 51)
	for _, old := range bucketRates {
		for _, next := range bucketRates {
			for range 100 {
				old.Burst, next.Burst = 1+random.Int64N(50), 1+random.Int64N(50)
				empty := shared.Instant{Micros: now + random.Int64N(1<<52)>>random.IntN(52) - 1000, Part: random.Int64N(old.Parts)}
				late := new(big.Rat).Sub(in(next, next.Rescale(old, empty, now)), rescaled(next, old, in(old, empty), now, longest))
				require.Truef(t, late.Sign() >= 0 && late.Cmp(big.NewRat(1, 1)) < 0,
					"%+v to %+v, empty at %+v: %s µs late", old, next, empty, late.FloatString(6))
			}
		}
	}
}

// rescaled returns what [shared.BucketRate.Rescale] does, exactly.
func rescaled(r, old shared.BucketRate, empty *big.Rat, now int64, longest *big.Rat) *big.Rat {
	at := new(big.Rat).SetInt64(now)
	if empty.Cmp(at) <= 0 {
		return at
	}
	units := func(n int64, r shared.BucketRate) *big.Rat {
		return earlier(new(big.Rat).Mul(new(big.Rat).SetInt64(n), unitOf(r)), longest)
	}
	ratio := new(big.Rat).Quo(unitOf(r), unitOf(old))
	asOf := func(when *big.Rat) *big.Rat { // The level as of when stays what it is in cost units.
		span := new(big.Rat).Sub(empty, when)
		return span.Add(span.Mul(span, ratio), when)
	}
	result := asOf(at)
	next := earlier(new(big.Rat).Sub(empty, units(old.Burst-1, old)), new(big.Rat).SetInt64(now+shared.MaxAhead.Microseconds()))
	if next.Cmp(at) > 0 {
		result = later(result, asOf(next))
		result = later(result, new(big.Rat).Add(next, units(r.Burst-1, r)))
	}
	return earlier(result, new(big.Rat).Add(at, longest))
}

func earlier(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return a
	}
	return b
}

func later(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) > 0 {
		return a
	}
	return b
}

// During a deployment processes with an old and with a new rate share a level. Whatever
// both rates are, nobody may see more than the greater one lets leave.
func TestTwoRatesTogetherAreNeverAboveTheGreater(t *testing.T) {
	t.Parallel()
	for seed := range uint64(rounds(100, 2_000, 20_000)) {
		random := rand.New(rand.NewPCG(seed, 7))
		var rates []shared.BucketRate
		for version := range int64(2 + random.IntN(2)) {
			rates = append(rates, shared.BucketRate{
				Version: version, Micros: 1 + random.Int64N(1_000_000)>>random.IntN(19), Part: random.Int64N(3), Parts: 3,
				Burst: 1 + random.Int64N(30)>>random.IntN(5),
			})
		}
		slots := deploy(random, rates)
		greatest, burst := rates[0], rates[0].Burst
		for _, r := range rates {
			if unitOf(r).Cmp(unitOf(greatest)) < 0 {
				greatest = r
			}
			burst = max(burst, r.Burst)
		}
		greatest.Burst = burst
		require.NoErrorf(t, conforms(slots, greatest), "seed %d: %+v", seed, rates)
	}
}

// A sharedSlot is a departure: its instant in microseconds, and its cost.
type sharedSlot struct {
	at   *big.Rat
	cost int64
}

// deploy plays processes that share a level, with one more for each new rate, and returns
// the slots that they have had. Each of them uses all slots at once that come within
// MaxAhead.
func deploy(random *rand.Rand, rates []shared.BucketRate) (slots []sharedSlot) {
	now := int64(1_800_000_000_000_000)
	level, newest := shared.BucketLevel{}, 0
	for range 60 {
		now += random.Int64N(1_000_000) >> random.IntN(20)
		if newest+1 < len(rates) && random.IntN(20) == 0 {
			newest++
		}
		r := rates[random.IntN(newest+1)]
		var costs []int64
		sum := int64(0)
		for range 1 + random.IntN(5) {
			cost := 1 + random.Int64N(60)>>random.IntN(7)
			costs, sum = append(costs, cost), sum+cost
		}
		take := shared.Take{Key: "k", Cost: sum, First: costs[0], Ahead: time.Duration(random.Int64N(2_000_001)) * time.Microsecond, Rate: r}
		next, taken := take.Apply(level, now)
		level = next
		if !taken.OK {
			continue
		}
		empty := in(r, taken.Empty)
		for _, cost := range costs {
			at := new(big.Rat).Sub(empty, new(big.Rat).Mul(unitOf(r), new(big.Rat).SetInt64(max(0, r.Burst-cost))))
			at = later(at, new(big.Rat).SetInt64(now))
			empty = new(big.Rat).Add(empty, new(big.Rat).Mul(unitOf(r), new(big.Rat).SetInt64(cost)))
			if at.Cmp(new(big.Rat).SetInt64(now+shared.MaxAhead.Microseconds())) <= 0 {
				slots = append(slots, sharedSlot{at, cost})
			}
		}
	}
	return slots
}

// conforms returns an error if one bucket of a rate would not have let the slots leave.
func conforms(slots []sharedSlot, r shared.BucketRate) error {
	slices.SortStableFunc(slots, func(a, b sharedSlot) int { return a.at.Cmp(b.at) })
	empty := new(big.Rat)
	for i, s := range slots {
		due := new(big.Rat).Sub(empty, new(big.Rat).Mul(unitOf(r), new(big.Rat).SetInt64(max(0, r.Burst-s.cost))))
		if due.Cmp(s.at) > 0 {
			return fmt.Errorf("slot %d of %d, of cost %d, is %s µs early", i, len(slots), s.cost, due.Sub(due, s.at).FloatString(3))
		}
		empty = later(empty, s.at)
		empty = new(big.Rat).Add(empty, new(big.Rat).Mul(unitOf(r), new(big.Rat).SetInt64(s.cost)))
	}
	return nil
}
