package shared_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper/shared"
)

const second = int64(time.Second / time.Microsecond)

// t0 is where the timelines begin, on the clock of a Bucket.
const t0 = 1_800_000_000 * second

// A question of a timeline: at a second, a process that has held seats and could use want asks.
type question struct {
	at         float64
	id         string
	held, want int
	got        int // Held of the answer
	target     int
}

func TestSeatsAreSharedOutInTurn(t *testing.T) {
	for _, c := range []struct {
		name  string
		cap   int
		asked []question
	}{
		{"whoever has fewest comes first, and the seats are kept for it", 20, []question{
			{0, "a", 0, 20, 20, 20}, {1, "b", 0, 20, 0, 20}, {1, "c", 0, 2, 0, 2}, {1.5, "a", 15, 20, 15, 9}, {1.6, "a", 15, 20, 15, 9},
			{2, "b", 0, 20, 3, 9}, {2.1, "c", 0, 2, 2, 2}, {2.2, "a", 9, 20, 9, 9}, {2.3, "b", 3, 20, 9, 9},
		}},
		{"whoever has waited longest comes first of those with as many", 2, []question{
			{0, "a", 0, 2, 2, 2}, {1, "c", 0, 1, 0, 2}, {2, "b", 0, 1, 0, 0}, {2.5, "a", 1, 2, 1, 0}, {2.6, "b", 0, 1, 0, 0}, {2.7, "c", 0, 1, 1, 0},
			{2.8, "a", 0, 2, 0, 0}, {2.8, "b", 0, 1, 1, 0},
		}},
		{"a want ages, and what was held is free after the lease", 20, []question{
			{0, "a", 0, 5, 5, 20}, {0, "dead", 5, 20, 15, 20}, {2, "a", 5, 20, 5, 10}, {2.000001, "a", 5, 20, 5, 20},
			{9.999999, "a", 5, 20, 5, 20}, {10, "a", 5, 20, 20, 20},
		}},
		{"seats that are free are not kept for a want that has aged", 20, []question{
			{0, "a", 0, 20, 20, 20}, {0, "dead", 0, 20, 0, 20}, {1, "a", 5, 20, 10, 10}, {2, "a", 10, 20, 10, 10}, {2.1, "a", 10, 20, 20, 20},
		}},
		{"light processes have what they want", 20, []question{
			{0, "a", 0, 19, 19, 20}, {0, "b", 0, 1, 1, 20}, {0, "c", 0, 1, 0, 20}, {0.5, "b", 1, 1, 1, 1}, {0.5, "a", 19, 20, 19, 18},
		}},
		{"a level that is no whole number is rounded up, but down while one has none", 20, []question{
			{0, "a", 0, 20, 20, 20}, {0, "b", 0, 20, 0, 20}, {0, "c", 0, 20, 0, 6}, {0, "a", 13, 20, 13, 6}, {0, "b", 0, 20, 4, 6}, {0, "a", 13, 20, 13, 6},
			{0, "c", 0, 20, 3, 7}, {0, "a", 7, 20, 7, 7}, {0, "b", 4, 20, 7, 7}, {0, "c", 3, 20, 6, 7}, {0, "a", 7, 20, 7, 7},
		}},
		{"a process that needs none is forgotten, and the key is not new", 20, []question{
			{0, "a", 0, 20, 20, 20}, {1, "a", 0, 0, 0, 20}, {1, "b", 0, 20, 20, 20}, {11, "c", 0, 20, 20, 20}, {100, "a", 0, 1, 1, 20},
		}},
		{"what is in use stands above the cap", 20, []question{
			{0, "a", 30, 20, 30, 20}, {0, "b", 0, 1, 0, 20}, {0, "a", 25, 20, 25, 19}, {0, "b", 0, 1, 0, 20}, {0, "a", 19, 20, 19, 19}, {0, "b", 0, 1, 1, 1},
		}},
		{"seats without a number", 1<<31 - 1, []question{
			{0, "a", 0, 1<<31 - 1, 1<<31 - 1, 1<<31 - 1}, {1, "b", 0, 1<<31 - 1, 0, 1<<31 - 1}, {1, "a", 1, 1<<31 - 1, 1 << 30, 1<<30 - 1}, {1, "b", 0, 1<<31 - 1, 1<<30 - 1, 1 << 30},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := shared.SeatState{Ready: t0}
			for _, q := range c.asked {
				now := t0 + int64(q.at*1e6+0.5)
				next, got := shared.Seating{Key: "k", ID: q.id, Cap: c.cap, Held: q.held, Want: q.want}.Apply(s, now)
				require.Equal(t, shared.Seated{Held: q.got, Target: q.target, Now: now}, got, "%+v", q)
				s = next
			}
		})
	}
}

