package model

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"time"
)

// A Departure is a request that one of several processes let leave. The processes share a
// bucket, and a log of their departures, in whatever order, is what [SharedPace] judges.
type Departure struct {
	At      time.Duration // on one clock for all processes
	Process int           // which one; a process that was restarted is another
	Number  int64         // of the request in the order in which its process took it into the line
	Cost    int64
}

// A SharedPace is the common promise of processes whose slots are at least Interval apart,
// if each slot is used not later than Lateness after its instant: no window of length W,
// which contains both of its ends, has a cost above
//
//	floor((W + Lateness) / Interval) + Burst
//
// For costs above Burst, the largest cost in the window stands in place of Burst. Where the
// rate was changed in between, Interval is the interval of the greatest rate, and Burst the
// greatest burst.
//
// The reason: the f-th request in the level takes it up from the instant empty(f), and thus
// leaves at an instant from empty(f) − max(0, Burst − cost(f)) · Interval to empty(f) +
// Lateness. Of the requests in a window, let f be the first in the level and l the last.
// They have taken up the level from empty(f) to empty(l) + cost(l) · Interval at most. f is
// in the window, so the window does not end before it begins plus the span between the two,
// less Lateness and max(Burst, cost(l)) · Interval.
type SharedPace struct {
	Interval *big.Rat // nanoseconds per cost unit
	Burst    int64
	Lateness time.Duration
}

// An Extra is a cost by which windows may exceed a [SharedPace], because something went
// wrong: each window may which has an instant from From to To in it, once.
type Extra struct {
	From, To time.Duration
	Cost     int64
	Why      string
}

// A Window is a window of a log, from one departure to another.
type Window struct {
	From, To time.Duration
	Cost     int64 // of the departures in it
	Allowed  int64 // the bound
}

// Excess returns by how much the cost of the window is above the bound. It is negative if
// it is below.
func (w Window) Excess() int64 { return w.Cost - w.Allowed }

func (w Window) String() string {
	return fmt.Sprintf("cost %d in the %v from %v to %v, where %d is allowed", w.Cost, w.To-w.From, w.From, w.To, w.Allowed)
}

// Worst returns the window of the log with the greatest excess. It compares all windows
// exactly, in a time proportional to the number of departures if they are in order. The log
// must not be empty.
//
// With C(i) as the cost of all departures up to the i-th, a window from departure j to
// departure i is within the bound if
//
//	C(i) − C(j−1) − max(Burst, costs of j…i) ≤ (t(i) − t(j) + Lateness) / Interval
//
// as the left side is a whole number. So C(i) − t(i)/Interval is compared with the least of
// C(j−1) − t(j)/Interval + max(Burst, costs of j…i). A stack keeps the candidates for j: of
// those with the same greatest cost up to now only the best, and beside each the best of
// all that are below it.
func (p SharedPace) Worst(log []Departure, extras ...Extra) Window {
	return p.worstOf(inOrder(log), extras)
}

// A candidate is where the windows begin best, of all those with one greatest cost.
type candidate struct {
	largest  int64    // the greatest cost since, or Burst
	key      *big.Int // C(j−1) − t(j)/Interval, less the extras that end before t(j); scaled
	from     int      // j
	best     *big.Int // the least of key + largest of this one and those below; scaled
	bestFrom int
}

func (p SharedPace) worstOf(log []Departure, extras []Extra) Window {
	begun, ended := slices.Clone(extras), slices.Clone(extras)
	slices.SortFunc(begun, func(a, b Extra) int { return cmp.Compare(a.From, b.From) })
	slices.SortFunc(ended, func(a, b Extra) int { return cmp.Compare(a.To, b.To) })

	var (
		stack                 []candidate
		cost, before, expired int64 // of the departures, of the extras that have begun, and of those that have ended
		worst                 *big.Int
		from, to              int
		total                 = make([]int64, len(log)+1)
	)
	for i, d := range log {
		for ; len(begun) > 0 && begun[0].From <= d.At; begun = begun[1:] {
			before += begun[0].Cost
		}
		for ; len(ended) > 0 && ended[0].To < d.At; ended = ended[1:] {
			expired += ended[0].Cost
		}
		next := candidate{largest: max(p.Burst, d.Cost), key: p.scaled(cost-expired, d.At), from: i}
		for len(stack) > 0 && stack[len(stack)-1].largest <= next.largest {
			top := stack[len(stack)-1]
			if top.key.Cmp(next.key) <= 0 {
				next.key, next.from = top.key, top.from
			}
			stack = stack[:len(stack)-1]
		}
		next.best, next.bestFrom = new(big.Int).Add(next.key, p.scaled(next.largest, 0)), next.from
		if len(stack) > 0 && stack[len(stack)-1].best.Cmp(next.best) <= 0 {
			next.best, next.bestFrom = stack[len(stack)-1].best, stack[len(stack)-1].bestFrom
		}
		stack = append(stack, next)

		cost += d.Cost
		total[i+1] = cost
		excess := p.scaled(cost-before, d.At)
		if excess.Sub(excess, next.best); worst == nil || excess.Cmp(worst) > 0 {
			worst, from, to = excess, next.bestFrom, i
		}
	}
	return p.window(log, total, from, to, extras)
}

