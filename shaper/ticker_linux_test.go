//go:build linux && (amd64 || arm64 || 386 || arm)

package shaper

import (
	"context"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper/internal/alarm"
)

// These tests look at the ticker from inside, on the real clock.

// precision is what Stats says of the alarm.
type precision struct {
	precise  bool
	fallback string
}

func precisionOf(s *Shaper) precision {
	st := s.Stats()
	return precision{st.Precise, st.Fallback}
}

// held makes a shaper at 1,000/s with one waiter, who would leave in an hour.
func held(t *testing.T) *Shaper {
	t.Helper()
	s, err := New(Limits{Rate: 1000, Depth: 10})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	require.True(t, s.AllowN(3_600_000))
	go func() { _ = s.Wait(context.Background()) }()
	return s
}

// comes waits until something is so. (require.Eventually would look at it from
// a goroutine of its own, which these tests would count.)
func comes(t *testing.T, so func() bool, says ...any) {
	t.Helper()
	for began := time.Now(); !so(); time.Sleep(time.Millisecond) {
		require.Less(t, time.Since(began), 10*time.Second, says...)
	}
}

// becomes waits until Stats says so.
func becomes(t *testing.T, want precision, s *Shaper) {
	t.Helper()
	comes(t, func() bool { return precisionOf(s) == want }, "%+v is wanted", want)
}

func TestALineTakesAFileWhereAMillisecondMatters(t *testing.T) {
	s := held(t)
	becomes(t, precision{precise: true}, s)

	// 20 ms are the longest interval with one; a change of the limits takes it
	// away and brings it back.
	for _, c := range []struct {
		limits  string
		precise bool
	}{
		{"1/s depth 10", false},
		{"50/s depth 10", true},
		{"47/s depth 10", false},
		{"100000/s depth 10", true},
	} {
		l, err := ParseLimits(c.limits)
		require.NoError(t, err)
		require.NoError(t, s.SetLimits(l))
		becomes(t, precision{precise: c.precise}, s)
	}
	require.NoError(t, s.Close())
	require.Equal(t, precision{}, precisionOf(s))
}

// Two wake-ups with a coarse timer are a millisecond apart. At this rate a ticker
// with a lead would yield from slot to slot; a coarse one does not, in its second
// line either, for which it knows its lead from the start.
func TestACoarseTimerSleepsAtHighRates(t *testing.T) {
	s, err := New(Limits{Rate: 100_000, Depth: 100}, WithCoarseTimer())
	require.NoError(t, err)
	for range 100 {
		s.ticker.lead.Woke(0, int64(30*time.Microsecond))
	}
	ctx, cancel := context.WithCancel(context.Background())
	var callers sync.WaitGroup
	for range 100 {
		callers.Go(func() {
			for s.Wait(ctx) == nil {
			}
		})
	}
	looked, before := 0, int64(0)
	for began := time.Now(); time.Since(began) < 10*time.Second && looked < 20; runtime.Gosched() {
		s.mu.Lock()
		woke := s.ticker.woke
		s.mu.Unlock()
		switch {
		case woke == 0: // Nobody has had the processor for so long that another ticker runs.
			before = 0
		case woke != before:
			require.GreaterOrEqual(t, woke-before, int64(coarseness))
			looked, before = looked+1, woke
		}
	}
	require.Equal(t, 20, looked)
	cancel()
	callers.Wait()
	require.NoError(t, s.Close())
}

func TestInABubbleALineTakesNoFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := held(t)
		synctest.Wait()
		require.Equal(t, 1, s.Stats().Waiting)
		require.Equal(t, precision{}, precisionOf(s))
	})
}

// The files of a process belong to its connections. Shapers beyond the 64th
// with a line do without.
func TestNoMoreThan64ShapersHoldAFile(t *testing.T) {
	comes(t, func() bool { return alarm.Files() == 0 }, "those of the tests before are given back")
	var all []*Shaper
	for range alarm.MaxFiles {
		s := held(t)
		becomes(t, precision{precise: true}, s)
		all = append(all, s)
	}
	without := precision{fallback: "64 shapers of this process have a timerfd already"}
	late := held(t)
	becomes(t, without, late)
	requireItPaces(t, without)

	// When one is given back, it is the next one's who asks; who has been told
	// no asks again after a second.
	require.NoError(t, all[0].Close())
	again := held(t)
	becomes(t, precision{precise: true}, again)
	require.NoError(t, all[1].Close())
	late.mu.Lock()
	late.ticker.retryFileAt = 0
	late.ticker.look(late.clock)
	late.mu.Unlock()
	becomes(t, precision{precise: true}, late)
}

// requireItPaces lets a line of 50 leave at 1,000/s and requires that nobody
// leaves before its slot.
func requireItPaces(t *testing.T, want precision) {
	t.Helper()
	const n = 50
	left := make(chan time.Time, n+1)
	slow := Limits{Rate: 1.0 / 3600, Depth: n}
	s, err := New(slow, WithTrace(&Trace{Departed: func(_ context.Context, e Event) { left <- e.At }}))
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	require.NoError(t, s.Wait(context.Background()))
	<-left
	var callers sync.WaitGroup
	for range n {
		callers.Go(func() { _ = s.Wait(context.Background()) })
	}
	for s.Stats().Waiting < n {
		runtime.Gosched()
	}
	began := time.Now()
	require.NoError(t, s.SetLimits(Limits{Rate: 1000, Depth: n}))
	becomes(t, want, s)
	callers.Wait()
	var at []time.Duration
	for range n {
		at = append(at, (<-left).Sub(began))
	}
	slices.Sort(at) // The hooks of several calls run in any order.
	for i, at := range at {
		// The level was 1, or a millionth less.
		require.Greater(t, at, time.Duration(i+1)*time.Millisecond-10*time.Microsecond)
	}
}