// When a key has no state, all processes say what they hold before any of them is given more.
func TestAKeyWithoutAStateGivesNoSeatsAtFirst(t *testing.T) {
	damaged := []shared.SeatState{
		{}, {Ready: -1}, {Ready: 1<<53 + 1},
		{Ready: t0, Holders: []shared.SeatHolder{{ID: "b", Held: 1, Expires: t0}, {ID: "a", Held: 1, Expires: t0}}},
		{Ready: t0, Holders: []shared.SeatHolder{{ID: "a", Held: 1, Expires: t0}, {ID: "a", Held: 1, Expires: t0}}},
	}
	for _, h := range []shared.SeatHolder{
		{Held: 1, Expires: t0}, {ID: "a", Held: -1, Want: 1, Since: 1, Expires: t0}, {ID: "a", Held: 1, Want: -1, Expires: t0},
		{ID: "a", Held: 1}, {ID: "a", Held: 1, Expires: 1<<53 + 1}, {ID: "a", Held: 1, Expires: -1},
		{ID: "a", Want: 1, Since: -1, Expires: t0}, {ID: "a", Want: 1, Since: 1<<53 + 1, Expires: t0},
		{ID: "a", Held: 1, Expires: t0, Number: -1}, {ID: "a", Held: 1, Expires: t0, Number: 1<<53 + 1},
	} {
		damaged = append(damaged, shared.SeatState{Ready: t0, Holders: []shared.SeatHolder{h}})
	}
	for _, s := range damaged {
		for _, q := range []question{
			{0, "a", 0, 3, 0, 20}, {1, "b", 15, 20, 15, 17}, {2, "c", 15, 20, 15, 8}, {3.599999, "a", 0, 3, 0, 3},
			{3.6, "c", 15, 20, 15, 8}, {3.7, "b", 5, 5, 5, 5}, {4, "a", 0, 3, 0, 3}, {4.5, "c", 10, 20, 12, 12}, {5, "a", 0, 3, 3, 3},
		} {
			now := t0 + int64(q.at*1e6+0.5)
			next, got := shared.Seating{Key: "k", ID: q.id, Cap: 20, Held: q.held, Want: q.want}.Apply(s, now)
			require.Equal(t, shared.Seated{Held: q.got, Target: q.target, Now: now}, got, "%+v", q)
			s = next
		}
	}
}

// The step works out at once how many seats fall to a process. Here they go one by one.
func TestSeatsFallAsIfOneByOne(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	several := 0
	for range 20_000 {
		now, total := t0, 1+random.IntN(40)
		s := shared.SeatState{Ready: now - random.Int64N(2)}
		for i := range random.IntN(6) {
			h := shared.SeatHolder{ID: fmt.Sprint(i), Held: random.IntN(10), Want: 1 + random.IntN(30), Expires: now + 7_990_000 + random.Int64N(20_000)}
			if h.Want > h.Held {
				h.Since = now - 1 - random.Int64N(3)
			}
			s.Holders = append(s.Holders, h)
		}
		q := shared.Seating{Key: "k", ID: fmt.Sprint(random.IntN(7)), Cap: total, Held: random.IntN(10), Want: random.IntN(30)}
		next, got := q.Apply(s, now)

		me := shared.SeatHolder{ID: q.ID, Held: q.Held, Want: q.Want, Since: now}
		free := total - q.Held
		all := []*shared.SeatHolder{&me}
		for _, h := range s.Holders {
			if h.ID != q.ID {
				free -= h.Held
				if h.Expires >= now+8_000_000 {
					all = append(all, &h)
				}
			} else if h.Since > 0 {
				me.Since = h.Since
			}
		}
		for free > 0 {
			waiting := slices.DeleteFunc(slices.Clone(all), func(h *shared.SeatHolder) bool { return h.Held >= h.Want })
			if len(waiting) == 0 {
				break
			}
			slices.MinFunc(waiting, func(a, b *shared.SeatHolder) int {
				return cmp.Or(cmp.Compare(a.Held, b.Held), cmp.Compare(a.Since, b.Since), strings.Compare(a.ID, b.ID))
			}).Held++
			free--
		}
		require.Equal(t, me.Held, got.Held, "%+v\n%+v", s, q)
		if me.Held > q.Held && len(all) > 2 {
			several++
		}
		require.True(t, slices.IsSortedFunc(next.Holders, func(a, b shared.SeatHolder) int { return strings.Compare(a.ID, b.ID) }), "%+v", next)
	}
	require.Greater(t, several, 1000)
}

