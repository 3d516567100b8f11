package lease_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper/internal/lease"
	"example.com/leakybucket/shaper/shared"
)

const ms = int64(time.Millisecond)

// perMilli is one cost unit a millisecond. Its lateness is 20 ms.
var perMilli = shared.BucketRate{Micros: 1000, Parts: 1000, Burst: 1}

// A process has a lease of a level, and does with it what the engine does. It keeps an account of
// its own.
type process struct {
	*lease.Lease
	level      *shared.BucketLevel
	now        int64 // on the engine's clock, in ns
	ahead      int64 // of the Bucket's clock, in µs
	departures uint32
	total      lease.Counts
	used       uint64
}

func newProcess(level *shared.BucketLevel, rate shared.BucketRate) *process {
	p := &process{level: level, now: int64(time.Hour), ahead: 1e15}
	l := lease.New("key", 0, &p.departures, &p.total)
	l.SetRate(rate)
	p.Lease = &l
	return p
}

// take leases n units, if the level has room for them within MaxAhead.
func (p *process) take(n int64) (ok bool) {
	t := p.Question(n)
	t.First, t.Ahead = 1, shared.MaxAhead
	var taken shared.Taken
	*p.level, taken = t.Apply(*p.level, p.now/1000+p.ahead)
	p.NoteAnswer(t, taken, p.now, p.now)
	if taken.OK {
		p.Add(t, taken)
	}
	return taken.OK
}

// leave lets a request of cost n leave now, if its units are leased and due, and returns its number.
func (p *process) leave(n int64) (departure uint32) {
	if !p.Covers(n, p.now) || p.SlotFor(n) > p.now {
		return 0
	}
	p.Use(n)
	p.departures++
	p.NoteUse()
	p.used += uint64(n)
	return p.departures
}

// giveUp gives the units of a departure back, which are available again or lost.
func (p *process) giveUp(departure uint32, n int64) {
	p.Unuse(departure, n)
	p.used -= uint64(n)
}

// giveBack gives the tail of the lease back, and returns how many units that is.
func (p *process) giveBack() int64 {
	t, end := p.GiveBack(p.now)
	*p.level = t.ApplyGiveBack(*p.level, end)
	return t.Cost
}

// requireAccount asserts that each unit that was leased is in one place.
func (p *process) requireAccount(t *testing.T) {
	t.Helper()
	require.Equal(t, p.total, p.Counts)
	require.EqualValues(t, p.Counts.Leased, p.used+p.Counts.Dropped+p.Counts.GivenBack+uint64(p.Leased()),
		"leased; used %d, dropped %d, given back %d, still leased %d", p.used, p.Counts.Dropped, p.Counts.GivenBack, p.Leased())
}

// others lets another process raise the level by n units.
func (p *process) others(n int64) {
	p.level.Empty = p.level.Rate.Plus(p.level.Empty, p.level.Rate.Times(n))
}

