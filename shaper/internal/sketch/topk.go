// Package sketch answers two questions about a stream of keys in fixed memory,
// approximately and with stated bounds: which keys occur most ([TopK]), and how many
// different ones there are ([Distinct]).
package sketch

import (
	"cmp"
	"hash/maphash"
	"math"
	"math/bits"
	"slices"
)

// A Count says how often a [TopK] has met one key. With m counters, and N events of all
// keys together:
//
//   - Count is never below the true number, and above it by at most Error. So at
//     least Count − Error events were of this key.
//   - Error is at most N/m, and 0 for all keys until there have been more than m
//     different ones.
//   - A key with more than N/m events has one of the counters.
type Count[K comparable] struct {
	Key   K
	Count uint64
	Error uint64
}

// A TopK finds the keys that occur most in a stream of them, in fixed memory: the
// Space-Saving algorithm of Metwally, Agrawal and El Abbadi ("Efficient Computation of
// Frequent and Top-k Elements in Data Streams", ICDT 2005). There are at most m
// counters. A key that has none takes over the counter of the key with the least
// count, together with the count, which from then on is its error: the key may have
// occurred that often before. The counts add up to the number of events N, so the
// least of m counts is at most N/m, and so are the errors.
//
// Make one with [NewTopK]. It holds no memory before the first event, grows with the
// number of different keys up to m, and then allocates nothing. Keys are found by a
// seeded hash, so that a client that chooses keys cannot make them collide.
//
// A TopK is not safe for concurrent use: its owner guards it with a lock.
type TopK[K comparable] struct {
	events uint64 // N

	capacity int // m
	seed     maphash.Seed
	counters []counter[K]

	// chains are the counters by the low bits of their hash: a hash table with
	// chaining. A map cannot delete a key that does not equal itself, such as NaN, and
	// may allocate while keys come and go.
	chains []link

	// least is a binary heap of the counters, with the least count on top. It is
	// made when all counters are taken, because the least count is not needed
	// before. (The paper's list of groups of equal counts takes O(1) instead of
	// O(log m), for more links and more code. With m = 1,024 the worst case, in
	// which all keys are new, takes 100 ns.)
	least []int32
}

// A counter is the record that a TopK keeps of one key.
type counter[K comparable] struct {
	key       K
	hash      uint64
	count     uint64
	overcount uint64 // the part of count that was taken over: its error
	since     uint64 // the number of the event with which the key got the counter

	next link  // in its chain
	at   int32 // in least
}

// A link is the index of a counter, plus 1; 0 means none.
type link int32

// NewTopK returns a TopK with m counters, m > 0.
func NewTopK[K comparable](m int) TopK[K] {
	return TopK[K]{capacity: m, seed: maphash.MakeSeed()}
}

// Add counts an event of key. A key that does not equal itself, such as NaN, is
// a new one each time.
func (t *TopK[K]) Add(key K) {
	t.events++
	hash := t.hash(key)
	if i := t.find(key, hash); i >= 0 {
		t.counters[i].count++
		t.siftDown(i)
		return
	}
	if len(t.counters) < t.capacity {
		t.append(counter[K]{key: key, hash: hash, count: 1, since: t.events})
		return
	}
	i := t.least[0]
	c := &t.counters[i]
	t.unlink(i)
	c.key, c.hash, c.since = key, hash, t.events
	c.overcount = c.count
	c.count++
	t.link(i)
	t.siftDown(i)
}

// hash returns the hash of a key.
func (t *TopK[K]) hash(key K) uint64 { return maphash.Comparable(t.seed, key) }

// Top returns the n keys with the largest counts, largest first, or all that have a
// counter if they are fewer. Among equal counts, the key that got its counter first
// comes first: its error is the smaller one, because the least count never falls. For
// n ≤ 0 the result is nil.
func (t *TopK[K]) Top(n int) []Count[K] {
	n = min(n, len(t.counters))
	if n <= 0 {
		return nil
	}
	sorted := slices.Clone(t.counters)
	slices.SortFunc(sorted, func(a, b counter[K]) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.since, b.since))
	})
	top := make([]Count[K], n)
	for i, c := range sorted[:n] {
		top[i] = Count[K]{Key: c.key, Count: c.count, Error: c.overcount}
	}
	return top
}

// Snapshot returns a copy; only Top may be called on it. The owner then needs its lock only for the
// copy: for m = 1,024 the copy takes some 20 µs, and Top 120 µs.
func (t *TopK[K]) Snapshot() TopK[K] {
	return TopK[K]{events: t.events, capacity: t.capacity, counters: slices.Clone(t.counters)}
}

