// Package keyed has the containers of a Group: a table of the keys that have an entry of their
// own, rings of the entries that keys share when the table is full, a timing wheel that says when
// to look at an entry again, and a memory of keys whose entries are gone. It knows no bucket: the
// value in an entry is the caller's.
//
// The caller's lock guards each of them, unless it is said otherwise.
package keyed

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"example.com/leakybucket/shaper/internal/sketch"
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

// Names writes keys as JSON, and reads them.
type Names[K comparable] struct {
	text   bool // K is a string, and has no method by which it writes itself
	failed int  // how many keys Encode could not write
	first  error
}

// NewNames returns the Names of keys of type K.
func NewNames[K comparable]() Names[K] {
	t := reflect.TypeFor[K]()
	methods := false
	for _, m := range []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler](),
		reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()} {
		methods = methods || t.Implements(m) || reflect.PointerTo(t).Implements(m)
	}
	return Names[K]{text: t.Kind() == reflect.String && !methods}
}

// binaryKey is a string that is not valid UTF-8. JSON can't hold one, and clients may choose
// the keys.
type binaryKey struct {
	Base64 []byte `json:"base64"`
}

// Encode returns a key as JSON. If that can't be had, or would be read as another key, ok is
// false. A key that does not equal itself is one of those.
func (n *Names[K]) Encode(key K) (name json.RawMessage, ok bool) {
	name, err := n.write(key)
	if err == nil && (!n.text || name[0] == '{') {
		var back K
		if back, err = n.Decode(name); err == nil && back != key {
			err = fmt.Errorf("%.60s would be read as another key", name)
		}
	}
	if err == nil {
		return name, true
	}
	if n.failed++; n.failed == 1 {
		n.first = fmt.Errorf("key %.60q of type %T: %w", fmt.Sprint(key), key, err)
	}
	return nil, false
}

func (n *Names[K]) write(key K) (json.RawMessage, error) {
	if n.text {
		if text := reflect.ValueOf(key).String(); !utf8.ValidString(text) {
			return json.Marshal(binaryKey{[]byte(text)})
		}
	}
	return json.Marshal(key)
}

// Decode returns the key that [Names.Encode] has written.
func (n *Names[K]) Decode(name json.RawMessage) (key K, err error) {
	switch {
	case len(name) == 0:
		return key, fmt.Errorf("there is a bucket without a key")
	case n.text && name[0] != '{' && name[0] != '"':
		err = errors.New("it is no string")
	case n.text && name[0] == '"' && !bytes.ContainsRune(name, '\\') && utf8.Valid(name):
		reflect.ValueOf(&key).Elem().SetString(string(name[1 : len(name)-1])) // There is nothing to decode in it.
	case n.text && name[0] == '{':
		var binary binaryKey
		if err = json.Unmarshal(name, &binary); err == nil {
			reflect.ValueOf(&key).Elem().SetString(string(binary.Base64))
		}
	default:
		err = json.Unmarshal(name, &key)
		if err == nil && !n.text && !reflect.ValueOf(&key).Elem().Comparable() { // An interface may hold a slice.
			key, err = *new(K), errors.New("it can't be compared")
		}
	}
	if err != nil {
		return key, fmt.Errorf("a key of type %T can't be read from %.60s: %w", key, name, err)
	}
	return key, nil
}

// Failure returns the error for the keys that [Names.Encode] could not write; nil if there are none.
func (n *Names[K]) Failure() error {
	if n.failed == 0 {
		return nil
	}
	return fmt.Errorf("shaper: Snapshot: %d keys can't be written as JSON and are left out; the first: %w", n.failed, n.first)
}

// TopCounters is how many keys that meet their limits [Limited] can tell apart.
const TopCounters = 1024

// Limited remembers, in fixed memory, the keys that met their limits, when their entries are
// gone. It has a lock of its own, so that calls that leave at once have nothing to do with it.
type Limited[K comparable] struct {
	mu          sync.Mutex
	seed        maphash.Seed
	mostLimited sketch.TopK[K]
	distinct    sketch.Distinct // of the keys that were refused
}

// NewLimited returns a Limited that hashes keys with a seed.
func NewLimited[K comparable](seed maphash.Seed) Limited[K] {
	return Limited[K]{seed: seed, mostLimited: sketch.NewTopK[K](TopCounters)}
}

// Waited notes a call that has to wait.
func (k *Limited[K]) Waited(key K) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mostLimited.Add(key)
}

// Refused notes a call that is refused.
func (k *Limited[K]) Refused(key K) {
	hash := maphash.Comparable(k.seed, key)
	k.mu.Lock()
	k.mostLimited.Add(key)
	k.distinct.Add(hash)
	k.mu.Unlock()
}

// Top returns the keys that were noted most.
func (k *Limited[K]) Top(count int) []sketch.Count[K] {
	k.mu.Lock()
	most := k.mostLimited.Snapshot()
	k.mu.Unlock()
	return most.Top(count)
}

// All returns all keys that were noted, how many notes there were of all keys, and how many
// there may have been at most of a key that is not among those returned.
func (k *Limited[K]) All() (counts []sketch.Count[K], events, least uint64) {
	k.mu.Lock()
	most := k.mostLimited.Snapshot()
	k.mu.Unlock()
	return most.Top(TopCounters), most.Events(), most.Least()
}

// Merge adds the result of [Limited.All] in another process.
func (k *Limited[K]) Merge(counts []sketch.Count[K], events, least uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mostLimited.Merge(counts, events, least)
}

// RefusedKeys returns about how many different keys were refused.
func (k *Limited[K]) RefusedKeys() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.distinct.Estimate()
}

// Overrides are values that some keys have been given. Several Overrides count together.
type Overrides[K, V comparable] struct {
	of    map[K]V
	count *atomic.Int64
}

