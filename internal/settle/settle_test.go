package settle_test

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/internal/settle"
)

// A history is the oracle: all that has ever raised the level or changed the rate, each departure with the cost
// that is known of it now. It computes the level from the start.
type history struct {
	first  *big.Rat
	events []event
}

// An event raised the level at an instant, or changed the interval.
type event struct {
	at, units, interval *big.Rat // interval is nil if the level rose
	number              uint64   // of the reservation; 0: none
}

// level returns the level at an instant, in units.
func (h *history) level(at *big.Rat) *big.Rat {
	level, now, interval := new(big.Rat), new(big.Rat), h.first
	leak := func(until *big.Rat) {
		gone := new(big.Rat).Sub(until, now)
		if level.Sub(level, gone.Quo(gone, interval)); level.Sign() < 0 {
			level.SetInt64(0)
		}
		now = until
	}
	for _, e := range h.events {
		if leak(e.at); e.interval != nil {
			interval = e.interval
		} else {
			level.Add(level, e.units)
		}
	}
	leak(at)
	return level
}

// A bucket raises and lowers its level as the engine does, by what the Book says.
type bucket struct {
	interval   exact.Interval
	empty      exact.Nanos
	excess     *big.Rat
	departures uint32
	book       settle.Book
	open       []reserved
}

type reserved struct {
	number   uint64
	estimate int64
}

func (b *bucket) levelAt(now int64) settle.Level {
	return settle.Level{Span: b.interval.Minus(b.empty, exact.At(now)), Excess: b.excess}
}

// raise raises the level at an instant. slot is the instant, if the level lets a request leave just then.
func (b *bucket) raise(at exact.Nanos, rounded bool, n int64) {
	if at.After(b.empty) {
		b.empty, b.excess = at, nil
	}
	l := settle.Level{Span: b.interval.Minus(b.empty, at)}
	if !rounded {
		l.Excess = b.excess
	}
	b.book.Rises(b.interval, l)
	b.departures++
	b.empty, b.excess = b.interval.Add(b.empty, b.excess, n)
}

// Whatever leaves, is charged, settled or dropped, and however the rate changes, the level is as if each
// settled cost had been known from the start, to the last fraction; and the book says how many units that is.
func TestALevelIsAsIfCostsHadBeenKnown(t *testing.T) {
	t.Parallel()
	rates := []rate.Limit{1, 7, 3.5, 1.0 / 3, 50, 60, 128, 1e6, 0.7131}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		some := func() exact.Interval { return exact.IntervalOf(rates[r.IntN(len(rates))]) }
		b := &bucket{interval: some()}
		if seed%2 == 0 {
			b.departures = math.MaxUint32 - uint32(r.IntN(20)) // The numbers of departures wrap around.
		}
		h, now := &history{first: b.interval.Rat()}, int64(0)
		said := ""
		check := func() {
			want := h.level(new(big.Rat).SetInt64(now))
			got := b.interval.UnitsAfter(now, exact.Later(b.empty, exact.At(now)), b.excess)
			if !b.empty.After(exact.At(now)) {
				got = new(big.Rat)
			}
			require.Zerof(t, want.Cmp(got), "seed %d at %d: the level is %v, not %v, after:\n%s", seed, now, got, want, said)
		}
		for range 60 {
			units := int64(1 + r.IntN(20))
			now += int64(r.Float64() * float64(r.IntN(4)*int(units)) * float64(b.interval.Whole()+1) / 2)
			if !b.empty.After(exact.At(now)) {
				b.empty, b.excess = exact.At(now), nil // As the engine does before each call.
			}
			at, rat := exact.At(now), new(big.Rat).SetInt64(now)
			switch k := r.IntN(10); {
			case k < 5: // Somebody leaves, perhaps at the slot at which the level is down to some units.
				rounded := false
				if left := r.Int64N(3); k == 0 && b.levelAt(now).Span.After(b.interval.Times(left)) {
					at, rounded = b.interval.Minus(b.empty, b.interval.Times(left)), true
					now = at.Ceil()
					rat = b.interval.UnitsAfter(0, at, b.excess)
					rat.Mul(rat, b.interval.Rat())
				}
				said += fmt.Sprintf("%d units leave at %v, rounded: %v\n", units, rat, rounded)
				b.raise(at, rounded, units)
				number := uint64(0)
				if r.IntN(4) > 0 {
					l := settle.Level{Span: b.interval.Minus(b.empty, at), Excess: b.excess}
					if rounded {
						l.Excess = nil
					}
					number = b.book.Add(b.interval, b.departures, l)
					b.open = append(b.open, reserved{number, units})
				}
				h.events = append(h.events, event{at: rat, units: new(big.Rat).SetInt64(units), number: number})
			case k < 6:
				from, to := b.interval, some()
				if to == from || !b.empty.After(at) {
					continue
				}
				said += fmt.Sprintf("the interval becomes %v at %d\n", to.Rat(), now)
				b.empty, b.excess = from.Rescale(b.empty, b.excess, now, to)
				b.book.Rescale(from, to)
				b.interval = to
				h.events = append(h.events, event{at: rat, interval: to.Rat()})
			case len(b.open) > 0:
				i := r.IntN(len(b.open))
				v := b.open[i]
				b.open = slices.Delete(b.open, i, i+1)
				if k == 9 {
					said += fmt.Sprintf("the estimate of %d stands\n", v.estimate)
					b.book.Drop(b.interval, v.number)
					continue
				}
				over := r.Int64N(v.estimate) + 1
				before := h.level(rat)
				for i := range h.events {
					if e := &h.events[i]; e.number == v.number {
						e.units = new(big.Rat).SetInt64(v.estimate - over)
					}
				}
				said += fmt.Sprintf("%d units are settled as %d at %d\n", v.estimate, v.estimate-over, now)
				rest, back, ok := b.book.GiveBack(b.interval, b.levelAt(now), v.number, over)
				if ok {
					b.empty, b.excess = b.interval.Add(b.interval.Plus(at, rest.Span), rest.Excess, 0)
				}
				before.Sub(before, h.level(rat))
				want := new(big.Int).Quo(before.Num(), before.Denom())
				require.Equalf(t, want.Int64(), back, "seed %d: the units that come back, after:\n%s", seed, said)
			}
			check()
		}
		require.LessOrEqual(t, b.book.Len(), len(b.open))
	}
}

