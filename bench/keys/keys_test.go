package keys

import (
	"math"
	"os"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/shaper"
)

func TestMain(m *testing.M) {
	run.Child()
	os.Exit(m.Run())
}

// callsOfOne measures the calls of a limiter in this process, which takes less
// time than a child does.
func callsOfOne(t *testing.T, limiter string, keys int, goroutines []int) callsFound {
	t.Helper()
	found, err := calls(callsInput{limiter, keys, goroutines, time.Millisecond, runtime.GOMAXPROCS(0)})
	require.NoErrorf(t, err, "%s with %d keys", limiter, keys)
	return found
}

// A call that does not come out as it should would be measured as something else.
func TestEveryCallComesOutAsItShould(t *testing.T) {
	for _, c := range rivals.AllKeyed {
		for _, keys := range []int{0, 100} {
			if keys == 0 && c.Alone == nil {
				continue
			}
			found := callsOfOne(t, c.Name, keys, []int{1, 2, 64})
			require.Len(t, found.Timings, len(c.Calls))
			for _, timings := range found.Timings {
				require.Len(t, timings, 3)
				require.Positive(t, timings[2].Ns)
			}
		}
	}
	found, err := callsChild.Take(t.Context(), callsInput{rivals.Ours, 100, goroutines, time.Millisecond, 1})
	require.NoError(t, err)
	require.Len(t, found.Timings, 2)
	require.Positive(t, found.Bytes)
	_, err = callsChild.Take(t.Context(), callsInput{Limiter: "nobody"})
	require.ErrorContains(t, err, "no rival with keys is named nobody")
}

// A drained bucket is not among the live ones.
func TestKeptBucketsAreNotDrained(t *testing.T) {
	for keys, after := range map[int]time.Duration{0: 99 * time.Millisecond, 1_000_000: 59 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return keptBucket(keys).Limits(), nil })
			require.NoError(t, err)
			require.True(t, g.Allow("a"))
			time.Sleep(after)
			live := 0
			for range g.All() {
				live++
			}
			require.Equal(t, 1, live, "%v", keys)
			require.NoError(t, g.Close())
		})
	}
}

func TestKeyNamesHaveSixteenBytesAndAreDifferent(t *testing.T) {
	require.Equal(t, "user-00000000000", keyName(0))
	require.Equal(t, "user-00000000907", keyName(907))
	require.Equal(t, "user-00001000000", keyName(1_000_000))
	require.Len(t, keyName(math.MaxInt32), 16)
}

func TestMemoryOfKeysIsThatOfTheLimiter(t *testing.T) {
	bare := callsOfOne(t, rivals.BareMap, 20_000, []int{1})
	require.Greater(t, bare.Bytes, 16+16+8.0, "name, string and value")
	require.Less(t, bare.Bytes, 100.0)
	require.Greater(t, callsOfOne(t, "x-time", 20_000, []int{1}).Bytes, bare.Bytes+40, "and a limiter")
	roomy := callsOfOne(t, "sethvargo", 1_000, []int{1})
	require.Greater(t, roomy.FirstKiB, 100.0, "it makes room for 4096 keys at once")
	require.Less(t, roomy.Bytes, 150.0, "which is not each key's")
}

// What is still in use must be there when the memory is looked at, and what is not
// must not.
func TestWhatIsLeftIsNotWhatTheCollectorCouldTake(t *testing.T) {
	leftOf := func(limiter string) (found leftFound) {
		synctest.Test(t, func(t *testing.T) {
			var err error
			found, err = left(leftInput{limiter, 20_000, time.Second})
			require.NoError(t, err)
		})
		return found
	}
	theirs := leftOf("x-time")
	require.InDelta(t, theirs.Full, theirs.Left, theirs.Full/10, "nothing deletes them")
	ours := leftOf(rivals.Ours)
	require.Greater(t, ours.Full, 50.0)
	require.Less(t, ours.Left, ours.Full/2, "but for the map")
}

