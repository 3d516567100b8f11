//go:build linux && (amd64 || arm64 || 386 || arm)

package shaper

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper/internal/alarm"
)

// These tests look at the ticker from inside the package, on the real clock.

// precision is the part of Stats that tells which alarm is used.
type precision struct {
	precise  bool
	fallback string
}

func precisionOf(s *Shaper) precision {
	st := s.Stats()
	return precision{st.Precise, st.NoKernelTimer}
}

// held makes a shaper at 1,000/s with one waiter, which is to leave in an hour.
func held(t *testing.T) *Shaper {
	t.Helper()
	s, err := New(Limits{Rate: 1000, Depth: 10})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	require.True(t, s.AllowN(3_600_000))
	go func() { _ = s.Wait(context.Background()) }()
	return s
}

// becomes waits until Stats shows that precision.
func becomes(t *testing.T, want precision, s *Shaper) {
	t.Helper()
	realtime.Until(t, func() bool { return precisionOf(s) == want }, fmt.Sprintf("the shaper has %+v", want))
}

func TestALineTakesAFileWhereAMillisecondMatters(t *testing.T) {
	s := held(t)
	becomes(t, precision{precise: true}, s)

	// 20 ms is the longest interval for which a file is opened. A change of the limits
	// closes it and opens it again.
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

// What decides whether a ticker takes a file is how soon the lines of all that it serves
// leave one after the other.
func TestTheLinesOfSeveralDispatchersTakeAFileTogether(t *testing.T) {
	var tk ticker
	var all []*Shaper
	for range 2 {
		s := onTicker(&tk, Limits{Rate: 30, Depth: 10})
		require.True(t, s.AllowN(3600*30))
		all = append(all, s)
	}
	waits := func(s *Shaper) {
		go func() { _ = s.Wait(context.Background()) }()
		realtime.Until(t, func() bool { return s.Stats().Waiting == 1 }, "it waits")
		tk.look(tk.now())
		realtime.Until(t, func() bool {
			tk.mu.Lock()
			defer tk.mu.Unlock()
			return !tk.looks && tk.armed > int64(time.Minute)
		}, "the ticker sleeps until its slot")
	}
	waits(all[0])
	require.Equal(t, precision{}, precisionOf(all[0]))
	waits(all[1])
	becomes(t, precision{precise: true}, all[0])
	for _, s := range all {
		s.closeLines()
	}
	tk.waitForEnd()
	require.Equal(t, precision{}, precisionOf(all[0]))
}

// In a Group, whose keys have different rates, the file is kept while a slow line is left, or it
// would be opened and closed again and again.
func TestASlowLineOfAGroupKeepsTheFileOfAQuickOne(t *testing.T) {
	g, err := NewGroup(func(quick bool) (Limits, error) {
		if quick {
			return Limits{Rate: 1000, Depth: 1}, nil
		}
		return Limits{Rate: 1. / 60, Depth: 1}, nil
	})
	require.NoError(t, err)
	defer g.Close()
	quick, cancel := context.WithCancel(context.Background())
	wait := func(ctx context.Context, key bool, hold time.Duration) {
		require.True(t, g.Allow(key))
		g.Limiter(key).Hold(hold)
		go func() { _ = g.Wait(ctx, key) }()
	}
	// Both keys may be in one shard, and then the line that leaves first decides for both.
	wait(quick, true, time.Hour)
	wait(context.Background(), false, 2*time.Hour)
	realtime.Until(t, func() bool { return g.Stats().Waiting == 2 }, "both wait")
	g.ticker.look(g.ticker.now()) // It sleeps for an hour, and may not have seen the line that formed last.
	realtime.Until(t, func() bool { return g.Stats().Precise }, "the ticker is precise")
	cancel()
	realtime.Until(t, func() bool { return g.Stats().Waiting == 1 }, "one has left")
	g.ticker.look(g.ticker.now())
	realtime.Until(t, func() bool {
		g.ticker.mu.Lock()
		defer g.ticker.mu.Unlock()
		return !g.ticker.looks && g.ticker.armed > int64(time.Minute)
	}, "the ticker sleeps until the slot of the other")
	require.True(t, g.Stats().Precise)
}

// Two wake-ups with a coarse timer are a millisecond apart. At this rate a ticker that
// wakes early would yield from slot to slot. A coarse one must not, even if it has learnt
// from earlier lines how early to wake.
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
	for began := time.Now(); time.Since(began) < time.Minute && looked < 20; runtime.Gosched() {
		s.ticker.mu.Lock()
		woke := s.ticker.woke
		s.ticker.mu.Unlock()
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

// A watched alarm goes off in time, however long waking up takes on this machine. Whenever it is
// set, it looks whether those whose slots have come run already.
type watchedAlarm struct {
	alarm.Alarm
	s    *Shaper
	at   atomic.Int64  // the instant it is set to
	runs *atomic.Int64 // requests that have left and run

	set     int   // how often it was set after another departure
	in      int   // how often all had run by then
	handled int64 // departures at the last Set
}

func (a *watchedAlarm) Set(at int64) {
	if a.s.mu.TryLock() {
		if left := int64(a.s.flow.bucket.departures); left > a.handled {
			a.handled = left
			if a.set++; a.runs.Load() == left {
				a.in++
			}
		}
		a.s.mu.Unlock()
	}
	a.at.Store(at)
}

func (a *watchedAlarm) Wait() error {
	for a.s.ticker.now() < a.at.Load() {
		runtime.Gosched()
	}
	return nil
}

// Setting the alarm takes two system calls. A ticker that was awake when the slot came lets
// the request run before, or each would be late by the time that they take.
func TestWhoLeavesDoesNotWaitUntilTheAlarmIsSet(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // On several, another thread may take the request meanwhile.
	s, err := New(Limits{Rate: 2000, Depth: 10})
	require.NoError(t, err)
	var runs atomic.Int64
	var callers sync.WaitGroup
	defer callers.Wait()
	defer s.Close()
	for range 10 {
		callers.Go(func() {
			for s.Wait(context.Background()) == nil {
				runs.Add(1)
			}
		})
	}
	becomes(t, precision{precise: true}, s)
	s.ticker.mu.Lock()
	watched := &watchedAlarm{Alarm: s.ticker.alarm, s: s, runs: &runs}
	watched.at.Store(s.ticker.armed)
	watched.Alarm.Set(s.ticker.armed) // If the ticker sleeps, this is the last time that it sleeps on the file.
	s.ticker.alarm = watched
	s.ticker.mu.Unlock()
	set, in := 0, 0
	realtime.Until(t, func() bool {
		s.ticker.mu.Lock()
		set, in = watched.set, watched.in
		s.ticker.mu.Unlock()
		return in > 2 || set > 20_000
	}, "requests leave")
	require.Greater(t, in, 2, "of %d; without the yield it is none", set)
}

func TestInABubbleALineTakesNoFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := held(t)
		synctest.Wait()
		require.Equal(t, 1, s.Stats().Waiting)
		require.Equal(t, precision{}, precisionOf(s))
	})
}