// scaled returns cost − at/Interval, times a positive number that is the same for all, so
// that it is whole.
func (p SharedPace) scaled(cost int64, at time.Duration) *big.Int {
	units := new(big.Int).Mul(big.NewInt(cost), p.Interval.Num())
	return units.Sub(units, new(big.Int).Mul(big.NewInt(int64(at)), p.Interval.Denom()))
}

// window returns the window between two departures; total[i] is the cost of the first i.
func (p SharedPace) window(log []Departure, total []int64, from, to int, extras []Extra) Window {
	w := Window{From: log[from].At, To: log[to].At, Cost: total[to+1] - total[from]}
	w.Allowed = p.Slots(w.To-w.From+p.Lateness) + p.Burst
	for _, d := range log[from : to+1] {
		w.Allowed = max(w.Allowed, p.Slots(w.To-w.From+p.Lateness)+d.Cost)
	}
	for _, e := range extras {
		if e.From <= w.To && e.To >= w.From {
			w.Allowed += e.Cost
		}
	}
	return w
}

// Slots returns how many whole intervals there are in a span, which is not negative.
func (p SharedPace) Slots(span time.Duration) int64 {
	intervals := new(big.Rat).Quo(new(big.Rat).SetInt64(int64(span)), p.Interval)
	return new(big.Int).Quo(intervals.Num(), intervals.Denom()).Int64()
}

// Check returns an error that says what is wrong with the log: a window that exceeds the
// pace, a request that left twice, or one that left before another which its process had
// taken into the line earlier. Worst says how extras count.
func (p SharedPace) Check(log []Departure, extras ...Extra) error {
	if len(log) == 0 {
		return nil
	}
	if err := CheckOrder(log); err != nil {
		return err
	}
	if worst := p.Worst(log, extras...); worst.Excess() > 0 {
		return fmt.Errorf("the pace was exceeded: %v", worst)
	}
	return nil
}

// Surplus returns how many requests of the log would have to be left out so that the others
// keep the pace, if all have a cost of 1: the least number that there is. Each request that
// finds no room is left out. Other costs are not supported.
func (p SharedPace) Surplus(log []Departure) (surplus int64) {
	var empty *big.Int // when the level reaches 0, in units of Interval.Denom() of a nanosecond
	room := new(big.Int).Mul(big.NewInt(p.Burst-1), p.Interval.Num())
	room.Add(room, new(big.Int).Mul(big.NewInt(int64(p.Lateness)), p.Interval.Denom()))
	for _, d := range inOrder(log) {
		if d.Cost != 1 {
			panic("model: Surplus is for costs of 1")
		}
		at := new(big.Int).Mul(big.NewInt(int64(d.At)), p.Interval.Denom())
		if empty == nil || empty.Cmp(at) < 0 {
			empty = at
		}
		if new(big.Int).Sub(empty, room).Cmp(at) > 0 {
			surplus++
			continue
		}
		empty = new(big.Int).Add(empty, p.Interval.Num())
	}
	return surplus
}

// LongestGap returns the longest time from one departure to the next that begins and ends
// within a time from one instant to another. Both instants count as departures.
func LongestGap(log []Departure, from, to time.Duration) time.Duration {
	last, longest := from, time.Duration(0)
	for _, d := range inOrder(log) {
		if d.At >= from && d.At <= to {
			last, longest = d.At, max(longest, d.At-last)
		}
	}
	return max(longest, to-last)
}

// CheckOrder returns an error if a process let a request leave twice, or after one that it
// had taken into its line later.
func CheckOrder(log []Departure) error {
	log = slices.Clone(log)
	slices.SortFunc(log, func(a, b Departure) int {
		return cmp.Or(cmp.Compare(a.Process, b.Process), cmp.Compare(a.Number, b.Number))
	})
	for i := 1; i < len(log); i++ {
		switch a, b := log[i-1], log[i]; {
		case a.Process != b.Process:
		case a.Number == b.Number:
			return fmt.Errorf("request %d of process %d left twice: at %v and at %v", a.Number, a.Process, a.At, b.At)
		case a.At > b.At:
			return fmt.Errorf("process %d let request %d leave at %v, which is after request %d at %v", a.Process, a.Number, a.At, b.Number, b.At)
		}
	}
	return nil
}

// inOrder returns the log in the order of its instants.
func inOrder(log []Departure) []Departure {
	byTime := func(a, b Departure) int { return cmp.Compare(a.At, b.At) }
	if slices.IsSortedFunc(log, byTime) {
		return log
	}
	log = slices.Clone(log)
	slices.SortStableFunc(log, byTime)
	return log
}
