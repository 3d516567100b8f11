package buckettest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"testing"
	"time"

	"example.com/leakybucket/shaper/shared"
)

// Run tests that a [shared.Bucket] keeps the promises of its comment. It calls newBucket for
// each sub-test; all Buckets may be the same one, or have the same server, as each sub-test
// uses keys of its own. The sub-tests take some thousand calls and a second of waiting
// together; with SHAPER_LONG=1 in the environment twenty times as many calls. A Bucket that is a [shared.Seater] or a
// [shared.Keeper] is tested as such too, which takes five seconds more of waiting, or some fifteen.
//
// Each answer must equal the one of [shared.Take.Apply] at the clock reading that the answer
// tells. Only after a change of the rate it may be late by 2 µs, as
// [shared.BucketRate.Rescale] says. The effect of a call shows in the answer of the next.
//
// A Bucket for tests may have one or more of the methods of [Corrupter], [Forgetter],
// [Setter] and [Stepper], usually in a struct around the real Bucket. They make it possible
// to test the Bucket under damage, loss, and a clock that steps. Without them the sub-tests
// that need them are skipped. So do those of [SeatSetter] and [KeepSetter] for seats and kept keys: without them all
// is skipped that would have to wait for leases.
func Run(t *testing.T, newBucket func(t *testing.T) shared.Bucket) {
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			c.run(newTester(t, newBucket(t)))
		})
	}
}

// A Corrupter can damage states.
type Corrupter interface {
	// Corrupt puts value in the place of the state of a key, in the form in which the
	// Bucket keeps it. An error means that the Bucket can't hold such a value.
	Corrupt(key, value string) error
}

// A Forgetter can lose states.
type Forgetter interface {
	// Forget loses the state of a key, its seats and its keeper, as if the key had never been used.
	Forget(key string) error
}

// A Setter can be given states.
type Setter interface {
	// Set makes l the state of a key. l may be damaged; if the Bucket can't hold it, Set
	// stores something else that is damaged. A Set that fails must end the test, with the
	// *testing.T that the Bucket was made for.
	Set(key string, l shared.BucketLevel)
}

// A Stepper has a clock that can be moved.
type Stepper interface {
	// Step moves the Bucket's clock forward by d, or back if d is negative.
	Step(d time.Duration)
}

// A check is one of the sub-tests of [Run].
type check struct {
	name string
	run  func(c *tester)
}

// A reporter has the methods of *testing.T that a check needs. Tests of the checks themselves have
// another one.
type reporter interface {
	Helper()
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	Context() context.Context
}

// A tester runs a check on one Bucket. It knows the state that each key must have.
type tester struct {
	reporter
	bucket shared.Bucket
	prefix string
	levels map[string]shared.BucketLevel
	seats  map[string]shared.SeatState
	keeps  map[string]shared.KeepState
	began  int64 // when a check of seats last read the Bucket's clock
	random *rand.Rand
	holds  bool // the Bucket knows of holds; see knowsHolds
	long   bool // what takes ten seconds of real time is waited for
}

func newTester(r reporter, b shared.Bucket) *tester {
	return &tester{
		reporter: r, bucket: b, random: rand.New(rand.NewPCG(1, 2)), long: times(1) > 1,
		levels: map[string]shared.BucketLevel{}, seats: map[string]shared.SeatState{}, keeps: map[string]shared.KeepState{},
		// A server may still have the keys of an earlier run.
		prefix: fmt.Sprintf("buckettest:%016x:", rand.Uint64()),
	}
}

// times returns n, or twenty times as many in a long run.
func times(n int) int {
	if os.Getenv("SHAPER_LONG") == "1" {
		return 20 * n
	}
	return n
}

// patience is how long a call may take. It is long, as machines of tests are busy.
const patience = 20 * time.Second

// context returns a context for one call.
func (c *tester) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.Context(), patience)
}

// must ends the test if it is not so.
func (c *tester) must(so bool, format string, args ...any) {
	c.Helper()
	if !so {
		c.Fatalf(format, args...)
	}
}

