package main

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

func keyedNamed(t *testing.T, name string) keyedContestant {
	t.Helper()
	c, err := keyedContestantNamed(name)
	require.NoError(t, err)
	return c
}

// A call that does not come out as it should would be measured as something else.
func TestEveryKeyedCallComesOutAsItShould(t *testing.T) {
	for _, c := range keyedContestants {
		for _, keys := range []int{0, 1, 100} {
			if keys == 0 && c.alone == nil {
				continue
			}
			found, err := keysCell(keysInput{c.name, keys, []int{1, 2, 64}, time.Millisecond})
			require.NoErrorf(t, err, "%s with %d keys", c.name, keys)
			require.Len(t, found.Timings, len(c.calls))
			for _, timings := range found.Timings {
				require.Len(t, timings, 3)
				require.Equal(t, 64, timings[2].Goroutines)
				require.Positive(t, timings[2].NsPerCall)
			}
		}
	}
	_, err := keysCell(keysInput{Contestant: "nobody"})
	require.EqualError(t, err, `no contestant with keys is named "nobody"`)
}

// Else what is compared would not limit each key, but all together or none.
func TestEachKeyHasABucketOfItsOwn(t *testing.T) {
	for _, c := range keyedContestants {
		if c.name == oursDrained || c.name == bareMap {
			continue
		}
		for i, call := range c.calls {
			if call == "Wait" {
				continue // It would.
			}
			k, err := c.open(t.Context(), 10, keyedBucket{every: time.Hour, burst: 2})
			require.NoError(t, err)
			may := k.each[i]()
			for _, key := range []string{"a", "b"} {
				require.True(t, may(key), "%s: the first of %s", c.name, key)
				require.True(t, may(key), "%s: the second of %s", c.name, key)
				require.False(t, may(key), "%s: the third of %s", c.name, key)
			}
			k.stop()
		}
	}
}

func TestThoseThatWaitKeepTheIntervalOfEachKey(t *testing.T) {
	for _, name := range keysActiveContestants {
		synctest.Test(t, func(t *testing.T) {
			k, err := keyedNamed(t, name).open(t.Context(), 10, keyedBucket{every: 5 * time.Second, burst: 1})
			require.NoError(t, err)
			wait, began := k.each[0](), time.Now()
			require.True(t, wait("a"))
			require.True(t, wait("b"))
			require.Zero(t, time.Since(began))
			require.True(t, wait("a"))
			require.True(t, wait("b"))
			require.Equal(t, 5*time.Second, time.Since(began))
			k.stop()
		})
	}
}

// A drained bucket is not among the live ones.
func TestBucketsAreDrainedOnlyWhereTheyAreToBe(t *testing.T) {
	for _, test := range []struct {
		bucket keyedBucket
		after  time.Duration
		live   int
	}{
		{keptBucket(1), 99 * time.Millisecond, 1},
		{keptBucket(1_000_000), 59 * time.Second, 1},
		{drainedBucket, 2 * time.Nanosecond, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return test.bucket.limits(), nil })
			require.NoError(t, err)
			require.True(t, g.Allow("a"))
			time.Sleep(test.after)
			live := 0
			for range g.All() {
				live++
			}
			require.Equal(t, test.live, live, "%v", test.bucket)
			require.NoError(t, g.Close())
		})
	}
}

func TestKeyNamesHaveSixteenBytesAndAreDifferent(t *testing.T) {
	require.Equal(t, "user-00000000000", keyName(0))
	require.Equal(t, "user-00000000907", keyName(907))
	require.Equal(t, "user-00001000000", keyName(1_000_000))
	require.Len(t, keyName(99_999_999_999), 16)
}

func TestMemoryOfKeysIsThatOfTheContestant(t *testing.T) {
	cell := func(name string, keys int) keysFound {
		found, err := keysCell(keysInput{name, keys, []int{1}, time.Millisecond})
		require.NoError(t, err)
		return found
	}
	bare := cell(bareMap, 20_000)
	require.Greater(t, bare.Bytes, 16+16+8.0, "name, string and value")
	require.Less(t, bare.Bytes, 100.0)
	require.Greater(t, cell("x-time", 20_000).Bytes, bare.Bytes+40, "and a limiter")
	roomy := cell("sethvargo", 1_000)
	require.Greater(t, roomy.FirstKiB, 100.0, "it makes room for 4096 keys at once")
	require.Less(t, roomy.Bytes, 150.0, "which is not each key's")
}

