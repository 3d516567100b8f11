package buckettest

import (
	"fmt"
	"math"
	"time"

	"example.com/leakybucket/shaper/shared"
)

func checkVersions(c *tester) {
	// Odd versions have one rate, and even ones another.
	at := func(version int64) shared.BucketRate {
		r := slow
		r.Version, r.Micros = version, r.Micros+version%2
		return r
	}
	t := c.of("k", at(5))
	t.Cost = 2
	c.takes(t)
	other := func(r shared.BucketRate, ahead time.Duration) {
		t := c.of("k", r)
		t.Ahead, t.Cost, t.High, t.Seen = ahead, 3, shared.Instant{Micros: 1 << 52}, 1
		got := c.refused(t)
		c.must(got.Other != nil, "another rate is in force, and the answer does not say so: %s", answerText(got))
	}
	for _, version := range []int64{0, 2, 4} { // older
		other(at(version), shared.MaxAhead)
	}
	for _, change := range []func(*shared.BucketRate){ // of the same version, but different
		func(r *shared.BucketRate) { r.Burst = 1000 },
		func(r *shared.BucketRate) { r.Micros-- },
		func(r *shared.BucketRate) { r.Parts = 2 },
		func(r *shared.BucketRate) { r.Parts, r.Part = 2, 1 },
	} {
		r := at(5)
		change(&r)
		other(r, shared.MaxAhead)
		c.refused(t)
	}
	// The newest comes into force even if nothing is taken.
	for _, version := range []int64{6, 7, 1 << 52, 1<<53 - 1, 1 << 53} {
		t := c.of("k", at(version))
		c.refused(t)
		other(at(version-1), 0)
		c.refused(t)
	}

	// An older rate meets a level that has fallen to 0.
	r := unit(1000, 0, 1, 1)
	r.Version = 3
	c.takes(c.of("idle", r))
	time.Sleep(5 * time.Millisecond)
	r.Version, r.Burst = 2, 2
	got := c.refused(c.of("idle", r))
	c.must(got.Other != nil && got.Empty.Micros == got.Now, "where the level is 0, Empty must be Now: %s", answerText(got))
}

// Processes that were started at different times have different versions of one rate.
func checkVersionsOfOneRate(c *tester) {
	third := unit(400_000_000, 1, 3, 1000)
	// inForce asks at another rate of the same version.
	inForce := func(key string, version int64) {
		c.Helper()
		t := c.of(key, slow)
		t.Rate.Version = version
		got := c.refused(t)
		c.must(got.Other != nil && got.Other.Version == version, "version %d is in force, and the answer is %s", version, answerText(got))
	}
	greatest := int64(0)
	for _, version := range []int64{5, 3, 8, 0, 8, 1<<53 - 1, 1 << 53, 1} {
		t := c.of("k", third)
		t.Rate.Version = version
		c.takes(t)
		greatest = max(greatest, version)
		inForce("k", greatest)
	}
	// The greater version comes into force even if nothing is taken.
	t := c.of("refused", third)
	for version := range int64(5) {
		t.Rate.Version = version
		t.First = third.Burst
		c.take(t)
		c.refused(t)
		inForce("refused", version)
	}
}

func checkRescale(c *tester) {
	rates := []shared.BucketRate{
		unit(100_000, 0, 1, 1), unit(333_333, 1, 3, 1), unit(33, 1, 3, 7), unit(1_285_714, 2, 7, 20),
		unit(0, 1, 1000, 1_000_000), unit(2, 999_999_999_999, 1_000_000_000_000, 1000), slow,
	}
	key := 0
	change := func(old, next shared.BucketRate, span time.Duration, burst, nextBurst int64) {
		key++
		old.Burst, next.Burst = burst, nextBurst
		t := c.of(fmt.Sprint("k", key), old)
		t.Cost = max(1, int64(float64(span.Microseconds())/micros(old)))
		c.takes(t)
		next.Version = 2
		t.Rate, t.Cost, t.First, t.Ahead = next, 1, 1+int64(key)%3, time.Duration(key%5)*400*time.Millisecond
		c.take(t)
		c.take(t)
	}
	for _, old := range rates {
		for _, next := range rates {
			for range times(2) {
				span := time.Duration(math.Exp(c.random.Float64()*18)) * 100 * time.Microsecond // 100 µs to 2 h
				change(old, next, span, 1+c.random.Int64N(64)>>c.random.IntN(7), 1+c.random.Int64N(64)>>c.random.IntN(7))
			}
		}
	}
	// Some of the level is behind the burst, and no process holds a slot.
	for range 20 {
		change(rates[1], rates[2], 10*time.Second, 30+c.random.Int64N(20), 1+c.random.Int64N(1000))
		change(rates[2], rates[1], time.Millisecond, 30+c.random.Int64N(20), 1+c.random.Int64N(1000))
	}
	// The level would last for 1,000 years and more.
	change(rates[4], slow, 10*time.Second, 1, 1)

	// Rates that change again and again.
	for i := range int64(50) {
		r := rates[c.random.IntN(len(rates))]
		r.Version, r.Burst = 1+i, 1+c.random.Int64N(64)>>c.random.IntN(7)
		t := c.of("again", r)
		t.Cost, t.Ahead = 1+c.random.Int64N(10), shared.MaxAhead
		c.take(t)
	}
}

