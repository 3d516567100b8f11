package config_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/time/rate"

	"example.com/leakybucket/config"
)

// rateOf returns the rate that the rules in force have for any key.
func rateOf(t *testing.T, f *config.File) rate.Limit {
	t.Helper()
	l, err := f.Limits("x")
	require.NoError(t, err)
	return l.Rate
}

// inBubble opens a file that holds the text, in a bubble, in which the clock stands
// still while files are read and written.
func inBubble(t *testing.T, text string, do func(t *testing.T, f *config.File, path string)) {
	synctest.Test(t, func(t *testing.T) {
		path := write(t, t.TempDir(), "f.yaml", text)
		f, err := config.Open(path)
		require.NoError(t, err)
		defer f.Close()
		do(t, f, path)
	})
}

// settle sleeps until a change that has been made is in force.
func settle() {
	time.Sleep(600 * ms) // for the next look, and for the time of quiet
	synctest.Wait()
}

// at sleeps until an instant, and lets everything that happens at it happen.
func at(start time.Time, d time.Duration) {
	time.Sleep(time.Until(start.Add(d)))
	synctest.Wait()
}

const ms = time.Millisecond

func TestAChangeIsReadWhenTheFileHasBeenQuiet(t *testing.T) {
	inBubble(t, "default: 1/s", func(t *testing.T, f *config.File, path string) {
		start := time.Now()
		require.Equal(t, config.Status{Loaded: start}, f.Status())
		// An editor writes half now and half in 100 ms. The first half is valid, and is there
		// when the file is looked at.
		at(start, 450*ms)
		write(t, "", path, "default: 2/s")
		at(start, 550*ms)
		write(t, "", path, "default: 2/s burst 30")
		at(start, 700*ms-1)
		require.EqualValues(t, 1, rateOf(t, f))
		at(start, 700*ms)
		rule, ok := f.Rules().Explain("x")
		require.True(t, ok)
		require.Equal(t, 30, rule.Limits.Burst)
		require.Equal(t, config.Status{Loaded: start.Add(700 * ms), Reloads: 1}, f.Status())

		// The same again is no change.
		write(t, "", path, "default: 2/s burst 30")
		at(start, 3*time.Second)
		require.EqualValues(t, 1, f.Status().Reloads)
	})
}

func TestAFileThatIsNeverQuietIsReadOncePerSecond(t *testing.T) {
	inBubble(t, "default: 1/s", func(t *testing.T, f *config.File, path string) {
		start := time.Now()
		var changes []time.Duration
		f.OnChange(func(*config.Rules) { changes = append(changes, time.Since(start)) })
		texts := []string{"default: 2/s", "default: 3/s", "default: 4/s"}
		for i := range 250 { // each 10 ms, the last at 2.495 s
			at(start, time.Duration(i)*10*ms+5*ms)
			write(t, "", path, texts[i%len(texts)])
		}
		at(start, 4*time.Second)
		require.Equal(t, []time.Duration{1500 * ms, 2600 * ms}, changes)
	})
}

func TestABrokenFileLeavesTheRulesInForce(t *testing.T) {
	inBubble(t, "default: 1/s", func(t *testing.T, f *config.File, path string) {
		start := time.Now()
		var told int
		f.OnChange(func(*config.Rules) { told++ })
		failures := uint64(0)
		for _, c := range []struct {
			change func()
			want   string
		}{
			{func() { write(t, "", path, "default: 2/s\nlimits: {a: 1/x}") }, path + `:2:15: rule "a": rate 1/x: expected a unit: ns us ms s sec min h hour d day`},
			{func() { write(t, "", path, "") }, path + `: the file says nothing, must have "default" or "limits"`},
			{func() { require.NoError(t, os.Remove(path)) }, path + ": cannot be read: no such file or directory"},
			{func() { require.NoError(t, os.Mkdir(path, 0o755)) }, path + ": cannot be read: it is not a regular file (d---------)"},
			{func() {
				require.NoError(t, os.Remove(path))
				write(t, "", path, "default: [")
			}, path + ":2:1: not YAML: did not find expected node content (while parsing a flow node, line 2)"},
		} {
			before := time.Now()
			c.change()
			settle()
			failures++
			st := f.Status()
			require.EqualError(t, st.Err, c.want)
			require.Equal(t, failures, st.Failures)
			require.True(t, st.FailedAt.After(before), st.FailedAt)
			require.Equal(t, start, st.Loaded)
			require.EqualValues(t, 1, rateOf(t, f))
			_, ok := errors.AsType[config.Errors](st.Err)
			require.True(t, ok)

			// The same failure is not counted again.
			time.Sleep(20 * time.Second)
			synctest.Wait()
			require.Equal(t, st, f.Status())

			// But Reload has failed.
			require.EqualError(t, f.Reload(), c.want)
			failures++
			require.Equal(t, failures, f.Status().Failures)
		}
		failedAt := f.Status().FailedAt

		// What was in force is undone to.
		write(t, "", path, "default: 1/s")
		settle()
		require.Equal(t, config.Status{Loaded: start, Failures: failures, FailedAt: failedAt}, f.Status())
		require.Zero(t, told)

		write(t, "", path, "default: 2/s")
		require.NoError(t, f.Reload())
		require.Equal(t, config.Status{Loaded: time.Now(), Reloads: 1, Failures: failures, FailedAt: failedAt}, f.Status())
		require.Equal(t, 1, told)
	})
}

