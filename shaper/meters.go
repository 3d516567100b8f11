package shaper

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/exact"
)

// WithMeters gives a [Shaper] further levels beside the one of its [Limits]: one line, one decision. A request
// leaves when all levels at which it costs something have room for it ([Shaper.WaitEach], [Shaper.ReserveEach]). A
// call with a single cost, such as [Shaper.WaitN], [Shaper.Do], [Shaper.Reserve], [Shaper.Forecast], [Shaper.AtMost]
// or one of a [Middleware], costs that at the level of the Limits and nothing at the others.
//
//	s, err := shaper.New(shaper.Limits{Rate: 50. / 60, Burst: 25, Depth: 100},
//		shaper.WithMeters(shaper.Meter{Name: "input", Rate: 500, Burst: 15_000}, shaper.Meter{Name: "output", Rate: 133, Burst: 4000}))
//	settle, err := s.ReserveEach(ctx, 1, 1200, 300)
//	...
//	settle(1, 1234, 280)
//
// All that is said of a Shaper holds, except that:
//
//   - Rule. A request leaves as soon as it is at the head and each level at which it costs something is at most
//     max(0, Burst − cost). Leaving raises each by its cost, all at one instant, which may be rounded up by a
//     nanosecond. Lateness beyond [Limits.Slack] is lost at every level. A cost above the Burst of a level waits
//     until that is empty; with a Depth of 0 it is too costly.
//   - Order. Requests leave first in, first out over all levels. While levels keep them waiting, at least one is
//     too high for the head; the others may run empty. So k levels take at most k times as long as the scarcest
//     alone. [WithFairQueue], a turn costs the largest cost/Rate in nanoseconds, rounded up, at least 1, at the
//     rates when the request entered.
//   - Giving back. Each level for itself keeps the cost only if a later request has cost something there, or it
//     has been raised.
//   - Prediction. A request is predicted to leave at the later of two instants: when the head leaves, and the
//     latest at which one of its levels alone would let it leave behind all ahead of it. It may leave later, but
//     not sooner unless something is settled or changed.
//   - Change. [Shaper.SetLimits] and [Stats] are for the level of the Limits, [Shaper.SetMeters] and
//     [Shaper.Meters] for the others, a [Shaper.Hold] and a [Shaper.Snapshot] for all. [Shaper.Restore] leaves a
//     level alone that the snapshot does not have.
//
// Hooks, refusals and recordings tell the cost at the level of the Limits.
//
// [New] returns an error if WithMeters is given together with [WithBucket], [WithDryRun] or [WithBlock], for more
// than seven meters, and for a [Meter] that is invalid. [NewGroup] always does.
func WithMeters(ms ...Meter) Option { return common{metersOption(slices.Clone(ms))} }

type metersOption []Meter

func (o metersOption) apply(to *options) { to.meters = o }

// A Meter is a further level of a [Shaper] [WithMeters].
type Meter struct {
	Name  string     // not empty, and of one meter only
	Rate  rate.Limit // cost units per second, as [Limits.Rate]; at rate.Inf it lets all pass, and its level is 0
	Burst int        // as [Limits.Burst]; 0 means 1

	// Returns says that settle gives back all that was reserved too much, drained or not: the level falls by the
	// difference, but not below 0. That is for an upstream that counts in this way. Otherwise settle works as
	// [Shaper.Reserve] says: the level is as if the cost had been known.
	Returns bool
}

// limits returns the [Limits] of a bucket that has the level of a meter.
func (m Meter) limits() Limits { return Limits{Rate: m.Rate, Burst: m.Burst} }

// MeterStats is the state of a [Meter] at one instant. Its fields are as those of [Stats].
type MeterStats struct {
	Meter

	Level     float64 // in cost units
	Reserved  int     // cost units that are reserved and not settled
	GivenBack uint64  // cost units that settle has given back
	Charged   uint64  // cost units that settle has charged
	Forfeited uint64  // cost units that were reserved too much and did not come back
	Missed    float64 // cost units lost to lateness beyond Limits.Slack
}