func TestWithNoDescriptorLeftALineLeavesByGosTimer(t *testing.T) {
	var was syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was))
	next, err := os.Open(os.DevNull)
	require.NoError(t, err)
	none := was
	none.Cur = uint64(next.Fd()) // The lowest that is free is above all that may be had.
	require.NoError(t, next.Close())
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	defer func() { require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was)) }()
	requireItPaces(t, precision{fallback: "timerfd_create: too many open files"})
}

// A program may close a descriptor that is not its own.
func TestAFileThatBreaksIsReplacedByGosTimer(t *testing.T) {
	before := alarm.Files()
	s := held(t)
	becomes(t, precision{precise: true}, s)
	s.mu.Lock()
	require.NoError(t, s.ticker.alarm.(*alarm.File).Close())
	s.mu.Unlock()
	becomes(t, precision{fallback: "use of closed file"}, s)
	require.NoError(t, s.SetLimits(Limits{Rate: 1e9, Depth: 10}))
	comes(t, func() bool { return s.Stats().Departed == 2 })
	require.NoError(t, s.Close())
	require.Equal(t, before, alarm.Files())
}

// It may close it without our knowing, too.
func TestADescriptorThatIsClosedUnderUsIsReplacedByGosTimer(t *testing.T) {
	s := held(t)
	becomes(t, precision{precise: true}, s)
	s.mu.Lock()
	conn, err := s.ticker.alarm.(*alarm.File).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, conn.Control(func(fd uintptr) { require.NoError(t, syscall.Close(int(fd))) }))
	s.ticker.look(s.clock) // Or it would sleep for an hour, and not notice.
	s.mu.Unlock()
	becomes(t, precision{fallback: "read: bad file descriptor"}, s)
	require.NoError(t, s.SetLimits(Limits{Rate: 1e9, Depth: 10}))
	comes(t, func() bool { return s.Stats().Departed == 2 })
}

// Neither alarm is left armed when the ticker goes from one to the other.
func TestAChangeOfTheAlarmLeavesNoTimerBehind(t *testing.T) {
	s, err := New(Limits{Rate: 1. / 3600, Depth: 10})
	require.NoError(t, err)
	require.True(t, s.Allow())
	go func() { _ = s.Wait(context.Background()) }()
	comes(t, func() bool { // It sleeps until a slot in an hour.
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.ticker.armed > int64(time.Minute)
	})
	require.NoError(t, s.SetLimits(Limits{Rate: 1000, Depth: 10}))
	comes(t, func() bool { return s.Stats().Departed == 2 })
	require.NoError(t, s.Close())
	require.False(t, s.ticker.timer.Disarm())
}

func descriptors(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(open)
}

func TestAThousandLinesLeaveNothingBehind(t *testing.T) {
	first := held(t) // The runtime's own files are made for the first of ours.
	becomes(t, precision{precise: true}, first)
	require.NoError(t, first.Close())
	files, goroutines := descriptors(t), runtime.NumGoroutine()

	// One shaper that has a line a thousand times, and is then forgotten; and a
	// thousand that have one each, and are closed.
	s, err := New(Limits{Rate: 2000, Depth: 10})
	require.NoError(t, err)
	for range 1000 {
		require.NoError(t, s.Wait(context.Background()))
	}
	lines := 0
	for range 1000 {
		s, err := New(Limits{Rate: 10_000, Depth: 10})
		require.NoError(t, err)
		require.True(t, s.AllowN(5))
		require.NoError(t, s.Wait(context.Background()))
		require.NoError(t, s.Close())
		if s.Stats().TotalWait > 0 { // Else this goroutine lost the processor for 500 µs.
			lines++
			require.False(t, s.ticker.timer.Disarm(), "its timer would have gone off")
		}
	}
	require.Positive(t, lines)
	comes(t, func() bool { return descriptors(t) <= files && runtime.NumGoroutine() <= goroutines },
		"at most a second after the line emptied")
	require.False(t, s.ticker.timer.Disarm())
	require.Zero(t, alarm.Files())
}

// An empty line keeps its file for a moment, whatever is asked of the shaper
// meanwhile, and gives it back at once when it is closed.
func TestAnEmptyLineGivesItsFileBack(t *testing.T) {
	comes(t, func() bool { return alarm.Files() == 0 }, "other tests have given theirs back")
	s := held(t)
	becomes(t, precision{precise: true}, s)
	require.NoError(t, s.SetLimits(Limits{Rate: 1e9, Depth: 10}))
	comes(t, func() bool { return s.Stats().Departed == 2 })
	comes(t, func() bool {
		require.NoError(t, s.SetLimits(Limits{Rate: 2000, Depth: 10}))
		return !s.Stats().Precise
	})
	require.Zero(t, alarm.Files())

	s = held(t)
	becomes(t, precision{precise: true}, s)
	require.NoError(t, s.Close())
	require.Zero(t, alarm.Files())
}
