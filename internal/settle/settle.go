// Package settle keeps the reservations of a bucket that are open: of requests that have left with an
// estimated cost, and whose actual cost is not known yet. It says how much of an estimate may be given back.
// It is arithmetic on levels: it knows no lock, no line and no Shaper.
//
// After a settle the level must be as if the request had left with its actual cost. If a departure of
// the past had cost less, the present level would be lower by the difference, but by no more than the
// least level since then: a bucket whose level had reached 0 would have leaked less from there on. (It is
// Lindley's recursion, read backwards.) The least level since a request left is the minimum of the levels
// just before each later departure, and of the present level.
//
// So each open reservation keeps the least level just before the departures that followed it, up to and
// including the departure of the next reservation. A departure then compares the level with the latest
// reservation only. A settle walks the reservations that have left later. It lowers the levels that they
// keep by the units that it gives back, as the level was lower by so much at each of these instants. If
// the level has been 0, no reservation from before that has anything to get back, and all are forgotten.
//
// The obvious rule, to lower the level by the difference, lets more leave in some windows than the
// limit allows: units that have drained meanwhile would be given back, too.
package settle

import (
	"math/big"
	"slices"

	"example.com/leakybucket/internal/exact"
)

// A Level is the level of a bucket at an instant, as the time in which it leaks.
type Level struct {
	Span   exact.Nanos
	Excess *big.Rat // how far Span lies above the exact one; nil: not at all
}

// LevelOf returns the level of n units, which take an interval each.
func LevelOf(i exact.Interval, n int64) Level {
	span := i.Times(n)
	if span.Whole() < exact.Forever {
		return Level{Span: span}
	}
	span, excess := i.Add(exact.Nanos{}, nil, n)
	return Level{span, excess}
}

// IsZero reports whether the level is 0. An excess does not count then, as it is less than the
// smallest part of a nanosecond that is counted.
func (l Level) IsZero() bool { return l.Span == exact.Nanos{} }

// less reports whether l is below another level.
func (l Level) less(i exact.Interval, other Level) bool {
	if l.Excess == other.Excess { // As nearly always, as both are nil or have come from one change of the rate.
		return other.Span.After(l.Span)
	}
	return i.Compare(l.Span, l.Excess, other.Span, other.Excess) < 0
}

// minus returns the difference of two levels.
func (l Level) minus(i exact.Interval, other Level) Level {
	switch {
	case l.Excess == other.Excess:
		return Level{Span: i.Minus(l.Span, other.Span)}
	case other.Excess == nil:
		return Level{i.Minus(l.Span, other.Span), l.Excess}
	}
	span, excess := i.Difference(l.Span, l.Excess, other.Span, other.Excess)
	return Level{span, excess}
}

// units returns a level in cost units, rounded down.
func (l Level) units(i exact.Interval) (n int64) {
	for n = int64(i.Units(l.Span)); n > 0 && l.less(i, LevelOf(i, n)); n-- { // Floats are not exact, but near.
	}
	for !l.less(i, LevelOf(i, n+1)) {
		n++
	}
	return n
}

// MaxOpen is how many reservations of a bucket may get something back. It bounds the memory of those that are
// never settled to some 128 KiB, and the time of a settle to some forty microseconds (BenchmarkSettle).
const MaxOpen = 4096

// A Book has the open reservations of a bucket. Its zero value has none. The intervals that its methods are
// given are the one of the rate in force; it must not be 0 where that is not said.
type Book struct {
	open []reservation // in the order in which they left
	last uint64        // the number of the latest
}

// A reservation is open, and may get something back.
type reservation struct {
	number uint64
	least  Level // the least level since it left, until the next reservation left; at first the level just after it left
}

// Add adds a reservation whose request has left, as the departure that has a number modulo 2³² among the departures of
// its bucket; level is the level just after that. It returns the number of the reservation, which is never 0.
// At an interval of 0 the reservation gets nothing back.
func (b *Book) Add(i exact.Interval, departureNo uint32, level Level) (number uint64) {
	number = b.last&^(1<<32-1) | uint64(departureNo)
	if number <= b.last { // 2³² later, or a departure with the same number has been undone.
		number += 1 << 32
	}
	b.last = number
	if i.IsZero() {
		return number
	}
	if len(b.open) == MaxOpen {
		b.open = b.open[1:] // append moves the others to the front of new memory, once in a while.
	}
	b.open = append(b.open, reservation{number, level})
	return number
}