// validateMeters returns why meters are invalid; nil if they are not.
func validateMeters(ms []Meter) error {
	if len(ms) > maxMore {
		return fmt.Errorf("shaper: there are %d meters, must be at most %d", len(ms), maxMore)
	}
	for i, m := range ms {
		if m.Name == "" {
			return fmt.Errorf("shaper: Meter.Name of meter %d is empty", i+1)
		}
		if slices.ContainsFunc(ms[:i], func(other Meter) bool { return other.Name == m.Name }) {
			return fmt.Errorf("shaper: Meter.Name is %.60q for two meters", m.Name)
		}
		if err := m.limits().validate(fmt.Sprintf("Meter %.60q: ", m.Name)); err != nil {
			return err
		}
	}
	return nil
}

// newMeters returns the further levels of a dispatcher; nil: there are none.
func (o *options) newMeters(d *dispatcher) furtherLevels {
	if len(o.meters) == 0 {
		return nil
	}
	m := &meters{d: d, as: o.meters, further: make([]bucket, len(o.meters)), outlays: make(map[*waiter]*outlay)}
	for i := range m.as {
		m.names = append(m.names, m.as[i].Name)
		m.further[i].plan = planOfMeter(m.as[i])
	}
	return m
}

func planOfMeter(m Meter) *plan {
	p := planOf(m.limits())
	p.returns = m.Returns
	return p
}

// meters are the levels of the flow of a [Shaper] [WithMeters]. The lock of the dispatcher guards them.
type meters struct {
	d       *dispatcher
	f       *flow
	names   []string // never changed
	as      []Meter  // as they were given
	further []bucket // that have their levels

	outlays map[*waiter]*outlay // of those in line, which are no larger for it
	most    int                 // how many there have been at a time, as a map does not shrink
	costs   [maxMore]costs      // of all in line
	sums    moreCosts           // the same, saturating

	// decided is the index of the level whose slot line.since is: 0 for the one of the bucket. Any level will do if
	// since is a whole nanosecond.
	decided int
	// free is how many of the departures of the flow have cost nothing at the level of its bucket, modulo 2³², or have
	// been given back there although others have followed.
	free uint32
}

func (m *meters) attach(f *flow) {
	m.f = f
	f.bucket.rareOrNew().level = m
}

func (m *meters) buckets() []bucket { return m.further }
func (m *meters) named() []string   { return m.names }

// at returns the bucket of a level, from 0.
func (m *meters) at(level int) *bucket {
	if level == 0 {
		return &m.f.bucket
	}
	return &m.further[level-1]
}

// costAt returns what a request costs at a level.
func costAt(level int, n int64, costs *moreCosts) int64 {
	switch {
	case level == 0:
		return n
	case costs == nil:
		return 0
	}
	return costs[level-1]
}

// turnOf returns the longest time in which one of the costs leaks, in nanoseconds, but no less than 1.
func (m *meters) turnOf(n int64, costs *moreCosts) int64 {
	turn := int64(1)
	for level := range len(m.further) + 1 {
		if n := costAt(level, n, costs); n > 0 {
			turn = max(turn, m.at(level).interval.Times(n).Ceil())
		}
	}
	return turn
}

func (m *meters) tooCostly(costs *moreCosts) bool {
	if costs == nil {
		return false
	}
	for i := range m.further {
		p := *m.further[i].plan
		if p.limits.Depth = m.f.bucket.limits.Depth; p.tooCostly(costs[i]) {
			return true
		}
	}
	return false
}

// pass raises the further levels for a request that has left as it came.
func (m *meters) pass(now, n int64, o *outlay) {
	if n == 0 {
		m.free++
	}
	if o == nil {
		return
	}
	for i := range m.further {
		if b := &m.further[i]; o.costs[i] > 0 {
			b.idleUntil(now)
			b.leave(exact.At(now), o.costs[i])
		}
	}
}

func (m *meters) enter(w *waiter, o *outlay) {
	m.outlays[w] = o
	m.most = max(m.most, len(m.outlays))
	for i := range m.further {
		m.costs[i].add(o.costs[i])
		m.sums[i] = m.costs[i].total()
	}
}

func (m *meters) goes(w *waiter) {
	o := m.outlays[w]
	if delete(m.outlays, w); len(m.outlays) == 0 && m.most > maxSpares {
		m.outlays, m.most = make(map[*waiter]*outlay), 0
	}
	for i := range m.further {
		m.costs[i].take(o.costs[i])
		m.sums[i] = m.costs[i].total()
	}
}

func (m *meters) of(w *waiter) *moreCosts { return &m.outlays[w].costs }

func (m *meters) inLine() *moreCosts { return &m.sums }

