package buckettest

import (
	"fmt"
	"time"

	"example.com/leakybucket/shaper/shared"
)

// checkRandom makes random calls for a few keys. It finds what nobody has thought of, and fails if
// it has not met each kind of answer.
func checkRandom(c *tester) {
	rates := []shared.BucketRate{
		unit(333_333, 1, 3, 1), unit(33, 1, 3, 7), unit(1_285_714, 2, 7, 2), unit(1000, 0, 1, 1), unit(0, 1, 1000, 1_000_000),
		unit(314, 159_265_358_979, 1_000_000_000_000, 3), unit(1, 999_999_999_999, 1_000_000_000_000, 3),
		unit(123_456, 789_012_345_679, 999_999_999_989, 2), slow,
	}
	met := kinds{}
	upTo := func(most int64) int64 { return c.random.Int64N(most+1) >> c.random.IntN(64) } // any magnitude
	inForce := map[string]shared.BucketRate{}
	high := map[string]shared.BucketLevel{} // what a process knows
	for range times(2000) {
		key := fmt.Sprint("k", c.random.IntN(3))
		r, ok := inForce[key]
		if !ok || c.random.IntN(20) == 0 {
			version := r.Version
			r = rates[c.random.IntN(len(rates))]
			r.Version = max(0, version+c.random.Int64N(4)-1)
			r.Burst = 1 + upTo(1<<20)
			inForce[key] = r
		}
		if c.random.IntN(20) == 0 { // of a process that was started at another time
			r.Version = max(0, r.Version+c.random.Int64N(5)-2)
		}
		t := c.of(key, r)
		t.Cost, t.First = 1+upTo(1<<10), 1+upTo(1<<10)
		t.Ahead = time.Duration(upTo(2_000_000)) * time.Microsecond
		t.Guard = time.Duration(upTo(5000)) * time.Microsecond
		if known := high[t.Key]; sameNumbers(known.Rate, r) && c.random.IntN(4) == 0 {
			t.High, t.Seen = known.Empty, known.At+c.random.Int64N(3)-1
			if c.random.IntN(4) == 0 {
				t.Seen += 3_600_000_000
			}
		}
		switch c.random.IntN(40) {
		case 0:
			time.Sleep(time.Duration(upTo(3000)) * time.Microsecond)
		case 1:
			if f, ok := c.bucket.(Forgetter); ok {
				err := f.Forget(t.Key)
				c.must(err == nil, "Forget(%q): %v", t.Key, err)
				delete(c.levels, t.Key)
			}
		case 2:
			if l := c.levels[t.Key]; l != (shared.BucketLevel{}) {
				if _, ok := c.bucket.(Setter); ok {
					l.At += upTo(10_000_000)
					c.set(t.Key, l)
				}
			}
		case 3, 4, 5:
			end := c.levels[t.Key].Empty
			if c.random.IntN(4) == 0 {
				end.Micros += c.random.Int64N(3) - 1
			}
			t.Cost = 1 + upTo(10)
			l := c.levels[t.Key]
			if after := t.ApplyGiveBack(l, end); after == l || after.Empty.Micros > l.At-10_000_000 {
				c.giveBack(t, end) // A level that was 0 long ago may be forgotten.
				met.note("given back", after != l)
			}
		default:
			before := c.levels[t.Key]
			got := c.take(t)
			if got.OK {
				high[t.Key] = c.levels[t.Key]
			}
			met.take(t, before, got)
			if l := c.levels[t.Key]; c.random.IntN(4) == 0 && l.Rate.Version >= r.Version {
				inForce[key] = l.Rate
			}
		}
	}
	for _, kind := range []string{"taken", "refused", "cold", "another rate", "rescaled", "newer version", "older version", "known", "given back"} {
		c.must(met[kind] >= 3, "too few random calls meet %q: %v", kind, met)
	}
}

// kinds counts what random calls have met.
type kinds map[string]int

func (k kinds) note(kind string, is bool) {
	if is {
		k[kind]++
	}
}

func (k kinds) take(t shared.Take, l shared.BucketLevel, got shared.Taken) {
	same := !got.Cold && sameNumbers(t.Rate, l.Rate)
	k.note("taken", got.OK)
	k.note("refused", !got.OK && got.Other == nil)
	k.note("cold", got.Cold)
	k.note("another rate", got.Other != nil)
	k.note("rescaled", !got.Cold && !same && got.Other == nil && got.Empty.Micros > got.Now)
	k.note("newer version", same && l.Rate.Version < t.Rate.Version)
	k.note("older version", same && l.Rate.Version > t.Rate.Version)
	k.note("known", t.High != shared.Instant{} && got.Empty == t.High)
}