// However a leased unit is lost, it is counted, once.
func TestEachLeasedUnitThatIsLostIsCounted(t *testing.T) {
	for name, c := range map[string]struct {
		lose   func(p *process)
		lost   int
		leased int // still
	}{
		"nobody uses them in time": {func(p *process) { p.now += 21*ms + ms/2; p.DropLate(p.now) }, 2, 3},
		"nobody ever uses them":    {func(p *process) { p.now += 100 * ms; p.DropLate(p.now) }, 5, 0},
		"a request comes too late": {func(p *process) { p.now += 22 * ms; p.leave(1) }, 3, 1},
		"the engine drops them":    {func(p *process) { p.DropAll() }, 5, 0},
		"and those fetched ahead":  {func(p *process) { p.take(3); p.DropAll() }, 8, 0},
		"the Bucket's clock is set": {func(p *process) {
			p.ahead += 1e9
			p.take(3)
		}, 5, 3},
		"those before a gap that is too long": {func(p *process) {
			p.others(21)
			p.take(3)
			p.Covers(6, p.now)
		}, 5, 3},
		"those before a gap that is not": {func(p *process) {
			p.others(19)
			p.take(3)
			p.Covers(6, p.now)
		}, 0, 8},
		"moved ones, which nobody uses": {func(p *process) {
			p.others(10)
			p.take(3)
			p.Covers(6, p.now) // The first five are due 10 ms later now, and dropped when they would have been before.
			p.now += 23*ms + ms/2
			p.DropLate(p.now)
		}, 4, 4},
		"moved ones, of which one was used": {func(p *process) {
			p.others(10)
			p.take(3)
			p.Covers(6, p.now)
			p.now = p.SlotFor(1)
			p.leave(1)
			p.now += 16 * ms // 26 ms after the beginning; those that were not moved have time until 35 ms.
			p.DropLate(p.now)
		}, 4, 3},
		"moved ones, of which one was used and has come back": {func(p *process) {
			p.others(10)
			p.take(3)
			p.Covers(6, p.now)
			p.now = p.SlotFor(1)
			p.giveUp(p.leave(1), 1)
			p.now += 16 * ms
			p.DropLate(p.now)
		}, 5, 3},
		"moved ones that would move too far": {func(p *process) {
			p.others(8)
			p.take(3)
			p.Covers(6, p.now)
			p.others(13)
			p.take(3)
			p.Covers(9, p.now)
		}, 8, 3},
		"moved ones that are joined again": {func(p *process) {
			p.others(10)
			p.take(3)
			p.Covers(6, p.now)
			p.take(2)
			p.Covers(9, p.now)
			p.now += 26 * ms
			p.DropLate(p.now)
		}, 5, 5},
		"those of a rate before": {func(p *process) {
			p.ChangeRate(shared.BucketRate{Version: 1, Micros: 2000, Parts: 1000, Burst: 1}, p.now)
			p.take(3)
			p.Covers(6, p.now)
		}, 5, 3},
		"one gives up, and another has left": {func(p *process) {
			first := p.leave(1)
			p.now += ms
			p.leave(1)
			p.giveUp(first, 1)
		}, 1, 3},
		"the latest gives up": {func(p *process) { p.giveUp(p.leave(1), 1) }, 0, 5},
		"the latest gives up the last of a stretch": {func(p *process) {
			p.take(1)
			p.now += 4 * ms
			last := p.leave(5)
			p.giveUp(last, 5)
		}, 0, 6},
		"one gives up whose stretch has been dropped": {func(p *process) {
			first := p.leave(1)
			p.DropAll()
			p.giveUp(first, 1)
		}, 5, 0},
		"those before a gap, when the rest is given back": {func(p *process) {
			p.others(10)
			p.take(3)
			p.giveBack()
		}, 5, 0},
		"all are given back": {func(p *process) { p.take(3); p.giveBack() }, 0, 0},
		"those that begin again after the clock was set": {func(p *process) {
			p.now += 4 * ms
			p.leave(5) // The next one is due 5 ms after the first.
			p.now, p.ahead, *p.level = p.now+ms/2, p.ahead-1e9, shared.BucketLevel{}
			p.take(3) // The level knows nothing of that, and the first is due at once.
		}, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProcess(new(shared.BucketLevel), perMilli)
			require.True(t, p.take(5))
			p.now += 1000 // A microsecond later the Bucket's clock has certainly come to the first.
			c.lose(p)
			p.requireAccount(t)
			require.EqualValues(t, c.lost, p.Counts.Dropped, "lost")
			require.EqualValues(t, c.leased, p.Leased(), "still leased")
		})
	}
}

