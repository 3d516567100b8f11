package shaper_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// The rates of the timelines: a unit takes 100 ms.
var (
	combRate  = shaper.BucketRate{Version: 5, Micros: 100_000, Parts: 1, Burst: 1}
	burstRate = shaper.BucketRate{Version: 5, Micros: 100_000, Parts: 1, Burst: 3}
	thirdRate = shaper.BucketRate{Version: 5, Micros: 333_333, Part: 1, Parts: 3, Burst: 1}
	newThird  = shaper.BucketRate{Version: 6, Micros: 333_333, Part: 1, Parts: 3, Burst: 1}
	olderRate = shaper.BucketRate{Version: 4, Micros: 100_000, Parts: 1, Burst: 1}
	newerRate = shaper.BucketRate{Version: 6, Micros: 10_000, Parts: 1, Burst: 1}
	otherRate = shaper.BucketRate{Version: 5, Micros: 100_001, Parts: 1, Burst: 1}
)

// t0 is the present in the timelines; afterMs counts from it.
const t0 = 1_800_000_000_000_000

func afterMs(n int64) int64 { return t0 + 1000*n }

func levelOf(r shaper.BucketRate, empty, at int64) shaper.BucketLevel {
	return shaper.BucketLevel{Empty: shaper.Instant{Micros: empty}, Rate: r, At: at}
}

