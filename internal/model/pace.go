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

// This file is what the model knows of WithLineTimeout, and of requests that a Transport sends again.

// noBound is the bound of a request that may wait for ever.
const noBound = 250 * year

// boundOf returns the bound of a request that has first asked at an instant.
func (r *rule) boundOf(asked time.Duration) time.Duration {
	d := r.timeout
	if d == 0 {
		d = r.limits.MaxWait
	}
	if !r.bounded || d == 0 {
		return noBound
	}
	return asked + d
}

// asked returns when a request has first asked.
func (w *waiter) asked() time.Duration {
	if w.Kind == OpRetry {
		return w.Asked
	}
	return w.came
}

// nextBound returns the request in line whose bound comes next, of equal ones the one that entered
// first; nil if none has a bound.
func (b *bucket) nextBound() (next *waiter) {
	for _, w := range b.line {
		if w.bound != noBound && (next == nil || cmp.Or(cmp.Compare(w.bound, next.bound), cmp.Compare(w.index, next.index)) < 0) {
			next = w
		}
	}
	return next
}

// overdue refuses those in line whose bound comes before an instant, one after the other.
func (m *simulator) overdue(before time.Duration) {
	var refused, late []*waiter
	for w := m.nextBound(); w != nil && w.bound < before; w = m.nextBound() {
		if w.bound == m.now && w.Deadline == m.now && !w.Deaf {
			m.leaveOpen("a deadline falls on a bound")
		}
		if m.lateAt == m.now {
			m.leaveOpen("a slot is handed on at a bound")
		}
		m.boundAt = m.now
		m.leaveLine(w)
		if w.gone(m.now) {
			late = append(late, w)
		} else {
			m.refused(w, Answer{Result: TooLate})
			if !m.dryRun {
				refused = append(refused, w)
			}
		}
		m.settle()
	}
	for _, w := range late {
		m.abandoned(w, Gone)
	}
	for _, w := range refused {
		a := &m.answers[w.index]
		a.Retry = m.retryOfOverdue(w)
		a.Ended.Retry = a.Retry
	}
}

// retryOfOverdue returns after which time a call like that of a request would be admitted, but not before
// the next one leaves.
func (m *simulator) retryOfOverdue(w *waiter) time.Duration {
	again := *w.Op
	again.Kind = OpWait
	if again.Deadline != 0 {
		again.Deadline += m.now - w.came
	}
	_, refusal := m.judge(&again)
	if m.mistake == RetryAtOnce {
		return max(1, refusal.Retry)
	}
	next := max(m.waits(w.Op)[0], m.seatWait(1))
	return max(1, next, refusal.Retry)
}

// overdueAtOnce refuses those in line whose bound comes before the end of the hold.
func (m *simulator) overdueAtOnce() {
	until := saturated(seen(m.hold))
	switch m.mistake {
	case HoldDoomsNobody:
		return
	case HoldDoomsAtItsEnd:
		until++
	}
	m.overdue(until)
}

// judgeRetry is judge for a request that a Transport sends again. Only others like it are ahead of it.
func (m *simulator) judgeRetry(w *waiter) (refusal Answer) {
	if m.closed && len(m.line) == 0 {
		return Answer{Result: Closed}
	}
	alone := m.bucket
	alone.line = m.line[:m.retries()]
	waits := alone.waits(w.Op)
	wait := waits[len(waits)-1]
	if wait == 0 && (len(m.line) > 0 || !m.hasRoom()) {
		wait = 1
	}
	var again time.Duration
	late := false
	if rest := max(0, w.Deadline-m.now); w.Deadline != 0 && wait >= rest {
		late, again = true, wait-rest+1
		refusal.Missed = true
	}
	if bound := m.boundOf(w.asked()); bound != noBound && wait > bound-m.now {
		late, again = true, max(again, wait-(bound-m.now))
	}
	if late {
		refusal.Result, refusal.Retry = TooLate, max(again, m.seatWait(1))
	}
	return refusal
}

// retries returns how many at the head of the line are sent again.
func (b *bucket) retries() int {
	for i, w := range b.line {
		if w.Kind != OpRetry {
			return i
		}
	}
	return len(b.line)
}

// shadow lets a request through, and its shadow wait in line, which nobody can end.
func (m *simulator) shadow(w *waiter) {
	if _, refusal := m.judge(w.Op); refusal.Result != "" {
		m.refused(w, refusal)
	} else {
		o := *w.Op
		o.Deadline, o.Late = 0, 0
		if len(m.line) == 0 {
			m.since = instant(m.now)
		}
		m.line = append(slices.Clip(m.line), &waiter{Op: &o, index: w.index, came: m.now, bound: m.boundOf(m.now)})
		if m.mistake == ShadowsStay {
			m.line[len(m.line)-1].bound = noBound
		}
		m.settle()
	}
	m.finish(w, Left)
	m.answers[w.index].Ended = Event{Hook: HookDeparted, At: m.now, Cost: w.N, Waiting: len(m.line)}
}