// Two stretches that are joined without a gap can be given back together; behind a gap only the second
// one can. The level is then as if the units that were given back had never been leased.
func TestStretchesBehindEachOtherAreGivenBackAsOne(t *testing.T) {
	for name, c := range map[string]struct {
		gap, first int64 // how many units others take between the two, and how many are used before they are joined
		joined     int64 // the cost of a request that needs units of both; 0: none does
		back       int64
		givesUp    bool // that request
	}{
		"without a gap":                         {0, 0, 0, 7, false},
		"without a gap, some used":              {0, 2, 0, 5, false},
		"without a gap, used across the joint":  {0, 2, 3, 2, false},
		"without a gap, across it and given up": {0, 2, 3, 5, true},
		"without a gap, all used but one":       {0, 0, 6, 1, false},
		"without a gap, all used":               {0, 0, 7, 0, false},
		"with a gap":                            {5, 0, 0, 4, false},
		"with a gap, some used":                 {5, 2, 0, 4, false},
		"with a gap, used across the joint":     {5, 2, 3, 2, false},
		"with a gap, used just up to the joint": {5, 0, 3, 4, false},
		"with a gap, all used":                  {5, 0, 7, 0, false},
		"with a gap, up to it and given up":     {5, 0, 3, 4, true},
		"with a gap, across it and given up":    {5, 2, 3, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProcess(new(shared.BucketLevel), perMilli)
			require.True(t, p.take(3))
			p.others(c.gap)
			require.True(t, p.take(4))
			raised := p.level.Empty
			p.now += 2 * ms
			for range c.first {
				require.NotZero(t, p.leave(1))
			}
			if c.joined > 0 {
				require.True(t, p.Covers(c.joined, p.now))
				p.now = p.SlotFor(c.joined)
				departure := p.leave(c.joined)
				require.NotZero(t, departure)
				if c.givesUp {
					p.giveUp(departure, c.joined)
				}
			}
			require.Equal(t, c.back > 0, p.CanGiveBack())
			if c.back == 0 {
				return
			}
			require.Equal(t, c.back, p.giveBack())
			require.Equal(t, perMilli.Minus(raised, perMilli.Times(c.back)), p.level.Empty)
			require.False(t, p.CanGiveBack())
			p.requireAccount(t)
		})
	}
}

// Behind the units of another process nothing is given back: they would leave earlier than they may.
func TestNothingIsGivenBackBeneathAnotherProcess(t *testing.T) {
	p := newProcess(new(shared.BucketLevel), perMilli)
	require.True(t, p.take(3))
	p.others(2)
	raised := p.level.Empty
	require.EqualValues(t, 3, p.giveBack(), "it does not know that")
	require.Equal(t, raised, p.level.Empty)
}

// Nor is what was leased at an earlier rate: nobody knows by how much it raises the level at the new one.
func TestNothingOfAnEarlierRateIsGivenBack(t *testing.T) {
	for name, becomesOfAnEarlierRate := range map[string]func(p *process, change func()){
		"leased before": func(p *process, change func()) { p.take(2); change() },
		"asked for before": func(p *process, change func()) {
			question := p.Question(2)
			change()
			_, taken := question.Apply(shared.BucketLevel{}, p.now/1000+p.ahead)
			p.NoteAnswer(question, taken, p.now, p.now)
			p.Add(question, taken)
		},
		"used before, and given up": func(p *process, change func()) {
			p.take(2)
			p.now += ms + 1000
			departure := p.leave(2)
			change()
			p.giveUp(departure, 2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProcess(new(shared.BucketLevel), perMilli)
			becomesOfAnEarlierRate(p, func() {
				p.ChangeRate(shared.BucketRate{Version: 1, Micros: 2000, Parts: 1000, Burst: 1}, p.now)
			})
			require.EqualValues(t, 2, p.Leased())
			require.False(t, p.CanGiveBack())
		})
	}
}

// Whatever processes do with one level, each unit is used, dropped, given back or still leased.
func TestEachLeasedUnitIsAccountedFor(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		level := new(shared.BucketLevel)
		rate := perMilli
		rate.Burst = 1 + r.Int64N(4)
		all := []*process{newProcess(level, rate), newProcess(level, rate)}
		done := []string{}
		for range 200 {
			i := r.IntN(2)
			p := all[i]
			what, n := r.IntN(12), 1+r.Int64N(4)
			switch what {
			case 0, 1, 2:
				if !p.HasNext() { // The engine has no more than two stretches.
					p.take(n)
				}
			case 3, 4, 5, 6:
				if number := p.leave(n); number != 0 && r.IntN(3) == 0 {
					p.leave(r.Int64N(2))
					p.giveUp(number, n)
				}
			case 7:
				p.giveBack()
			case 8:
				p.DropAll()
			case 9:
				rate.Version, rate.Micros = rate.Version+1, 500+r.Int64N(1000)
				p.ChangeRate(rate, p.now)
				all[1-i].Adopt(rate)
			case 10:
				p.ahead += r.Int64N(3) - 1
			case 11:
				p.DropLate(p.now)
				if r.IntN(10) == 0 {
					*level = shared.BucketLevel{}
				}
			}
			done = append(done, fmt.Sprint(i, ": ", what, " ", n))
			for _, p := range all {
				p.now += r.Int64N(3 * ms)
				p.requireAccount(t)
			}
			if t.Failed() {
				t.Fatal(seed, done)
			}
		}
	}
}

