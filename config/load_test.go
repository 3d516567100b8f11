package config_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/config"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// Two rates take turns in the file, 100 times per second, while thousands wait. What
// leaves must be the integral of the rates to within Burst, at each change and in the
// end, and each call must end by leaving.
func TestALineKeepsItsPaceThroughAHundredChangesPerSecond(t *testing.T) {
	t.Parallel()
	const (
		callers = 3000 // If the machine stands still, the line lasts for 20 s at the greater rate.
		burst   = 5
		every   = 10 * time.Millisecond
	)
	changes := 300
	if long {
		changes *= 20
	}
	rates := [2]rate.Limit{50, 150}
	// Without a depth that is large enough calls would be refused; with the slack all
	// lateness of a busy machine is made up, so that it cannot be taken for a mistake.
	texts := [2]string{"limits: {api: 50/s burst 5 depth 3000 slack 1h}", "limits: {api: 150/s burst 5 depth 3000 slack 1h}"}
	path := filepath.Join(t.TempDir(), "f.yaml")
	replace := func(text string) {
		write(t, "", path+".new", text)
		require.NoError(t, os.Rename(path+".new", path))
	}
	replace(texts[0])
	file, err := config.Open(path)
	require.NoError(t, err)
	defer file.Close()

	var mu sync.Mutex
	var departures []time.Time
	begin := time.Now()
	var asked atomic.Int64 // when the group last asked for limits, since begin
	limits := func(key string) (shaper.Limits, error) {
		l, err := file.Limits(key)
		asked.Store(int64(time.Since(begin)))
		return l, err
	}
	group, err := shaper.NewGroup(limits, shaper.WithTrace(&shaper.Trace{Departed: func(_ context.Context, e shaper.Event) {
		mu.Lock()
		defer mu.Unlock()
		departures = append(departures, e.At)
	}}))
	require.NoError(t, err)
	defer group.Close()

	// A bound holds for the departures up to an instant. A change takes effect between
	// the question of the group and the return of its Reload. So the integral has a
	// least and a greatest value.
	type bound struct {
		at              time.Time
		least, greatest float64
	}
	var bounds []bound
	var least, greatest float64
	inForce, known := 0, begin // the rate, and since when it surely is in force
	step := func(r rate.Limit, d time.Duration) float64 { return float64(r) * d.Seconds() }
	file.OnChange(func(rules *config.Rules) {
		group.Reload()
		before, after := begin.Add(time.Duration(asked.Load())), time.Now()
		least += step(rates[inForce], before.Sub(known))
		greatest += step(rates[inForce], before.Sub(known)) + step(max(rates[0], rates[1]), after.Sub(before))
		bounds = append(bounds, bound{after, least, greatest})
		least += step(min(rates[0], rates[1]), after.Sub(before))
		known, inForce = after, 1-inForce
	})

	var calls, left atomic.Int64
	var stop atomic.Bool
	var callersDone sync.WaitGroup
	for range callers {
		callersDone.Go(func() {
			for !stop.Load() {
				calls.Add(1)
				if group.Wait(context.Background(), "api/192.0.2.1") == nil {
					left.Add(1)
				}
			}
		})
	}
	// Until all are in line there may be nobody to leave.
	realtime.Until(t, func() bool { return calls.Load() >= callers }, "all are in line")
	lineAt := time.Now()

	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := range changes {
		<-tick.C
		replace(texts[(i+1)%2])
		require.NoError(t, file.Reload())
	}
	before := time.Now()
	require.Equal(t, 1, group.Stats().Keys) // It hands out all slots that are due.
	after := time.Now()
	bounds = append(bounds, bound{after, least + step(rates[inForce], before.Sub(known)), greatest + step(rates[inForce], after.Sub(known))})

	// The line leaves at once.
	stop.Store(true)
	replace("limits: {api: inf depth 3000}")
	require.NoError(t, file.Reload())
	callersDone.Wait()

	require.Equal(t, calls.Load(), left.Load(), "each call ended by leaving")
	require.Len(t, departures, int(calls.Load()))
	st := group.Stats()
	require.Zero(t, st.Missed)
	require.Zero(t, st.LimitErrors)
	require.Equal(t, config.Status{Loaded: file.Status().Loaded, Reloads: uint64(changes) + 1}, file.Status())

	slices.SortFunc(departures, time.Time.Compare)
	start := step(rates[0], lineAt.Sub(begin)) // what the first callers may have been late for
	var narrowest, widest float64
	for _, b := range bounds[:changes+1] { // The last change is the one to inf.
		n, _ := slices.BinarySearchFunc(departures, b.at, func(d, at time.Time) int {
			if d.After(at) {
				return 1
			}
			return -1 // One at that very instant counts.
		})
		require.GreaterOrEqual(t, float64(n), b.least-start-burst, "%v after the beginning", b.at.Sub(begin))
		require.LessOrEqual(t, float64(n), b.greatest+burst, "%v after the beginning", b.at.Sub(begin))
		narrowest, widest = float64(n)-b.least, b.greatest-float64(n)
	}
	t.Logf("%d changes in %v, %d left: %.1f above the least integral, %.1f below the greatest",
		changes, time.Since(begin).Round(time.Millisecond), len(departures), narrowest, widest)
}