// A fleet is four processes, as their engines may behave, and a Bucket. It is played in ticks of 10 ms.
type fleet struct {
	random *rand.Rand
	now    int64 // the time that all processes' clocks show
	ahead  int64 // by how much the Bucket's clock is ahead
	state  shared.SeatState
	older  shared.SeatState // the state of some seconds ago
	procs  []*process
	calls  []call
	given  int // how many seats have been given

	countless, unguarded, unanswered bool // mistakes
}

// A process has so many seats until its lease ends.
type process struct {
	id       string
	has      int
	lease    int64
	want     int
	asks     int64 // when it asks again
	number   int64
	answered int64
}

// A call is a question on its way, or its answer.
type call struct {
	q       shared.Seating
	asked   int64
	arrives int64
	got     *shared.Seated
}

const (
	total   = 20
	timeout = int64(250_000)
)

// play goes on for a tick. A question may be lost, or arrive seconds after its process has given up; and a process may be
// stopped or die.
func (f *fleet) play(faults bool) {
	chance := func(oneIn int) bool { return f.random.IntN(oneIn) == 0 }
	f.now += 10_000
	for _, p := range f.procs {
		if chance(500) {
			p.want = 1 + f.random.IntN(total)
		}
		switch {
		case faults && chance(20_000):
			*p = process{id: fmt.Sprint(f.random.Int64()), want: p.want, asks: f.now}
		case faults && chance(5000):
			p.asks = f.now + f.random.Int64N(15*second)
		case f.now >= p.asks:
			if f.now >= p.lease {
				p.has, p.answered = 0, 0 // Its calls have ended meanwhile: one that has not is above the bound.
			}
			if chance(3) {
				p.has = min(p.has, p.want, f.random.IntN(total+1))
			}
			p.number++
			q := shared.Seating{Key: "k", ID: p.id, Cap: total, Held: p.has, Want: max(p.has, p.want), Number: p.number, Answered: p.answered}
			if f.countless {
				q.Number, q.Answered = 0, 0
			}
			if f.unanswered {
				q.Answered = 0
			}
			p.asks = f.now + timeout + f.random.Int64N(second)
			travels := f.random.Int64N(50_000)
			switch {
			case faults && chance(20):
				continue
			case faults && chance(10):
				travels = f.random.Int64N(6 * second)
			}
			f.calls = append(f.calls, call{q: q, asked: f.now, arrives: f.now + travels})
		}
	}
	var later []call
	for _, c := range f.calls {
		switch {
		case c.arrives > f.now:
			later = append(later, c)
		case c.got == nil:
			next, got := c.q.Apply(f.state, f.now+f.ahead)
			if f.unguarded {
				next.Ready = min(next.Ready, got.Now)
			}
			f.state, c.got, c.arrives = next, &got, f.now+f.random.Int64N(50_000)
			if !faults || !chance(20) {
				later = append(later, c)
			}
		default:
			for _, p := range f.procs {
				if p.id == c.q.ID && f.now < c.asked+timeout && (p.number == c.q.Number || f.countless) {
					f.given += max(0, c.got.Held-p.has)
					p.has, p.lease, p.answered = c.got.Held, c.asked+10*second, c.q.Number
					p.asks = c.asked + 3_300_000
					if p.want > p.has {
						p.asks = c.asked + second
					}
				}
			}
		}
	}
	f.calls = later
}

// used returns how many seats are had whose lease lasts.
func (f *fleet) used() (used int) {
	for _, p := range f.procs {
		if f.now < p.lease {
			used += p.has
		}
	}
	return used
}