// Most file descriptors of a process are needed for its connections. So only 64 shapers
// with a line have a file, and all others do without.
func TestNoMoreThan64ShapersHoldAFile(t *testing.T) {
	realtime.Until(t, func() bool { return alarm.Files() == 0 }, "those of the tests before are given back")
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

	// When a file is closed, the next shaper that tries gets one. A shaper that got none
	// tries again after a second.
	require.NoError(t, all[0].Close())
	again := held(t)
	becomes(t, precision{precise: true}, again)
	require.NoError(t, all[1].Close())
	late.ticker.mu.Lock()
	late.ticker.retryFileAt = 0
	late.ticker.mu.Unlock()
	late.ticker.look(late.ticker.now())
	becomes(t, precision{precise: true}, late)
}

// requireItPaces lets a line of 50 leave at 1,000/s, and requires that no request leaves
// before its slot. Behind the 50 comes one that fills the bucket for 100 s, and then one that
// waits behind it, so that there is a line as long as the precision is asked for.
func requireItPaces(t *testing.T, want precision) {
	t.Helper()
	const n = 50
	left := make(chan time.Time, n+2)
	slow := Limits{Rate: 1.0 / 3600, Depth: n + 1}
	s, err := New(slow, WithTrace(&Trace{Departed: func(_ context.Context, e Event) { left <- e.At }}))
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	require.NoError(t, s.Wait(context.Background()))
	<-left
	var callers sync.WaitGroup
	for range n {
		callers.Go(func() { _ = s.Wait(context.Background()) })
	}
	realtime.Until(t, func() bool { return s.Stats().Waiting == n }, "all wait")
	began := time.Now()
	require.NoError(t, s.SetLimits(Limits{Rate: 1000, Depth: n + 1}))
	go func() {
		_ = s.WaitN(context.Background(), 100_000)
		_ = s.Wait(context.Background())
	}()
	becomes(t, want, s)
	callers.Wait()
	var at []time.Duration
	for range n + 1 {
		at = append(at, (<-left).Sub(began))
	}
	slices.Sort(at) // the hooks of several calls run in any order
	for i, at := range at {
		// The level was 1, or less by up to a millionth.
		require.Greater(t, at, time.Duration(i+1)*time.Millisecond-10*time.Microsecond)
	}
}

