package buckettest

import (
	"fmt"
	"math"
	"time"

	"example.com/leakybucket/shaper/shared"
)

// set makes l the state of a key.
func (c *tester) set(key string, l shared.BucketLevel) {
	c.Helper()
	s, ok := c.bucket.(Setter)
	if !ok {
		c.Skipf("the Bucket has no method Set(key string, l shared.BucketLevel)")
	}
	s.Set(key, l)
	c.levels[key] = l
}

func checkClockBack(c *tester) {
	const hour = 3_600_000_000
	r := unit(100_000_000, 1, 3, 1)
	now := c.take(c.of("clock", slow)).Now
	// ahead returns a state written an hour from now, whose level lasts for a time after that.
	ahead := func(lasts int64) shared.BucketLevel {
		return shared.BucketLevel{Empty: shared.Instant{Micros: now + hour + lasts, Part: 2}, Rate: r, At: now + hour}
	}

	// The first call sets the level right, and that is written: it does not move with the clock.
	t := c.of("refused", r)
	c.set(t.Key, ahead(200_000_000))
	for range 3 {
		c.refused(t)
		time.Sleep(2 * time.Millisecond)
	}

	t = c.of("takes", r)
	c.set(t.Key, ahead(1_000_000))
	t.Ahead = shared.MaxAhead
	c.takes(t)
	c.refused(t)

	t = c.of("further back than the level", r)
	c.set(t.Key, ahead(-hour/2))
	c.takes(t)
	c.refused(t)

	t = c.of("an older rate", r)
	c.set(t.Key, ahead(200_000_000))
	t.Rate.Version, t.Rate.Burst = 0, 2
	for range 3 {
		got := c.refused(t)
		c.must(got.Other != nil, "another rate is in force, and the answer does not say so: %s", answerText(got))
		time.Sleep(2 * time.Millisecond)
	}
	c.refused(c.of("an older rate", r))

	t = c.of("a newer rate", r)
	c.set(t.Key, ahead(200_000_000))
	t.Rate = unit(50_000_000, 1, 3, 4)
	t.Rate.Version = 2
	c.refused(t)
	c.refused(t)

	// Units given out by the earlier clock can be given back only by that clock.
	t = c.of("given back", r)
	c.set(t.Key, ahead(200_000_000))
	c.refused(t)
	c.giveBack(t, ahead(200_000_000).Empty)
	c.refused(t)
	c.giveBack(t, c.levels[t.Key].Empty)
	c.refused(t)
}

func checkClockSteps(c *tester) {
	s, ok := c.bucket.(Stepper)
	if !ok {
		c.Skipf("the Bucket has no method Step(d time.Duration)")
	}
	t := c.of("k", unit(1_000_000, 1, 3, 5))
	t.Ahead = time.Second
	for _, d := range []time.Duration{5 * time.Second, -5 * time.Second, 20 * time.Millisecond, -20 * time.Millisecond, -time.Hour, 30 * time.Second, time.Microsecond, -time.Microsecond} {
		for c.take(t).OK {
			t.High = c.levels[t.Key].Empty
		}
		seen := c.take(t).Now
		t.Seen = seen
		s.Step(d)
		got := c.take(t)
		moved := time.Duration(got.Now-seen) * time.Microsecond
		c.must(moved >= d-time.Microsecond && moved < d+patience, "Step(%v) has moved the clock by %v", d, moved)
		c.take(t)
	}
}

func checkLoss(c *tester) {
	f, ok := c.bucket.(Forgetter)
	if !ok {
		c.Skipf("the Bucket has no method Forget(key string) error")
	}
	forget := func(t shared.Take) {
		c.Helper()
		err := f.Forget(t.Key)
		c.must(err == nil, "Forget(%q): %v", t.Key, err)
		delete(c.levels, t.Key)
	}
	t := c.of("k", unit(400_000_000, 1, 3, 1))
	forget(t) // There is none yet.
	end := c.takes(t).Empty
	forget(t)
	c.giveBack(t, end)
	got := c.take(t)
	c.must(got.Cold && got.OK, "a state that was lost is not cold: %s", answerText(got))

	// One process has taken much, and knows it.
	t = c.of("known", unit(400_000_000, 1, 3, 1000))
	t.Cost, t.Rate.Version = 50, 2
	c.takes(t)
	t.High, t.Seen, t.Cost = c.levels[t.Key].Empty, c.levels[t.Key].At, 1
	forget(t)
	got = c.take(t)
	c.must(got.Cold && got.Empty == t.High, "the level is not as high as the process knows: %s", answerText(got))
	t.High = shared.Instant{}
	c.take(t)

	// A rate that was forgotten is in force no more.
	forget(t)
	t.Rate.Version = 1
	c.takes(t)
	c.take(t)
}