// The bound of the cap: whatever is lost and late, and whoever dies or is stopped, no more seats are had than there are, by those
// whose lease lasts. Each part of the step that the bound needs is left out once, and then it does not hold.
func TestNoMoreSeatsAreHadThanThereAre(t *testing.T) {
	for _, c := range []struct {
		name    string
		faults  bool         // of calls and processes
		mishap  func(*fleet) // each 30 s
		mistake func(*fleet)
		above   bool
	}{
		{name: "calls that are lost and late, and processes that die", faults: true},
		{name: "the Bucket's clock goes back", faults: true, mishap: func(f *fleet) { f.ahead -= f.random.Int64N(20 * second) }},
		{name: "the state is lost", mishap: func(f *fleet) { f.state = shared.SeatState{} }},
		{name: "an older state comes back", mishap: func(f *fleet) { f.state = f.older }},
		{name: "the Bucket's clock leaps", mishap: func(f *fleet) { f.ahead += 15 * second }},

		{name: "mistake: questions are not counted", faults: true, mistake: func(f *fleet) { f.countless = true }, above: true},
		{name: "mistake: no guard", mishap: func(f *fleet) { f.state = shared.SeatState{} }, mistake: func(f *fleet) { f.unguarded = true }, above: true},
		{name: "mistake: answers are not told, an older state", mishap: func(f *fleet) { f.state = f.older }, mistake: func(f *fleet) { f.unanswered = true }, above: true},
		{name: "mistake: answers are not told, a leap", mishap: func(f *fleet) { f.ahead += 15 * second }, mistake: func(f *fleet) { f.unanswered = true }, above: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			runs, above, given := 20, 0, 0
			if os.Getenv("SHAPER_LONG") == "1" {
				runs *= 20
			}
			for run := range runs {
				f := &fleet{random: rand.New(rand.NewPCG(1, uint64(run))), now: t0, state: shared.SeatState{Ready: t0}}
				if c.mistake != nil {
					c.mistake(f)
				}
				for i := range 4 {
					f.procs = append(f.procs, &process{id: fmt.Sprint(i), want: 1 + f.random.IntN(total)})
				}
				for tick := range 30_000 {
					f.play(c.faults)
					if tick%3000 == 1500 {
						f.older = f.state
					}
					if tick%3000 == 2000 && c.mishap != nil {
						c.mishap(f)
					}
					if f.used() > total {
						above++
						require.True(t, c.above, "run %d, after %v: %d seats are had\n%+v\n%+v", run, time.Duration(f.now-t0)*time.Microsecond, f.used(), f.procs, f.state)
						break
					}
				}
				given += f.given
			}
			require.Equal(t, c.above, above > 0, "%d of %d runs are above the cap", above, runs)
			require.True(t, c.above || given > 200*runs, "only %d seats were given in %d runs", given, runs)
		})
	}
}

// What is out of its range is said by the name of the field and by the value.
func TestCheckSaysWhyASeatingCanNotBeAskedFor(t *testing.T) {
	whole := shared.Seating{Key: "key", ID: "a", Cap: 1<<31 - 1, Held: 1<<31 - 1, Want: 1<<31 - 1, Number: 1 << 53, Answered: 1 << 53}
	require.NoError(t, whole.Check())
	require.NoError(t, shared.Seating{Key: "key", ID: "a", Cap: 1}.Check())
	for want, change := range map[string]func(*shared.Seating){
		"the key is empty":                                              func(q *shared.Seating) { q.Key = "" },
		"the ID is empty":                                               func(q *shared.Seating) { q.ID = "" },
		"a Cap of 0 is out of its range, from 1":                        func(q *shared.Seating) { q.Cap = 0 },
		"a Held of -1 is out of its range, from 0":                      func(q *shared.Seating) { q.Held = -1 },
		"a Want of -1 is out of its range, from 0":                      func(q *shared.Seating) { q.Want = -1 },
		"a Number of -1 is out of its range":                            func(q *shared.Seating) { q.Number = -1 },
		"a Number of 9007199254740993 is out":                           func(q *shared.Seating) { q.Number = 1<<53 + 1 },
		"an Answered of -1 is out of its range":                         func(q *shared.Seating) { q.Answered = -1 },
		"an Answered of 2 is out of its range, from 0 to the Number, 1": func(q *shared.Seating) { q.Number, q.Answered = 1, 2 },
	} {
		q := whole
		change(&q)
		require.ErrorContains(t, q.Check(), want)
	}
}
