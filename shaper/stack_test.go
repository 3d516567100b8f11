//go:build !race

package shaper_test

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// A goroutine begins with 2 KiB of stack, and one that needs a little more has
// 4. Of many that wait this is nearly all the memory. (The race detector and coverage make
// frames larger.)
func TestAWaiterHasTheSmallestStack(t *testing.T) {
	if testing.CoverMode() != "" {
		t.Skip("the counters of coverage make frames larger")
	}
	// Each garbage collection sets the size of the stack with which goroutines begin, by the
	// average use of all goroutines: also the goroutines of other tests, unless that is off.
	const fixedStart = "adaptivestackstart=0"
	if !strings.Contains(os.Getenv("GODEBUG"), fixedStart) {
		requireOneOf(t, 3, "GODEBUG="+fixedStart)
		return
	}
	const waiters = 5000
	limits := shaper.Limits{Rate: 1. / 3600, Depth: waiters}
	cancelled, cancel := context.WithCancel(context.Background())
	defer cancel()
	for name, ctx := range map[string]context.Context{"that never ends": context.Background(), "that can end": cancelled} {
		s := mustMake(t, limits)
		requireSmallestStack(t, waiters, line{
			name: "a Shaper, with a context " + name, atMost: 2048 * 1.1,
			wait: func() { _ = s.Wait(ctx) }, waiting: func() int { return s.Stats().Waiting }, close: s.Close,
		})
		g := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return limits, nil }))
		requireSmallestStack(t, waiters, line{
			name: "a Group, with a context " + name, atMost: 2048 * 1.25,
			wait: func() { _ = g.Wait(ctx, "key") }, waiting: func() int { return g.Stats().Waiting }, close: g.Close,
		})
	}
}

// requireOneOf runs this test in other processes with a setting, one after the other, until one
// of them passes. If the one that has the lock is kept from running, those that park for the lock
// need 4096 too, which no waiter is to blame for. Nothing makes stacks smaller.
func requireOneOf(t *testing.T, tries int, setting string) {
	t.Helper()
	var said []byte
	var err error
	for range tries {
		child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.cpu="+strconv.Itoa(runtime.GOMAXPROCS(0)))
		child.Env = append(os.Environ(), setting)
		if said, err = child.CombinedOutput(); err == nil {
			break
		}
	}
	require.NoError(t, err, "%s", said)
	require.Contains(t, string(said), "PASS")
}

// A line is what callers wait in.
type line struct {
	name    string
	atMost  float64 // bytes of stack for each waiter: 2048, and those few that need 4096 because the allocator, or a table of the Group (up to 1.16 × 2048 in 20 runs), grows just then
	wait    func()
	waiting func() int
	close   func() error
}

// requireSmallestStack lets one call of wait through, and so many more wait after it.
func requireSmallestStack(t *testing.T, waiters int, l line) {
	t.Helper()
	l.wait()
	before := stackInUse()
	var callers sync.WaitGroup
	for range waiters {
		callers.Go(l.wait)
	}
	for l.waiting() < waiters {
		runtime.Gosched()
	}
	each := float64(int64(stackInUse())-int64(before)) / float64(waiters) // Goroutines of other tests may have ended.
	require.Less(t, each, l.atMost, l.name)
	require.NoError(t, l.close())
	callers.Wait()
}

// stackInUse returns the stack memory of live goroutines.
func stackInUse() uint64 {
	runtime.GC()
	runtime.GC() // The first finds the stacks of those who have ended, the second frees them.
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.StackInuse
}
