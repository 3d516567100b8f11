package model

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// A Script is the story of one bucket: its first limits and a list of
// operations, whose instants never decrease. Requests that still wait at the end
// are refused by a Close.
type Script struct {
	Limits  shaper.Limits
	Fair    bool           // WithFairQueue is set, and calls have keys
	Bounded bool           // WithLineTimeout is set
	Timeout time.Duration  // its argument
	DryRun  bool           // WithDryRun is set, beside Bounded
	Meters  []shaper.Meter // of WithMeters, two at most
	Ops     []Op
}

// An Op is one operation of a script. Instants count from the start.
type Op struct {
	At   time.Duration
	Kind OpKind
	// Race means that the operation starts at the same time as all that is due at
	// its instant. Without Race, all that is due at its instant happens before it.
	Race bool

	N        int            // of a call that may wait, OpAllow, OpForecast, OpSettle: the cost; of OpAtMost: what may pass
	Deadline time.Duration  // of a call that may wait, OpShutdown: of the context; 0: none
	Deaf     bool           // of a call that may wait: the context states its deadline, but does not end at it
	Late     time.Duration  // of a call that may wait: from this instant on the context's Err returns an error, and Done stays open; 0: never
	Target   int            // of OpCancel, OpRelease, OpSettle: index of the call that ends; -1: none
	Key      string         // of a call that may wait, OpAllow, OpForecast in a fair script
	Weight   int            // of the key, as the weight function returns it during the operation
	Limits   shaper.Limits  // of OpSet
	Hold     time.Duration  // of OpHold
	Asked    time.Duration  // of OpRetry: when the request asked for the first time
	More     []int          // of OpWait, OpReserve, OpSettle, OpAtMost: the numbers for further levels; nil: it is no call of ...Each
	Meters   []shaper.Meter // of OpSetMeters
}

// An OpKind is the kind of an operation.
type OpKind int

const (
	OpWait OpKind = iota // WaitN
	OpAllow
	OpForecast
	OpLook     // Stats
	OpSet      // SetLimits
	OpCancel   // ends the context of a call
	OpClose    // Close
	OpShutdown // Shutdown
	OpAcquire
	OpRelease // calls what Acquire returned
	OpHold
	OpReserve
	OpSettle // calls what Reserve returned
	OpAtMost
	OpRetry // Acquire of a request that the upstream has refused; see Retrier
	OpSetMeters
	OpSave    // Snapshot
	OpRestore // Restore of what OpSave has returned
)

var kindNames = [...]string{
	"OpWait", "OpAllow", "OpForecast", "OpLook", "OpSet", "OpCancel", "OpClose", "OpShutdown",
	"OpAcquire", "OpRelease", "OpHold", "OpReserve", "OpSettle", "OpAtMost", "OpRetry", "OpSetMeters", "OpSave", "OpRestore",
}

// mayWait reports whether the operation is a call that can wait in the line.
func (o Op) mayWait() bool {
	return o.Kind == OpWait || o.Kind == OpAcquire || o.Kind == OpReserve || o.Kind == OpRetry
}

// hasTarget reports whether the operation is about another one.
func (o Op) hasTarget() bool {
	return o.Kind == OpCancel || o.Kind == OpRelease || o.Kind == OpSettle || o.Kind == OpRestore
}

// hasCost reports whether N is used.
func (o Op) hasCost() bool {
	return o.mayWait() || o.Kind == OpAllow || o.Kind == OpForecast || o.Kind == OpSettle || o.Kind == OpAtMost
}

// String returns the script as a Go literal, to be played again by a test.
func (s Script) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "model.Script{Limits: %s, Fair: %v, Bounded: %v, Timeout: %d, DryRun: %v, Meters: %s, Ops: []model.Op{\n",
		literal(s.Limits), s.Fair, s.Bounded, int64(s.Timeout), s.DryRun, metersLiteral(s.Meters))
	for _, o := range s.Ops {
		fmt.Fprintf(&b, "\t%s,\n", o.literal())
	}
	return b.String() + "}}"
}

func (o Op) literal() string {
	fields := []string{fmt.Sprintf("At: %d, Kind: model.%s", int64(o.At), kindNames[o.Kind])}
	note := func(shown bool, format string, value any) {
		if shown {
			fields = append(fields, fmt.Sprintf(format, value))
		}
	}
	note(o.Race, "Race: %v", o.Race)
	note(o.hasCost(), "N: %d", o.N)
	note(o.Deadline != 0, "Deadline: %d", int64(o.Deadline))
	note(o.Deaf, "Deaf: %v", o.Deaf)
	note(o.Late != 0, "Late: %d", int64(o.Late))
	note(o.hasTarget(), "Target: %d", o.Target)
	note(o.Key != "", "Key: %q", o.Key)
	note(o.Weight != 0, "Weight: %d", o.Weight)
	note(o.Kind == OpSet, "Limits: %s", literal(o.Limits))
	note(o.Kind == OpHold, "Hold: %d", int64(o.Hold))
	note(o.Kind == OpRetry, "Asked: %d", int64(o.Asked))
	note(o.More != nil, "More: %#v", o.More)
	note(o.Kind == OpSetMeters, "Meters: %s", metersLiteral(o.Meters))
	return "{" + strings.Join(fields, ", ") + "}"
}