// What is still in use must be there when the memory is looked at, and what is not
// must not.
func TestWhatIsLeftIsNotWhatTheCollectorCouldTake(t *testing.T) {
	left := func(name string) (r keysLeftResult) {
		synctest.Test(t, func(t *testing.T) {
			var err error
			r, err = keysLeftCell(keysLeftInput{name, 20_000, time.Second, leftAfter})
			require.NoError(t, err)
		})
		return r
	}
	theirs := left("x-time")
	require.InDelta(t, theirs.Full, theirs.Left, theirs.Full/10, "nothing deletes them")
	ours := left(oursKeyed)
	require.Greater(t, ours.Full, 50.0)
	require.Less(t, ours.Left, ours.Full/2, "but for the map")
}

// In virtual time nobody is late, and each touch has its instant.
func TestTouchedKeysDrainBeforeTheyComeAgain(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	synctest.Test(t, func(t *testing.T) {
		in := keysTouchedInput{oursKeyed, 1_000, 10 * time.Second, time.Second, 15 * time.Second}
		r, err := keysTouchedCell(in)
		require.NoError(t, err)
		require.InDelta(t, 100, r.PerSecond, 1e-9)
		require.InDelta(t, 15, r.Seconds, 0.1)
		require.InDelta(t, 1, r.RateReached, 0.01)
		require.Zero(t, r.LateP99)
		require.Zero(t, r.Refused)
		require.Zero(t, r.Overflowed)
		require.GreaterOrEqual(t, r.Buckets, 100, "those of the last second")
		require.LessOrEqual(t, r.Buckets, 200, "a drained one is deleted within a second")

		in.Drains = 20 * time.Second // A bucket that is not drained lets nobody leave at once.
		in.Contestant = nobodyLimits
		r, err = keysTouchedCell(in)
		require.NoError(t, err)
		require.Zero(t, r.Buckets)
	})
}

func TestActiveKeysAreLateByWhatTheirCallersSee(t *testing.T) {
	for _, name := range keysActiveContestants {
		r, err := keysActiveCell(keysActiveInput{name, 40, 100 * time.Millisecond, 150 * time.Millisecond, 200 * time.Millisecond})
		require.NoError(t, err)
		require.InDelta(t, 400, r.PerSecond, 1e-9)
		require.InDelta(t, 1, r.RateReached, 0.5, "of the window only")
		require.Positive(t, r.LateP50, name)
		require.Less(t, r.LateP50, 50_000.0, "%s: half an interval would be another slot's", name)
		require.GreaterOrEqual(t, r.LateMax, r.LateP99)
	}
}

// keysResultsOf are made up: all calls take so many nanoseconds and bytes, but ours
// with a key.
func keysResultsOf(withKey, without, bytes float64) []keysResult {
	var results []keysResult
	for _, keys := range []int{0, 1, 1_000, manyKeys} {
		for _, c := range keyedContestants {
			if keys == 0 && c.alone == nil {
				continue
			}
			ns := without
			if c.name == oursKeyed && keys > 0 {
				ns = withKey
			}
			in := keysInput{Contestant: c.name, Keys: keys, Goroutines: keysGoroutines}
			var rounds []keysFound
			for _, disturbed := range []float64{1, 9, 1} { // the round in the middle does not count
				one := keysFound{Bytes: bytes * disturbed, FirstKiB: 3}
				for range c.calls {
					var timings []admissionTiming
					for _, g := range keysGoroutines {
						timings = append(timings, admissionTiming{Goroutines: g, NsPerCall: ns * disturbed * float64(g), Allocs: 1})
					}
					one.Timings = append(one.Timings, timings)
				}
				rounds = append(rounds, one)
			}
			results = append(results, keysMedians(in, rounds)...)
		}
	}
	return results
}