// damagedTexts are states as another program may leave them that has written to their key.
var damagedTexts = []string{
	"", " ", "0", "-1", "1", "x", "garbage", "NaN", "Inf", "-Inf", "1e400", "nil", "null", "{}", "[]", "0x10", "\x00", "\xff\xfe",
	"0 0 0 0 0 0 0 0", "-1 -1 -1 -1 -1 -1 -1 -1", "a b c d e f g h", "1,2,3", "1.5 2.5 3.5",
	"99999999999999999999999999999999", "1e308 1e308 1e308 1e308 1e308 1e308 1e308 1e308", `{"Empty":1}`,
}

// damagedLevels are states; each has a number outside of its range.
func damagedLevels(now int64) map[string]shared.BucketLevel {
	good := shared.BucketLevel{Empty: shared.Instant{Micros: now + 500_000_000, Part: 2}, Rate: unit(400_000_000, 1, 3, 1), At: now}
	damaged := map[string]shared.BucketLevel{}
	for name, spoil := range map[string]func(*shared.BucketLevel){
		"Empty is negative":       func(l *shared.BucketLevel) { l.Empty.Micros = -l.Empty.Micros },
		"Empty is too far":        func(l *shared.BucketLevel) { l.Empty.Micros = 1<<53 + 2 },
		"Empty.Part is negative":  func(l *shared.BucketLevel) { l.Empty.Part = -1 },
		"Empty.Part is too great": func(l *shared.BucketLevel) { l.Empty.Part = 3 },
		"At is 0":                 func(l *shared.BucketLevel) { l.At = 0 },
		"At is negative":          func(l *shared.BucketLevel) { l.At = -l.At },
		"At is too far":           func(l *shared.BucketLevel) { l.At = 1<<53 + 2 },
		"Version is negative":     func(l *shared.BucketLevel) { l.Rate.Version = -1 },
		"Version is too great":    func(l *shared.BucketLevel) { l.Rate.Version = 1<<53 + 2 },
		"Micros is negative":      func(l *shared.BucketLevel) { l.Rate.Micros = -1 },
		"Micros is too great":     func(l *shared.BucketLevel) { l.Rate.Micros = 1<<51 + 1 },
		"a unit takes no time":    func(l *shared.BucketLevel) { l.Rate.Micros, l.Rate.Part = 0, 0 },
		"Rate.Part is negative":   func(l *shared.BucketLevel) { l.Rate.Part = -1 },
		"Rate.Part is too great":  func(l *shared.BucketLevel) { l.Rate.Part = 3 },
		"Parts is 0":              func(l *shared.BucketLevel) { l.Rate.Parts, l.Rate.Part, l.Empty.Part = 0, 0, 0 },
		"Parts is too great":      func(l *shared.BucketLevel) { l.Rate.Parts = 1e12 + 1 },
		"Burst is 0":              func(l *shared.BucketLevel) { l.Rate.Burst = 0 },
		"Burst is negative":       func(l *shared.BucketLevel) { l.Rate.Burst = -5 },
	} {
		l := good
		spoil(&l)
		damaged[name] = l
	}
	return damaged
}

func checkDamage(c *tester) {
	corrupter, corrupts := c.bucket.(Corrupter)
	setter, sets := c.bucket.(Setter)
	if !corrupts && !sets {
		c.Skipf("the Bucket has neither a method Corrupt(key, value string) error nor Set(key string, l shared.BucketLevel)")
	}
	t := c.of("k", unit(400_000_000, 1, 3, 1))
	isNone := func(damage string) {
		c.Helper()
		delete(c.levels, t.Key)
		got := c.take(t)
		c.must(got.Cold && got.OK, "%s: a state that is damaged is none: %s", damage, answerText(got))
		got = c.refused(t)
		c.must(!got.Cold, "%s: the state is not mended: %s", damage, answerText(got))
	}
	for _, value := range damagedTexts {
		for _, after := range []func(){
			func() {},
			func() { c.giveBack(t, shared.Instant{Micros: 1}) },
			func() { c.giveBack(t, c.levels[t.Key].Empty) },
		} {
			if corrupts && corrupter.Corrupt(t.Key, value) == nil {
				after()
				isNone("the state is " + value)
			}
		}
	}
	now := c.take(c.of("clock", slow)).Now
	// Numbers at the ends of their ranges are not damaged.
	for i, r := range []shared.BucketRate{
		unit(1<<51, 0, 1, 1), unit(0, 1, 1e12, 1), unit(1, 1e12-1, 1e12, math.MaxInt64), {Version: 1 << 53, Micros: 1, Parts: 1, Burst: 1},
	} {
		for _, empty := range []int64{now, 1 << 53} {
			if sets {
				k := c.of(fmt.Sprint("sound", i), r)
				k.Rate.Version--
				k.Rate.Burst = 2
				c.set(k.Key, shared.BucketLevel{Empty: shared.Instant{Micros: empty}, Rate: r, At: now})
				got := c.refused(k)
				c.must(got.Other != nil, "a state at the end of its range counts as damaged: %s", answerText(got))
			}
		}
	}
	for name, l := range damagedLevels(now) {
		if sets {
			setter.Set(t.Key, l)
			isNone(name)
			setter.Set(t.Key, l)
			newer := t
			newer.Rate.Version++
			delete(c.levels, t.Key)
			c.takes(newer)
		}
	}
}
