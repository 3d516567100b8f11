package shaper

import "slices"

// A planSet has the plans of a keyShard, one for each value of [Limits]. Most Groups have a
// few rules for all their keys. So up to fewPlans plans are kept in a slice: a map takes
// 480 bytes with its first entry, in each shard, and hashes the Limits at each look-up. The
// zero planSet is empty.
type planSet struct {
	few  []*plan          // at most fewPlans
	many map[Limits]*plan // in place of few; nil: there have not been more than fewPlans
	peak int              // most plans that many has had since it was made
}

// fewPlans is how many plans are looked through one after the other.
const fewPlans = 4

// of returns the plan of [Limits]; nil if there is none.
func (ps *planSet) of(l Limits) *plan {
	if ps.many != nil {
		return ps.many[l]
	}
	for _, p := range ps.few {
		if p.limits == l {
			return p
		}
	}
	return nil
}

// add adds a plan of [Limits] that have none.
func (ps *planSet) add(p *plan) {
	if ps.many == nil && len(ps.few) < fewPlans {
		ps.few = append(ps.few, p)
		return
	}
	if ps.many == nil {
		ps.many = make(map[Limits]*plan)
		for _, p := range ps.few {
			ps.many[p.limits] = p
		}
		ps.few = nil
	}
	ps.many[p.limits] = p
	ps.peak = max(ps.peak, len(ps.many))
}

// remove removes a plan that is in the set.
func (ps *planSet) remove(p *plan) {
	if ps.many != nil {
		delete(ps.many, p.limits)
		return
	}
	ps.few = slices.DeleteFunc(ps.few, func(q *plan) bool { return q == p })
}

// shrink gives back the memory of plans that are no longer there, unless there have never been
// more than worth.
func (ps *planSet) shrink(worth int) {
	if ps.many != nil {
		ps.many, ps.peak = shrunk(ps.many, ps.peak, worth)
	}
}