func TestOneBrokenLayerLeavesAllAsTheyWere(t *testing.T) {
	synctest.Test(t, oneBrokenLayer) // Only Reload reads the files, as the clock stands still.
}

func oneBrokenLayer(t *testing.T) {
	dir := t.TempDir()
	all, here := write(t, dir, "all.yaml", "default: 1/s"), write(t, dir, "here.yaml", "limits: {a: 2/s}")
	f, err := config.Open(all, here)
	require.NoError(t, err)
	defer f.Close()
	write(t, dir, "all.yaml", "default: 3/s")
	write(t, dir, "here.yaml", "limits: {a: 4/s, b: }")
	require.EqualError(t, f.Reload(), here+":1:18: b: has no limits: write some, such as 50/s depth 100, or ~ to take the rule away")
	require.EqualValues(t, 1, rateOf(t, f))
	require.NoError(t, os.Remove(all))
	err = f.Reload()
	require.ErrorContains(t, err, all+": cannot be read: no such file or directory\n"+here+":1:18: b: ", "the mistakes of all layers")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.EqualValues(t, 1, rateOf(t, f))
}

func TestOpenWantsAllFilesRight(t *testing.T) {
	dir := t.TempDir()
	good, empty, broken := write(t, dir, "good.yaml", "default: 1/s"), write(t, dir, "empty.yaml", ""), write(t, dir, "broken.yaml", "default: 1/x")
	for _, c := range []struct {
		files []string
		want  string
	}{
		{nil, "config: Open: there are no files, must be at least one"},
		{[]string{good, filepath.Join(dir, "missing")}, filepath.Join(dir, "missing") + ": cannot be read: no such file or directory"},
		{[]string{good, empty, broken, dir}, empty + `: the file says nothing, must have "default" or "limits"` + "\n" +
			broken + ":1:12: rule \"default\": rate 1/x: expected a unit: ns us ms s sec min h hour d day\n" + dir + ": cannot be read: it is not a regular file (d---------)"},
	} {
		f, err := config.Open(c.files...)
		require.Nil(t, f)
		require.EqualError(t, err, c.want)
	}
}

func TestOnChange(t *testing.T) { synctest.Test(t, onChange) }

func onChange(t *testing.T) {
	dir := t.TempDir()
	path := write(t, dir, "f.yaml", "default: 1/s")
	f, err := config.Open(path)
	require.NoError(t, err)
	defer f.Close()

	var told []string
	var stopSecond, stopThird func()
	f.OnChange(func(rules *config.Rules) {
		require.Same(t, rules, f.Rules(), "they are in force")
		_ = f.Status() // No lock is held.
		told = append(told, "first")
		stopThird()
		f.OnChange(func(*config.Rules) { told = append(told, "late") })()
	})
	stopSecond = f.OnChange(func(*config.Rules) {
		told = append(told, "second")
		stopSecond()
	})
	stopThird = f.OnChange(func(*config.Rules) { told = append(told, "third") })
	require.Panics(t, func() { f.OnChange(nil) })

	require.NoError(t, f.Reload())
	require.Empty(t, told, "nothing has changed")
	write(t, dir, "f.yaml", "default: 2/s")
	require.NoError(t, f.Reload())
	require.Equal(t, []string{"first", "second"}, told)
	write(t, dir, "f.yaml", "default: 3/s")
	require.NoError(t, f.Reload())
	require.Equal(t, []string{"first", "second", "first"}, told)
}

func TestAfterClose(t *testing.T) {
	dir := t.TempDir()
	path := write(t, dir, "f.yaml", "default: 1/s")
	f, err := config.Open(path)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
	write(t, dir, "f.yaml", "default: 2/s")
	require.ErrorIs(t, f.Reload(), fs.ErrClosed)
	require.EqualValues(t, 1, rateOf(t, f))
	require.Zero(t, f.Status().Failures)
}

// The working directory may change after Open.
func TestARelativeNameStaysWhatItWas(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	write(t, dir, "f.yaml", "default: 1/s")
	f, err := config.Open("f.yaml")
	require.NoError(t, err)
	defer f.Close()
	t.Chdir(t.TempDir())
	write(t, dir, "f.yaml", "default: 2/s")
	require.NoError(t, f.Reload())
	rule, _ := f.Rules().Explain("x")
	require.Equal(t, "f.yaml", rule.File, "as it was given")
	require.EqualValues(t, 2, rule.Limits.Rate)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long reports whether the long runs are wanted (CI sets SHAPER_LONG=1).
var long = os.Getenv("SHAPER_LONG") == "1"
