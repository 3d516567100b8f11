package buckettest

import (
	"fmt"
	"time"

	"example.com/leakybucket/shaper/shared"
)

// knowsHolds reports whether the Bucket knows of holds: one that answers none keeps the contract too.
func (c *tester) knowsHolds() bool {
	c.Helper()
	t := c.of("does it hold?", slow)
	ctx, cancel := c.context()
	defer cancel()
	got, err := c.bucket.Take(ctx, t)
	c.must(err == nil, "Take(%+v): %v", t, err)
	t.Hold, t.First = got.Now+3_600_000_000, t.Rate.Burst+1
	got, err = c.bucket.Take(ctx, t)
	c.must(err == nil, "Take(%+v): %v", t, err)
	return got.Hold != 0
}

// mustHold leaves a check out if the Bucket knows of no holds.
func (c *tester) mustHold() {
	c.Helper()
	if !c.knowsHolds() {
		c.Skipf("the Bucket answers no Hold")
	}
}

// tell tells of a hold that ends a span after the latest reading of the clock, by a Take that takes nothing.
func (c *tester) tell(t shared.Take, span time.Duration) shared.Taken {
	c.Helper()
	now := c.take(c.of("clock", slow)).Now
	t.Hold, t.Cost, t.First, t.Ahead = now+span.Microseconds(), 1, t.Rate.Burst+1, 0
	return c.refused(t)
}

func checkHold(c *tester) {
	c.mustHold()
	for _, r := range []shared.BucketRate{
		unit(1_000_000, 0, 1, 1), unit(333_333, 1, 3, 7), unit(33, 1, 3, 1_000_000), unit(314, 159_265_358_979, 1_000_000_000_000, 3), slow,
	} {
		key := fmt.Sprint("k", r.Micros)
		for _, used := range []int64{0, 1, 50} { // The level is at 0, or above it.
			t := c.of(fmt.Sprint(key, used), r)
			if t.Cost = used; used > 0 {
				c.takes(t)
			}
			// The longest counts, and is told to whoever asks, also if it is told again.
			for _, span := range []time.Duration{5 * time.Second, 20 * time.Second, 10 * time.Second, 20 * time.Second} {
				c.tell(t, span)
				t.Cost = 1
				got := c.refused(t)
				c.must(got.Hold > got.Now, "the hold is not told to the next: %s", answerText(got))
			}
			// Slots are leased ahead of its end.
			t = c.of(fmt.Sprint(key, used, "ahead"), r)
			c.tell(t, 1900*time.Millisecond)
			t.Ahead = shared.MaxAhead
			for _, first := range []int64{1, 2, r.Burst, r.Burst + 1} {
				t.First = max(first, 1)
				c.take(t)
			}
			c.giveBack(t, c.levels[t.Key].Empty)
			c.take(t)
		}
	}

	// Who learns of none tells of none.
	t := c.of("none", slow)
	got := c.take(t)
	c.must(got.Hold == 0, "a hold is in force that nobody has told: %s", answerText(got))
	t.Hold = got.Now - 1
	got = c.refused(t)
	c.must(got.Hold == 0, "a hold is in force that has ended: %s", answerText(got))

	// What a process knows from before the clock went back says nothing.
	t = c.of("seen", unit(1000, 0, 1, 1))
	t.Seen, t.Hold = got.Now+3_600_000_000, got.Now+3_700_000_000
	c.takes(t)
	got = c.take(c.of("seen", unit(1000, 0, 1, 1)))
	c.must(got.Hold == 0, "a hold is in force that was told by another clock: %s", answerText(got))

	// A state that is lost is mended by whoever knows.
	if f, ok := c.bucket.(Forgetter); ok {
		t = c.of("lost", slow)
		held := c.tell(t, 20*time.Second)
		err := f.Forget(t.Key)
		c.must(err == nil, "Forget(%q): %v", t.Key, err)
		delete(c.levels, t.Key)
		t.Hold = held.Hold
		c.refused(t)
		t.Hold = 0
		got = c.refused(t)
		c.must(got.Hold == held.Hold, "the hold is not mended: %s", answerText(got))
	}
}