// An answer may come after the rate has changed that it was asked for at. Its units stay due when they were, and can't be given
// back.
func TestAnAnswerAtTheOldRateKeepsItsSlots(t *testing.T) {
	for _, changed := range []bool{false, true} {
		p := newProcess(new(shared.BucketLevel), perMilli)
		question := p.Question(6)
		_, taken := question.Apply(*p.level, p.now/1000+p.ahead)
		p.NoteAnswer(question, taken, p.now, p.now)
		if changed {
			p.ChangeRate(shared.BucketRate{Version: 1, Micros: 500, Parts: 1000, Burst: 1}, p.now)
		}
		p.Add(question, taken)
		require.Equal(t, !changed, p.CanGiveBack())
		first := p.SlotFor(1)
		p.now = first
		require.Positive(t, p.leave(1))
		require.InDelta(t, ms, p.SlotFor(1)-first, 1000, "a unit of the old rate takes a millisecond, and clocks may drift")
	}
}

// What was leased stays due when it was, however often the rate changes.
func TestUnitsKeepTheirSlotsOverEachChangeOfTheRate(t *testing.T) {
	p := newProcess(new(shared.BucketLevel), perMilli)
	require.True(t, p.take(4))
	first := p.SlotFor(1)
	for version := range int64(3) {
		p.ChangeRate(shared.BucketRate{Version: version + 1, Micros: 5000 * (version + 1), Parts: 1000, Burst: 1}, p.now)
	}
	p.now = first
	require.Positive(t, p.leave(1))
	require.InDelta(t, ms, p.SlotFor(1)-first, 1000, "a unit of the first rate takes a millisecond, and clocks may drift")
}