// of returns a Take of one unit, of a key of this test.
func (c *tester) of(key string, r shared.BucketRate) shared.Take {
	return shared.Take{Key: c.prefix + key, Cost: 1, First: 1, Rate: r}
}

// take calls Take, and compares the answer with the state that the key must have.
func (c *tester) take(t shared.Take) shared.Taken {
	c.Helper()
	ctx, cancel := c.context()
	defer cancel()
	got, err := c.bucket.Take(ctx, t)
	c.must(err == nil, "Take(%+v): %v", t, err)
	c.follow(t, got)
	return got
}

// follow compares the answer of a Take with the state that the key must have, and notes the
// state after it.
func (c *tester) follow(t shared.Take, got shared.Taken) {
	c.Helper()
	before := c.levels[t.Key]
	next, want := t.Apply(before, got.Now)
	isNew := !want.Cold && before.Rate.Version < t.Rate.Version && !before.Rate.Agrees(t.Rate)
	allowed := 2 + (want.Empty.Micros-got.Now)/100_000_000_000_000 // Floats have 16 digits.
	if late := got.Empty.Micros - want.Empty.Micros; isNew && got.Empty.Part == 0 && want.Empty.Part == 0 && 0 < late && late <= allowed {
		// Whatever has been taken, the state that was written follows from the answer.
		next, want = t.Apply(shared.BucketLevel{Empty: got.Empty, Rate: t.Rate, At: got.Now, Hold: want.Hold}, got.Now)
	}
	c.must(reflect.DeepEqual(got, want), "the answer to\n%+v\nat the state\n%+v\nis\n%s\nmust be\n%s", t, before, answerText(got), answerText(want))
	c.levels[t.Key] = next
}

func answerText(t shared.Taken) string {
	other := "nil"
	if t.Other != nil {
		other = fmt.Sprintf("%+v", *t.Other)
	}
	return fmt.Sprintf("{OK:%t Now:%d Empty:%+v Cold:%t Hold:%d Other:%s}", t.OK, t.Now, t.Empty, t.Cold, t.Hold, other)
}

// takes is take for a Take that must be allowed, and returns the state after it.
func (c *tester) takes(t shared.Take) shared.BucketLevel {
	c.Helper()
	got := c.take(t)
	c.must(got.OK, "Take(%+v) is refused: %s", t, answerText(got))
	return c.levels[t.Key]
}

// refused is take for a Take that must be refused.
func (c *tester) refused(t shared.Take) shared.Taken {
	c.Helper()
	got := c.take(t)
	c.must(!got.OK, "Take(%+v) is allowed: %s", t, answerText(got))
	return got
}

// giveBack calls [shared.Bucket.GiveBack]. Its effect shows in the answer to the next Take.
func (c *tester) giveBack(t shared.Take, end shared.Instant) {
	c.Helper()
	ctx, cancel := c.context()
	defer cancel()
	err := c.bucket.GiveBack(ctx, t, end)
	c.must(err == nil, "GiveBack(%+v, %+v): %v", t, end, err)
	c.levels[t.Key] = t.ApplyGiveBack(c.levels[t.Key], end)
}

// unit returns a rate of version 1 at which a unit takes micros + part/parts microseconds.
func unit(micros, part, parts, burst int64) shared.BucketRate {
	return shared.BucketRate{Version: 1, Micros: micros, Part: part, Parts: parts, Burst: burst}
}

// slow is a rate at which nothing leaks while a test runs.
var slow = unit(3_600_000_000, 0, 1, 1)