func (m *meters) leavesBehind(l load, n int64, costs *moreCosts) int64 {
	hold := m.f.bucket.coldOrNone().hold
	leaves := hold.Ceil()
	if l.n > 0 {
		leaves = max(leaves, m.mayLeave(cmp.Or(l.head, m.f.line.head)))
	}
	for level := range len(m.further) + 1 {
		b := m.at(level)
		if n := costAt(level, n, costs); n > 0 {
			empty := exact.Later(b.empty, exact.At(m.d.clock))
			leaves = max(leaves, b.leavesAfter(bucketInstants{empty, hold}, costAt(level, l.cost, l.more), n))
		}
	}
	return leaves
}

// mayLeave returns the slot of the head, rounded up to a nanosecond.
func (m *meters) mayLeave(head *waiter) int64 {
	slot, _, _ := m.slot(head)
	return slot.Ceil()
}

// slot returns the latest of the instants from which on a level lets the head of the line leave, and nothing else keeps it:
// the level, if it is one, and whether that has been no earlier than all else.
func (m *meters) slot(head *waiter) (slot exact.Nanos, level int, isDue bool) {
	slot, level = m.f.line.since, m.decided
	if hold := m.f.bucket.coldOrNone().hold; hold.After(slot) {
		slot, level = hold, 0
	}
	costs := m.of(head)
	for i := range len(m.further) + 1 {
		n, b := costAt(i, head.cost, costs), m.at(i)
		if n == 0 {
			continue
		}
		// Fractions of two levels need not be compared: within one nanosecond either may decide.
		if due := b.due(n); due.Ceil() > slot.Ceil() || i == level && due.After(slot) {
			slot, level, isDue = due, i, true
		}
	}
	return slot, level, isDue
}

// leave lets the head leave at its slot: see bucket.letLeave. The slot may be a fraction of a nanosecond of the level that
// has decided. For the others it is rounded up.
func (m *meters) leave(w *waiter, now int64) bool {
	f, d := m.f, m.d
	slot, decided, isDue := m.slot(w)
	if slot.Ceil() > now {
		return false
	}
	c := f.bucket.cold
	rounded := slot.After(c.hold) && (isDue || c.rare.sinceRounded)
	if decided == 0 && isDue {
		d.watcher.departs(f.line, now, w.cost)
	} else {
		d.watcher.rescheduled(f.line) // It is not the schedule of the Limits.
	}
	whole := slot.Ceil()
	if earliest := exact.At(now - f.bucket.limits.slack()); earliest.After(slot) {
		for level := range len(m.further) + 1 {
			b, lost := m.at(level), exact.At(earliest.Whole()-whole)
			b.idleUntil(c.hold.Whole())
			if level == decided {
				lost = b.interval.Minus(earliest, slot)
			}
			b.coldOrNew().missed += b.interval.Units(lost)
			b.setEmpty(b.interval.Plus(b.empty, lost), nil)
		}
		slot, whole = earliest, earliest.Whole()
	}
	o := m.outlays[w]
	if w.cost == 0 {
		m.free++
		f.bucket.departures++
	}
	for level := range len(m.further) + 1 {
		b, by := m.at(level), leaving{exact.At(whole), false, now}
		if n := costAt(level, w.cost, &o.costs); n > 0 {
			b.idleUntil(c.hold.Whole())
			if level == decided && (isDue || rounded || slot != by.slot) {
				by.slot, by.rounded = slot, rounded
			} else {
				b.idleUntil(whole)
			}
			if b.leaveAt(by.slot, n, by.rounded); w.is(accounted) {
				b.ledger().leaves(d, f, b, w, by)
			}
		}
		o.raises[level] = m.raisesAt(level)
	}
	f.line.since, m.decided, c.rare.sinceRounded = slot, decided, rounded
	m.goes(w)
	return true
}

// raisesAt returns how often a level has been raised, modulo 2³².
func (m *meters) raisesAt(level int) uint32 {
	if level == 0 {
		return m.f.bucket.departures - m.free
	}
	return m.at(level).departures
}

// giveBack undoes a departure at each level that has not been raised since. A later departure that has cost nothing at the
// level of the bucket keeps its number there.
func (m *meters) giveBack(w *waiter, with *companions) {
	o, first := with.outlay, &m.f.bucket
	isLatest := first.departures == w.departureNo
	for i := range m.further {
		b := &m.further[i]
		if o.costs[i] == 0 {
			continue
		}
		if w.is(accounted) {
			b.ledger().givesUp(b, w)
		}
		b.giveBack(o.raises[1+i], o.costs[i])
	}
	switch {
	case w.cost > 0 && m.raisesAt(0) == o.raises[0]:
		if first.giveBack(first.departures, w.cost); !isLatest {
			first.departures++
			m.free++
		}
	case w.cost == 0 && isLatest:
		first.departures--
		m.free--
	}
}

