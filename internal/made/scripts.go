package made

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"example.com/leakybucket/shaper/shared"
)

// A Stepped is a Bucket whose steps are taken at a clock that a test chooses: a [shared.Seater] with states of seats, or a
// [shared.Keeper] with those of kept keys. The zero state stands for none.
type Stepped[Question, Answer, State any] struct {
	Ask func(q Question, now int64) (Answer, error)
	Get func(key string) State
	Set func(key string, s State)
}

// ids are those of processes. Their order is that of their bytes, and in no language.
var ids = []string{"a", "B", "b", "ab", "a b", "a\x00", "\xff", "é", "Z", "1", "10", "9", "\n", "'", "-1", "z1", "z2", "z3", "z4", "z5"}

// A clock goes on and leaps at random. Most of its steps are tenths of a second, so that spans are often exactly as long as
// leases and guards.
type clock struct {
	*rand.Rand
	now int64
}

func newClock(seed uint64) *clock {
	return &clock{rand.New(rand.NewPCG(seed, 1)), 1_700_000_000_000_000}
}

func (c *clock) goes() {
	switch n := c.IntN(1000); {
	case n < 3:
		c.now += c.Int64N(30_000_000)
	case n < 6:
		c.now -= c.Int64N(30_000_000)
	case n < 30:
		c.now += c.Int64N(200_000)
	default:
		c.now += 100_000 * max(0, c.Int64N(6)-2)
	}
}

// upTo returns a number of any magnitude.
func (c *clock) upTo(most int64) int64 { return c.Int64N(most+1) >> c.IntN(40) }

// met counts what random steps meet, and fails the test if there is too little of something.
type met map[string]int

func (m met) note(kind string, is bool) {
	if is {
		m[kind]++
	}
}

func (m met) all(t testing.TB, steps int, kinds ...string) {
	t.Helper()
	t.Logf("%d steps: %v", steps, m)
	for _, kind := range kinds {
		if m[kind] < steps/1000 {
			t.Fatalf("only %d of %d random steps meet %q: %v", m[kind], steps, kind, m)
		}
	}
}

// A process asks for seats as a Shaper does.
type process struct {
	number, answered int64
	held             int
}

// Seats takes random steps, each of which must give the answer and the state of [shared.Seating.Apply].
func Seats(t testing.TB, steps int, b Stepped[shared.Seating, shared.Seated, shared.SeatState]) {
	t.Helper()
	c, met := newClock(uint64(steps)), met{}
	states := map[string]shared.SeatState{}
	processes := map[[2]string]process{}
	of := map[string]int{} // how many processes a key has
	caps := map[string]int{}
	for step := range steps {
		c.goes()
		key := fmt.Sprint("k", c.IntN(4))
		if caps[key] == 0 || c.IntN(500) == 0 {
			of[key] = 1 + c.IntN(len(ids))
			caps[key] = 1 + int(c.Int64N([]int64{20, 20, 300, 1<<31 - 2}[c.IntN(4)]))
		}
		if c.IntN(300) == 0 {
			states[key] = shared.SeatState{}
			b.Set(key, states[key])
			met.note("lost", true)
		}
		id := ids[c.IntN(of[key])]
		p := processes[[2]string{key, id}]
		q := shared.Seating{Key: key, ID: id, Cap: caps[key], Held: p.held, Number: p.number + 1, Answered: p.answered}
		if q.Held > 0 && c.IntN(3) == 0 {
			q.Held -= 1 + c.IntN(q.Held)
		}
		switch c.IntN(8) {
		case 0: // as many as it has
			q.Want = q.Held
		case 1: // all
			q.Want = min(q.Cap, 1<<31-3) + c.IntN(3)
		case 2: // none any more
			q.Want = 0
			if c.IntN(2) == 0 {
				q.Held = 0
			}
		default:
			q.Want = int(c.Int64N(min(int64(q.Cap), int64(q.Cap)/int64(of[key])*2+3) + 1))
		}
		switch c.IntN(150) {
		case 0: // overtaken
			q.Number, q.Answered = max(0, p.number-1), 0
		case 1: // anything
			q.Held, q.Number = int(c.upTo(1<<31-1)), c.upTo(1<<53)
			q.Answered = min(q.Number, c.upTo(1<<53))
		case 2: // does not count
			q.Number, q.Answered = 0, 0
		}
		before := states[key]
		next, want := q.Apply(before, c.now)
		got, err := b.Ask(q, c.now)
		if err != nil {
			t.Fatalf("step %d: %+v: %v", step, q, err)
		}
		if got != want {
			t.Fatalf("step %d: the answer to\n%+v\nat %d, at the state\n%+v\nis\n%+v\nmust be\n%+v", step, q, c.now, before, got, want)
		}
		if kept := b.Get(key); !reflect.DeepEqual(kept, next) {
			t.Fatalf("step %d: after\n%+v\nat %d, at the state\n%+v\nthe state is\n%+v\nmust be\n%+v", step, q, c.now, before, kept, next)
		}
		overtaken := q.Number < p.number && reflect.DeepEqual(before, next)
		met.note("given", got.Held > q.Held && !overtaken)
		met.note("given some of them", got.Held > q.Held && got.Held < q.Want && !overtaken)
		met.note("given none", got.Held == q.Held && q.Want > q.Held && c.now >= next.Ready)
		met.note("guarded", c.now < next.Ready)
		met.note("guarded again", before.Ready > 0 && before.Ready < next.Ready)
		met.note("shares", got.Target < q.Cap)
		met.note("overtaken", overtaken)
		met.note("forgotten", q.Held+q.Want == 0 && !overtaken)
		met.note("a tie", tie(next))
		met.note("dropped", len(before.Holders) > len(next.Holders)+1)
		states[key] = next
		if !overtaken {
			p.held = got.Held
		}
		p.number = max(p.number, q.Number)
		if p.answered = q.Number; got.Held == 0 && q.Want == 0 || c.IntN(20) == 0 {
			p.answered = 0
		}
		if p.number > 1<<52 {
			p = process{}
		}
		processes[[2]string{key, id}] = p
	}
	met.all(t, steps, "lost", "given", "given some of them", "given none", "guarded", "guarded again", "shares", "overtaken", "forgotten", "dropped", "a tie")
}