func TestWithNoDescriptorLeftALineLeavesByGosTimer(t *testing.T) {
	var was syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was))
	next, err := os.Open(os.DevNull)
	require.NoError(t, err)
	none := was
	none.Cur = uint64(next.Fd()) // the lowest free descriptor is now above the limit
	require.NoError(t, next.Close())
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	defer func() { require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was)) }()
	requireItPaces(t, precision{fallback: "timerfd_create: too many open files"})
}

// A program may close a descriptor that is not its own, so that the file breaks.
func TestAFileThatBreaksIsReplacedByGosTimer(t *testing.T) {
	realtime.Until(t, func() bool { return alarm.Files() == 0 }, "other tests have given theirs back")
	s := held(t)
	becomes(t, precision{precise: true}, s)
	s.ticker.mu.Lock()
	require.NoError(t, s.ticker.alarm.(*alarm.File).Close())
	s.ticker.mu.Unlock()
	becomes(t, precision{fallback: "use of closed file"}, s)
	require.NoError(t, s.SetLimits(Limits{Rate: 1e9, Depth: 10}))
	realtime.Until(t, func() bool { return s.Stats().Departed == 2 }, "both have left")
	require.NoError(t, s.Close())
	require.Zero(t, alarm.Files())
}

// A program may also close the descriptor in a way that the ticker does not notice.
func TestADescriptorThatIsClosedUnderUsIsReplacedByGosTimer(t *testing.T) {
	s := held(t)
	becomes(t, precision{precise: true}, s)
	s.ticker.mu.Lock()
	conn, err := s.ticker.alarm.(*alarm.File).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, conn.Control(func(fd uintptr) { require.NoError(t, syscall.Close(int(fd))) }))
	s.ticker.mu.Unlock()
	s.ticker.look(s.ticker.now()) // otherwise it would sleep for an hour and not notice
	becomes(t, precision{fallback: "read: bad file descriptor"}, s)
	require.NoError(t, s.SetLimits(Limits{Rate: 1e9, Depth: 10}))
	realtime.Until(t, func() bool { return s.Stats().Departed == 2 }, "both have left")
}

// When the ticker changes from one alarm to the other, none is left armed.
func TestAChangeOfTheAlarmLeavesNoTimerBehind(t *testing.T) {
	s, err := New(Limits{Rate: 1. / 3600, Depth: 10})
	require.NoError(t, err)
	require.True(t, s.Allow())
	go func() { _ = s.Wait(context.Background()) }()
	realtime.Until(t, func() bool { // the ticker sleeps until a slot an hour ahead
		s.ticker.mu.Lock()
		defer s.ticker.mu.Unlock()
		return s.ticker.armed > int64(time.Minute)
	}, "the ticker sleeps")
	require.NoError(t, s.SetLimits(Limits{Rate: 1000, Depth: 10}))
	realtime.Until(t, func() bool { return s.Stats().Departed == 2 }, "both have left")
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
	realtime.Until(t, func() bool { return alarm.Files() == 0 }, "other tests have given theirs back")
	first := held(t) // the first file makes the runtime open some of its own
	becomes(t, precision{precise: true}, first)
	require.NoError(t, first.Close())
	files, goroutines := descriptors(t), runtime.NumGoroutine()

	// One shaper has a line a thousand times and is then forgotten. Then a thousand
	// shapers have a line each and are closed.
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
		if s.Stats().TotalWait > 0 { // otherwise this goroutine did not run for 500 µs
			lines++
			require.False(t, s.ticker.timer.Disarm(), "its timer would have gone off")
		}
	}
	require.Positive(t, lines)
	realtime.Until(t, func() bool { return descriptors(t) <= files && runtime.NumGoroutine() <= goroutines }, "at most a second after the line emptied")
	require.False(t, s.ticker.timer.Disarm())
	require.Zero(t, alarm.Files())
}

// A shaper keeps its file for a moment after its line has emptied, whatever methods are
// called meanwhile, and closes it at once when the shaper is closed.
func TestAnEmptyLineGivesItsFileBack(t *testing.T) {
	realtime.Until(t, func() bool { return alarm.Files() == 0 }, "other tests have given theirs back")
	s := held(t)
	becomes(t, precision{precise: true}, s)
	require.NoError(t, s.SetLimits(Limits{Rate: 1e9, Depth: 10}))
	realtime.Until(t, func() bool { return s.Stats().Departed == 2 }, "both have left")
	realtime.Until(t, func() bool {
		require.NoError(t, s.SetLimits(Limits{Rate: 2000, Depth: 10}))
		return !s.Stats().Precise
	}, "the file is given up")
	require.Zero(t, alarm.Files())

	s = held(t)
	becomes(t, precision{precise: true}, s)
	require.NoError(t, s.Close())
	require.Zero(t, alarm.Files())
}