func TestKeysGoals(t *testing.T) {
	found := func(withKey, bytes, left, rate float64, shared uint64, ours, theirs float64) keysResults {
		return keysResults{
			Calls:   keysResultsOf(withKey, 50, bytes),
			Left:    []keysLeftResult{{"x-time", 9, 130, 130}, {oursKeyed, 9, 150, 0.2}, {oursKeyed, 99, 150, left}},
			Touched: []keysTouchedResult{{Contestant: oursKeyed, RateReached: rate, Overflowed: shared}, {Contestant: nobodyLimits}},
			Active:  []keysActiveResult{{Contestant: oursKeyed, Keys: 7, LateP50: ours}, {Contestant: "x-time", Keys: 7, LateP50: theirs}},
		}
	}
	reached := func(of keysResults) (which []bool) {
		for _, g := range keysGoals(of) {
			which = append(which, g.Reached)
		}
		return which
	}
	// Bytes; left; Wait and Allow with a key; a million; lateness.
	require.Equal(t, []bool{true, true, true, true, true, true}, reached(found(100, 200, 0.9, 0.999, 0, 5, 6)))
	require.Equal(t, []bool{false, false, false, false, false, false}, reached(found(101, 201, 1, 0.998, 0, 6, 6)))
	require.Equal(t, []bool{true, true, true, true, false, true}, reached(found(100, 200, 0.9, 0.999, 1, 5, 6)))
	for _, g := range keysGoals(keysResults{}) {
		require.Equal(t, "not measured", g.Got)
		require.False(t, g.Reached)
	}
	of := found(100, 200, 0.9, 1, 0, 5, 6)
	of.Left[1].Left = 3 // One number of keys that fails is enough.
	require.False(t, keysLeftGoal(of.Left).Reached)
	require.Equal(t, "3.00, of 9 keys", keysLeftGoal(of.Left).Got)
}

func TestKeysTables(t *testing.T) {
	results := keysResultsOf(100, 50, 150)
	memory, cost, contention := keysMemoryTable(results, 3), keysCostTable(results, 3), keysContentionTable(results, 3)
	require.Equal(t, []string{"contestant", "once, KiB", "1,000 keys", "100,000 keys"}, memory.Columns)
	require.Contains(t, memory.Rows, []string{"shaper", "3.0", "150", "150"})
	require.Len(t, memory.Rows, len(keyedContestants)-1)
	require.Contains(t, cost.Rows, []string{"shaper", "Wait", "50", "100", "100", "1.00"})
	require.Contains(t, cost.Rows, []string{"sethvargo", "Take", "-", "50", "50", "1.00"})
	require.Contains(t, contention.Rows, []string{"shaper", "Allow", "100", "200", "6400", "100", "200", "6400"})
	touched := keysTouchedTable([]keysTouchedResult{{Contestant: oursKeyed, Seconds: 63, RateReached: 1, Buckets: 170_000}}, options{})
	require.Equal(t, "1,000,000 keys, each touched once in 1m0s, on one core", touched.Title)
	require.Contains(t, touched.Rows[0], "170,000")
	active := keysActiveTable([]keysActiveResult{{Contestant: oursKeyed, RateReached: 1, CPUPer100k: 2}}, options{}, 3)
	require.Equal(t, "100,000 keys active at once", active.Title)
	left := keysLeftTable([]keysLeftResult{{oursKeyed, 1_000, 150, 0.04}})
	require.Equal(t, []string{"shaper", "1,000", "150", "0.0"}, left.Rows[0])
	for _, table := range []table{memory, cost, contention, touched, active, left} {
		for _, row := range table.Rows {
			require.Len(t, row, len(table.Columns), table.Title)
		}
	}
}

func TestKeysTakeNoLongerThanTheyMay(t *testing.T) {
	require.LessOrEqual(t, keysTakes(options{quick: true}), 20*time.Second)
	require.LessOrEqual(t, keysTakes(options{}), 5*time.Minute)
	require.Greater(t, keysTakes(options{rounds: 9}), keysTakes(options{}))
	for _, in := range keysTouchedInputs(options{})[:1] {
		require.Equal(t, time.Minute, in.Each)
		require.Greater(t, in.Lasts, time.Minute)
	}
}