// NewOverrides returns Overrides that count in count.
func NewOverrides[K, V comparable](count *atomic.Int64) Overrides[K, V] {
	return Overrides[K, V]{count: count}
}

// Get returns the value of a key; ok reports whether it has one.
func (o *Overrides[K, V]) Get(key K) (value V, ok bool) {
	value, ok = o.of[key]
	return value, ok
}

// Any reports whether there may be one in any of those that count together. The lock need not be
// held.
func (o *Overrides[K, V]) Any() bool { return o.count.Load() > 0 }

// Len returns how many there are.
func (o *Overrides[K, V]) Len() int { return len(o.of) }

// Set gives a key a value. For a key that has none, [TakeBelow] has counted it.
func (o *Overrides[K, V]) Set(key K, value V) {
	if o.of == nil {
		o.of = make(map[K]V)
	}
	o.of[key] = value
}

// Delete undoes Set.
func (o *Overrides[K, V]) Delete(key K) {
	if _, ok := o.of[key]; ok {
		delete(o.of, key)
		o.count.Add(-1)
	}
}

// Differs reports whether a key has another value than it had, if it had one, or has one now if it
// had none.
func (o *Overrides[K, V]) Differs(key K, value V, had bool) bool {
	if !had && len(o.of) == 0 {
		return false
	}
	now, ok := o.of[key]
	return ok != had || ok && now != value
}

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

const (
	// MaxShared is how many entries [Rings] hold at most.
	MaxShared = 1024
	// Spare is the number of them that are kept for rings without any, so that a flood of keys
	// of one ring leaves room for the keys of others.
	Spare = 64
	// Homes is how many points there are on a ring.
	Homes = MaxShared - Spare
)

// Rings hold the entries that keys share while a [Table] has no room for them. Each kind of keys P
// has a ring of its own: Homes points, and some of them have an entry. A hash gives each key its
// home on the ring, and the key uses the first entry at its home or after it (consistent hashing).
// The hash is to be seeded anew in each process, so that a client cannot choose keys that share an
// entry with the keys of another client.
//
// A key makes an entry at its home while there are fewer than Homes entries in all rings, or fewer
// than MaxShared and none in its own. After that it uses the next entry of its ring, whose reach
// then covers its home.
//
// No entry is ever made on a point that the reach of another one covers. So the entry that a key
// has used is still the next one after its home for as long as it exists. If it is deleted only
// when it is as good as new, no key gets a new one by moving from one entry to another.
//
// Finding an entry takes a binary search in one ring, however many entries and kinds there are.
// The zero Rings are empty. [Rings.Len] needs no lock.
type Rings[K comparable, V any, P comparable] struct {
	rings map[P][]*Entry[K, V] // each in the order of homes, never empty
	len   atomic.Int32         // entries in all rings
}

// Len returns how many entries there are. The lock need not be held.
func (o *Rings[K, V, P]) Len() int { return int(o.len.Load()) }

// All returns the rings, to be read: of each kind the entries, in the order of their homes.
func (o *Rings[K, V, P]) All() map[P][]*Entry[K, V] { return o.rings }

// Clear deletes all entries.
func (o *Rings[K, V, P]) Clear() {
	o.rings = nil
	o.len.Store(0)
}

// next returns the first entry of p's ring at a home or after it, and how many points
// after it that is. It returns nil if the ring is empty.
func (o *Rings[K, V, P]) next(home int16, p P) (e *Entry[K, V], distance int16) {
	ring := o.rings[p]
	if len(ring) == 0 {
		return nil, 0
	}
	i, _ := searchRing(ring, home)
	e = ring[i%len(ring)] // After the last point comes the first.
	return e, (e.Home - home + Homes) % Homes
}

// Used returns the entry of kind p that keys with a home have been sharing. It returns
// nil if there is none.
func (o *Rings[K, V, P]) Used(home int16, p P) *Entry[K, V] {
	if e, distance := o.next(home, p); e != nil && distance <= e.Reach {
		return e
	}
	return nil
}

// Find returns the entry of kind p that a key with a home is to share, and how far it is from
// there. It returns nil if an entry is to be made at the home; but if full is true, there is no
// room for a new entry.
func (o *Rings[K, V, P]) Find(home int16, p P) (e *Entry[K, V], distance int16, full bool) {
	e, distance = o.next(home, p)
	switch {
	case e != nil && distance <= e.Reach:
		return e, distance, false
	case o.len.Load() < Homes:
		return nil, 0, false
	case e != nil:
		return e, distance, false
	}
	return nil, 0, o.len.Load() >= MaxShared
}

// Add puts a new entry of kind p at its home.
func (o *Rings[K, V, P]) Add(e *Entry[K, V], p P) {
	if o.rings == nil {
		o.rings = make(map[P][]*Entry[K, V])
	}
	i, _ := searchRing(o.rings[p], e.Home)
	o.rings[p] = slices.Insert(o.rings[p], i, e)
	o.len.Add(1)
}

// Remove deletes an entry that was added with kind p.
func (o *Rings[K, V, P]) Remove(e *Entry[K, V], p P) {
	i, _ := searchRing(o.rings[p], e.Home)
	o.rings[p] = slices.Delete(o.rings[p], i, i+1)
	switch {
	case o.len.Add(-1) == 0:
		o.rings = nil // A map keeps the memory for all entries that it ever had.
	case len(o.rings[p]) == 0:
		delete(o.rings, p)
	}
}

// searchRing returns the index in a ring of the first entry at a home or after it.
func searchRing[K comparable, V any](ring []*Entry[K, V], home int16) (i int, found bool) {
	return slices.BinarySearchFunc(ring, home, func(e *Entry[K, V], home int16) int { return int(e.Home) - int(home) })
}
