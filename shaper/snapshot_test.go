package shaper_test

import (
	"context"
	"math/big"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// This file tests Snapshot and Restore of one bucket; group_snapshot_test.go tests them for
// keys.

// snapshotOf returns the snapshot of a Shaper or a Group as text.
func snapshotOf(t *testing.T, s interface{ Snapshot() ([]byte, error) }) string {
	t.Helper()
	data, err := s.Snapshot()
	require.NoError(t, err)
	return string(data)
}

// restarted returns a new shaper that continues from the snapshot of another.
func restarted(t *testing.T, limits, snapshot string, opts ...shaper.Option) *shaper.Shaper {
	t.Helper()
	s := must(shaper.New(limitsOf(t, limits), opts...))
	require.NoError(t, s.Restore([]byte(snapshot)))
	return s
}

func TestASnapshotIsReadable(t *testing.T) {
	play(t, "3/s burst 9", func(g *stage) {
		require.Equal(t, `{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z"}`, snapshotOf(t, g))
		g.arrive("a", 7)
		g.at(100 * ms)
		require.Equal(t, `{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00.1Z","level":"67/10","rate":3}`, snapshotOf(t, g))
		g.Hold(time.Second)
		g.arriveAll("b")
		g.at(200 * ms)
		require.Equal(t, `{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00.2Z","level":"32/5","rate":3,"held_ns":900000000,"blocked_ns":59900000000}`, snapshotOf(t, g))
		g.at(time.Minute)
		require.NoError(t, g.Close())
		require.Equal(t, `{"version":1,"of":"shaper","taken":"2000-01-01T00:01:00Z","blocked_ns":100000000}`, snapshotOf(t, g))
	}, shaper.WithBlock(time.Minute))
}

// A bucket that was full before is as full after, to the nanosecond, and leaks meanwhile.
func TestARestartIsNoLicence(t *testing.T) {
	for _, closed := range []bool{false, true} {
		play(t, "1/s burst 5 depth 9", func(g *stage) {
			g.arrive("a", 5)
			g.arriveAll("b", "c")
			g.at(1300 * ms)
			if closed { // c is refused, and not in the level.
				require.NoError(t, g.Close())
			}
			snapshot := snapshotOf(t, g)
			g.at(2200 * ms)
			g.Shaper = restarted(t, "1/s burst 5 depth 9", snapshot)
			require.InDelta(t, 3.8, g.Stats().Level, 1e-12)
			g.arriveAll("d", "e", "f")
			g.at(time.Minute)
			ended := "2s c left"
			if closed {
				ended = "1.3s c closed, retry 0s"
			}
			g.saw("0s a left", "1s b left", ended, "2.2s d left", "3s e left", "4s f left")
		})
	}
}

// The exact level goes on, also where it is between two multiples of a nanosecond's fraction:
// after any number of restarts the bucket of a process that is restarted all the time has the
// level of one that never is.
func TestRestartsRoundNothing(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 3))
		synctest.Test(t, func(t *testing.T) {
			rates := []string{"7/s", "1 per 3s", "13/min", "999999999.5/s", "0.37/s", "11/h"}
			limits := func() string { return rates[r.IntN(len(rates))] + " burst 9 depth 0" }
			now := limits()
			steady := must(shaper.New(limitsOf(t, now)))
			other := must(shaper.New(limitsOf(t, now)))
			for range 40 {
				n := 1 + r.IntN(9)
				require.Equal(t, steady.AllowN(n), other.AllowN(n))
				if r.IntN(3) == 0 {
					now = limits()
					require.NoError(t, steady.SetLimits(limitsOf(t, now)))
					require.NoError(t, other.SetLimits(limitsOf(t, now)))
				}
				snapshot := snapshotOf(t, other)
				require.Equal(t, snapshotOf(t, steady), snapshot, "seed %d", seed)
				time.Sleep(time.Duration(r.IntN(1_000_000_000)))
				other = restarted(t, now, snapshot)
				require.Equal(t, snapshotOf(t, steady), snapshotOf(t, other), "seed %d", seed)
			}
		})
	}
}