// callsOfAll are made up: all calls take so many nanoseconds and bytes, but ours
// with a key.
func callsOfAll(withKey, without, bytes float64) []callsResult {
	var results []callsResult
	for _, c := range callCases(run.Options{Quick: true}) {
		ns := without
		if c.Input.Limiter == rivals.Ours && c.Input.Keys > 0 {
			ns = withKey
		}
		r := callsResult{Case: c}
		for _, disturbed := range []float64{1, 9, 1} { // the round in the middle does not count
			one := callsFound{Bytes: bytes * disturbed, FirstKiB: 3}
			for range rivals.KeyedNamed(c.Input.Limiter).Calls {
				var timings []measure.Timing
				for _, n := range c.Input.Goroutines {
					timings = append(timings, measure.Timing{Ns: ns * disturbed * float64(n), Allocs: 1})
				}
				one.Timings = append(one.Timings, timings)
			}
			r.Found = append(r.Found, one)
		}
		r.Median = measure.Medians(r.Found)
		results = append(results, r)
	}
	return results
}

func leftOf(limiter string, found leftFound) leftResult {
	return leftResult{Case: run.Case[leftInput]{Input: leftInput{Limiter: limiter, Keys: 9}}, Found: []leftFound{found}, Median: found}
}

// resultsWith are those of a whole run. Its goals depend on its arguments.
func resultsWith(withKey, bytes, left float64) results {
	return results{
		calls: callsOfAll(withKey, 50, bytes),
		left:  []leftResult{leftOf("x-time", leftFound{130, 130}), leftOf(rivals.Ours, leftFound{150, left})},
	}
}

func TestGoals(t *testing.T) {
	reached := func(found results) (which []bool) {
		for _, g := range found.report(run.Options{}).Goals {
			which = append(which, g.Reached)
		}
		return which
	}
	// Bytes; left; Wait and Allow with a key; each on many keys with one goroutine
	// and with 64.
	const y, n = true, false
	require.Equal(t, []bool{y, y, y, y, y, y, y, y}, reached(resultsWith(50, 185, 0.9)))
	require.Equal(t, []bool{y, y, y, y, n, y, n, y}, reached(resultsWith(60, 185, 0.9)))
	require.Equal(t, []bool{y, y, y, y, n, n, n, n}, reached(resultsWith(100, 185, 0.9)))
	require.Equal(t, []bool{n, n, n, n, n, n, n, n}, reached(resultsWith(101, 186, 1.1)))
	for _, g := range (results{}).report(run.Options{}).Goals {
		require.Equal(t, report.NotMeasured, g.Got)
		require.False(t, g.Reached)
	}
}

func TestReport(t *testing.T) {
	r := resultsWith(100, 150, 0.04).report(run.Options{Machine: "Abacus"})
	require.Len(t, r.Tables, 4)
	for _, table := range r.Tables {
		require.NotEmpty(t, table.Rows, table.Title)
		for _, row := range table.Rows {
			require.Len(t, row, len(table.Columns), table.Title)
		}
	}
	memory, cost, contention, left := r.Tables[0], r.Tables[1], r.Tables[2], r.Tables[3]
	require.Equal(t, []string{"limiter", "once, KiB", "1,000 keys", "100,000 keys"}, memory.Columns)
	require.Contains(t, memory.Rows, []string{"shaper", "3.0", "150", "150"})
	require.Len(t, memory.Rows, len(rivals.AllKeyed)-1)
	require.Contains(t, cost.Rows, []string{"shaper", "Wait", "50", "100", "100", "1.00"})
	require.Contains(t, cost.Rows, []string{"sethvargo", "Take", "-", "50", "50", "1.00"})
	// 64 goroutines take 6400 ns for a call, however many processors there are.
	rates := slices.Repeat([]string{"0.156"}, len(fewerProcs())+1)
	require.Contains(t, contention.Rows, append([]string{"shaper", "Allow", "100", "200", "6400"}, rates...))
	require.Equal(t, []string{"shaper", "150", "0.0"}, left.Rows[1])

	names := map[string]int{}
	for _, line := range r.Lines {
		names[line.Name]++
	}
	require.Equal(t, 3, names["Keys/limiter=shaper/keys=100000"])
	require.Equal(t, 3, names["Keys/limiter=shaper/keys=100000/call=Allow/goroutines=64"])
	require.Equal(t, 3, names["Keys/limiter=x-time/keys=0/call=Wait/goroutines=1"])

	require.Len(t, r.Pictures, 1)
	require.Equal(t, "keys", r.Pictures[0].Name)
	drawn := string(r.Pictures[0].SVG)
	for _, label := range []string{">call without a key<", ">100 ns<", ">150 B<", ">sethvargo<", "Abacus"} {
		require.Contains(t, drawn, label)
	}
}
