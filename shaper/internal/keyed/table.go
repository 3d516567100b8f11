// Package keyed has the containers of a Group: a table of the keys that have an entry of their
// own, rings of the entries that keys share when the table is full, a timing wheel that says when
// to look at an entry again, and a memory of keys whose entries are gone. It knows no bucket: the
// value in an entry is the caller's.
//
// The caller's lock guards each of them, unless it is said otherwise.
package keyed

import (
	"maps"
	"sync/atomic"
)

// An Entry holds the value of one key, or of the keys that share it. It is in a [Table] or in
// [Rings], and in a [Wheel].
type Entry[K comparable, V any] struct {
	Value V
	Key   K // the zero key if it is shared

	prev, next *Entry[K, V] // in the wheel; nil: it is in none
	spoke      uint8        // of the wheel

	Light bool  // in a Table: it counts apart; see Table
	Home  int16 // in Rings: its point on the ring; Own: it is in none
	Reach int16 // in Rings: it serves the keys whose homes are up to so many points before its own
}

// Own is the Home of an [Entry] that one key has for itself.
const Own = -1

// InWheel reports whether the entry is in a [Wheel].
func (e *Entry[K, V]) InWheel() bool { return e.next != nil }

// A Table has the entries that keys have of their own. Light entries, which hold nothing that
// can't be had again, are counted apart from the others. Several tables count together.
type Table[K comparable, V any] struct {
	entries map[K]*Entry[K, V]
	peak    int // most entries since the map was made
	light   int
	last    map[K]*Entry[K, V] // see Close
	counts  *Counts
}

// Counts are the numbers of entries in several tables together. They may be used without a lock.
type Counts struct{ Heavy, Light atomic.Int64 }

// TakeBelow counts one more, and reports false if there are as many as there may be.
func TakeBelow(count *atomic.Int64, most int64) bool {
	for {
		n := count.Load()
		if n >= most {
			return false
		}
		if count.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// NewTable returns a table whose entries count in c.
func NewTable[K comparable, V any](c *Counts) Table[K, V] {
	return Table[K, V]{entries: make(map[K]*Entry[K, V]), counts: c}
}

// Get returns the entry of a key; nil if it has none.
func (t *Table[K, V]) Get(key K) *Entry[K, V] { return t.entries[key] }

// Entries returns the map of the table, to be read.
func (t *Table[K, V]) Entries() map[K]*Entry[K, V] { return t.entries }

// Add adds the entry of a key that has none. [TakeBelow] has counted it, as a light one if it is.
func (t *Table[K, V]) Add(e *Entry[K, V]) {
	t.entries[e.Key] = e
	t.peak = max(t.peak, len(t.entries))
	if e.Light {
		t.light++
	}
}

// Delete deletes an entry that is in the table.
func (t *Table[K, V]) Delete(e *Entry[K, V]) {
	delete(t.entries, e.Key)
	if e.Light {
		t.light--
		t.counts.Light.Add(-1)
	} else {
		t.counts.Heavy.Add(-1)
	}
}

// Close empties the table, and keeps its entries for [Table.Last].
func (t *Table[K, V]) Close() {
	t.counts.Heavy.Add(int64(t.light - len(t.entries)))
	t.counts.Light.Add(int64(-t.light))
	*t = Table[K, V]{entries: make(map[K]*Entry[K, V]), counts: t.counts, last: t.entries}
}

// Last returns the entries that the table had when it was closed; nil before that. They do not
// change any more.
func (t *Table[K, V]) Last() map[K]*Entry[K, V] { return t.last }

// Shrink gives back memory, unless there have never been more than few entries.
func (t *Table[K, V]) Shrink(few int) { t.entries, t.peak = Shrunk(t.entries, t.peak, few) }

// Shrunk returns m, and how many entries it has had at most. If few of many are left it returns a
// copy instead, because a map keeps the memory for all entries that it ever had. Copying so few
// takes less than half a millisecond. Maps that have never had more than few entries stay as they
// are.
func Shrunk[K comparable, V any](m map[K]V, peak, few int) (map[K]V, int) {
	n := len(m)
	if peak < few || n > min(peak/16, 4096) {
		return m, peak
	}
	small := make(map[K]V, n)
	maps.Copy(small, m)
	return small, n
}