// micros returns the time of a unit in microseconds.
func micros(r shared.BucketRate) float64 { return float64(r.Micros) + float64(r.Part)/float64(r.Parts) }

func checkParts(c *tester) {
	for key, r := range map[string]shared.BucketRate{
		"3/s":      unit(333_333, 1, 3, math.MaxInt32),
		"30,000/s": unit(33, 1, 3, math.MaxInt32),
		"a part":   unit(1_000_000, 1, 1_000_000_000_000, math.MaxInt32),
		"parts":    unit(999_999, 999_999_999_999, 1_000_000_000_000, math.MaxInt32),
	} {
		t := c.of(key, r)
		t.Cost = 1_000_000 // far from 0, as time passes at 30,000/s
		c.takes(t)
		start, sum := c.levels[t.Key].Empty, int64(0)
		for i := range times(300) {
			t.Cost = int64(1 + i%3)
			c.takes(t)
			sum += t.Cost
		}
		// The replay has followed each step; this is the sum.
		t.Cost = sum
		end, rise := c.levels[t.Key].Empty, t.Rise()
		moved := r.Minus(end, start)
		c.must(moved == rise, "%d units at %s have moved the level by %+v, must be %+v", sum, key, moved, rise)
	}
}

func checkGreat(c *tester) {
	year := unit(365*24*60*60*1_000_000, 0, 1, 1)
	t := c.of("a year", year)
	c.takes(t)
	c.refused(t)

	// All that Limits allow: at 10⁹/s, a burst that takes a year to drain.
	most := unit(0, 1, 1000, 365*24*60*60*1_000_000_000)
	t = c.of("burst", most)
	t.Cost, t.First = most.Burst, most.Burst
	c.takes(t)
	c.refused(t)
	t = c.of("cost", most)
	t.Cost = most.Burst - 1
	c.takes(t)
	t.Cost, t.First = 999, 200_000_000_000
	c.refused(t)
	t.First = 1
	c.takes(t)
	c.refused(c.of("cost", unit(0, 2, 1000, most.Burst-1)))

	// Each digit counts.
	r := unit(0, 1, 1_000_000_000_000, 9_007_199_254_740_993)
	r.Version = 1 << 53
	t = c.of("digits", r)
	t.Cost = 1_234_567_890_123_456_789
	c.takes(t)
	r.Burst--
	t.Rate = r
	c.refused(t)

	// No Limits let a span be as long as 71 years; but it is the longest that there is.
	forever := year
	forever.Burst = math.MaxInt64
	t = c.of("forever", forever)
	t.Cost = math.MaxInt64
	for range 3 {
		c.take(t)
	}
}

func checkClock(c *tester) {
	t := c.of("k", slow)
	sent := time.Now()
	before := c.take(t).Now
	answered, fine := time.Now(), before%1000 != 0
	var now, least int64
	for range 10 {
		time.Sleep(3217 * time.Microsecond)
		least = time.Since(answered).Microseconds()
		now = c.take(t).Now
		fine = fine || now%1000 != 0
	}
	most := time.Since(sent).Microseconds()
	c.must(fine, "the clock does not show microseconds: %d", now)
	// A clock that is being set right is a little fast or slow.
	c.must(now-before <= most+most/50+1000, "the clock has gone by %d µs in at most %d", now-before, most)
	c.must(now-before >= least-least/50-1000, "the clock has gone by %d µs in at least %d", now-before, least)
}
