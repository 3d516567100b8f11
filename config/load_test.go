package config_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/config"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/shaper"
)

// Two rates take turns in the file, 100 times per second, while a thousand wait. The departures
// must be the integral of the rates at each change, and each call must end by leaving.
func TestALineKeepsItsPaceThroughAHundredChangesPerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			callers = 1000
			burst   = 5
			changes = 300
		)
		rates := [2]int{50, 150}
		path := filepath.Join(t.TempDir(), "f.yaml")
		replace := func(rate string) {
			write(t, "", path+".new", fmt.Sprintf("limits: {api: %s burst %d depth %d}", rate, burst, callers))
			require.NoError(t, os.Rename(path+".new", path))
		}
		replace("50/s")
		file, err := config.Open(path)
		require.NoError(t, err)
		defer file.Close()
		group := made.GroupBy(t, file.Limits)
		file.OnChange(func(*config.Rules) { group.Reload() })

		var calls sync.WaitGroup
		for range callers {
			calls.Go(func() { _ = group.Wait(context.Background(), "api/192.0.2.1") })
		}
		synctest.Wait()
		hundredths := 0 // of departures, beside the Burst
		for i := range changes {
			time.Sleep(10 * time.Millisecond)
			hundredths += rates[i%2]
			replace(fmt.Sprintf("%d/s", rates[(i+1)%2]))
			require.NoError(t, file.Reload())
			// A change rounds the next slot up to a nanosecond, so it may be due just after now.
			require.InDelta(t, burst+float64(hundredths)/100-0.5, float64(group.Stats().Departed), 0.5, "after %d changes", i+1)
		}

		// The line leaves at once.
		replace("inf")
		require.NoError(t, file.Reload())
		calls.Wait()
		st := group.Stats()
		require.EqualValues(t, callers, st.Departed)
		require.Zero(t, st.Missed)
		require.Zero(t, st.LimitErrors)
		require.Equal(t, config.Status{Loaded: time.Now(), Reloads: changes + 1}, file.Status())
	})
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

// BenchmarkReload is a change of a file while each of 100,000 keys has a bucket in use, beside calls for these
// keys. ms/longest is the longest of the calls that were made meanwhile, and ms/longest-at-rest of those
// that were made for as long without a change: what the machine does by itself.
func BenchmarkReload(b *testing.B) {
	const keys = 100_000
	for _, rules := range []int{10, 90_000} { // 1 MiB holds hardly more.
		b.Run(fmt.Sprintf("rules=%d", rules), func(b *testing.B) {
			text := rulesText(rules)
			path := write(b, b.TempDir(), "f.yaml", text)
			file, err := config.Open(path)
			require.NoError(b, err)
			defer file.Close()
			group := made.GroupBy(b, func(key string) (shaper.Limits, error) {
				l, err := file.Limits(key)
				l.Burst = 1 << 20 // So that the bucket of each key is in use to the end.
				return l, err
			})
			names := make([]string, keys)
			for i := range names {
				names[i] = "r" + base62(i) + "/192.0.2.1"
				require.True(b, group.AllowN(names[i], 1<<19))
			}
			file.OnChange(func(*config.Rules) { group.Reload() })

			changing := longestCall(group, names)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				write(b, "", path, strings.Replace(text, "default: 1/s", fmt.Sprintf("default: %d/s", 1+i%2), 1))
				require.NoError(b, file.Reload())
			}
			b.ReportMetric(float64(changing())/1e6, "ms/longest")
			require.Equal(b, keys, group.Stats().Keys)
			require.Zero(b, group.Stats().LimitErrors)
			atRest := longestCall(group, names)
			time.Sleep(b.Elapsed())
			b.ReportMetric(float64(atRest())/1e6, "ms/longest-at-rest")
		})
	}
}

// longestCall calls for one key after the other until end is called, which returns how long the
// longest of these calls has taken.
func longestCall(group *shaper.Group[string], names []string) (end func() time.Duration) {
	done := make(chan struct{})
	longest := make(chan time.Duration)
	go func() {
		most := time.Duration(0)
		for i := 0; ; i++ {
			select {
			case <-done:
				longest <- most
				return
			case <-time.After(100 * time.Microsecond):
			}
			begun := time.Now()
			group.Allow(names[i%len(names)])
			most = max(most, time.Since(begun))
		}
	}()
	return func() time.Duration {
		close(done)
		return <-longest
	}
}
