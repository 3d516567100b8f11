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
// together; with SHAPER_LONG=1 in the environment twenty times as many calls.
//
// Each answer must equal the one of [shared.Take.Apply] at the clock reading that the answer
// tells. Only after a change of the rate it may be late by 2 µs, as
// [shared.BucketRate.Rescale] says. The effect of a call shows in the answer of the next.
//
// A Bucket for tests may have one or more of the methods of [Corrupter], [Forgetter],
// [Setter] and [Stepper], usually in a struct around the real Bucket. They make it possible
// to test the Bucket under damage, loss, and a clock that steps. Without them the sub-tests
// that need them are skipped.
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
	// Forget loses the state of a key, as if the key had never been used.
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
	random *rand.Rand
}

func newTester(r reporter, b shared.Bucket) *tester {
	return &tester{
		reporter: r, bucket: b, levels: map[string]shared.BucketLevel{}, random: rand.New(rand.NewPCG(1, 2)),
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
		next, want = t.Apply(shared.BucketLevel{Empty: got.Empty, Rate: t.Rate, At: got.Now}, got.Now)
	}
	c.must(reflect.DeepEqual(got, want), "the answer to\n%+v\nat the state\n%+v\nis\n%s\nmust be\n%s", t, before, answerText(got), answerText(want))
	c.levels[t.Key] = next
}

func answerText(t shared.Taken) string {
	other := "nil"
	if t.Other != nil {
		other = fmt.Sprintf("%+v", *t.Other)
	}
	return fmt.Sprintf("{OK:%t Now:%d Empty:%+v Cold:%t Other:%s}", t.OK, t.Now, t.Empty, t.Cold, other)
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
	upTo := func(most int64) int64 { return c.random.Int64N(most+1) >> c.random.IntN(64) } // any magnitude
	inForce := map[string]shared.BucketRate{}
	high := map[string]shared.BucketLevel{} // what a process knows
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
