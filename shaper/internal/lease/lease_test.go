package lease_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper/internal/lease"
	"example.com/leakybucket/shaper/shared"
)

// perSecond is the rate of one cost unit a second, with a burst of 5.
var perSecond = shared.BucketRate{Version: 1, Micros: 1_000_000, Parts: 1000, Burst: 5}

// began is when the tests begin, on both clocks, in seconds.
const began = 1_800_000_000

// A level is that of a Bucket.
type level struct{ shared.BucketLevel }

// A process has a Lease of a level.
type process struct {
	lease.Lease
	of         *level
	departures uint32
	used       []int64 // by each departure
}

func newProcess(of *level, total *lease.Counts) *process {
	p := &process{of: of}
	p.Lease = lease.New("key", 0, &p.departures, total)
	p.SetRate(perSecond)
	return p
}

// leases leases n units, and reports whether the level has let it.
func (p *process) leases(n, now int64) bool {
	t := p.Question(n)
	t.First, t.Ahead = 1, shared.MaxAhead
	var taken shared.Taken
	p.of.BucketLevel, taken = t.Apply(p.of.BucketLevel, now/1000)
	p.NoteAnswer(t, taken, now, now)
	if taken.OK {
		p.Add(t, taken)
	}
	return taken.OK
}

// leaves lets a request of cost n leave, if units are leased for it.
func (p *process) leaves(n, now int64) {
	if p.Covers(n, now) {
		p.Use(n)
		p.departures++
		p.used = append(p.used, n)
		p.NoteUse()
	}
}

// givesBack gives back what can be given back, and returns how many units that is.
func (p *process) givesBack(now int64) int64 {
	t, end := p.GiveBack(now)
	if t.Cost > 0 {
		p.of.BucketLevel = t.ApplyGiveBack(p.of.BucketLevel, end)
	}
	return t.Cost
}

// What a process has leased in two questions is one stretch if nobody has asked between them, and can be given back as
// one. If only the later part were, the level would keep the other, and everybody would wait for it.
func TestStretchesBehindEachOtherAreGivenBackAsOne(t *testing.T) {
	const now = began * 1e9
	for _, test := range []struct {
		others, uses int64
		back, lost   int64
	}{
		{0, 0, 7, 0},
		{0, 2, 5, 0},
		{0, 4, 3, 0},
		{1, 0, 4, 3}, // The level has moved on behind the first three.
		{1, 2, 4, 1},
		{1, 4, 3, 0}, // The fourth comes from the second stretch.
	} {
		of := new(level)
		p, total := newProcess(of, new(lease.Counts)), new(lease.Counts)
		require.True(t, p.leases(3, now))
		if test.others > 0 {
			require.True(t, newProcess(of, total).leases(test.others, now))
		}
		require.True(t, p.leases(4, now))
		for range test.uses {
			p.leaves(1, now)
		}
		require.Equal(t, test.back, p.givesBack(now), "%+v", test)
		require.Equal(t, lease.Counts{RoundTrips: p.Counts.RoundTrips, Leased: 7, Dropped: uint64(test.lost), GivenBack: uint64(test.back)}, p.Counts, "%+v", test)
		kept := test.uses + test.others + test.lost
		require.Equal(t, shared.Instant{Micros: (began + kept) * 1e6}, of.Empty, "%+v: the level has what was used or lost", test)
	}
}

// Every unit that was leased is held, or was used, lost or given back, of each process and of all together: whoever looks
// for what a fleet loses has nothing else to look at.
func TestEachLeasedUnitIsAccountedFor(t *testing.T) {
	for seed := range uint64(200) {
		chance := rand.New(rand.NewPCG(38, seed))
		of, total := new(level), new(lease.Counts)
		all := []*process{newProcess(of, total), newProcess(of, total)}
		now := int64(began * 1e9)
		rates := perSecond
		for range 300 {
			p := all[chance.IntN(len(all))]
			switch chance.IntN(16) {
			case 0, 1, 2, 3:
				if !p.HasNext() {
					p.leases(1+chance.Int64N(6), now)
				}
			case 4:
				p.NotUsed()
			case 5:
				p.givesBack(now)
			case 6:
				if n := len(p.used); n > 0 { // The latest departure is taken back, or the one before it.
					i := n - 1 - chance.IntN(min(n, 2))
					p.Unuse(p.departures-uint32(n-1-i), p.used[i])
					p.used[i] = 0
				}
			case 7:
				if chance.IntN(4) == 0 {
					p.DropAll()
				}
			case 8:
				if chance.IntN(4) == 0 {
					rates.Version++
					rates.Micros = 500_000 + chance.Int64N(1_000_000)
					p.ChangeRate(rates, now)
				}
			case 9, 10:
				now += chance.Int64N(int64(3 * time.Second))
				p.DropLate(now)
			default:
				p.leaves(1+chance.Int64N(3), now)
			}
			var sum lease.Counts
			for i, p := range all {
				used := int64(0)
				for _, n := range p.used {
					used += n
				}
				c := p.Counts
				require.Equal(t, int64(c.Leased), used+p.Leased()+int64(c.Dropped+c.GivenBack), "seed %d, process %d", seed, i)
				sum.Leased += c.Leased
				sum.Dropped += c.Dropped
				sum.GivenBack += c.GivenBack
			}
			require.Equal(t, sum, lease.Counts{Leased: total.Leased, Dropped: total.Dropped, GivenBack: total.GivenBack}, "seed %d", seed)
		}
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
		now := int64(began * 1e6)
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