func checkHoldEnds(c *tester) {
	c.mustHold()
	r := unit(400_000_000, 1, 3, 3)
	t := c.of("k", r)
	held := c.tell(t, 30*time.Millisecond)
	for i := 0; ; i++ {
		got := c.take(t)
		if got.OK {
			c.must(got.Now >= held.Hold, "a request leaves %d µs before the end of the hold", held.Hold-got.Now)
			c.must(got.Hold == 0, "a hold is in force that has ended: %s", answerText(got))
			break
		}
		c.must(i < 10_000, "the hold does not end: %s", answerText(got))
		time.Sleep(5 * time.Millisecond)
	}
	c.refused(t) // There is no burst behind a hold.
	got := c.tell(t, time.Hour)
	c.must(got.Hold > got.Now, "after one hold there is no other: %s", answerText(got))
}

// A hold is time: a change of the rate neither stretches nor shortens it.
func checkHoldAndRates(c *tester) {
	c.mustHold()
	rates := []shared.BucketRate{
		unit(100_000, 0, 1, 1), unit(10_000, 0, 1, 1), unit(200_000, 0, 1, 1), unit(333_333, 1, 3, 5), unit(33, 1, 3, 700), unit(1_285_714, 2, 7, 20), slow,
	}
	key := 0
	for _, old := range rates {
		for _, next := range rates {
			for _, span := range []time.Duration{20 * time.Second, 1500 * time.Millisecond} {
				key++
				t := c.of(fmt.Sprint("k", key), old)
				held := c.tell(t, span)
				t.Ahead = shared.MaxAhead
				c.take(t) // Some slots are behind the hold already, if that is short.
				t.Rate, t.Ahead = next, 0
				t.Rate.Version = 2
				got := c.refused(t)
				c.must(got.Hold == held.Hold, "a change of the rate has moved the hold from %d: %s", held.Hold, answerText(got))
				t.Ahead = shared.MaxAhead
				c.take(t)

				// A process that does not know of the rate yet learns of the hold, and can't make it longer.
				older := c.of(fmt.Sprint("k", key), old)
				older.Rate.Version, older.Rate.Burst = 1, old.Burst+1
				got = c.tell(older, time.Hour)
				c.must(got.Other != nil && got.Hold == held.Hold, "an older rate changes the hold, or is not told of it: %s", answerText(got))
				c.take(t)
			}
		}
	}
}

func checkHoldAndClock(c *tester) {
	c.mustHold()
	const hour = 3_600_000_000
	r := unit(100_000_000, 1, 3, 2)
	now := c.take(c.of("clock", slow)).Now
	for i, lasts := range []int64{200_000_000, 1_000_000, 0, -hour / 2, -2 * hour} {
		for _, version := range []int64{0, 1, 2} {
			t := c.of(fmt.Sprint("k", i, version), r)
			c.set(t.Key, shared.BucketLevel{Empty: shared.Instant{Micros: now + hour + max(lasts, 0), Part: 2}, Rate: r, At: now + hour, Hold: now + hour + lasts})
			t.Rate.Version = version
			if version != 1 {
				t.Rate.Burst = 3
			}
			for range 2 { // What the first has set right does not move again.
				c.take(t)
				time.Sleep(2 * time.Millisecond)
			}
		}
	}
	for _, hold := range []int64{-1, 1<<53 + 2} {
		t := c.of("damaged", r)
		c.set(t.Key, shared.BucketLevel{Empty: shared.Instant{Micros: now + hour}, Rate: r, At: now, Hold: hold})
		delete(c.levels, t.Key)
		got := c.take(t)
		c.must(got.Cold && got.OK, "a state that is damaged is none: Hold is %d: %s", hold, answerText(got))
	}
}