// Len returns how many reservations are open.
func (b *Book) Len() int { return len(b.open) }

// NumberOf returns the number of the latest reservation whose request has left as a departure; None if there
// is none, or it gets nothing back.
func (b *Book) NumberOf(departureNo uint32) uint64 {
	for k := len(b.open) - 1; k >= 0; k-- {
		if uint32(b.open[k].number) == departureNo {
			return b.open[k].number
		}
	}
	return None
}

// None is the number of no reservation.
const None = 1<<64 - 1

// Rises notes the level just before it rises.
func (b *Book) Rises(i exact.Interval, level Level) {
	last := len(b.open) - 1
	if last < 0 {
		return
	}
	switch {
	case level.IsZero():
		b.forgetUntil(last)
	case level.less(i, b.open[last].least):
		b.open[last].least = level
	}
}

// Drop removes a reservation whose estimate stands.
func (b *Book) Drop(i exact.Interval, number uint64) {
	if k := b.find(number); k >= 0 {
		b.remove(i, k)
	}
}

// Forget removes all reservations, as the level is 0.
func (b *Book) Forget() { b.forgetUntil(len(b.open) - 1) }

// Rescale keeps the reservations after a change of the interval, as so many units. Neither is 0.
func (b *Book) Rescale(from, to exact.Interval) {
	for k := range b.open {
		least := &b.open[k].least
		least.Span, least.Excess = from.Rescale(least.Span, least.Excess, 0, to)
	}
}

// GiveBack settles a reservation that was too great by over. It returns what then remains of the present level, and
// by how many whole units that is less; ok is false if nothing is given back.
func (b *Book) GiveBack(i exact.Interval, level Level, number uint64, over int64) (rest Level, back int64, ok bool) {
	least, k := level, len(b.open)-1
	for ; k >= 0; k-- {
		// less and minus are not inlined: to call them would double the time of a settle.
		o := &b.open[k]
		switch {
		case o.least.Excess == least.Excess:
			if least.Span.After(o.least.Span) {
				least = o.least
			}
		case o.least.less(i, least):
			least = o.least
		}
		if o.number == number {
			break
		}
	}
	if k < 0 {
		return level, 0, false
	}
	if all := LevelOf(i, over); !least.less(i, all) {
		least, back = all, over
	} else {
		back = least.units(i)
	}
	b.lower(i, k, least)
	if rest = level.minus(i, least); rest.IsZero() {
		b.Forget()
	}
	return rest, back, true
}

// Lower returns what remains of a level that falls by over, but not below 0, and by how many whole units that is less.
func Lower(i exact.Interval, level Level, over int64) (rest Level, back int64) {
	if by := LevelOf(i, over); !level.less(i, by) {
		return level.minus(i, by), over
	}
	return Level{}, level.units(i)
}

// lower lowers the levels since the reservation at an index has left, and removes the reservation. What
// left before an instant at which the level is 0 then is forgotten.
func (b *Book) lower(i exact.Interval, first int, by Level) {
	zero := -1
	for k := first; k < len(b.open); k++ {
		o := &b.open[k]
		if o.least.Excess == nil && by.Excess == nil {
			o.least.Span = i.Minus(o.least.Span, by.Span)
		} else {
			o.least = o.least.minus(i, by)
		}
		if o.least.IsZero() {
			zero = k
		}
	}
	if zero >= 0 {
		b.forgetUntil(zero)
		first -= zero + 1
	}
	if first >= 0 {
		b.remove(i, first)
	}
}

// find returns the index of a reservation; -1: it gets nothing back.
func (b *Book) find(number uint64) int {
	for k := len(b.open) - 1; k >= 0; k-- {
		if b.open[k].number == number {
			return k
		}
	}
	return -1
}

// remove removes the reservation at an index. The one before it takes over its least level.
func (b *Book) remove(i exact.Interval, k int) {
	if k > 0 && b.open[k].least.less(i, b.open[k-1].least) {
		b.open[k-1].least = b.open[k].least
	}
	b.open = slices.Delete(b.open, k, k+1)
	b.trim()
}

// forgetUntil removes all reservations up to an index.
func (b *Book) forgetUntil(k int) {
	b.open = slices.Delete(b.open, 0, k+1)
	b.trim()
}

// trim gives back the memory of many reservations when none is open.
func (b *Book) trim() {
	if len(b.open) == 0 && cap(b.open) > 64 {
		b.open = nil
	}
}
