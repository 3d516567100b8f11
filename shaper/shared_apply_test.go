package shaper_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
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

// processes are Shapers that share a bucket in memory, as if each was in a process of its own,
// and the merged log of what has left them.
type processes struct {
	*buckettest.Memory
	t      *testing.T
	start  time.Time
	limits shaper.Limits
	all    []*shaper.Shaper

	mu       sync.Mutex
	log      []model.Departure // whose Number is the instant of admission
	lateness time.Duration     // the greatest that a process has had
}

// share runs a timeline in a bubble, with n processes whose way to the bucket takes half of rtt.
func share(t *testing.T, n int, limits string, rtt time.Duration, timeline func(p *processes), opts ...shaper.Option) {
	t.Helper()
	l, err := shaper.ParseLimits(limits)
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		p := &processes{Memory: buckettest.NewMemory(), t: t, start: time.Now(), limits: l}
		p.SetDelay(rtt/2, rtt-rtt/2)
		defer func() {
			for _, s := range p.all {
				require.NoError(t, s.Close())
			}
		}()
		for range n {
			p.add(p.Memory, opts...)
		}
		timeline(p)
	})
}

// add adds a process, and returns it.
func (p *processes) add(b shaper.Bucket, opts ...shaper.Option) *shaper.Shaper {
	i := len(p.all)
	trace := &shaper.Trace{Departed: func(_ context.Context, e shaper.Event) {
		p.mu.Lock()
		defer p.mu.Unlock()
		at := e.At.Sub(p.start)
		p.log = append(p.log, model.Departure{At: at, Process: i, Number: int(at - e.Waited), Cost: int64(e.Cost)})
	}}
	opts = append([]shaper.Option{shaper.WithBucket(b, "k"), shaper.WithTrace(trace)}, opts...)
	s, err := shaper.New(p.limits, opts...)
	require.NoError(p.t, err)
	p.all = append(p.all, s)
	return s
}

// wait is WaitN on one of the processes.
func (p *processes) wait(ctx context.Context, i, n int) error { return p.all[i].WaitN(ctx, n) }

// arrive makes requests of these costs enter the line of a process, one after the other.
func (p *processes) arrive(i int, costs ...int) {
	for _, n := range costs {
		go func() { _ = p.wait(context.Background(), i, n) }()
		synctest.Wait()
	}
}

