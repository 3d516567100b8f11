package shared_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
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
		{Held: 1, Expires: t0}, {ID: "a", Expires: t0}, {ID: "a", Held: -1, Want: 1, Since: 1, Expires: t0}, {ID: "a", Held: 1, Want: -1, Expires: t0},
		{ID: "a", Held: 1}, {ID: "a", Held: 1, Expires: 1<<53 + 1}, {ID: "a", Held: 1, Expires: -1}, {ID: "a", Held: 1, Since: 1, Expires: t0},
		{ID: "a", Want: 1, Expires: t0}, {ID: "a", Want: 1, Since: -1, Expires: t0}, {ID: "a", Want: 1, Since: 1<<53 + 1, Expires: t0},
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
