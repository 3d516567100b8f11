// Package replay computes how requests that arrived at a bucket would have fared under
// other limits. It runs no Shaper: it is a function of the arrivals, in virtual time.
// A [Bucket] replays requests one after another as they come, however many, if none gives
// up. [Run] replays a recording, in which callers may give up, with the same Bucket.
//
// The replay obeys the one rule by which requests leave, with every instant exact:
//
//	A request of cost n leaves as soon as it is at the head of the line and
//	the level is at most max(0, Burst − n). Leaving raises the level by n.
//
// Events at one instant happen in this order: departures, callers that give up, arrivals.
// A replay has no holds, no changes of the limits, and no late wake-ups. It has no cap on
// requests in flight either: a request that leaves at another instant ends at an unknown one.
//
// internal/model simulates the same and more, for tests. It walks the whole line at each
// arrival, and imports package testing, so a program can't use it; the tests of this
// package compare the two. Another test plays the same requests to a real
// [shaper.Group] in a testing/synctest bubble and to Buckets.
package replay

import (
	"cmp"
	"math"
	"slices"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper"
)

// Never is the instant that does not come.
const Never time.Duration = math.MaxInt64

// A Request is one arrival. Instants count from the start of the replay.
type Request struct {
	At       time.Duration
	Cost     int           // at least 1
	Allow    bool          // it leaves at once or is refused, as by [shaper.Shaper.AllowN]
	Deadline time.Duration // the instant at which its context ends by itself; Never: it has no deadline
	Patience time.Duration // its caller gives up after so much waiting; Never: it stays to the end
}

// A Start is a bucket at the start of a replay. The zero Start is an empty bucket.
type Start struct {
	Level float64
	Line  []Request // those that wait already, head first
}

// A Result is the fate of a request.
type Result int

// The zero Result is of a request that is in line when the replay ends.
const (
	Waiting Result = iota
	Departed
	QueueFull
	TooLate
	TooCostly
	Abandoned
)

// A Fate is the Result of a request, and how long it waited for it.
type Fate struct {
	Result Result
	Waited time.Duration // 0: it did not wait; of a request still in line, until the end of the replay
}

// Run returns the fate of each of the requests, which must be in the order of their
// instants, under valid limits. It ends at an instant, which it includes.
func Run(l shaper.Limits, start Start, requests []Request, end time.Duration) []Fate {
	p := NewPlan(l)
	b := Bucket{empty: p.drain(start.Level)}
	for _, r := range start.Line {
		b.push(exact.Nanos{}, place{r.Cost, -1})
	}
	fates, numbers := make([]Fate, len(requests)), make([]int, len(requests)) // numbers are the numbers of their places
	left := func(i int, slot exact.Nanos) {
		if i >= 0 {
			fates[i] = Fate{Departed, time.Duration(slot.Ceil()) - requests[i].At}
		}
	}
	leaving, arrived := patienceOf(requests), 0
	advance := func(to time.Duration) {
		// Whoever gives up at the instant of the arrival has yet to come.
		for ; len(leaving) > 0 && leaving[0].until <= to && leaving[0].index < arrived; leaving = leaving[1:] {
			until, i := leaving[0].until, leaving[0].index
			b.settle(p, until, left)
			if r := &requests[i]; fates[i].Result == Waiting {
				b.giveUp(numbers[i], until)
				fates[i] = Fate{Abandoned, until - r.At}
			}
		}
		b.settle(p, to, left)
	}
	for i, r := range requests {
		if r.At > end {
			break
		}
		advance(r.At)
		arrived, numbers[i] = i+1, b.end
		if fate := b.enter(p, r, i); fate.Waited == 0 {
			fates[i] = fate
		}
	}
	advance(end)
	for n := b.first; n < b.end; n++ {
		if at := b.at(n); at.cost > 0 && at.index >= 0 {
			fates[at.index].Waited = end - requests[at.index].At
		}
	}
	return fates
}

// A patience is the instant at which the caller of a request gives up.
type patience struct {
	until time.Duration
	index int
}

// patienceOf returns the instants at which the callers of the requests give up, in order. Callers
// that give up at one instant are in the order of their arrival.
func patienceOf(requests []Request) (all []patience) {
	for i, r := range requests {
		if r.Patience < Never-r.At {
			all = append(all, patience{r.At + r.Patience, i})
		}
	}
	slices.SortFunc(all, func(p, q patience) int { return cmp.Or(cmp.Compare(p.until, q.until), cmp.Compare(p.index, q.index)) })
	return all
}