// saturate keeps so many requests of cost 1 in the line of each process, or only of these, until
// stop is called.
func (p *processes) saturate(callers int, only ...int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i, s := range p.all {
		if len(only) > 0 && !slices.Contains(only, i) {
			continue
		}
		for range callers {
			wg.Go(func() {
				for ctx.Err() == nil {
					// Those that are refused, as the bucket can't be asked, come again.
					if err := s.Wait(ctx); err != nil && ctx.Err() == nil {
						time.Sleep(ms)
					}
				}
			})
		}
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// at lets time pass until d after the start, and notes the lateness that processes have.
func (p *processes) at(d time.Duration) {
	step := max(50*ms, (d-time.Since(p.start))/100)
	for left := d - time.Since(p.start); left > 0; left = d - time.Since(p.start) {
		time.Sleep(min(left, step))
		for _, s := range p.all {
			p.lateness = max(p.lateness, s.Stats().Bucket.Lateness)
		}
	}
	synctest.Wait()
}

// departures returns the merged log of the processes so far.
func (p *processes) departures() []model.Departure {
	p.mu.Lock()
	defer p.mu.Unlock()
	log := slices.Clone(p.log)
	slices.SortStableFunc(log, func(a, b model.Departure) int { return cmp.Compare(a.At, b.At) })
	return log
}

// instants returns when requests have left.
func (p *processes) instants() (all []time.Duration) {
	for _, d := range p.departures() {
		all = append(all, d.At)
	}
	return all
}

// between returns how many have left each process from one instant until before another.
func (p *processes) between(from, to time.Duration) (each []int, all int) {
	each = make([]int, len(p.all))
	for _, d := range p.departures() {
		if from <= d.At && d.At < to {
			each[d.Process]++
			all++
		}
	}
	return each, all
}

// pace is what the processes promise together.
func (p *processes) pace() model.SharedPace {
	return model.SharedPace{Interval: intervalOf(p.limits.Rate), Burst: max(1, int64(p.limits.Burst)), Lateness: p.lateness}
}

// check checks the merged log: the pace, and the order within each process.
func (p *processes) check(extras ...model.Extra) {
	p.t.Helper()
	for _, s := range p.all {
		p.lateness = max(p.lateness, s.Stats().Bucket.Lateness)
	}
	require.NoError(p.t, p.pace().Check(numbered(p.departures()), extras...))
}

// numbered returns the log with each request's number in the order in which its process took it
// into the line. Those that came at one instant may have left in any order.
func numbered(log []model.Departure) []model.Departure {
	slices.SortStableFunc(log, func(a, b model.Departure) int { return cmp.Compare(a.Number, b.Number) })
	for i := range log {
		log[i].Number = i
	}
	return log
}

// takes returns the calls of Take that were made, and those of GiveBack.
func (p *processes) takes() (takes, givenBack []buckettest.Entry) {
	for _, e := range p.Log() {
		if e.Op == "Take" {
			takes = append(takes, e)
		} else {
			givenBack = append(givenBack, e)
		}
	}
	return takes, givenBack
}

// intervalOf returns the time of one cost unit at a rate, in nanoseconds.
func intervalOf(r rate.Limit) *big.Rat {
	per := new(big.Rat).SetFloat64(float64(r))
	return per.Quo(big.NewRat(int64(time.Second), 1), per)
}

// A change of the rate keeps the level in cost units, and lets nobody leave before those who
// may hold slots of the old rate.
func TestANewRateBeginsBehindTheSlotsOfTheOld(t *testing.T) {
	const now = 1_800_000_000_000_000
	old := shaper.BucketRate{Version: 1, Micros: 100_000, Parts: 1, Burst: 1} // 10/s
	for _, c := range []struct {
		name      string
		oldBurst  int64
		micros    int64 // time of a unit at the new rate
		burst     int64
		empty     int64 // of the old rate, from now
		want      int64 // of the new rate, from now
		nextAtOld int64 // when the next request of cost 1 could have left at the old rate, from now
	}{
		{"nothing is taken", 1, 1000, 5, 0, 0, 0},
		{"the level was 0 long ago", 1, 1000, 5, -7_000_000, 0, 0},
		{"slower: the level is kept", 1, 200_000, 1, 300_000, 600_000, 300_000},
		{"the same rate", 1, 100_000, 1, 300_000, 300_000, 300_000},
		{"faster: slots at 0, 100 and 200 ms may be held", 1, 1000, 1, 300_000, 300_000, 300_000},
		{"faster, with a burst", 1, 1000, 5, 300_000, 304_000, 300_000},
		{"faster, and nobody holds a slot: the level of 3 is kept", 5, 1000, 5, 300_000, 3000, 0},
		{"faster, and the burst is spent: 4 of it are left at 100 ms", 5, 1000, 1, 500_000, 104_000, 100_000},
		{"a request of cost 1000 leaves at 2 s", 1, 1000, 1, 102_000_000, 2_000_000 + 1_000_000, 2_000_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, next := old, shaper.BucketRate{Version: 2, Micros: c.micros, Parts: 1, Burst: c.burst}
			old.Burst = c.oldBurst
			got := next.Rescale(old, shaper.Instant{Micros: now + c.empty}, now)
			require.Equal(t, shaper.Instant{Micros: now + c.want}, got)
			if c.nextAtOld > 0 {
				require.GreaterOrEqual(t, c.want-(c.burst-1)*c.micros, c.nextAtOld)
			}
		})
	}
}

// A rescaling is exact to the microsecond for every rate.
func TestRescaleIsNeverEarly(t *testing.T) {
	const now = 1_800_000_000_000_000
	random := rand.New(rand.NewPCG(5, 6))
	longest := new(big.Rat).SetInt64(1 << 51)
	for _, old := range bucketRates {
		for _, next := range bucketRates {
			for range 100 {
				old.Burst, next.Burst = 1+random.Int64N(50), 1+random.Int64N(50)
				empty := shaper.Instant{Micros: now + random.Int64N(1<<52)>>random.IntN(52) - 1000, Part: random.Int64N(old.Parts)}
				late := new(big.Rat).Sub(in(next, next.Rescale(old, empty, now)), rescaled(next, old, in(old, empty), now, longest))
				require.Truef(t, late.Sign() >= 0 && late.Cmp(big.NewRat(1, 1)) < 0,
					"%+v to %+v, empty at %+v: %s µs late", old, next, empty, late.FloatString(6))
			}
		}
	}
}

// rescaled returns what [shaper.BucketRate.Rescale] does, exactly.
func rescaled(r, old shaper.BucketRate, empty *big.Rat, now int64, longest *big.Rat) *big.Rat {
	at := new(big.Rat).SetInt64(now)
	if empty.Cmp(at) <= 0 {
		return at
	}
	units := func(n int64, r shaper.BucketRate) *big.Rat {
		return earlier(new(big.Rat).Mul(new(big.Rat).SetInt64(n), unitOf(r)), longest)
	}
	ratio := new(big.Rat).Quo(unitOf(r), unitOf(old))
	asOf := func(when *big.Rat) *big.Rat { // The level as of when stays what it is in cost units.
		span := new(big.Rat).Sub(empty, when)
		return span.Add(span.Mul(span, ratio), when)
	}
	result := asOf(at)
	next := earlier(new(big.Rat).Sub(empty, units(old.Burst-1, old)), new(big.Rat).SetInt64(now+shaper.MaxAhead.Microseconds()))
	if next.Cmp(at) > 0 {
		result = later(result, asOf(next))
		result = later(result, new(big.Rat).Add(next, units(r.Burst-1, r)))
	}
	return earlier(result, new(big.Rat).Add(at, longest))
}

func earlier(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return a
	}
	return b
}

