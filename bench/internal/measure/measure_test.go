package measure

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCallsThatComeOutWrongAreAnError(t *testing.T) {
	n := 0
	every := func() func() bool { return func() bool { n++; return n%4 != 0 } }
	_, _, err := callAtOnce(every, 1, 100)
	require.ErrorContains(t, err, "25 of 100")
	_, err = TimeCalls(func() func() bool { return func() bool { return false } }, 2, time.Millisecond)
	require.Error(t, err)
}

func TestTimingIsPerCallOfAllGoroutines(t *testing.T) {
	var kept [][]byte
	call := func() bool { kept = append(kept[:0], make([]byte, 100)); return len(kept) == 1 }
	timing, err := TimeCalls(func() func() bool { return call }, 1, 2*time.Millisecond)
	require.NoError(t, err)
	require.Positive(t, timing.Ns)
	require.InDelta(t, 1, timing.Allocs, 0.2)
}

// The machine stalls in the first call. In virtual time a batch of 8 ms then has as many
// calls as without that.
func TestAStallDoesNotMakeTheBatchShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		call := func() bool {
			if calls++; calls == 1 {
				time.Sleep(time.Second)
			}
			time.Sleep(time.Microsecond)
			return true
		}
		began := time.Now()
		timing, err := TimeCalls(func() func() bool { return call }, 1, 8*time.Millisecond)
		require.NoError(t, err)
		require.Equal(t, 1000.0, timing.Ns)
		require.Greater(t, time.Since(began), time.Second+8*time.Millisecond)
	})
}

func TestResidentMemoryGrowsWithWhatIsInUse(t *testing.T) {
	if !MemoryIsTold() {
		t.Skip("not known on this system")
	}
	before := ResidentBytes()
	kept := make([]byte, 32<<20)
	for i := range kept {
		kept[i] = 1
	}
	after := ResidentBytes()
	// The race detector takes as much again, several times.
	require.Greater(t, after-before, 0.9*float64(len(kept)))
	runtime.KeepAlive(kept)
}

// Half of the goroutines return at once; Gather does not wait for those.
func TestWaitersStandStillWhenGathered(t *testing.T) {
	const n = 1000
	never := make(chan struct{})
	var came atomic.Int64
	all := Gather(t, n, func(i int) {
		came.Add(1)
		if i%2 == 0 {
			<-never
		}
	})
	require.EqualValues(t, n, came.Load())
	require.GreaterOrEqual(t, Goroutines("waiting"), uint64(n/2))
	close(never)
	all.Wait()
}

func TestALoopTellsOfRefusalsAndOfTooManyDepartures(t *testing.T) {
	loop := NewLoop(time.Now(), 1)
	loop.Run(t.Context(), func(context.Context) error { return errors.New("the queue is full") })
	_, err := loop.Departures()
	require.EqualError(t, err, "a caller was refused: the queue is full")

	loop = NewLoop(time.Now(), 9)
	ctx, cancel := context.WithCancel(t.Context())
	loop.Run(ctx, func(context.Context) error {
		if loop.Entries() > 10 {
			cancel()
		}
		return nil
	})
	_, err = loop.Departures()
	require.EqualError(t, err, "10 have left, of which only 9 have a record")
}

// leaving makes departures at so many microseconds, in the order of entry.
func leaving(at ...int) []Departure {
	var all []Departure
	for i, us := range at {
		all = append(all, Departure{Entered: int64(i), At: time.Duration(us) * time.Microsecond})
	}
	return all
}

// within looks at departures at a rate of 1,000/s in a window of microseconds.
func within(from, to int, all []Departure) Departures {
	return DeparturesWithin(time.Duration(from)*time.Microsecond, time.Duration(to)*time.Microsecond, time.Millisecond, all)
}