func rateLiteral(r rate.Limit) string {
	switch {
	case r == rate.Inf:
		return "rate.Inf"
	case math.IsNaN(float64(r)):
		return "rate.Limit(math.NaN())"
	}
	return fmt.Sprintf("%v", float64(r))
}

func metersLiteral(ms []shaper.Meter) string {
	var all []string
	for _, m := range ms {
		all = append(all, fmt.Sprintf("{Name: %q, Rate: %s, Burst: %d, Returns: %v}", m.Name, rateLiteral(m.Rate), m.Burst, m.Returns))
	}
	return "[]shaper.Meter{" + strings.Join(all, ", ") + "}"
}

func literal(l shaper.Limits) string {
	r := rateLiteral(l.Rate)
	return fmt.Sprintf("shaper.Limits{Rate: %s, Burst: %d, Depth: %d, MaxWait: %d, InFlight: %d}",
		r, l.Burst, l.Depth, int64(l.MaxWait), l.InFlight)
}

// Without returns the script without operation i.
func (s Script) Without(i int) Script {
	rest := s
	rest.Ops = nil
	for j, o := range s.Ops {
		if j == i {
			continue
		}
		if o.hasTarget() && o.Target == i {
			o.Target = -1
		} else if o.hasTarget() && o.Target > i {
			o.Target--
		}
		rest.Ops = append(rest.Ops, o)
	}
	return rest
}

// Predict returns the answer of each operation by a model that makes a mistake, or
// [NoMistake]. If open is not empty, it is the reason why the guarantees allow other
// answers as well, and the answers must not be compared.
func (s Script) Predict(with Mistake) (answers []Answer, open string) {
	m := newSimulator(s, with)
	for i := range s.Ops {
		m.do(&s.Ops[i])
	}
	m.end()
	return m.answers, m.open
}

// end closes the bucket if anything still waits.
func (m *simulator) end() {
	if len(m.line) > 0 {
		m.close()
	}
}

// The wait for a seat is estimated from how long earlier requests held their seats. The
// guarantees leave open which stays are timed and how much each weighs. Package shaper's
// inflight.go decides that, and this file implements the same rule independently.

// noteStay counts the stay of a request that ends.
func (b *bucket) noteStay(w *waiter) {
	timed := w.number <= 16 || w.number%64 == 0 || w.longBefore
	if !timed {
		return
	}
	stay := b.now - w.left
	if b.stay == 0 {
		b.stay = stay
		return
	}
	b.stay += (stay - b.stay) / 8 // Division drops the fraction of a nanosecond.
}

// seatWait returns an estimate of how long the k-th request that waits for a seat has
// to wait until enough others have ended. It is 0 if there are seats for the first k.
func (b *bucket) seatWait(k int) time.Duration {
	must := int64(len(b.upstream) - b.limits.InFlight + k)
	if !b.capped() || b.blind || must <= 0 {
		return 0
	}
	wait := big.NewInt(must)
	wait.Mul(wait, big.NewInt(int64(b.stay)))
	wait.Div(wait, big.NewInt(int64(b.limits.InFlight)))
	return max(time.Millisecond, saturated(wait))
}

// waits returns how long each request of the line waits from now on, if all stay and
// no other comes, and as the last element how long a newcomer of cost n waits. Only the
// bucket and holds count: a seat that is missing now is taken to be free a nanosecond
// later. How long the wait for a seat is expected to be is seatWait.
func (b *bucket) waits(o *Op) []time.Duration {
	if len(b.more) > 0 {
		return b.waitsOfEach(o)
	}
	var waits []time.Duration
	n := o.N
	empty, since := b.empty, later(later(b.since, b.hold), instant(b.now))
	if b.overtakes(n) {
		since = instant(b.now)
	}
	for i := range len(b.line) + 1 {
		cost := n
		if i < len(b.line) {
			cost = b.line[i].N
		}
		at := later(since, b.allowed(empty, cost))
		wait := b.until(at)
		if len(b.line) > 0 || !b.hasRoom() {
			wait = max(wait, 1)
		}
		waits = append(waits, wait)
		empty, since = new(big.Rat).Add(later(empty, at), b.take(cost)), at
	}
	if b.overtakes(n) {
		waits[len(b.line)] = 0
	}
	return waits
}

// until returns the time from now to the instant at which r is seen, or the
// longest duration if that time is longer.
func (b *bucket) until(r *big.Rat) time.Duration {
	d := seen(r)
	return saturated(d.Sub(d, big.NewInt(int64(b.now))))
}