func later(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) > 0 {
		return a
	}
	return b
}

// During a deployment processes with an old and with a new rate share a level. Whatever
// both rates are, nobody may see more than the greater one lets leave.
func TestTwoRatesTogetherAreNeverAboveTheGreater(t *testing.T) {
	t.Parallel()
	for seed := range uint64(rounds(300, 2_000, 20_000)) {
		random := rand.New(rand.NewPCG(seed, 7))
		var rates []shaper.BucketRate
		for version := range int64(2 + random.IntN(2)) {
			rates = append(rates, shaper.BucketRate{
				Version: version, Micros: 1 + random.Int64N(1_000_000)>>random.IntN(19), Part: random.Int64N(3), Parts: 3,
				Burst: 1 + random.Int64N(30)>>random.IntN(5),
			})
		}
		slots := deploy(random, rates)
		greatest, burst := rates[0], rates[0].Burst
		for _, r := range rates {
			if unitOf(r).Cmp(unitOf(greatest)) < 0 {
				greatest = r
			}
			burst = max(burst, r.Burst)
		}
		greatest.Burst = burst
		require.NoErrorf(t, conforms(slots, greatest), "seed %d: %+v", seed, rates)
	}
}

// A sharedSlot is a departure: its instant in microseconds, and its cost.
type sharedSlot struct {
	at   *big.Rat
	cost int64
}

// deploy plays processes that share a level, of which each new rate has one more, and
// returns the slots that they have had. Each of them uses all slots at once that come within
// MaxAhead.
func deploy(random *rand.Rand, rates []shaper.BucketRate) (slots []sharedSlot) {
	now := int64(1_800_000_000_000_000)
	level, newest := shaper.BucketLevel{}, 0
	for range 60 {
		now += random.Int64N(1_000_000) >> random.IntN(20)
		if newest+1 < len(rates) && random.IntN(20) == 0 {
			newest++
		}
		r := rates[random.IntN(newest+1)]
		var costs []int64
		sum := int64(0)
		for range 1 + random.IntN(5) {
			cost := 1 + random.Int64N(60)>>random.IntN(7)
			costs, sum = append(costs, cost), sum+cost
		}
		take := shaper.Take{Key: "k", Cost: sum, First: costs[0], Ahead: time.Duration(random.Int64N(2_000_001)) * time.Microsecond, Rate: r}
		next, taken := take.Apply(level, now)
		level = next
		if !taken.OK {
			continue
		}
		empty := in(r, taken.Empty)
		for _, cost := range costs {
			at := new(big.Rat).Sub(empty, new(big.Rat).Mul(unitOf(r), new(big.Rat).SetInt64(max(0, r.Burst-cost))))
			at = later(at, new(big.Rat).SetInt64(now))
			empty = new(big.Rat).Add(empty, new(big.Rat).Mul(unitOf(r), new(big.Rat).SetInt64(cost)))
			if at.Cmp(new(big.Rat).SetInt64(now+shaper.MaxAhead.Microseconds())) <= 0 {
				slots = append(slots, sharedSlot{at, cost})
			}
		}
	}
	return slots
}

// conforms returns an error if one bucket of a rate would not have let the slots leave.
func conforms(slots []sharedSlot, r shaper.BucketRate) error {
	slices.SortStableFunc(slots, func(a, b sharedSlot) int { return a.at.Cmp(b.at) })
	empty := new(big.Rat)
	for i, s := range slots {
		due := new(big.Rat).Sub(empty, new(big.Rat).Mul(unitOf(r), new(big.Rat).SetInt64(max(0, r.Burst-s.cost))))
		if due.Cmp(s.at) > 0 {
			return fmt.Errorf("slot %d of %d, of cost %d, is %s µs early", i, len(slots), s.cost, due.Sub(due, s.at).FloatString(3))
		}
		empty = later(empty, s.at)
		empty = new(big.Rat).Add(empty, new(big.Rat).Mul(unitOf(r), new(big.Rat).SetInt64(s.cost)))
	}
	return nil
}
