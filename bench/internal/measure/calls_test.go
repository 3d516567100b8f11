package measure

import (
	"runtime"
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
	w, err := Gather(n, func(i int) {
		if i%2 == 0 {
			<-never
		}
	})
	require.NoError(t, err)
	require.EqualValues(t, n, w.came.Load())
	require.GreaterOrEqual(t, Goroutines("waiting"), uint64(n/2))
	close(never)
	w.All.Wait()
}