// find returns the index of the counter of key, or −1.
func (t *TopK[K]) find(key K, hash uint64) int32 {
	if len(t.chains) == 0 {
		return -1
	}
	for l := *t.chain(hash); l != 0; {
		c := &t.counters[l-1]
		if c.hash == hash && c.key == key {
			return int32(l - 1)
		}
		l = c.next
	}
	return -1
}

// chain returns the chain of the counters whose hash has these low bits. The number of
// chains is a power of two.
func (t *TopK[K]) chain(hash uint64) *link { return &t.chains[hash&uint64(len(t.chains)-1)] }

// link puts a counter at the front of its chain.
func (t *TopK[K]) link(i int32) {
	chain := t.chain(t.counters[i].hash)
	t.counters[i].next, *chain = *chain, link(i+1)
}

// unlink takes a counter out of its chain. It looks for the counter, not for the
// key, which may not equal itself.
func (t *TopK[K]) unlink(i int32) {
	l := t.chain(t.counters[i].hash)
	for *l != link(i+1) {
		l = &t.counters[*l-1].next
	}
	*l = t.counters[i].next
}

// append adds a counter. It keeps at least as many chains as counters, and makes the heap
// with the last counter.
func (t *TopK[K]) append(c counter[K]) {
	if len(t.counters) == cap(t.counters) {
		grown := make([]counter[K], len(t.counters), min(max(8, 2*len(t.counters)), t.capacity))
		copy(grown, t.counters)
		t.counters = grown
	}
	t.counters = append(t.counters, c)
	if len(t.counters) > len(t.chains) {
		t.chains = make([]link, max(8, 2*len(t.chains)))
		for i := range t.counters {
			t.link(int32(i))
		}
	} else {
		t.link(int32(len(t.counters) - 1))
	}
	if len(t.counters) < t.capacity {
		return
	}
	t.least = make([]int32, t.capacity)
	for i := range t.least {
		t.least[i], t.counters[i].at = int32(i), int32(i)
	}
	for at := t.capacity/2 - 1; at >= 0; at-- {
		t.siftDown(t.least[at])
	}
}

// siftDown moves a counter whose count has grown down the heap to where it belongs, if
// the heap has been made.
func (t *TopK[K]) siftDown(i int32) {
	if t.least == nil {
		return
	}
	at, count := int(t.counters[i].at), t.counters[i].count
	for {
		child := 2*at + 1
		if child >= len(t.least) {
			break
		}
		below := t.counters[t.least[child]].count
		if child+1 < len(t.least) {
			if right := t.counters[t.least[child+1]].count; right < below {
				child, below = child+1, right
			}
		}
		if count <= below {
			break
		}
		t.least[at] = t.least[child]
		t.counters[t.least[at]].at = int32(at)
		at = child
	}
	t.least[at] = i
	t.counters[i].at = int32(at)
}

// Events returns the number of events of all keys together.
func (t *TopK[K]) Events() uint64 { return t.events }

// Least returns the most events that a key without a counter may have had: the least count,
// or 0 while there are counters to spare. It may be called of a Snapshot.
func (t *TopK[K]) Least() uint64 {
	if len(t.counters) < t.capacity {
		return 0
	}
	least := t.counters[0].count
	for i := range t.counters {
		least = min(least, t.counters[i].count)
	}
	return least
}

// Merge adds the counts of another TopK: each key once, its Events and its Least. The sum of
// the counts is at most the number of events. What a [Count] says then holds for the events of
// both.
//
// A key that has a counter in only one of the two may have had up to the least count of the
// other, so that is added to its count and to its error. The keys with the largest counts are
// kept. (Agarwal et al., "Mergeable Summaries", PODS 2012, show that this loses nothing: let c
// be a count less the least one of its TopK. The sum of all c is at most N − m·least for each
// TopK. So the m-th largest count of the merged ones is at most the sum of both N, divided by
// m, and the counts that are kept add up to no more than that sum.)
func (t *TopK[K]) Merge(counts []Count[K], events, least uint64) {
	if events == 0 {
		return
	}
	ours := t.Least()
	others := make(map[K]Count[K], len(counts))
	for _, c := range counts {
		others[c.Key] = c
	}
	merged := make([]counter[K], 0, len(t.counters)+len(counts))
	for _, c := range t.counters {
		other, both := others[c.key]
		if !both {
			other = Count[K]{Count: least, Error: least}
		}
		delete(others, c.key)
		c.count, c.overcount = c.count+other.Count, c.overcount+other.Error
		merged = append(merged, c)
	}
	t.events += events
	for _, c := range counts {
		if _, missing := others[c.Key]; missing {
			merged = append(merged, counter[K]{
				key: c.Key, hash: t.hash(c.Key), count: c.Count + ours, overcount: c.Error + ours, since: t.events,
			})
		}
	}
	slices.SortStableFunc(merged, func(a, b counter[K]) int { return cmp.Compare(b.count, a.count) })
	t.counters, t.chains, t.least = nil, nil, nil
	for _, c := range merged[:min(len(merged), t.capacity)] {
		c.next, c.at = 0, 0
		t.append(c)
	}
}