// Each case is one of the steps in the comment of Apply.
func TestTakeApply(t *testing.T) {
	none := shaper.BucketLevel{}
	for _, c := range []struct {
		name  string
		level shaper.BucketLevel
		take  shaper.Take // Key is "k"; Cost and First are 1 unless set
		want  shaper.BucketLevel
		taken shaper.Taken // Now is t0
	}{
		{
			"1: without a state the level is 0", none, shaper.Take{Rate: combRate},
			levelOf(combRate, afterMs(100), t0), shaper.Taken{OK: true, Cold: true, Empty: shaper.Instant{Micros: t0}},
		},
		{
			"1: the guard passes first", none, shaper.Take{Rate: combRate, Guard: 50 * time.Millisecond, Ahead: 50 * time.Millisecond},
			levelOf(combRate, afterMs(150), t0), shaper.Taken{OK: true, Cold: true, Empty: shaper.Instant{Micros: afterMs(50)}},
		},
		{
			"1: the guard is written though nothing is taken", none, shaper.Take{Rate: combRate, Guard: 50 * time.Millisecond},
			levelOf(combRate, afterMs(50), t0), shaper.Taken{Cold: true, Empty: shaper.Instant{Micros: afterMs(50)}},
		},
		{
			"2: the clock has gone back by 1 s", levelOf(combRate, afterMs(1200), afterMs(1000)), shaper.Take{Rate: combRate, Ahead: 200 * time.Millisecond},
			levelOf(combRate, afterMs(300), t0), shaper.Taken{OK: true, Empty: shaper.Instant{Micros: afterMs(200)}},
		},
		{
			"2: that is written though nothing is taken", levelOf(combRate, afterMs(1200), afterMs(1000)), shaper.Take{Rate: combRate},
			levelOf(combRate, afterMs(200), t0), shaper.Taken{Empty: shaper.Instant{Micros: afterMs(200)}},
		},
		{
			"2: the clock has gone back further than the level", levelOf(combRate, afterMs(100), afterMs(1000)), shaper.Take{Rate: combRate},
			levelOf(combRate, afterMs(100), t0), shaper.Taken{OK: true, Empty: shaper.Instant{Micros: t0}},
		},
		{
			"3: a newer rate is in force", levelOf(newerRate, afterMs(30), afterMs(-1)), shaper.Take{Rate: combRate, Ahead: time.Second},
			levelOf(newerRate, afterMs(30), afterMs(-1)), shaper.Taken{Empty: shaper.Instant{Micros: afterMs(30)}, Other: &newerRate},
		},
		{
			"3: a newer rate is in force, the level is 0, and High does not count", levelOf(newerRate, afterMs(-30), afterMs(-90)), shaper.Take{Rate: combRate, High: shaper.Instant{Micros: afterMs(10)}},
			levelOf(newerRate, afterMs(-30), afterMs(-90)), shaper.Taken{Empty: shaper.Instant{Micros: t0}, Other: &newerRate},
		},
		{
			"3: a newer rate is in force, and the clock has gone back", levelOf(newerRate, afterMs(130), afterMs(100)), shaper.Take{Rate: combRate, Ahead: time.Second},
			levelOf(newerRate, afterMs(130), afterMs(100)), shaper.Taken{Empty: shaper.Instant{Micros: afterMs(30)}, Other: &newerRate},
		},
		{
			"3: rates of one version differ", levelOf(combRate, afterMs(30), afterMs(-1)), shaper.Take{Rate: otherRate, Ahead: time.Second},
			levelOf(combRate, afterMs(30), afterMs(-1)), shaper.Taken{Empty: shaper.Instant{Micros: afterMs(30)}, Other: &combRate},
		},
		{
			"3: a newer version of the rate is in force, and stays in force", levelOf(combRate, afterMs(30), afterMs(-1)), shaper.Take{Rate: olderRate, Ahead: time.Second},
			levelOf(combRate, afterMs(130), t0), shaper.Taken{OK: true, Empty: shaper.Instant{Micros: afterMs(30)}},
		},
		{
			"3: a newer version of the rate comes into force, and nothing is rounded", shaper.BucketLevel{Empty: shaper.Instant{Micros: afterMs(70), Part: 1}, Rate: thirdRate, At: afterMs(-1)}, shaper.Take{Rate: newThird, Ahead: time.Second},
			shaper.BucketLevel{Empty: shaper.Instant{Micros: afterMs(70) + 333_333, Part: 2}, Rate: newThird, At: t0}, shaper.Taken{OK: true, Empty: shaper.Instant{Micros: afterMs(70), Part: 1}},
		},
		{
			"3: that is written though nothing is taken", levelOf(olderRate, afterMs(30), afterMs(-1)), shaper.Take{Rate: combRate},
			levelOf(combRate, afterMs(30), t0), shaper.Taken{Empty: shaper.Instant{Micros: afterMs(30)}},
		},
		{
			"3: but an older version is not", levelOf(combRate, afterMs(30), afterMs(-1)), shaper.Take{Rate: olderRate},
			levelOf(combRate, afterMs(30), afterMs(-1)), shaper.Taken{Empty: shaper.Instant{Micros: afterMs(30)}},
		},
		{
			"3: the newer rate comes into force", levelOf(olderRate, afterMs(300), afterMs(-1)), shaper.Take{Rate: newerRate, Ahead: 300 * time.Millisecond},
			levelOf(newerRate, afterMs(310), t0), shaper.Taken{OK: true, Empty: shaper.Instant{Micros: afterMs(300)}},
		},
		{
			"3: a newer rate is written though nothing is taken", levelOf(olderRate, afterMs(300), afterMs(-1)), shaper.Take{Rate: newerRate},
			levelOf(newerRate, afterMs(300), t0), shaper.Taken{Empty: shaper.Instant{Micros: afterMs(300)}},
		},
		{
			"4: the process knows more than the state", levelOf(combRate, afterMs(100), afterMs(-1)), shaper.Take{Rate: combRate, High: shaper.Instant{Micros: afterMs(300)}, Seen: afterMs(-1), Ahead: 300 * time.Millisecond},
			levelOf(combRate, afterMs(400), t0), shaper.Taken{OK: true, Empty: shaper.Instant{Micros: afterMs(300)}},
		},
		{
			"4: the state has been lost, and the process knows", none, shaper.Take{Rate: combRate, High: shaper.Instant{Micros: afterMs(300)}, Seen: t0},
			levelOf(combRate, afterMs(300), t0), shaper.Taken{Cold: true, Empty: shaper.Instant{Micros: afterMs(300)}},
		},
		{
			"4: the clock has gone back since", none, shaper.Take{Rate: combRate, High: shaper.Instant{Micros: afterMs(300)}, Seen: t0 + 1},
			levelOf(combRate, afterMs(100), t0), shaper.Taken{OK: true, Cold: true, Empty: shaper.Instant{Micros: t0}},
		},
		{
			"4: High that says nothing new is not written", levelOf(combRate, afterMs(100), afterMs(-1)), shaper.Take{Rate: combRate, High: shaper.Instant{Micros: afterMs(300)}},
			levelOf(combRate, afterMs(100), afterMs(-1)), shaper.Taken{Empty: shaper.Instant{Micros: afterMs(300)}},
		},
		{
			"5: idle time is not saved up", levelOf(combRate, afterMs(-5000), afterMs(-6000)), shaper.Take{Rate: combRate},
			levelOf(combRate, afterMs(100), t0), shaper.Taken{OK: true, Empty: shaper.Instant{Micros: t0}},
		},
		{
			"6: the last instant that is near enough", levelOf(combRate, afterMs(70), afterMs(-1)), shaper.Take{Rate: combRate, Ahead: 70 * time.Millisecond},
			levelOf(combRate, afterMs(170), t0), shaper.Taken{OK: true, Empty: shaper.Instant{Micros: afterMs(70)}},
		},
		{
			"6: the first instant that is too far", levelOf(combRate, afterMs(70), afterMs(-1)), shaper.Take{Rate: combRate, Ahead: 70*time.Millisecond - time.Microsecond},
			levelOf(combRate, afterMs(70), afterMs(-1)), shaper.Taken{Empty: shaper.Instant{Micros: afterMs(70)}},
		},
		{
			"6: a part of a microsecond is too far", shaper.BucketLevel{Empty: shaper.Instant{Micros: afterMs(70), Part: 1}, Rate: thirdRate, At: t0}, shaper.Take{Rate: thirdRate, Ahead: 70 * time.Millisecond},
			shaper.BucketLevel{Empty: shaper.Instant{Micros: afterMs(70), Part: 1}, Rate: thirdRate, At: t0}, shaper.Taken{Empty: shaper.Instant{Micros: afterMs(70), Part: 1}},
		},
		{
			"6: the burst has room for one more", levelOf(burstRate, afterMs(200), afterMs(-1)), shaper.Take{Rate: burstRate},
			levelOf(burstRate, afterMs(300), t0), shaper.Taken{OK: true, Empty: shaper.Instant{Micros: afterMs(200)}},
		},
		{
			"6: but not for a cost of 2", levelOf(burstRate, afterMs(200), afterMs(-1)), shaper.Take{Rate: burstRate, First: 2},
			levelOf(burstRate, afterMs(200), afterMs(-1)), shaper.Taken{Empty: shaper.Instant{Micros: afterMs(200)}},
		},
		{
			"6: a cost above the burst leaves at level 0", levelOf(burstRate, afterMs(1), afterMs(-1)), shaper.Take{Rate: burstRate, First: 9, Cost: 9, Ahead: time.Millisecond},
			levelOf(burstRate, afterMs(901), t0), shaper.Taken{OK: true, Empty: shaper.Instant{Micros: afterMs(1)}},
		},
		{
			"6: and not before", levelOf(burstRate, afterMs(1), afterMs(-1)), shaper.Take{Rate: burstRate, First: 9, Cost: 9},
			levelOf(burstRate, afterMs(1), afterMs(-1)), shaper.Taken{Empty: shaper.Instant{Micros: afterMs(1)}},
		},
		{
			"6: parts are carried", shaper.BucketLevel{Empty: shaper.Instant{Micros: afterMs(70), Part: 2}, Rate: thirdRate, At: t0}, shaper.Take{Rate: thirdRate, Ahead: time.Second, Cost: 2},
			shaper.BucketLevel{Empty: shaper.Instant{Micros: afterMs(70) + 666_667, Part: 1}, Rate: thirdRate, At: t0}, shaper.Taken{OK: true, Empty: shaper.Instant{Micros: afterMs(70), Part: 2}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.take.Key, c.take.Cost, c.take.First = "k", max(1, c.take.Cost), max(1, c.take.First)
			c.taken.Now = t0
			next, taken := c.take.Apply(c.level, t0)
			require.Equal(t, c.taken, taken)
			require.Equal(t, c.want, next)
			checkApply(t, c.take, c.level, t0)
		})
	}
}

