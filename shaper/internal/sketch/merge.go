package sketch

import (
	"cmp"
	"slices"
)

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