// WaitEach is [Shaper.WaitN] for a request that has a cost at each level of a Shaper [WithMeters]: the first cost is
// for the [Limits], and the others for the meters in their order. A level at which it costs 0 is not asked, however
// high it is. If all costs are 0 it returns nil at once and counts nothing; any other request counts. Another number
// of costs than levels is an error, which is returned bare, like [ErrNegativeCost].
func (s *Shaper) WaitEach(ctx context.Context, costs ...int) error {
	return s.waitEach(ctx, nil, costs)
}

// waitEach is WaitEach for a request with a key, or nil.
func (s *Shaper) waitEach(ctx context.Context, key any, costs []int) error {
	s.mustBeMade()
	if s.capped {
		return errUseAcquire
	}
	n, more, err := s.checkCosts("WaitEach", costs)
	if err != nil {
		return err
	}
	r := &request{ctx: ctx, key: key, cost: n}
	if s.further != nil {
		var both struct {
			companions
			outlay
		}
		both.costs, both.companions.outlay = more, &both.outlay
		r.with = &both.companions
	}
	_, err = s.wait(r)
	return err
}

// WaitEach is as [Shaper.WaitEach] says. The bucket of a key of a [Group] has one level.
func (l *KeyLimiter) WaitEach(ctx context.Context, costs ...int) error {
	if k, ok := l.made().(keyOfShaper); ok {
		return k.Shaper.waitEach(ctx, k.key, costs)
	}
	n, _, err := new(dispatcher).checkCosts("WaitEach", costs)
	if err != nil {
		return err
	}
	return l.WaitN(ctx, int(n))
}

// SetMeters puts other rates and bursts of the meters in force at once, as [Shaper.SetLimits] does for the [Limits]. There
// must be as many meters in the same order, with the same names and the same Returns. Else, and if a meter is invalid,
// SetMeters returns an error and changes nothing.
func (s *Shaper) SetMeters(ms ...Meter) error {
	s.mustBeMade()
	if err := validateMeters(ms); err != nil {
		return err
	}
	m, plans := s.meters(), make([]*plan, len(ms))
	for i := range ms {
		plans[i] = planOfMeter(ms[i])
	}
	now := s.lockFlow(&s.flow)
	defer s.unlockAndArm()
	if len(ms) != len(m.as) {
		return fmt.Errorf("shaper: SetMeters has %d meters, must have %d, as New had", len(ms), len(m.as))
	}
	for i, from := range m.as {
		if to := ms[i]; from.Name != to.Name || from.Returns != to.Returns {
			return fmt.Errorf("shaper: SetMeters: meter %d is %.60q with Returns %v, must be %.60q with Returns %v, as New had",
				i+1, to.Name, to.Returns, from.Name, from.Returns)
		}
	}
	if len(ms) == 0 {
		return nil
	}
	m.as = slices.Clone(ms)
	for i := range m.further {
		b := &m.further[i]
		b.idleUntil(now)
		b.change(plans[i], now)
	}
	m.f.line.beginHead(now)
	s.watcher.rescheduled(m.f.line)
	s.markDirtyLocked(m.f)
	s.advanceLocked(now, headFirst)
	return nil
}

// Meters returns the state of the meters of a Shaper [WithMeters], in their order.
func (s *Shaper) Meters() []MeterStats {
	s.mustBeMade()
	now := s.lockFlow(&s.flow)
	defer s.unlockAndArm()
	m := s.meters()
	found := make([]MeterStats, len(m.as))
	for i := range m.further {
		b := &m.further[i]
		settled := b.settled()
		found[i] = MeterStats{
			Meter: m.as[i], Level: b.level(now), Reserved: settled.units(),
			GivenBack: settled.givenBack, Charged: settled.charged, Forfeited: settled.forfeited, Missed: b.coldOrNone().missed,
		}
	}
	return found
}

// meters returns the meters of a Shaper, to be read if there are none.
func (s *Shaper) meters() *meters {
	if m, _ := s.further.(*meters); m != nil {
		return m
	}
	return new(meters)
}
