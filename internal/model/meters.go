package model

import (
	"math"
	"math/big"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// This file is what the model knows of WithMeters. Each further level is a bucket of its own, with all that has ever
// raised it. The line, the hold and the seats are those of the first.

// A level is a further level.
type level struct {
	shaper.Meter
	interval *big.Rat
	empty    *big.Rat // the instant at which it reaches 0
	first    *big.Rat // the first interval
	events   []past
	raises   int // how often it has been raised, without what was given back
	figures  Figures
}

// An undo is what it takes to give back the cost of a departure at a level.
type undo struct {
	empty  *big.Rat // without it, and no earlier than its departure there; nil: it has cost nothing there
	raises int      // with it
}

// A save is what a Snapshot has.
type save struct {
	of     int // the operation
	at     time.Duration
	levels []*big.Rat // the first one first
	rates  []*big.Rat // the intervals of each
	held   time.Duration
}

func levelsOf(ms []shaper.Meter) (all []level) {
	for _, m := range ms {
		interval := intervalOf(m.Rate)
		all = append(all, level{Meter: m, interval: interval, empty: new(big.Rat), first: interval})
	}
	return all
}

// change returns a further level, to be changed. The model may have been copied.
func (b *bucket) change(i int) *level {
	b.more = slices.Clone(b.more)
	return &b.more[i]
}

func (l *level) burst() int { return max(l.Burst, 1) }

func (l *level) take(n int) *big.Rat {
	return new(big.Rat).Mul(new(big.Rat).SetInt64(int64(n)), l.interval)
}

// allowed returns the instant from which the level lets a request of cost n leave, if it reaches 0 at an instant.
func (l *level) allowed(empty *big.Rat, n int) *big.Rat {
	return new(big.Rat).Sub(empty, l.take(max(0, l.burst()-n)))
}

// at returns the level at an instant since which it has not been raised.
func (l *level) at(t *big.Rat) *big.Rat {
	rest := new(big.Rat).Sub(l.empty, t)
	if rest.Sign() <= 0 || l.interval.Sign() == 0 {
		return new(big.Rat)
	}
	return rest.Quo(rest, l.interval)
}

// raise raises the level by units at an instant.
func (l *level) raise(at, units *big.Rat, of int) {
	l.raises++
	l.events = append(slices.Clip(l.events), past{at: at, cost: units, of: of})
	span := new(big.Rat).Mul(units, l.interval)
	l.empty = span.Add(span, later(l.empty, at))
}

// costAt returns what a request costs at a level, from 0, the first one.
func (o *Op) costAt(i int) int {
	switch {
	case i == 0:
		return o.N
	case i <= len(o.More):
		return o.More[i-1]
	}
	return 0
}

// isFree reports whether a request costs nothing anywhere.
func (o *Op) isFree() bool {
	return o.N == 0 && !slices.ContainsFunc(o.More, func(n int) bool { return n != 0 })
}

// pays returns what the key of a request pays for its turn.
func (w *waiter) pays() int64 {
	if w.turn > 0 {
		return w.turn
	}
	return int64(w.N)
}

// turnOf returns what the turn of a request costs that comes now; 0: its cost.
func (b *bucket) turnOf(o *Op) int64 {
	if len(b.more) == 0 {
		return 0
	}
	longest := new(big.Rat)
	for i := range len(b.more) + 1 {
		if n := o.costAt(i); n > 0 && i == 0 {
			longest = later(longest, b.take(n))
		} else if n > 0 && b.mistake != TurnOfTheFirst {
			longest = later(longest, b.more[i-1].take(n))
		}
	}
	return max(1, int64(saturated(seen(longest))))
}

// slot returns the instant at which the head leaves, and the level that has decided.
func (b *bucket) slot() (at *big.Rat, decided int) {
	if b.frozen != nil {
		return b.frozen, b.decided
	}
	at, decided = b.since, b.decided
	if b.hold.Cmp(at) > 0 {
		at, decided = b.hold, 0
	}
	w := b.line[0]
	for i := range len(b.more) + 1 {
		n := w.costAt(i)
		if n == 0 && !(b.mistake == ZeroAsks && i > 0) || b.mistake == FirstDecides && i > 0 {
			continue
		}
		due := b.allowed(b.empty, n)
		if i > 0 {
			due = b.more[i-1].allowed(b.more[i-1].empty, n)
		}
		// Of two levels that decide within a nanosecond the first one does.
		if c := seen(due).Cmp(seen(at)); c > 0 || i == decided && due.Cmp(at) > 0 {
			at, decided = due, i
		}
	}
	return at, decided
}

// departEach raises the levels for a request that leaves at an instant. A fraction of a nanosecond is the one of the level that
// has decided. For the others it is rounded up.
func (m *simulator) departEach(w *waiter, at *big.Rat, decided, of int) {
	w.undos = make([]undo, len(m.more)+1)
	for i := range len(m.more) + 1 {
		n, t := w.costAt(i), at
		if i != decided {
			t = new(big.Rat).SetInt(seen(at))
		}
		units := new(big.Rat).SetInt64(int64(n))
		switch {
		case n == 0:
		case i == 0:
			w.undos[0] = undo{later(m.empty, t), m.raises + 1}
			m.raise(t, units, of)
			m.emptyAt(new(big.Rat).Add(later(m.empty, t), m.take(n)))
		default:
			l := m.change(i - 1)
			if m.mistake == RaisedWhenDue {
				t = l.allowed(l.empty, n)
			}
			w.undos[i] = undo{later(l.empty, t), l.raises + 1}
			l.raise(t, units, of)
			m.levelEmptyAt(l)
		}
	}
}

// levelEmptyAt is emptyAt for a further level that has changed.
func (m *simulator) levelEmptyAt(l *level) {
	if l.empty.Cmp(instant(290*year)) > 0 {
		m.leaveOpen("a further level reaches beyond what a Duration can tell")
	}
}

// undo gives back the cost of a departure at each level that has not been raised since. isLast says that no other has left
// since.
func (m *simulator) undo(w *waiter, isLast bool) {
	for i, u := range w.undos {
		if m.mistake == GivesBackAllOrNone && !isLast || m.mistake == GivesBackTheFirst && i > 0 {
			continue
		}
		switch {
		case u.empty == nil:
		case i == 0 && m.raises == u.raises:
			m.empty, m.raises = u.empty, m.raises-1
			m.events = m.events[:len(m.events)-1]
		case i > 0 && m.more[i-1].raises == u.raises:
			l := m.change(i - 1)
			l.empty, l.raises = u.empty, l.raises-1
			l.events = l.events[:len(l.events)-1]
		}
	}
	if !isLast {
		return
	}
	m.left--
	if m.turns != nil {
		m.turns.giveBack(w)
		m.arrangeAfter()
	}
}

// waitsOfEach is waits: the head waits for its slot, and each other as long as the head, and as long as one of its levels
// would make it wait if it were the only one.
func (b *bucket) waitsOfEach(o *Op) (waits []time.Duration) {
	line := append(slices.Clone(b.line), &waiter{Op: o})
	earliest := later(b.hold, instant(b.now))
	head := earliest
	if len(b.line) > 0 {
		head = later(b.due(), earliest)
	}
	for k, w := range line {
		at := earliest
		if k > 0 && b.mistake != HeadNotAwaited {
			at = head
		}
		for i := range len(b.more) + 1 {
			if w.costAt(i) > 0 || b.mistake == IdleLevelsAwaited {
				at = later(at, b.alone(i, line[:k+1], earliest))
			}
		}
		wait := b.until(at)
		if len(b.line) > 0 || !b.hasRoom() {
			wait = max(wait, 1)
		}
		waits = append(waits, wait)
	}
	return waits
}

// alone returns when the last of a line leaves, if one level alone lets them leave, from an instant on.
func (b *bucket) alone(i int, line []*waiter, at *big.Rat) *big.Rat {
	r, empty := &level{Meter: shaper.Meter{Burst: b.limits.Burst}, interval: b.interval}, b.empty
	if i > 0 {
		r, empty = &b.more[i-1], b.more[i-1].empty
	}
	for _, w := range line {
		if n := w.costAt(i); n > 0 {
			at = later(at, r.allowed(empty, n))
			empty = new(big.Rat).Add(later(empty, at), r.take(n))
		}
	}
	return at
}

// tooCostlyEach reports whether a request can never fit at one of its levels.
func (b *bucket) tooCostlyEach(o *Op) bool {
	for i := range b.more {
		r := rule{limits: shaper.Limits{Rate: b.more[i].Rate, Burst: b.more[i].Burst, Depth: b.limits.Depth}, interval: b.more[i].interval}
		if n := o.costAt(i + 1); n > 0 && r.tooCostly(n) {
			return true
		}
	}
	return o.N > 0 && b.tooCostly(o.N)
}

// countReserved counts the estimates of a request that has left, or with a sign of -1 has been settled.
func (m *simulator) countReserved(w *waiter, sign int) {
	for i := range m.more {
		m.change(i).figures.Reserved += sign * w.costAt(i+1)
	}
}

// correctEach settles the further levels of a request that has reserved, by an operation.
func (m *simulator) correctEach(w *waiter, reserved *waiter) {
	for i := range m.more {
		estimate, actual := reserved.costAt(i+1), -1
		if i < len(w.More) {
			actual = w.More[i]
		} else if m.mistake == MissingIsZero {
			actual = 0
		}
		l := m.change(i)
		switch {
		case actual < 0 || reserved.More == nil: // A single estimate is settled with a single cost.
		case actual > estimate && m.mistake != ChargesTheFirst:
			l.figures.Charged += uint64(actual - estimate)
			l.raise(instant(m.now), new(big.Rat).SetInt64(int64(actual-estimate)), -1)
			m.levelEmptyAt(l)
		case actual < estimate:
			back := l.fall(w.Target, estimate-actual, instant(m.now), m.mistake)
			l.figures.GivenBack += back
			l.figures.Forfeited += uint64(estimate-actual) - back
			m.since = later(m.since, instant(m.now))
		}
	}
}

// fall lowers the level, as a request of the past has cost less by over. It returns by how many whole units it falls.
func (l *level) fall(of, over int, now *big.Rat, mistake Mistake) uint64 {
	before := l.at(now)
	returns := l.Returns
	switch mistake {
	case ReturnsWhatIsLeft:
		returns = false
	case ReturnsAnyway:
		returns = true
	}
	k := slices.IndexFunc(l.events, func(e past) bool { return e.of == of })
	if returns || k < 0 {
		rest := new(big.Rat).SetInt64(int64(over))
		if rest.Sub(before, rest); rest.Sign() < 0 {
			rest = new(big.Rat)
		}
		l.empty = rest.Mul(rest, l.interval)
		l.empty.Add(l.empty, now)
	} else {
		l.events = slices.Clone(l.events)
		l.events[k].cost = new(big.Rat).Sub(l.events[k].cost, new(big.Rat).SetInt64(int64(over)))
		l.empty = recomputed(l.first, l.events)
	}
	back := before.Sub(before, l.at(now))
	return new(big.Int).Quo(back.Num(), back.Denom()).Uint64()
}

// atMostEach is atMost for the further levels.
func (m *simulator) atMostEach(w *waiter) {
	for i, n := range w.More {
		l := m.change(i)
		missing := new(big.Rat).SetInt64(int64(l.burst()) - int64(min(max(n, 0), math.MaxInt32)))
		if missing.Sub(missing, l.at(instant(m.now))); l.burst() > n && l.interval.Sign() > 0 && missing.Sign() > 0 {
			l.raise(instant(m.now), missing, -1)
		}
	}
}

// setMeters is SetMeters: the levels are kept, and the line is timed anew.
func (m *simulator) setMeters(w *waiter) {
	isSame := len(w.Meters) == len(m.more)
	for i, to := range w.Meters {
		isSame = isSame && m.more[i].Name == to.Name && m.more[i].Returns == to.Returns && valid(shaper.Limits{Rate: to.Rate, Burst: to.Burst})
	}
	if m.finish(w, Left); !isSame {
		m.finish(w, Invalid)
		return
	}
	for i, to := range w.Meters {
		l := m.change(i)
		units := l.at(instant(m.now))
		if m.mistake == SetMetersEmpties {
			units = new(big.Rat)
		}
		l.Meter, l.interval = to, intervalOf(to.Rate)
		l.events = append(slices.Clip(l.events), past{at: instant(m.now), interval: l.interval, of: -1})
		l.empty = units.Mul(units, l.interval)
		l.empty.Add(l.empty, instant(m.now))
		m.levelEmptyAt(l)
	}
	m.since = instant(m.now)
	m.settle()
}

// save is Snapshot.
func (m *simulator) save(w *waiter) {
	m.finish(w, Left)
	s := save{of: w.index, at: m.now, levels: []*big.Rat{m.level()}, rates: []*big.Rat{m.interval}}
	for i := range m.more {
		s.levels, s.rates = append(s.levels, m.more[i].at(instant(m.now))), append(s.rates, m.more[i].interval)
	}
	if m.hold.Cmp(instant(m.now)) > 0 {
		s.held = saturated(seen(m.hold)) - m.now
	}
	m.saves = append(slices.Clip(m.saves), s)
}

// restore is Restore of what an earlier operation has saved.
func (m *simulator) restore(w *waiter) {
	m.finish(w, Left)
	k := slices.IndexFunc(m.saves, func(s save) bool { return s.of == w.Target })
	if k < 0 {
		return
	}
	s, now := m.saves[k], instant(m.now)
	age := new(big.Rat).Sub(now, instant(s.at))
	rest := func(i int, interval, level *big.Rat) (missing *big.Rat) {
		if s.rates[i].Sign() == 0 || interval.Sign() == 0 || m.mistake == RestoresTheFirst && i > 0 {
			return new(big.Rat)
		}
		leaked := new(big.Rat).Quo(age, later(s.rates[i], interval))
		return leaked.Sub(leaked.Sub(s.levels[i], leaked), level)
	}
	if missing := rest(0, m.interval, m.level()); missing.Sign() > 0 {
		m.raise(now, missing, -1)
		span := new(big.Rat).Mul(missing, m.interval)
		m.emptyAt(span.Add(span, later(m.empty, now)))
	}
	for i := range m.more {
		if missing := rest(i+1, m.more[i].interval, m.more[i].at(now)); missing.Sign() > 0 {
			l := m.change(i)
			l.raise(now, missing, -1)
			m.levelEmptyAt(l)
		}
	}
	if until := instant(s.at + s.held); s.held > 0 && until.Cmp(now) > 0 {
		m.hold = later(m.hold, until)
		m.overdueAtOnce()
	}
	m.settle()
}

// meterLooks returns the state of the meters.
func (m *simulator) meterLooks(race bool) (looks [2]MeterLook) {
	for i := range m.more {
		looks[i].Level, _ = m.more[i].at(instant(m.now)).Float64()
		if !race {
			looks[i].Figures = m.more[i].figures
			looks[i].Reserved = AtMostMaxInt(looks[i].Reserved)
		}
	}
	return looks
}

// meters composes meters whose rates are not far from the first one.
func (c *composer) meters() (ms []shaper.Meter) {
	for i := range 1 + c.below(2) {
		m := shaper.Meter{Name: []string{"bytes", "rows"}[i], Returns: c.oneIn(3)}
		ms = append(ms, c.rated(m))
	}
	return ms
}

// rated returns a meter with another rate and burst.
func (c *composer) rated(m shaper.Meter) shaper.Meter {
	r := c.script.Limits.Rate
	if r == rate.Inf || c.oneIn(8) {
		r = rates[c.below(int64(len(rates)))]
	}
	m.Rate = r * []rate.Limit{1, 1, 2, 3, 0.5, 0.25, 1.0 / 3, 10.0 / 3}[c.below(8)]
	m.Burst = int(c.below(12))
	if !valid(shaper.Limits{Rate: m.Rate, Burst: m.Burst}) {
		m.Rate, m.Burst = 5, 2
	}
	return m
}

// meterOp composes a change of the meters, or what has to do with snapshots.
func (c *composer) meterOp(o *Op, saves []save) {
	switch c.below(4) {
	case 0, 1:
		o.Kind, o.Meters = OpSetMeters, slices.Clone(c.script.Meters)
		for i := range o.Meters {
			if c.oneIn(2) {
				o.Meters[i] = c.rated(o.Meters[i])
			}
		}
		if c.oneIn(12) {
			m := &o.Meters[0]
			switch c.below(5) {
			case 0:
				m.Name = "others"
			case 1:
				m.Returns = !m.Returns
			case 2:
				m.Rate = 0
			case 3:
				m.Burst = -1
			case 4:
				o.Meters = o.Meters[1:]
			}
		}
	case 2:
		o.Kind = OpSave
	case 3:
		o.Kind, o.Target = OpRestore, -1
		if len(saves) > 0 {
			o.Target = saves[c.below(int64(len(saves)))].of
		}
	}
}

// actualsOf gives a settle actual costs at further levels.
func (c *composer) actualsOf(o *Op) {
	if o.Target < 0 {
		return
	}
	for _, estimate := range c.script.Ops[o.Target].More {
		switch c.below(8) {
		case 0:
			o.More = append(o.More, -1)
		case 1, 2:
			o.More = append(o.More, min(max(0, estimate), 1<<20)+int(c.below(6)))
		default:
			o.More = append(o.More, int(c.below(int64(max(0, estimate))+1)))
		}
	}
	if len(o.More) > 0 && c.oneIn(6) {
		o.More = o.More[:len(o.More)-1]
	}
}

// leftOf gives AtMost numbers for further levels.
func (c *composer) leftOf(o *Op) {
	for i := range c.script.Meters {
		if n := c.model.more[i].burst(); c.oneIn(3) {
			o.More = append(o.More, math.MaxInt)
		} else {
			o.More = append(o.More, int(c.below(int64(n)+3))-1)
		}
	}
}

// costsOf gives a call costs at further levels, or none.
func (c *composer) costsOf(o *Op) {
	if len(c.script.Meters) == 0 || c.oneIn(8) {
		return
	}
	if o.Kind != OpWait && o.Kind != OpReserve {
		return
	}
	o.More = make([]int, len(c.script.Meters))
	for i := range o.More {
		switch k := c.below(24); {
		case k < 7:
		case k < 20:
			o.More[i] = 1 + int(c.below(6))
		case k < 23:
			o.More[i] = c.model.more[i].burst() + int(c.below(3))
		case c.oneIn(8):
			o.More[i] = []int{-1, math.MaxInt >> 23}[c.below(2)]
		}
	}
	if c.oneIn(4) {
		o.N = 0
	}
}