// Reloads, changes seen by the watcher, look-ups, functions that come and go, and Close
// all at once. The race detector sees more than the assertions do.
func TestChangesAreToldOneAtATime(t *testing.T) {
	path := plain(t, t.TempDir(), "default: 1/s")
	f, err := config.Open(path)
	require.NoError(t, err)
	var inside, told atomic.Int64
	var last atomic.Pointer[config.Rules]
	f.OnChange(func(rules *config.Rules) {
		if inside.Add(1) != 1 {
			t.Error("two changes are told at the same time")
		}
		if rules != f.Rules() {
			t.Error("an old change is told after a new one is in force")
		}
		last.Store(rules)
		told.Add(1)
		inside.Add(-1)
	})

	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for j := range 50 {
				next := path + string(rune('a'+i))
				text := "default: " + string(rune('1'+(i+j)%9)) + "/s burst " + string(rune('1'+j%9))
				if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
					t.Error(err)
				}
				if err := os.Rename(next, path); err != nil {
					t.Error(err)
				}
				if err := f.Reload(); err != nil {
					t.Error(err)
				}
				f.OnChange(func(*config.Rules) {})()
				_, _ = f.Limits("x")
				_ = f.Status()
			}
		})
	}
	all.Wait()
	require.NoError(t, f.Reload())
	require.EqualValues(t, f.Status().Reloads, told.Load())
	require.Same(t, f.Rules(), last.Load())

	// Close waits for a function that is being called.
	entered, leave := make(chan struct{}), make(chan struct{})
	f.OnChange(func(*config.Rules) {
		close(entered)
		<-leave
	})
	write(t, "", path, "default: 100/s")
	all.Go(func() { _ = f.Reload() })
	<-entered
	closed := make(chan struct{}, 3)
	for range cap(closed) {
		all.Go(func() {
			_ = f.Close()
			closed <- struct{}{}
		})
	}
	select {
	case <-closed:
		t.Error("Close has returned while a function is being called")
	case <-time.After(50 * time.Millisecond):
	}
	close(leave)
	all.Wait()
	require.ErrorIs(t, f.Reload(), os.ErrClosed)
	require.EqualValues(t, 100, rateOf(t, f))
}

// write writes a file of a test and returns its path.
func write(t testing.TB, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name) // dir may be "", and name a path
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

func TestWhereTheLimitsOfAKeyComeFrom(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.yaml")
	write(t, "", path, "default: 1/s\nlimits:\n  api: 2/s\n  api/premium: 3/s\n")
	file, err := config.Open(path)
	require.NoError(t, err)
	defer file.Close()
	for key, want := range map[string]struct {
		rule string
		line int
	}{
		"":              {"default", 1},
		"login":         {"default", 1},
		"api2":          {"default", 1},
		"api":           {"api", 3},
		"api/7":         {"api", 3},
		"api/premium/7": {"api/premium", 4},
	} {
		rule, in, line := file.Where(key)
		require.Equal(t, want.rule, rule, key)
		require.Equal(t, path, in)
		require.Equal(t, want.line, line, key)
	}
	rules, err := config.Parse("g.yaml", []byte("limits: {api: 2/s}"))
	require.NoError(t, err)
	rule, in, line := rules.Where("login")
	require.Zero(t, rule+in)
	require.Zero(t, line)
}