// A Take that finds no state and has to wait for the guard must leave a state behind. If it
// left none, the next Take would wait for a guard of its own, and nobody would ever leave.
func TestColdGuardEnds(t *testing.T) {
	take := shaper.Take{Key: "k", Cost: 1, First: 1, Guard: 100 * time.Millisecond, Rate: shaper.BucketRate{Version: 1, Micros: 1000, Parts: 1, Burst: 1}}
	state, taken := take.Apply(shaper.BucketLevel{}, 1_000_000)
	require.Equal(t, shaper.Taken{Now: 1_000_000, Empty: shaper.Instant{Micros: 1_100_000}, Cold: true}, taken)
	_, taken = take.Apply(state, 1_100_000)
	require.Equal(t, shaper.Taken{OK: true, Now: 1_100_000, Empty: shaper.Instant{Micros: 1_100_000}}, taken)
}

// A guard that began again with each Take would last until nobody asks.
func TestAGuardThatIsLongerThanAheadEnds(t *testing.T) {
	take := shaper.Take{Key: "k", Cost: 1, First: 1, Rate: combRate, Guard: time.Minute}
	l, taken := take.Apply(shaper.BucketLevel{}, t0)
	require.True(t, taken.Cold)
	for at := int64(t0); !taken.OK; at += 1_000_000 {
		require.LessOrEqual(t, at, int64(t0+60_000_000))
		l, taken = take.Apply(l, at)
	}
}