// Reservations that nobody settles cost a bounded memory, and the oldest get nothing back.
func TestReservationsThatNobodySettlesAreBounded(t *testing.T) {
	i := exact.IntervalOf(1)
	var b settle.Book
	first := b.Add(i, 1, settle.LevelOf(i, 10))
	for k := range uint32(settle.MaxOpen) {
		b.Add(i, k+2, settle.LevelOf(i, int64(k)+11))
	}
	require.Equal(t, settle.MaxOpen, b.Len())
	_, _, ok := b.GiveBack(i, settle.LevelOf(i, 4200), first, 5)
	require.False(t, ok)
	require.Equal(t, uint64(settle.None), b.NumberOf(1))
	require.Equal(t, first+1, b.NumberOf(2))
}

// However many reservations have been open at once, and however they end, they take no memory afterwards.
func TestReservationsThatHaveEndedTakeNoMemory(t *testing.T) {
	const books, many = 200, 1000
	i := exact.IntervalOf(1)
	high := settle.LevelOf(i, 1<<40)
	for name, end := range map[string]func(b *settle.Book, numbers []uint64){
		"estimates stand": func(b *settle.Book, numbers []uint64) {
			for _, number := range numbers {
				b.Drop(i, number)
			}
		},
		"they cost less, the latest first": func(b *settle.Book, numbers []uint64) {
			for _, number := range slices.Backward(numbers) {
				_, _, ok := b.GiveBack(i, high, number, 1)
				require.True(t, ok)
			}
		},
		"the level comes down to 0 by one of them": func(b *settle.Book, numbers []uint64) {
			rest, _, ok := b.GiveBack(i, settle.LevelOf(i, 5), numbers[0], 10)
			require.True(t, ok && rest.IsZero())
		},
		"the level was 0":        func(b *settle.Book, _ []uint64) { b.Forget() },
		"the level rises from 0": func(b *settle.Book, _ []uint64) { b.Rises(i, settle.Level{}) },
	} {
		t.Run(name, func(t *testing.T) {
			var all [books]settle.Book
			before := heapInUse()
			for k := range all {
				var numbers []uint64
				for n := range uint32(many) {
					numbers = append(numbers, all[k].Add(i, n+1, settle.LevelOf(i, int64(n)+10)))
				}
				require.Equal(t, many, all[k].Len())
				end(&all[k], numbers)
				require.Zero(t, all[k].Len())
			}
			require.Less(t, heapInUse()-before, int64(books*2<<10), "bytes: open ones took 16 times as much")
			runtime.KeepAlive(&all)
		})
	}
}

// heapInUse returns the bytes of heap that are reachable.
func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A departure that is undone may have the number of the next one, which is another reservation.
func TestNumbersOfReservationsAreNeverUsedAgain(t *testing.T) {
	i := exact.IntervalOf(1)
	var b settle.Book
	numbers := map[uint64]bool{}
	for _, departure := range []uint32{7, 8, 8, 8, 9, math.MaxUint32, 0, 1, 1} {
		number := b.Add(i, departure, settle.LevelOf(i, 10))
		require.Falsef(t, numbers[number] || number == 0, "the departure %d", departure)
		require.Equal(t, number, b.NumberOf(departure))
		numbers[number] = true
	}
}
