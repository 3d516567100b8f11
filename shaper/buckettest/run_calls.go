package buckettest

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/shaper/shared"
)

func checkGiveBack(c *tester) {
	r := unit(400_000_000, 1, 3, 1)
	t := c.of("k", r)
	give := func(cost int64, end shared.Instant) {
		c.Helper()
		g := t
		g.Cost, g.First = cost, 1
		c.giveBack(g, end)
		c.refused(t)
	}
	t.Cost = 10
	end := c.takes(t).Empty
	later, part := end, end
	later.Micros++
	part.Part = (part.Part + 1) % 3
	for _, not := range []shared.Instant{{}, {Micros: end.Micros - 1, Part: end.Part}, later, part} {
		give(2, not)
	}
	give(2, end)
	give(2, end) // It is not the end any more.
	give(5, c.levels[t.Key].Empty)
	give(1, c.levels[t.Key].Empty)

	// With all given back, another may leave; its units are gone from both.
	give2 := t
	give2.Cost = 2
	c.giveBack(give2, c.levels[t.Key].Empty)
	c.takes(t)
	c.refused(t)

	// The end of a process that has taken before.
	t = c.of("two", unit(400_000_000, 1, 3, 5))
	first := c.takes(t).Empty
	second := c.takes(t).Empty
	give1 := t
	c.giveBack(give1, first)
	c.takes(t)
	c.giveBack(give1, second)
	c.takes(t)
	c.giveBack(give1, c.levels[t.Key].Empty)
	c.takes(t)

	// Another version of the rate is in force.
	t = c.of("versions", r)
	t.Cost = 5
	c.takes(t)
	for _, version := range []int64{0, 2} {
		g := t
		g.Cost, g.Rate.Version = 2, version
		c.giveBack(g, c.levels[t.Key].Empty)
		c.refused(t)
		other := t
		other.Rate.Burst++
		got := c.refused(other)
		c.must(got.Other != nil && got.Other.Version == r.Version, "GiveBack has changed the version: %s", answerText(got))
	}

	// Another rate is in force.
	t = c.of("rates", r)
	t.Cost = 3
	end = c.takes(t).Empty
	g := t
	for _, version := range []int64{0, 1, 2} {
		g.Rate.Version, g.Rate.Burst = version, 2
		c.giveBack(g, end)
		c.refused(t)
	}
	t.Rate.Version, t.Rate.Burst = 2, 3
	c.refused(t)
	for _, version := range []int64{1, 2} {
		g.Rate.Version = version
		c.giveBack(g, c.levels[t.Key].Empty)
		c.refused(t)
	}

	// A key without a state has none after it.
	t = c.of("none", r)
	c.giveBack(t, shared.Instant{})
	got := c.take(t)
	c.must(got.Cold && got.OK, "GiveBack has made a state: %s", answerText(got))
}