// checkRandom makes random calls for a few keys. It finds mistakes that nobody has thought of, and
// fails if it has not met each kind of answer.
func checkRandom(c *tester) {
	rates := []shared.BucketRate{
		unit(333_333, 1, 3, 1), unit(33, 1, 3, 7), unit(1_285_714, 2, 7, 2), unit(1000, 0, 1, 1), unit(0, 1, 1000, 1_000_000),
		unit(314, 159_265_358_979, 1_000_000_000_000, 3), unit(1, 999_999_999_999, 1_000_000_000_000, 3),
		unit(123_456, 789_012_345_679, 999_999_999_989, 2), slow,
	}
	met := kinds{}
	c.holds = c.knowsHolds()
	upTo := func(most int64) int64 { return c.random.Int64N(most+1) >> c.random.IntN(64) } // any magnitude
	inForce := map[string]shared.BucketRate{}
	high := map[string]shared.BucketLevel{} // what a process knows
	clock := int64(0)                       // the latest reading
	for range times(1000) {
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
		if known := high[t.Key]; known.Rate.Agrees(r) && c.random.IntN(4) == 0 {
			t.High, t.Seen = known.Empty, known.At+c.random.Int64N(3)-1
			if c.random.IntN(4) == 0 {
				t.Seen += 3_600_000_000
			}
		}
		if c.holds && c.random.IntN(15) == 0 {
			t.Hold = max(0, clock-2000+c.random.Int64N(40_000))
			if c.random.IntN(4) == 0 { // to tell of it alone
				t.Cost, t.First = 1, r.Burst+1
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
			clock = got.Now
			if got.OK {
				high[t.Key] = c.levels[t.Key]
			}
			met.take(t, before, got)
			met.note("held", got.Hold > 0)
			met.note("held at another rate", got.Hold > 0 && got.Other != nil)
			if l := c.levels[t.Key]; c.random.IntN(4) == 0 && l.Rate.Version >= r.Version {
				inForce[key] = l.Rate
			}
		}
	}
	wanted := []string{"taken", "refused", "cold", "another rate", "rescaled", "newer version", "older version", "known", "given back"}
	if c.holds {
		wanted = append(wanted, "held", "held at another rate")
	}
	for _, kind := range wanted {
		c.must(met[kind] >= 3, "too few random calls meet %q: %v", kind, met)
	}
}

// kinds counts answers by their kind.
type kinds map[string]int

func (k kinds) note(kind string, is bool) {
	if is {
		k[kind]++
	}
}

func (k kinds) take(t shared.Take, l shared.BucketLevel, got shared.Taken) {
	same := !got.Cold && t.Rate.Agrees(l.Rate)
	k.note("taken", got.OK)
	k.note("refused", !got.OK && got.Other == nil)
	k.note("cold", got.Cold)
	k.note("another rate", got.Other != nil)
	k.note("rescaled", !got.Cold && !same && got.Other == nil && got.Empty.Micros > got.Now)
	k.note("newer version", same && l.Rate.Version < t.Rate.Version)
	k.note("older version", same && l.Rate.Version > t.Rate.Version)
	k.note("known", t.High != shared.Instant{} && got.Empty == t.High)
}

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
	{"step 4b: nobody leaves before the end of the longest hold", checkHold},
	{"step 4b: a hold ends, and the rate goes on without a burst", checkHoldEnds},
	{"step 4b: a hold and a change of the rate", checkHoldAndRates},
	{"step 4b: a hold and a clock that has gone back", checkHoldAndClock},
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
	{"seats: guards, wants and leases end", checkSeatTimes},
	{"seats: whoever has fewest comes first", checkSeatShares},
	{"seats: a question that was overtaken, and an older state", checkSeatNumbers},
	{"seats: the clock steps", checkSeatClock},
	{"seats: keys and IDs do not touch each other", checkSeatKeys},
	{"seats: calls at the same time are one after the other", checkSeatConcurrency},
	{"seats: contexts", checkSeatContexts},
	{"seats: a state that is damaged", checkSeatDamage},
	{"seats: random calls", checkSeatsRandom},
	{"a kept key: one process keeps it", checkKeep},
	{"a kept key: a lease ends", checkKeepLease},
	{"a kept key: a value may be any bytes", checkKeepValues},
	{"a kept key: the clock goes back", checkKeepClock},
	{"a kept key: keys and IDs do not touch each other", checkKeepKeys},
	{"a kept key: no two keep it at the same time", checkKeepConcurrency},
	{"a kept key: contexts", checkKeepContexts},
	{"a kept key: a state that is damaged", checkKeepDamage},
	{"a kept key: random calls", checkKeepRandom},
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