func TestHoldsAndBlocksOutliveARestart(t *testing.T) {
	play(t, "1/s depth 1", func(g *stage) {
		g.Hold(10 * time.Second)
		g.arriveAll("a", "b") // b is blocked until 1m0s.
		snapshot := snapshotOf(t, g)
		require.NoError(t, g.Close())
		g.at(4 * time.Second)
		g.Shaper = restarted(t, "1/s depth 5", snapshot, shaper.WithBlock(time.Hour))
		require.Equal(t, g.start.Add(10*time.Second), g.Stats().HeldUntil)
		require.Equal(t, g.start.Add(time.Minute), g.Stats().BlockedUntil)
		g.arriveAll("c")
		g.Shaper = restarted(t, "1/s depth 5", snapshot)
		g.arriveAll("d") // Without WithBlock there is only the hold.
		g.at(time.Minute)
		g.Shaper = restarted(t, "1/s depth 5", snapshot, shaper.WithBlock(time.Hour))
		require.Zero(t, g.Stats().HeldUntil)
		require.Zero(t, g.Stats().BlockedUntil)
		g.saw("0s a closed, retry 0s", "0s b full, retry 1m0s", "4s c full, retry 56s", "10s d left")
	}, shaper.WithBlock(time.Minute))
}

// A shaper in use takes the greater level, and the later end of a hold and of a block.
func TestRestoreIntoAShaperInUse(t *testing.T) {
	play(t, "1/s burst 3 depth 9", func(g *stage) {
		g.arrive("a", 3)
		full := snapshotOf(t, g)
		low := restarted(t, "1/s burst 3 depth 9", `{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z","level":"1/2","rate":1}`)
		require.Equal(t, 0.5, low.Stats().Level)
		other := restarted(t, "1/s burst 3", full)
		require.NoError(t, other.Restore([]byte(snapshotOf(t, low))))
		require.Equal(t, full, snapshotOf(t, other), "the lower one changes nothing")
	})
	play(t, "1/s depth 9", func(g *stage) {
		g.arriveAll("a", "b", "c", "d")
		g.at(500 * ms)
		g.cancel("c")
		// At 2.5 more, b leaves at 3 s and not at 1 s, and d after it.
		require.NoError(t, g.Restore([]byte(`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00.5Z","level":"5/2","rate":1}`)))
		require.Equal(t, 2, g.Stats().Waiting)
		g.at(time.Minute)
		g.saw("0s a left", "500ms c cancelled", "3s b left", "4s d left")
		g.Hold(time.Minute)
		require.NoError(t, g.Restore([]byte(`{"version":1,"of":"shaper","taken":"2000-01-01T00:01:00Z","held_ns":1000000000}`)))
		require.Equal(t, g.start.Add(2*time.Minute), g.Stats().HeldUntil)
		require.NoError(t, g.Restore([]byte(`{"version":1,"of":"shaper","taken":"2000-01-01T00:01:00Z","held_ns":61000000000}`)))
		require.Equal(t, g.start.Add(2*time.Minute+time.Second), g.Stats().HeldUntil)
	})
}

// What has left before Restore is not part of the restored level, so it can't be taken off it.
func TestADepartureIsNotGivenBackToARestoredLevel(t *testing.T) {
	play(t, "1/s depth 1", func(g *stage) {
		g.arriveAll("a")
		gone := &meddling{Context: context.Background(), meddle: func() {
			require.NoError(t, g.Restore([]byte(`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:01Z","level":"9","rate":1}`)))
		}}
		g.arriveWith(gone, "b", 1)
		g.at(time.Second)
		g.saw("0s a left", "1s b cancelled")
		require.Equal(t, 9.0, g.Stats().Level)
	})
}

