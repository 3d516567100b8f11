package buckettest

import (
	"time"

	"example.com/leakybucket/shaper/shared"
)

// checks are the sub-tests of [Run], in the order in which one would look for a mistake.
var checks = []check{
	{"step 1: a key without a state is at level 0", checkCold},
	{"step 1: the guard passes once", checkGuard},
	{"step 2: the clock has gone back", checkClockBack},
	{"step 2: the clock steps", checkClockSteps},
	{"step 3: the newest rate is in force", checkVersions},
	{"step 3: versions of one rate do not conflict", checkVersionsOfOneRate},
	{"step 3: a change of the rate keeps the level", checkRescale},
	{"step 4: what a process knows heals the state", checkHigh},
	{"step 5: idle time is not saved up", checkIdle},
	{"step 6: the first request decides", checkFirst},
	{"step 6: a refusal takes nothing", checkRefusal},
	{"step 6: Ahead", checkAhead},
	{"step 6: nothing is rounded", checkParts},
	{"step 6: great numbers", checkGreat},
	{"the clock goes", checkClock},
	{"GiveBack takes off what was taken last", checkGiveBack},
	{"keys do not touch each other", checkKeys},
	{"calls at the same time are one after the other", checkConcurrency},
	{"a context that has ended", checkEndedContext},
	{"a context that ends on the way", checkContextEnds},
	{"a state that was lost", checkLoss},
	{"a state that is damaged", checkDamage},
	{"random calls", checkRandom},
}

func checkCold(c *tester) {
	for _, key := range []string{"a", "b"} {
		t := c.of(key, slow)
		got := c.take(t)
		c.must(got.Cold && got.OK, "a new key is not cold: %s", answerText(got))
		got = c.refused(t)
		c.must(!got.Cold, "a key that was used is cold: %s", answerText(got))
	}
}

func checkGuard(c *tester) {
	t := c.of("k", unit(1000, 0, 1, 1))
	t.Guard = 30 * time.Millisecond
	cold := c.refused(t)
	for i := 0; ; i++ {
		got := c.take(t)
		c.must(!got.Cold, "the guard is not written, or the state is lost: %s", answerText(got))
		if got.OK {
			c.must(got.Now-cold.Now >= 30_000, "the guard has ended after %d µs", got.Now-cold.Now)
			break
		}
		c.must(i < 10_000, "the guard does not end: %s", answerText(got))
		time.Sleep(5 * time.Millisecond)
	}

	t = c.of("ahead", unit(1000, 0, 1, 1))
	t.Guard, t.Ahead = 30*time.Millisecond, 30*time.Millisecond
	c.takes(t)
	c.take(t)
}

// A guard makes the level of a new key known to the microsecond, so that the bounds of step 6
// can be met exactly.
func checkAhead(c *tester) {
	key := 0
	bound := func(r shared.BucketRate, first int64, guard, ahead time.Duration, ok bool) {
		key++
		t := c.of(string(rune('a'+key)), r)
		t.First, t.Cost, t.Guard, t.Ahead = first, first, guard, ahead
		got := c.take(t)
		c.must(got.OK == ok, "with a guard of %v, Ahead %v and First %d: %s", guard, ahead, first, answerText(got))
		c.take(t)
	}
	third := unit(333_333, 1, 3, 2)
	for _, ahead := range []time.Duration{0, time.Microsecond, 123_457 * time.Microsecond, shared.MaxAhead} {
		bound(slow, 1, ahead, ahead, true)
		bound(slow, 1, ahead+time.Microsecond, ahead, false)
		// The room of one more is 333,333 µs and a third.
		bound(third, 1, ahead+333_333*time.Microsecond, ahead, true)
		bound(third, 1, ahead+333_334*time.Microsecond, ahead, false)
		bound(third, 2, ahead, ahead, true)
		bound(third, 2, ahead+time.Microsecond, ahead, false)
	}
}

func checkFirst(c *tester) {
	r := slow
	r.Burst = 5
	t := c.of("k", r)
	t.Cost = 3
	c.takes(t)
	t.First = 3
	c.refused(t)
	t.First, t.Cost = 2, 1
	c.takes(t)
	c.refused(t)
	t.First, t.Cost = 1, 7 // Cost does not decide.
	c.takes(t)
	t.Cost = 1
	c.refused(t)

	// A request above the burst leaves at level 0, and at no other.
	t = c.of("above", r)
	t.First, t.Cost = 6, 6
	c.takes(t)
	c.refused(t)
	t = c.of("far above", r)
	t.First, t.Cost = 1_000_000_000_000_000, 1
	c.takes(t)
	c.refused(t)
	t.First = 5
	c.refused(t)
	t.First = 4
	c.takes(t)
}

func checkRefusal(c *tester) {
	t := c.of("k", unit(400_000_000, 1, 3, 1))
	t.Cost = 3
	c.takes(t)
	for i := range 20 {
		t.Cost, t.First, t.Ahead = int64(1+i), int64(1+i%3), time.Duration(i)*time.Microsecond
		c.refused(t)
	}
}

func checkIdle(c *tester) {
	t := c.of("k", unit(2000, 0, 1, 3))
	for range 3 {
		for range 3 {
			c.takes(t)
		}
		time.Sleep(30 * time.Millisecond) // the level falls to 0 after 6 ms
		got := c.take(t)
		c.must(got.OK && !got.Cold && got.Empty == (shared.Instant{Micros: got.Now}), "after a pause the level is not 0, or the key is forgotten: %s", answerText(got))
		time.Sleep(30 * time.Millisecond)
	}
}

func checkHigh(c *tester) {
	third := unit(333_333_333, 1, 3, 1)

	// A new key, and one at a lower level than the process knows.
	for _, key := range []string{"new", "lower"} {
		t := c.of(key, third)
		now := c.take(c.of("clock", slow)).Now
		if key == "lower" {
			c.takes(t)
		}
		t.High, t.Seen = shared.Instant{Micros: now + 500_000_000, Part: 2}, now
		c.refused(t)
		if key == "lower" {
			t.High, t.Seen = shared.Instant{}, 0
			c.refused(t) // What only a process knows is not written with a refusal.
			t.High, t.Seen = shared.Instant{Micros: now + 500_000_000, Part: 2}, now
		}
		t.Rate.Version, t.Ahead = 2, 0
		c.refused(t)
		t.High, t.Seen = shared.Instant{}, 0
		got := c.refused(t)
		c.must(got.Empty.Micros >= now+500_000_000, "what was written forgets High: %s", answerText(got))
	}

	// What the process knows is within reach; parts of a microsecond count.
	for _, part := range []int64{0, 1, 2} {
		t := c.of(string(rune('a'+part)), unit(100, 1, 3, 1))
		now := c.take(c.of("clock", slow)).Now
		t.High, t.Seen, t.Ahead = shared.Instant{Micros: now + 1_000_000, Part: part}, now, shared.MaxAhead
		c.takes(t)
		t.High.Part, t.Cost = 1, 5
		c.takes(t)
		before := c.levels[t.Key]
		t.High = before.Empty
		c.takes(t)
		t.High = before.Empty // earlier than the level
		c.takes(t)
	}

	// The clock has gone back since the process has seen it.
	t := c.of("seen", third)
	now := c.take(c.of("clock", slow)).Now
	t.High, t.Seen = shared.Instant{Micros: now + 500_000_000}, now+3_600_000_000
	c.takes(t)
	c.refused(t)
}