// oddKeys are keys that a careless Bucket mixes up or refuses. A key comes from requests of
// strangers, so it may be any string of bytes.
var oddKeys = []string{
	"k", "K", "k ", " k", "k\t", "k\n", "k\r\n", "k:", "k::", "k:k", "k/k", "kk", "k%20", "k+", "k*", "k?", "k[a]", `k\`, `k\\`,
	"{k}", "{k", "k}", "{}k", "{", "}", `"k"`, `'k'`, "k'; DROP TABLE k; --", "$1", "%s", "%d%n", "NULL", "nil", "0", "00", "-0", "1e3",
	"ключ", "鍵", "é", "e\u0301", "🔑", "\u202ek", "İ", "ß", "ss", "k\x00", "k\x00k", "\x00", "\xff", "\xff\xfe", "k\xc3",
	strings.Repeat("k", 255), strings.Repeat("k", 256), strings.Repeat("k", 1024), strings.Repeat("k", 1023) + "l",
	strings.Repeat("鍵 ", 256),
}

func checkKeys(c *tester) {
	r := slow
	r.Burst = 1000
	for i, key := range oddKeys {
		t := c.of(key, r)
		t.Cost = int64(1 + i)
		got := c.take(t)
		c.must(got.Cold && got.OK, "the key %q is not new: %s", key, answerText(got))
	}
	for _, key := range oddKeys {
		c.takes(c.of(key, r)) // The level has the key's own cost alone.
	}
	for _, key := range oddKeys {
		t := c.of(key, r)
		c.giveBack(t, c.levels[t.Key].Empty)
		c.takes(t)
	}
}

const callers = 16

// together lets callers make Takes at the same time, and returns their answers. Each makes n.
func (c *tester) together(n int, next func(caller, i int) shared.Take) (takes []shared.Take, answers []shared.Taken) {
	c.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	start := make(chan struct{})
	for caller := range callers {
		wg.Go(func() {
			<-start
			for i := range n {
				t := next(caller, i)
				ctx, cancel := c.context()
				got, err := c.bucket.Take(ctx, t)
				cancel()
				mu.Lock()
				takes, answers = append(takes, t), append(answers, got)
				failed = cmp.Or(failed, err)
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	close(start)
	wg.Wait()
	c.must(failed == nil, "Take by %d callers: %v", callers, failed)
	return takes, answers
}

// A stretch is the part of a level that a Take has taken.
type stretch struct{ from, to shared.Instant }

// stretches returns the parts taken, in order.
func stretches(takes []shared.Take, answers []shared.Taken) (taken []stretch) {
	for i, t := range takes {
		if answers[i].OK {
			after, _ := t.Apply(shared.BucketLevel{Empty: answers[i].Empty, Rate: t.Rate, At: answers[i].Now}, answers[i].Now)
			taken = append(taken, stretch{answers[i].Empty, after.Empty})
		}
	}
	slices.SortFunc(taken, func(a, b stretch) int { return compare(a.from, b.from) })
	return taken
}

func compare(a, b shared.Instant) int {
	return cmp.Or(cmp.Compare(a.Micros, b.Micros), cmp.Compare(a.Part, b.Part))
}

func checkConcurrency(c *tester) {
	// The level is never 0, so the stretch of each begins where the stretch of another ends: a unit
	// lasts for minutes, as a busy machine may let seconds pass between two calls.
	busy := unit(333_333_333, 1, 3, 1_000_000)
	takes, answers := c.together(times(50), func(caller, i int) shared.Take {
		t := c.of("busy", busy)
		t.Cost = int64(1 + (caller+i)%4)
		if i%5 == 4 {
			t.First = busy.Burst // It would have to wait.
		}
		return t
	})
	taken := stretches(takes, answers)
	cold := 0
	for i, t := range takes {
		if answers[i].Cold {
			cold++
		}
		c.must(!answers[i].OK || t.First == 1 || answers[i].Cold, "a request of cost %d has left: %s", t.First, answerText(answers[i]))
		c.must(answers[i].OK || t.First > 1, "a request was refused though there is room: %s", answerText(answers[i]))
	}
	c.must(cold == 1, "%d of %d calls found no state, must be the first only", cold, len(takes))
	for i := 1; i < len(taken); i++ {
		c.must(taken[i].from == taken[i-1].to, "what two callers have taken does not follow: one ends at %+v, the next begins at %+v", taken[i-1].to, taken[i].from)
	}
	last := taken[len(taken)-1].to
	got := c.askOnly(c.of("busy", busy))
	c.must(got.Empty == last, "after the last has taken up to %+v the level reaches 0 at %+v", last, got.Empty)

	// The level falls to 0 now and then, and no two take the same.
	fast := unit(250, 1, 3, 3)
	takes, answers = c.together(times(50), func(int, int) shared.Take {
		t := c.of("fast", fast)
		t.Cost = 2
		return t
	})
	taken = stretches(takes, answers)
	for i := 1; i < len(taken); i++ {
		c.must(compare(taken[i].from, taken[i-1].to) >= 0, "two callers have taken the same: one up to %+v, another from %+v", taken[i-1].to, taken[i].from)
	}
	// Time has gone on, and each of them has seen the same clock.
	for i, t := range answers {
		c.must(t.Empty.Micros >= t.Now, "the level has fallen below 0: %s", answerText(answers[i]))
	}
}

// askOnly makes a Take that is refused, as its cost is far above the burst, and does not compare.
func (c *tester) askOnly(t shared.Take) shared.Taken {
	c.Helper()
	t.First = 1 << 40
	ctx, cancel := c.context()
	defer cancel()
	got, err := c.bucket.Take(ctx, t)
	c.must(err == nil && !got.OK, "Take(%+v): %s, %v", t, answerText(got), err)
	return got
}

// unknown makes a Take whose answer may not come, and reports whether it has come. Then it
// compares it.
func (c *tester) unknown(ctx context.Context, t shared.Take) bool {
	c.Helper()
	start := time.Now()
	got, err := c.bucket.Take(ctx, t)
	took := time.Since(start)
	c.must(took < patience, "Take took %v though its context has ended", took)
	if err == nil {
		c.must(got.OK, "Take(%+v) is refused: %s", t, answerText(got))
		return true
	}
	c.must(got == shared.Taken{}, "Take has an error and an answer: %s, %v", answerText(got), err)
	return false
}

// atMost ends the test unless the level of t's key has risen, beyond its known part, by the cost of
// 0 to calls calls that got no answer.
func (c *tester) atMost(t shared.Take, known shared.Instant, calls int) {
	c.Helper()
	got := c.askOnly(t)
	for i := range calls + 1 {
		if got.Empty == known {
			return
		}
		if i < calls {
			after, _ := t.Apply(shared.BucketLevel{Empty: known, Rate: t.Rate, At: got.Now}, got.Now)
			known = after.Empty
		}
	}
	c.Fatalf("%d calls without an answer, of which each may have been carried out once: the level reaches 0 at %+v, must be at %+v or earlier, by whole calls", calls, got.Empty, known)
}

func checkEndedContext(c *tester) {
	r := unit(400_000_000, 1, 3, 1000)
	for name, ended := range map[string]func() (context.Context, context.CancelFunc){
		"cancelled": func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(c.Context())
			cancel()
			return ctx, cancel
		},
		"expired": func() (context.Context, context.CancelFunc) {
			return context.WithDeadline(c.Context(), time.Now().Add(-time.Second))
		},
	} {
		t := c.of(name, r)
		known := c.takes(t).Empty
		ctx, cancel := ended()
		for range 3 {
			c.must(!c.unknown(ctx, t), "Take with a context that is %s has no error", name)
			c.must(c.bucket.GiveBack(ctx, t, shared.Instant{Micros: 1}) != nil, "GiveBack with a context that is %s has no error", name)
		}
		cancel()
		c.atMost(t, known, 3)
	}
}

func checkContextEnds(c *tester) {
	r := unit(400_000_000, 1, 3, 1_000_000)
	t := c.of("k", r)
	c.takes(t)
	known, without := c.levels[t.Key].Empty, 0
	for i := range times(30) {
		ctx, cancel := context.WithTimeout(c.Context(), time.Duration(c.random.Int64N(1<<10+int64(i)<<9))*time.Microsecond/4)
		if c.unknown(ctx, t) {
			after, _ := t.Apply(shared.BucketLevel{Empty: known, Rate: r, At: 1}, known.Micros)
			known = after.Empty
		} else {
			without++
		}
		cancel()
	}
	time.Sleep(20 * time.Millisecond) // Let those arrive that are under way.
	c.atMost(t, known, without)
}

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