// By the wall clock: one that has gone back lets nothing leak, and one that is far ahead
// empties the bucket, as it would have emptied in that time.
func TestTheAgeOfASnapshot(t *testing.T) {
	for taken, level := range map[string]float64{
		"2000-01-01T00:00:00Z":           3,
		"1999-12-31T23:59:58.5Z":         1.5,
		"1999-12-31T23:59:57Z":           0,
		"2000-01-01T01:59:58+02:00":      1, // Another time zone.
		"2000-01-01T00:00:00.000000001Z": 3,
		"2030-01-01T00:00:00Z":           3,
		"9999-12-31T23:59:59Z":           3,
		"1600-01-01T00:00:00Z":           0,
		"0001-01-01T00:00:00Z":           0,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := restarted(t, "1/s burst 3", `{"version":1,"of":"shaper","taken":"`+taken+`","level":"3","rate":1}`)
			require.Equal(t, level, s.Stats().Level, taken)
		})
	}
}

// badSnapshots are refused by a Shaper, for the reason that is told.
var badSnapshots = map[string]string{
	``:     "damaged: unexpected end of JSON input",
	`null`: "damaged: it has no version",
	`[]`:   "damaged: json: cannot unmarshal array",
	`{"of":"shaper","taken":"2000-01-01T00:00:00Z","level":"3","rate":1}`:             "damaged: it has no version",
	`{"version":2,"of":"shaper","taken":"2000-01-01T00:00:00Z","level":"3","rate":1}`: "the snapshot has version 2, and this package knows only version 1",
	`{"version":0,"of":"shaper"}`:   "the snapshot has version 0, and this package knows only version 1",
	`{"version":"1","of":"shaper"}`: "damaged: json: cannot unmarshal string",
	`{"version":1,"of":"group","taken":"2000-01-01T00:00:00Z","buckets":[],"top":{}}`:                                 `the snapshot is that of a "group", must be that of a "shaper"`,
	`{"version":1,"of":"shaper","level":"3","rate":1}`:                                                                "damaged: it has no time",
	`{"version":1,"of":"shaper","taken":"yesterday","level":"3","rate":1}`:                                            "damaged: parsing time",
	`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z","level":"3","rate":1`:                                  "damaged: unexpected end",
	`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z","level":"3","rate":1}}`:                                "damaged: invalid character",
	`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z","level":"3","rate":1,"color":"red"}`:                   `damaged: json: unknown field "color"`,
	`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z","level":3,"rate":1}`:                                   "damaged: json: cannot unmarshal number",
	`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z","level":"3"}`:                                          "damaged: shaper: Limits.Rate is 0",
	`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z","level":"3","rate":1e12}`:                              "damaged: shaper: Limits.Rate is 1e+12",
	`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z","level":"3","rate":1e999}`:                             "damaged: json: cannot unmarshal number",
	`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z","level":"-3","rate":1}`:                                `damaged: the level "-3"`,
	`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z","level":"3/0","rate":1}`:                               `damaged: the level "3/0"`,
	`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z","level":"1e999999999","rate":1}`:                       `damaged: the level "1e999999999"`,
	`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z","level":"1/2/3","rate":1}`:                             `damaged: the level "1/2/3"`,
	`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z","level":"` + nines(5000) + `","rate":1}`:               "damaged: the level",
	`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z","level":"3","rate":1,"held_ns":-1}`:                    "damaged: a bucket is held or blocked for -1 ns",
	`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z","level":"3","rate":1,"blocked_ns":100000000000000000}`: "damaged: a bucket is held or blocked for 1",
}

func nines(n int) string { return strings.Repeat("9", n) }

func TestABadSnapshotChangesNothing(t *testing.T) {
	for data, want := range badSnapshots {
		play(t, "1/s burst 3", func(g *stage) {
			g.arriveAll("a")
			before := snapshotOf(t, g)
			err := g.Restore([]byte(data))
			require.ErrorContains(t, err, want, "%.200s", data)
			require.ErrorContains(t, err, "shaper: Restore: ")
			require.Equal(t, before, snapshotOf(t, g))
		})
	}
}