// A Distinct estimates how many different hashes it has been given, in fixed memory:
// the HyperLogLog of Flajolet, Fusy, Gandouet and Meunier ("HyperLogLog: the analysis
// of a near-optimal cardinality estimation algorithm", AofA 2007). Some bits of a hash
// choose a register, which keeps the highest rank that it has met: the position of the
// first 1 among the other bits. High ranks are rare, so they are a sign of many hashes.
//
// The estimate is the improved raw estimator of Ertl ("New cardinality estimation
// algorithms for HyperLogLog sketches", arXiv:1702.01284, 2017). It needs no tables
// against bias and no change of method between small and large numbers. Its standard
// error is 1.04/√m for m registers, here 0.81 %, and less for small numbers. Up to 100
// the estimate is exact as long as no two hashes choose one register. Of 18 hashes, two
// do so in one case of a hundred.
//
// The hashes must have 64 good bits, as maphash.Comparable returns, with a seed
// that the clients that choose the keys do not know. The zero Distinct is ready for use.
// It holds no memory before the first hash; from then on it holds 16 KiB and allocates
// nothing.
//
// A Distinct is not safe for concurrent use: its owner guards it with a lock.
type Distinct struct{ *registers }

const (
	indexBits     = 14 // of a hash choose its register
	registerCount = 1 << indexBits
	rankBits      = 64 - indexBits // the others, which give its rank
	maxRank       = rankBits + 1   // of a hash that has no 1 among them
)

// registers are the memory of a Distinct.
type registers struct {
	rank [registerCount]uint8 // 0: it has met no hash

	// with counts the registers of each rank, from 1, so that an estimate need not go
	// through all registers. It changes only when a register does, which becomes rare.
	with [maxRank + 1]uint16
}

// Add notes a hash. A hash that was added before changes nothing.
func (d *Distinct) Add(hash uint64) {
	if d.registers == nil {
		d.registers = new(registers)
	}
	register := &d.rank[hash>>rankBits]
	// The 1 behind the last bit of the hash ends the search at maxRank.
	rank := uint8(bits.LeadingZeros64(hash<<indexBits|1<<(indexBits-1)) + 1)
	if rank <= *register {
		return
	}
	if *register > 0 {
		d.with[*register]--
	}
	d.with[rank]++
	*register = rank
}

// Estimate returns an estimate of how many different hashes have been added, as a whole
// number. For no hash it is 0, for one hash 1.
func (d *Distinct) Estimate() uint64 {
	if d.registers == nil {
		return 0
	}
	const m = registerCount
	untouched := m
	z := m * tau(1-float64(d.with[maxRank])/m)
	for rank := maxRank - 1; rank >= 1; rank-- {
		z = (z + float64(d.with[rank])) / 2
		untouched -= int(d.with[rank])
	}
	untouched -= int(d.with[maxRank])
	z += m * sigma(float64(untouched)/m)
	estimate := math.Round(m * m / (2 * math.Ln2 * z))
	if estimate >= 1<<64 {
		return math.MaxUint64 // All registers have the highest rank, and z is 0.
	}
	return uint64(estimate)
}

// sigma returns x + Σ x^(2^k)·2^(k−1), k ≥ 1, for 0 ≤ x < 1. x is the share of the
// registers that no hash has chosen.
func sigma(x float64) float64 {
	sum, weight := x, 1.0
	for {
		x *= x
		before := sum
		sum += x * weight
		if sum == before {
			return sum
		}
		weight *= 2
	}
}

// tau returns (1 − x − Σ (1 − x^(2^−k))²·2^(−k))/3, k ≥ 1, for 0 ≤ x ≤ 1, where 1 − x is
// the share of the registers that have the highest rank. At 0 it is 0, at which the loop
// would arrive only after a thousand rounds.
func tau(x float64) float64 {
	if x == 0 {
		return 0
	}
	sum, weight := 1-x, 1.0
	for {
		x = math.Sqrt(x)
		before := sum
		weight /= 2
		sum -= (1 - x) * (1 - x) * weight
		if sum == before {
			return sum / 3
		}
	}
}