// tie reports whether two processes with as many seats have waited since the same instant.
func tie(s shared.SeatState) bool {
	for i, h := range s.Holders {
		for _, o := range s.Holders[:i] {
			if h.Since > 0 && h.Since == o.Since && h.Held == o.Held {
				return true
			}
		}
	}
	return false
}

// Keeps takes random steps, each of which must give the answer and the state of [shared.Keeping.Apply].
func Keeps(t testing.TB, steps int, b Stepped[shared.Keeping, shared.Kept, shared.KeepState]) {
	t.Helper()
	c, met := newClock(uint64(steps)), met{}
	states := map[string]shared.KeepState{}
	for step := range steps {
		c.goes()
		key := fmt.Sprint("k", c.IntN(3))
		if c.IntN(100) == 0 {
			states[key] = shared.KeepState{}
			b.Set(key, states[key])
			met.note("lost", true)
		}
		before := states[key]
		k := shared.Keeping{Key: key, ID: ids[c.IntN(4)], Lease: 3 * time.Second}
		if before.ID != "" && c.IntN(2) == 0 {
			k.ID = before.ID
		}
		if c.IntN(4) == 0 {
			k.Lease = time.Duration(c.upTo(60_000)) * time.Millisecond
		}
		if c.IntN(4) > 0 {
			k.Value = make([]byte, c.upTo(200))
			for i := range k.Value {
				k.Value[i] = byte(c.IntN(256))
			}
		}
		next, want := k.Apply(before, c.now)
		got, err := b.Ask(k, c.now)
		if err != nil {
			t.Fatalf("step %d: %+v: %v", step, k, err)
		}
		if got.ID != want.ID || got.Now != want.Now || !bytes.Equal(got.Value, want.Value) {
			t.Fatalf("step %d: the answer to\n%+v\nat %d, at the state\n%+v\nis\n%+v\nmust be\n%+v", step, k, c.now, before, got, want)
		}
		if kept := b.Get(key); kept.ID != next.ID || kept.Lease != next.Lease || kept.Ends != next.Ends || !bytes.Equal(kept.Value, next.Value) {
			t.Fatalf("step %d: after\n%+v\nat %d, at the state\n%+v\nthe state is\n%+v\nmust be\n%+v", step, k, c.now, before, kept, next)
		}
		met.note("begins", got.ID == k.ID && before.ID != k.ID)
		met.note("finds a value", got.ID == k.ID && before.ID != k.ID && len(got.Value) > 0)
		met.note("goes on", got.ID == k.ID && before.ID == k.ID)
		met.note("gives up", got.ID == "" && before.ID == k.ID)
		met.note("another keeps it", got.ID != k.ID && got.ID != "")
		met.note("nobody keeps it", got.ID == "" && before.ID != k.ID)
		met.note("the clock has gone back", before.Ends > c.now+before.Lease.Microseconds())
		states[key] = next
	}
	met.all(t, steps, "lost", "begins", "finds a value", "goes on", "gives up", "another keeps it", "nobody keeps it", "the clock has gone back")
}