func TestFiguresOfDepartures(t *testing.T) {
	for name, c := range map[string]struct {
		from, to                              int
		left                                  []Departure
		count                                 int
		reached, errorP50, errorP99, tooShort float64
	}{
		"an even pace": {1500, 5900, leaving(0, 1000, 2000, 3000, 4000, 5000, 6000), 4, 1, 0, 0, 0},
		// The rate is counted from one departure to another: the ends of the window fall anywhere between two.
		"half the rate":             {2000, 11_500, leaving(0, 2000, 4000, 6000, 8000, 10_000), 5, 0.5, 1e6, 1e6, 0},
		"half the rate, a bit on":   {2500, 11_500, leaving(0, 2000, 4000, 6000, 8000, 10_000), 4, 0.5, 1e6, 1e6, 0},
		"half the rate, on and on":  {3999, 11_500, leaving(0, 2000, 4000, 6000, 8000, 10_000), 4, 0.5, 1e6, 1e6, 0},
		"none leaves any more":      {500, 10_000, leaving(0, 1000, 2000), 2, 0.2, 0, 0, 0},
		"none leaves in the window": {5000, 10_000, leaving(0, 1000, 2000), 0, 0, 7e6, 7e6, 0}, // The silence stands for the spacing that has not ended.
		"nothing left before":       {1000, 4000, leaving(2000, 3000), 2, 1, 0, 0, 0},
		"nothing left at all":       {1000, 4000, nil, 0, 0, 2e6, 2e6, 0},
	} {
		d := within(c.from, c.to, c.left)
		s := d.Spacing()
		require.Equal(t, c.count, s.Departures, name)
		require.InDelta(t, c.reached, s.RateReached, 1e-12, name)
		require.Equal(t, []float64{c.errorP50, c.errorP99, c.tooShort, 0}, []float64{s.ErrorP50, s.ErrorP99, s.Bunched, s.Overtaken}, name)
		require.Zero(t, d.Burst(), name)
	}
}

func TestOvertakenAreThoseBeforeWhomALaterOneLeaves(t *testing.T) {
	order := func(entered ...int64) float64 {
		all := leaving(0)
		for i, n := range entered {
			all = append(all, Departure{Entered: n, At: time.Duration(i+1) * time.Millisecond})
		}
		return within(500, 99_000, all).Spacing().Overtaken
	}
	require.Zero(t, order(1, 2, 3, 4))
	require.Equal(t, 25.0, order(1, 3, 2, 4))
	require.Equal(t, 75.0, order(4, 3, 2, 1))
	require.Equal(t, 25.0, order(2, 3, 4, 1), "the first waits for all the others")
	require.Equal(t, 75.0, order(4, 1, 2, 3), "the last comes before all the others")
}

func TestBurstIsTheLargestExcessOfAnyWindow(t *testing.T) {
	// Five at once, in the middle of an even pace: four more than one.
	require.InDelta(t, 4e6, within(500, 99_000, leaving(0, 1000, 2000, 8000, 8000, 8000, 8000, 8000, 9000)).Burst(), 1e-9)
	// Twice the rate for 4 ms, a pause, and again: the pause pays for it.
	require.InDelta(t, 2e6, within(500, 99_000, leaving(0, 1000, 1500, 2000, 2500, 3000, 9000, 9500, 10_000)).Burst(), 1e-9)
	// A pause of 1 ms only does not.
	require.InDelta(t, 3e6, within(500, 99_000, leaving(0, 1000, 1500, 2000, 2500, 3000, 5000, 5500, 6000, 6500, 7000)).Burst(), 1e-9)
}

func TestHistogramHasBarsAroundTwentieths(t *testing.T) {
	bars := within(500, 99_000, leaving(0, 1000, 2010, 2990, 2990, 5989, 8963, 20_000)).Spacing().Bars
	want := make([]int, 61)
	want[20] = 3 // 1, 1.01 and 0.98
	want[0] = 1
	want[59] = 1 // 2.974
	want[60] = 2 // 2.999 and 11
	require.Equal(t, want, bars)
}

func TestSpacingHasAllFigures(t *testing.T) {
	all := leaving(5_000, 15_000, 25_500, 29_500, 36_000)
	all[0].Entered = 3 // The first one, too, may have overtaken others.
	s := DeparturesWithin(5_001*time.Microsecond, 36*time.Millisecond, 10*time.Millisecond, all).Spacing()
	require.InDelta(t, 40.0/31, s.RateReached, 1e-9, "4 in 31 ms")
	// The spacings are 10, 10.5, 4 and 6.5 ms, the errors 0, 0.5, 6 and 3.5.
	require.InDelta(t, 2_000_000, s.ErrorP50, 1e-3)
	require.InDelta(t, 6_000_000, s.ErrorP99, 1e-3)
	require.Equal(t, 25.0, s.Bunched)
	require.Equal(t, 4, s.Departures)
	require.Equal(t, 50.0, s.Overtaken, "1 and 2, but neither 3 nor 4")
}