func TestADamagedLevelIsNone(t *testing.T) {
	good := shaper.BucketLevel{Empty: shaper.Instant{Micros: afterMs(500), Part: 2}, Rate: thirdRate, At: afterMs(-1)}
	take := shaper.Take{Key: "k", Cost: 2, First: 1, Rate: thirdRate}
	isNone := func(l shaper.BucketLevel) bool {
		next, taken := take.Apply(l, t0)
		if !taken.Cold {
			return false
		}
		require.Equal(t, shaper.Taken{OK: true, Now: t0, Empty: shaper.Instant{Micros: t0}, Cold: true}, taken, "%+v", l)
		require.Equal(t, shaper.BucketLevel{Empty: shaper.Instant{Micros: t0 + 666_666, Part: 2}, Rate: thirdRate, At: t0}, next, "%+v", l)
		return true
	}
	for _, number := range []struct {
		name        string
		of          func(*shaper.BucketLevel) *int64
		least, most int64
	}{
		{"Empty.Micros", func(l *shaper.BucketLevel) *int64 { return &l.Empty.Micros }, 0, 1 << 53},
		{"Empty.Part", func(l *shaper.BucketLevel) *int64 { return &l.Empty.Part }, 0, thirdRate.Parts - 1},
		{"At", func(l *shaper.BucketLevel) *int64 { return &l.At }, 1, 1 << 53},
		{"Rate.Version", func(l *shaper.BucketLevel) *int64 { return &l.Rate.Version }, 0, 1 << 53},
		{"Rate.Micros", func(l *shaper.BucketLevel) *int64 { return &l.Rate.Micros }, 0, 1 << 51},
		{"Rate.Part", func(l *shaper.BucketLevel) *int64 { return &l.Rate.Part }, 0, thirdRate.Parts - 1},
		{"Rate.Parts", func(l *shaper.BucketLevel) *int64 { return &l.Rate.Parts }, good.Empty.Part + 1, 1e12},
		{"Rate.Burst", func(l *shaper.BucketLevel) *int64 { return &l.Rate.Burst }, 1, math.MaxInt64},
	} {
		for n, none := range map[int64]bool{
			number.least - 1: true, number.least: false, number.most: false, number.most + 1: true, math.MinInt64: true,
		} {
			l := good
			*number.of(&l) = n
			require.Equal(t, none, isNone(l), "%s is %d", number.name, n)
		}
	}
	noTime := good
	noTime.Rate.Micros, noTime.Rate.Part = 0, 0
	require.True(t, isNone(noTime), "a unit takes no time")
	require.True(t, isNone(shaper.BucketLevel{Empty: good.Empty}), "there is only an instant")
}

func TestApplyGiveBack(t *testing.T) {
	end := shaper.Instant{Micros: afterMs(500), Part: 1}
	l := shaper.BucketLevel{Empty: end, Rate: thirdRate, At: afterMs(-1)}
	give := shaper.Take{Key: "k", Cost: 1, Rate: thirdRate}
	given := shaper.BucketLevel{Empty: shaper.Instant{Micros: afterMs(500) - 333_333, Part: 0}, Rate: thirdRate, At: afterMs(-1)}
	require.Equal(t, given, give.ApplyGiveBack(l, end))
	require.Equal(t, given, give.ApplyGiveBack(given, end), "what has been given back is not given back again")
	give.Cost = 2
	require.Equal(t, shaper.Instant{Micros: afterMs(500) - 666_667, Part: 2}, give.ApplyGiveBack(l, end).Empty)

	for _, not := range []shaper.Instant{{}, {Micros: end.Micros}, {Micros: end.Micros, Part: 2}, {Micros: end.Micros + 1, Part: 1}} {
		require.Equal(t, l, give.ApplyGiveBack(l, not), "others have taken since")
	}
	for _, version := range []int64{4, 5, 6} {
		give.Rate, give.Cost = thirdRate, 1
		give.Rate.Version = version
		require.Equal(t, given, give.ApplyGiveBack(l, end), "the version does not count, and stays what it is")
		give.Rate.Burst = 2
		require.Equal(t, l, give.ApplyGiveBack(l, end), "another rate is in force")
	}
	require.Zero(t, give.ApplyGiveBack(shaper.BucketLevel{}, shaper.Instant{}))
}