// A Bucket that breaks its contract must not make requests leave, or wait for ever.
func TestAnswersThatMakeNoSenseAreErrors(t *testing.T) {
	question := shared.Take{Key: "key", Cost: 1, First: 1, Rate: perMilli}
	other := perMilli
	other.Version, other.Micros = 2, 2
	for name, test := range map[string]struct {
		change func(a *shared.Taken, r *shared.BucketRate)
		fits   bool
	}{
		"as it should be":             {func(*shared.Taken, *shared.BucketRate) {}, true},
		"another rate":                {func(a *shared.Taken, r *shared.BucketRate) { a.OK, a.Other = false, r }, true},
		"the first microsecond":       {func(a *shared.Taken, _ *shared.BucketRate) { a.Now, a.Empty = 1, shared.Instant{Micros: 1} }, true},
		"no time":                     {func(a *shared.Taken, _ *shared.BucketRate) { a.Now, a.Empty = 0, shared.Instant{} }, false},
		"empty before now":            {func(a *shared.Taken, _ *shared.BucketRate) { a.Empty.Micros = a.Now - 1 }, false},
		"taken at another rate":       {func(a *shared.Taken, r *shared.BucketRate) { a.Other = r }, false},
		"the same rate":               {func(a *shared.Taken, r *shared.BucketRate) { a.OK, a.Other, *r = false, r, perMilli }, false},
		"an older rate":               {func(a *shared.Taken, r *shared.BucketRate) { a.OK, a.Other, r.Version = false, r, -1 }, false},
		"too few parts":               {func(a *shared.Taken, r *shared.BucketRate) { a.OK, a.Other, r.Parts = false, r, 999 }, false},
		"parts that are no thousands": {func(a *shared.Taken, r *shared.BucketRate) { a.OK, a.Other, r.Parts = false, r, 1001 }, false},
		"too many parts":              {func(a *shared.Taken, r *shared.BucketRate) { a.OK, a.Other, r.Parts = false, r, shared.MaxParts+1000 }, false},
		"a negative part":             {func(a *shared.Taken, r *shared.BucketRate) { a.OK, a.Other, r.Part = false, r, -1 }, false},
		"a part that is a whole":      {func(a *shared.Taken, r *shared.BucketRate) { a.OK, a.Other, r.Part = false, r, r.Parts }, false},
		"negative time":               {func(a *shared.Taken, r *shared.BucketRate) { a.OK, a.Other, r.Micros = false, r, -1 }, false},
		"a year":                      {func(a *shared.Taken, r *shared.BucketRate) { a.OK, a.Other, r.Micros = false, r, 365*24*3600*1e6 }, true},
		"more than a year":            {func(a *shared.Taken, r *shared.BucketRate) { a.OK, a.Other, r.Micros = false, r, 365*24*3600*1e6+1 }, false},
		"a part alone":                {func(a *shared.Taken, r *shared.BucketRate) { a.OK, a.Other, r.Micros, r.Part = false, r, 0, 1 }, true},
		"no time for a unit":          {func(a *shared.Taken, r *shared.BucketRate) { a.OK, a.Other, r.Micros = false, r, 0 }, false},
		"no burst":                    {func(a *shared.Taken, r *shared.BucketRate) { a.OK, a.Other, r.Burst = false, r, 0 }, false},
	} {
		r := other
		answer := shared.Taken{OK: true, Now: 1e15, Empty: shared.Instant{Micros: 1e15}}
		test.change(&answer, &r)
		err := lease.Check(question, answer)
		if test.fits {
			require.NoError(t, err, name)
		} else {
			require.ErrorIs(t, err, lease.ErrNoSense, name)
		}
	}
}

// Of many that wait an eighth is leased at once, so that processes take turns; of few as many as leave within 8 ms, and never
// more than leave within 50.
func TestABatchIsAnEighthOfTheLine(t *testing.T) {
	p := newProcess(new(shared.BucketLevel), perMilli)
	for queued, batch := range map[int]int64{1: 1, 8: 8, 9: 8, 64: 8, 80: 10, 81: 11, 400: 50, 500: 50} {
		require.Equal(t, batch, p.BatchFor(queued, 1000), queued)
	}
}

// A meter tells requests from one answer whether and when they fit. The level itself must say the same.
func TestWhatFitsIsWhatTheLevelSays(t *testing.T) {
	chance := rand.New(rand.NewPCG(38, 1))
	for range 20_000 {
		r := shared.BucketRate{Version: 1, Micros: chance.Int64N(4), Part: chance.Int64N(1000), Parts: 1000, Burst: 1 + chance.Int64N(5)}
		if r.Micros == 0 && r.Part == 0 {
			continue
		}
		now := int64(1.8e15)
		empty := shared.Instant{Micros: now + chance.Int64N(20)}
		if empty.Micros > now {
			empty.Part = chance.Int64N(2) * chance.Int64N(1000)
		}
		n := 1 + chance.Int64N(6)
		takes := func(at int64) bool {
			_, taken := shared.Take{Key: "key", Cost: n, First: n, Rate: r}.Apply(shared.BucketLevel{Empty: empty, Rate: r, At: now}, at)
			return taken.OK
		}
		question := shared.Take{Key: "key", Cost: 9, First: 1 + chance.Int64N(6), Rate: r} // of another request
		require.Equal(t, takes(now), lease.Fits(question, empty, now, n), "%+v %+v cost %d", r, empty, n)
		wait := lease.UntilRoom(question, empty, now, n).Microseconds()
		require.True(t, takes(now+wait), "%+v %+v cost %d", r, empty, n)
		require.True(t, wait == 1 || !takes(now+wait-1), "%+v %+v cost %d", r, empty, n)
	}
}