// judge returns the answer to a newcomer: how long it waits, or why it is
// refused and when it may come again.
func (m *simulator) judge(o *Op) (wait time.Duration, refusal Answer) {
	if m.asksTurns(o) {
		wait, _, refusal = m.judgeTurn(o)
		return wait, refusal
	}
	line := m.waits(o)
	wait, line = line[len(m.line)], line[:len(m.line)]

	told := max(wait, m.seatWait(len(line)+1))
	depth := m.limits.Depth
	if o.Kind == OpAllow {
		depth = 0
	}
	if m.mistake == DepthOffByOne && depth > 0 {
		depth++
	}
	bounded := wait
	if m.mistake == HoldUnbounded {
		unheld := *m
		unheld.hold = new(big.Rat)
		bounded = unheld.waits(o)[len(m.line)]
	}
	late, missed, again := m.tooLate(o, wait, bounded)
	switch {
	case m.closed:
		refusal.Result = Closed
		if len(line) > 0 {
			refusal.Retry = max(line[len(line)-1], m.seatWait(len(line)))
		}
	case m.tooCostlyEach(o):
		refusal.Result = TooCostly
	case wait > 0 && len(line)+m.ghosts >= depth:
		refusal.Result = QueueFull
		if depth == 0 {
			again = told
		} else if k := len(line) - depth + 1; k > 0 {
			again = max(again, line[k-1], m.seatWait(k))
		}
		refusal.Retry = min(again, told)
	case late:
		refusal.Result, refusal.Missed = TooLate, missed
		refusal.Retry = min(again, told)
	}
	return wait, refusal
}

// tooLate reports whether a call that would have to wait so long misses its deadline, or MaxWait by the wait
// that MaxWait bounds, and after which time neither would keep it any more.
func (b *bucket) tooLate(o *Op, wait, bounded time.Duration) (late, missed bool, again time.Duration) {
	longest := b.limits.MaxWait
	if longest == 0 || longest > year {
		longest = year
	}
	if b.bounded && b.timeout > 0 && b.mistake != BoundIgnoredAtEntry {
		longest = min(longest, b.timeout)
	}
	again = max(wait-longest, b.seatWait(1))
	if o.Deadline != 0 {
		rest := o.Deadline - b.now
		missed = wait >= rest
		again = max(again, wait-max(rest, 1)+1)
	}
	return bounded > longest || missed, missed, again
}

// tooCostly reports whether cost n can never fit.
func (r *rule) tooCostly(n int) bool {
	if r.limits.Rate == rate.Inf {
		return false
	}
	return r.limits.Depth == 0 && n > r.burst() || r.take(n).Cmp(instant(year)) > 0
}

const year = 365 * 24 * time.Hour // the horizon

// valid reports whether shaper.New takes l.
func valid(l shaper.Limits) bool {
	r := float64(l.Rate)
	if math.IsNaN(r) || r <= 0 || l.Rate != rate.Inf && r > 1e9 {
		return false
	}
	if l.Burst < 0 || l.Depth < 0 || l.MaxWait < 0 || l.Slack < 0 || l.InFlight < 0 {
		return false
	}
	drain := new(big.Rat).Mul(new(big.Rat).SetInt64(int64(max(l.Burst, 1))), intervalOf(l.Rate))
	return drain.Cmp(instant(year)) <= 0
}

// intervalOf returns the time that one cost unit takes at rate r, which is read
// as the simplest fraction within 2⁻⁵⁰ of it.
func intervalOf(r rate.Limit) *big.Rat {
	if r == rate.Inf {
		return new(big.Rat)
	}
	exact := new(big.Rat).SetFloat64(float64(r))
	slip := new(big.Rat).Mul(exact, big.NewRat(1, 1<<50))
	perSecond := simplest(new(big.Rat).Sub(exact, slip), new(big.Rat).Add(exact, slip))
	return new(big.Rat).Quo(big.NewRat(int64(time.Second), 1), perSecond)
}

// simplest returns the fraction from low to high, both above 0, that has the
// smallest denominator.
func simplest(low, high *big.Rat) *big.Rat {
	whole := new(big.Rat).SetInt(new(big.Int).Quo(low.Num(), low.Denom()))
	if whole.Cmp(low) == 0 {
		return whole
	}
	if next := new(big.Rat).Add(whole, big.NewRat(1, 1)); next.Cmp(high) <= 0 {
		return next
	}
	low, high = new(big.Rat).Sub(low, whole), new(big.Rat).Sub(high, whole)
	rest := simplest(high.Inv(high), low.Inv(low))
	return whole.Add(whole, rest.Inv(rest))
}

// instant returns a whole number of nanoseconds as a fraction.
func instant(d time.Duration) *big.Rat { return new(big.Rat).SetInt64(int64(d)) }

// seen returns the first whole nanosecond that is not before r.
func seen(r *big.Rat) *big.Int {
	up := new(big.Int).Add(r.Num(), r.Denom())
	up.Sub(up, big.NewInt(1))
	return up.Div(up, r.Denom())
}

// saturated returns n as a duration, or the longest duration.
func saturated(n *big.Int) time.Duration {
	if !n.IsInt64() {
		return math.MaxInt64
	}
	return time.Duration(n.Int64())
}

// later returns the later of two instants.
func later(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) > 0 {
		return a
	}
	return b
}