// Later versions of the package must go on reading what this one has written. The files are
// never written anew.
func TestSnapshotsOfVersion1AreRead(t *testing.T) {
	data, err := os.ReadFile("testdata/snapshot-shaper-v1.json")
	require.NoError(t, err)
	play(t, "7/s burst 99", func(g *stage) {
		require.NoError(t, g.Restore(data)) // Taken a second before.
		require.Equal(t, `{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z","level":"92/3","rate":7,"held_ns":500000000,"blocked_ns":58000000000}`,
			snapshotOf(t, g))
	}, shaper.WithBlock(time.Hour))
}

// Whatever is restored, there is no panic; a snapshot that is accepted never lowers the level,
// and can be taken and restored again.
func FuzzRestore(f *testing.F) {
	for data := range badSnapshots {
		f.Add([]byte(data))
	}
	good, err := os.ReadFile("testdata/snapshot-shaper-v1.json")
	require.NoError(f, err)
	f.Add(good)
	f.Add([]byte(`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z","level":"` + nines(4000) + `","rate":3e-8}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := must(shaper.New(limitsOf(t, "7/s burst 99 depth 9"), shaper.WithBlock(time.Hour)))
		require.True(t, s.AllowN(50))
		s.Hold(time.Hour)
		before := s.Stats()
		err := s.Restore(data)
		after := s.Stats()
		require.False(t, after.HeldUntil.Before(before.HeldUntil))
		if err != nil {
			require.LessOrEqual(t, after.Level, before.Level)
			require.Zero(t, after.BlockedUntil)
		} else {
			elapsed := 7 * time.Since(before.LastCall).Seconds()
			require.GreaterOrEqual(t, after.Level, before.Level-elapsed-1e-6)
		}
		wait, _ := s.Forecast(1)
		require.GreaterOrEqual(t, wait, time.Duration(0))
		again, err := s.Snapshot()
		require.NoError(t, err)
		require.NoError(t, s.Restore(again))
	})
}

// levelIn returns the level in a snapshot of a shaper, which is not 0.
func levelIn(t *testing.T, snapshot string) *big.Rat {
	t.Helper()
	_, rest, _ := strings.Cut(snapshot, `"level":"`)
	text, _, _ := strings.Cut(rest, `"`)
	level, ok := new(big.Rat).SetString(text)
	require.True(t, ok, snapshot)
	return level
}

// At every instant after a restart at another rate the level is the greater of the two levels that
// the rates would give.
func TestARestartAtAnotherRateIsTheStricterOfTheTwo(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			rates := []string{"7/s", "1 per 3s", "13/min", "0.37/s", "2/s"}
			before, after := rates[r.IntN(5)]+" burst 50", rates[r.IntN(5)]+" burst 50"
			s := must(shaper.New(limitsOf(t, before)))
			require.NoError(t, s.WaitN(context.Background(), 50))
			snapshot := snapshotOf(t, s)
			changed, err := shaper.New(limitsOf(t, before)) // Its rate changes when the process ends.
			require.NoError(t, err)
			require.NoError(t, changed.Restore([]byte(snapshot)))
			require.NoError(t, changed.SetLimits(limitsOf(t, after)))
			time.Sleep(time.Duration(r.Int64N(int64(6 * time.Second))))
			late, slow := levelIn(t, snapshotOf(t, s)), levelIn(t, snapshotOf(t, changed))
			got := levelIn(t, snapshotOf(t, restarted(t, after, snapshot)))
			if late.Cmp(slow) < 0 {
				late = slow
			}
			require.Zero(t, late.Cmp(got), "%s, then %s: %v, not %v", before, after, got, late)
		})
	}
}
