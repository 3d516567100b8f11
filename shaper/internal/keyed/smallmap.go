package keyed

import (
	"iter"
	"slices"
)

// A SmallMap is a map that mostly has few entries. So up to few of them are kept in a slice: a map
// takes 480 bytes with its first entry, and hashes the key at each look-up. The zero SmallMap is
// empty.
type SmallMap[K comparable, V any] struct {
	few  []pair[K, V] // at most few
	many map[K]V      // in place of few; nil: there have not been more than few
	peak int          // most entries that many has had since it was made
}

type pair[K comparable, V any] struct {
	key   K
	value V
}

// few is how many entries are looked through one after the other.
const few = 4

// Get returns the value of a key; the zero value if there is none.
func (m *SmallMap[K, V]) Get(key K) (value V) {
	if m.many != nil {
		return m.many[key]
	}
	for i := range m.few {
		if m.few[i].key == key {
			return m.few[i].value
		}
	}
	return value
}

// Add adds a key that is not there.
func (m *SmallMap[K, V]) Add(key K, value V) {
	if m.many == nil && len(m.few) < few {
		m.few = append(m.few, pair[K, V]{key, value})
		return
	}
	if m.many == nil {
		m.many = make(map[K]V)
		for _, p := range m.few {
			m.many[p.key] = p.value
		}
		m.few = nil
	}
	m.many[key] = value
	m.peak = max(m.peak, len(m.many))
}

// Delete deletes a key.
func (m *SmallMap[K, V]) Delete(key K) {
	if m.many != nil {
		delete(m.many, key)
		return
	}
	m.few = slices.DeleteFunc(m.few, func(p pair[K, V]) bool { return p.key == key })
}

// Len returns how many keys there are.
func (m *SmallMap[K, V]) Len() int { return len(m.few) + len(m.many) }

// Values returns an iterator over the values, in no particular order.
func (m *SmallMap[K, V]) Values() iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, p := range m.few {
			if !yield(p.value) {
				return
			}
		}
		for _, v := range m.many {
			if !yield(v) {
				return
			}
		}
	}
}

// Shrink gives back the memory of entries that are no longer there, unless there have never been
// more than worth.
func (m *SmallMap[K, V]) Shrink(worth int) {
	if m.many != nil {
		m.many, m.peak = Shrunk(m.many, m.peak, worth)
	}
}
