package model

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// A source is where a script's choices come from: chance, or the bytes of a
// fuzz input, which end.
type source struct {
	chance *rand.Rand
	data   []byte
}

func (s *source) spent() bool { return s.chance == nil && len(s.data) == 0 }

// below returns a number from 0 to n-1.
func (s *source) below(n int64) int64 {
	if n <= 1 {
		return 0
	}
	if s.chance != nil {
		return s.chance.Int64N(n)
	}
	var value uint64
	for size := uint64(n - 1); size > 0 && len(s.data) > 0; size >>= 8 {
		value, s.data = value<<8|uint64(s.data[0]), s.data[1:]
	}
	return int64(value % uint64(n))
}

func (s *source) oneIn(n int64) bool { return s.below(n) == 0 }

// rates are those that scripts use: awkward fractions, both ends of the valid range,
// and floats that no short fraction comes near to.
var rates = []rate.Limit{
	1, 7, 50, 3.0 / 60, 1.0 / 3, 1e6, 1e9, 999_999_937, math.Pi, 1000.0 / 7, 20.0 / 60,
	rate.Every(3 * time.Second), rate.Every(year), 1.0 / 86400, rate.Inf, rate.Inf,
}

// A composer writes a script. It runs the model beside it, in order to hit the
// instants and the calls that matter.
type composer struct {
	*source
	model  *simulator
	script Script
	crowd  time.Duration // how many times closer arrivals are than departures
	capped bool          // Limits.InFlight is set, from first to last

	reserves bool // requests reserve, too

	weights []int // that keys may have in a fair script
	costs   int64 // in a fair script, half of the costs are at most so many units
	tight   bool  // a fair script has few places, a great Burst, and costs that differ at equal tags: so heads are pushed out
}

// Random composes a script by chance, and returns it with the model's answers.
func Random(chance *rand.Rand) (Script, []Answer) { return compose(&source{chance: chance}, plain) }

// RandomFair is Random for a script with keys.
func RandomFair(chance *rand.Rand) (Script, []Answer) { return compose(&source{chance: chance}, fair) }

// RandomBounded is Random for a script with bounds, in which requests are sent again or have keys.
func RandomBounded(chance *rand.Rand) (Script, []Answer) {
	return compose(&source{chance: chance}, bounded)
}

// RandomMetered is Random for a script with two or three levels.
func RandomMetered(chance *rand.Rand) (Script, []Answer) {
	return compose(&source{chance: chance}, metered)
}

// FromBytes composes a script whose choices are the bytes of a fuzz input, and
// returns it with the model's answers.
func FromBytes(data []byte) (Script, []Answer) { return compose(&source{data: data}, plain) }

// FairFromBytes is FromBytes for a script with keys.
func FairFromBytes(data []byte) (Script, []Answer) { return compose(&source{data: data}, fair) }

// BoundedFromBytes is FromBytes for a script with bounds.
func BoundedFromBytes(data []byte) (Script, []Answer) { return compose(&source{data: data}, bounded) }

// MeteredFromBytes is FromBytes for a script with two or three levels.
func MeteredFromBytes(data []byte) (Script, []Answer) { return compose(&source{data: data}, metered) }

// A kind says which options the bucket of a script has.
type kind int

const (
	plain   kind = iota
	fair         // WithFairQueue
	bounded      // WithLineTimeout, and one in four WithFairQueue, too
	metered      // WithMeters, and one in three WithFairQueue, and one in three WithLineTimeout
)

// compose writes a script by the choices of src. If its outcome is open at an
// operation, the script ends before that operation.
func compose(src *source, of kind) (Script, []Answer) {
	c := &composer{source: src}
	c.script.Bounded = of == bounded || of == metered && c.oneIn(3)
	if c.script.Fair = of == fair || of == bounded && c.oneIn(4) || of == metered && c.oneIn(3); c.script.Fair {
		c.weights = [][]int{{1}, {1, 2, 3, 10}, {0, 7, 1000, 5000}}[c.below(3)]
		c.costs = 1 + c.below(8)
		if c.tight = c.oneIn(3); c.tight {
			c.weights = []int{1, 2, 3, 5}
		}
	}
	c.script.DryRun = of == bounded && !c.script.Fair && c.oneIn(4)
	c.capped = c.oneIn(3)
	c.reserves = c.oneIn(2) && !c.script.DryRun
	c.script.Limits = c.limits()
	for !valid(c.script.Limits) {
		c.script.Limits = shaper.Limits{Rate: 7, Burst: 2, Depth: 3, InFlight: c.seats()}
	}
	if c.script.Bounded && !c.oneIn(3) {
		c.script.Timeout = c.timeout()
	}
	if of == metered {
		c.script.Meters = c.meters()
	}
	c.model = newSimulator(c.script, NoMistake)
	c.crowd = []time.Duration{1, 1, 3, 30}[c.below(4)]
	size := int(20 + c.below(120))
	for ends := math.MaxInt; len(c.script.Ops) < min(size, ends) && !c.spent() && c.model.open == ""; {
		o := c.op()
		if c.script.Fair && (o.mayWait() || o.Kind == OpAllow || o.Kind == OpForecast) {
			o.Key, o.Weight = []string{"", "a", "b", "c", "d"}[c.below(5)], c.weights[c.below(int64(len(c.weights)))]
			switch {
			case o.N != 1 || c.oneIn(2):
			case c.tight:
				o.N = (&waiter{Op: &o}).weight()
			default:
				o.N += int(c.below(c.costs))
			}
		}
		c.script.Ops = append(c.script.Ops, o)
		c.model.do(&o)
		if c.model.closed && ends == math.MaxInt {
			ends = len(c.script.Ops) + 12 // a closed shaper has little to show
		}
	}
	// A last look, after a rest in which some lines empty and some don't.
	rest := time.Duration(c.below(100)) * c.step()
	last := Op{At: min(c.model.now+min(rest, year), 200*year), Kind: OpLook}
	c.script.Ops = append(c.script.Ops, last)
	c.model.do(&last)
	c.model.end()
	if c.model.open == "" {
		return c.script, c.model.answers
	}
	for {
		c.script.Ops = c.script.Ops[:len(c.script.Ops)-1]
		if answers, open := c.script.Predict(NoMistake); open == "" {
			return c.script, answers
		}
	}
}

// step returns the time that one unit takes, as a measure of gaps; of several levels the longest.
func (c *composer) step() time.Duration {
	longest := c.model.interval
	for _, l := range c.model.more {
		longest = later(longest, l.interval)
	}
	if longest.Sign() == 0 {
		return time.Millisecond
	}
	return saturated(seen(longest))
}

func (c *composer) limits() shaper.Limits {
	l := shaper.Limits{
		Rate:  rates[c.below(int64(len(rates)))],
		Burst: int(c.below(9)),
		Depth: []int{0, 1, 2, 3, 4, 8, 20, 64}[c.below(8)],

		InFlight: c.seats(),
	}
	if c.tight {
		l.Burst, l.Depth = max(l.Burst, 4), 1+int(c.below(3))
	}
	if !valid(l) {
		l.Burst = 1
	}
	if c.oneIn(4) || c.script.Bounded && c.script.Timeout == 0 && c.oneIn(2) {
		step := saturated(seen(intervalOf(l.Rate)))
		l.MaxWait = max(0, min(year, time.Duration(c.below(8))*step+time.Duration(c.below(3)-1)))
	}
	return l
}

// timeout returns an argument of WithLineTimeout: about as long as some requests wait.
func (c *composer) timeout() time.Duration {
	step := min(year/8, saturated(seen(intervalOf(c.script.Limits.Rate))))
	return max(1, time.Duration(c.below(8))*step+time.Duration(c.below(3)-1))
}

// seats returns a cap, or 0 for none.
func (c *composer) seats() int {
	if !c.capped {
		return 0
	}
	return []int{1, 1, 2, 3, 5, 20}[c.below(6)]
}

// instant returns when the next operation is: often at the very instant of a
// departure, or one nanosecond beside it.
func (c *composer) instant() time.Duration {
	m, step := c.model, max(1, c.step()/c.crowd)
	at := m.now
	switch c.below(12) {
	case 0, 1, 2:
	case 3, 4:
		at += 1 + time.Duration(c.below(2*int64(step)))
	case 5, 6:
		at += time.Duration(c.below(int64(step)))
	case 7:
		at += time.Duration(c.below(6)) * step
	case 8:
		at += time.Duration(c.below(16)) * step
	default:
		if len(m.line) > 0 && (c.crowd < 30 || c.oneIn(4)) {
			if due := c.due(); due-m.now < 2*year {
				at = max(m.now, due+time.Duration(c.below(5)/2-1))
			}
		}
	}
	if next := m.nextBound(); next != nil && c.oneIn(4) {
		at = next.bound + time.Duration(c.below(5)/2-1)
	}
	if c.oneIn(400) {
		at += 100 * year // the bucket stands idle, or the whole line leaves
	}
	if at < m.now || at > 200*year {
		return m.now // Go's clock has room for 292 years
	}
	return at
}

// due returns when the head of the line leaves.
func (c *composer) due() time.Duration { return saturated(seen(c.model.due())) }

func (c *composer) cost() int {
	switch c.below(16) {
	case 0:
		return int(c.below(3)) - 1
	case 1, 2, 3, 4:
		return 1 + int(c.below(8))
	case 5:
		return c.model.burst() + int(c.below(3))
	case 6:
		if c.oneIn(8) {
			return math.MaxInt
		}
		if step := c.step(); c.oneIn(4) {
			return int(year/step) + int(c.below(3)) - 1 // about the dearest that fits
		}
	}
	return 1
}

func (c *composer) op() Op {
	o := Op{At: c.instant(), Race: c.oneIn(2)}
	ahead := *c.model // the model at that instant, to aim at
	ahead.answers, ahead.stopping, ahead.turns = slices.Clone(ahead.answers), slices.Clone(ahead.stopping), ahead.turns.clone()
	ahead.advance(o.At)
	if c.capped && c.oneIn(3) {
		o.Kind, o.Target = OpRelease, c.ended(OpAcquire, ahead.upstream)
		return o
	}
	if c.reserves && c.oneIn(4) {
		o.Kind, o.Target = OpSettle, c.ended(OpReserve, ahead.unsettled)
		o.N = c.actual(o.Target)
		c.actualsOf(&o)
		return o
	}
	if c.script.Bounded && !c.script.Fair && !c.script.DryRun && c.oneIn(8) {
		o.Kind, o.N, o.Asked = OpRetry, max(1, c.cost()), o.At
		if ahead.tooCostly(o.N) {
			o.N = 1 // It would not have been admitted before.
		}
		if longest := c.model.boundOf(0); longest < year && c.oneIn(2) {
			o.Asked = max(0, o.At-time.Duration(c.below(int64(longest)+2)))
		}
		c.context(&o, &ahead)
		return o
	}
	if len(c.script.Meters) > 0 && c.oneIn(10) {
		c.meterOp(&o, ahead.saves)
		return o
	}
	switch k := c.below(108); {
	case k < 48:
		o.Kind, o.N = c.entrance(), c.cost()
		if o.Kind == OpReserve && c.oneIn(2) {
			o.N = 1 + int(c.below(8))
		}
		c.costsOf(&o)
		c.context(&o, &ahead)
	case k < 56:
		o.Kind, o.N = OpAllow, c.cost()
	case k < 66:
		o.Kind, o.N = OpForecast, c.cost()
	case k < 72:
		o.Kind = OpLook
	case k < 79:
		o.Kind, o.Limits = OpSet, c.limits()
		if c.oneIn(12) {
			o.Limits = []shaper.Limits{
				{Rate: rate.Limit(math.NaN())}, {Rate: 0}, {Rate: -1}, {Rate: 1e9 + 1}, {Rate: 1e-8},
				{Rate: 1, Burst: -1}, {Rate: 1, Depth: -1}, {Rate: 1, MaxWait: -1}, {Rate: rate.Every(year), Burst: 2},
				{Rate: 1, Depth: 9}, {Rate: 1, Depth: 9, InFlight: 1}, {Rate: 1, InFlight: -1},
			}[c.below(12)]
		}
	case k < 85:
		o.Kind, o.Hold = OpHold, c.hold()
		if next := ahead.nextBound(); next != nil && c.oneIn(2) {
			o.Hold = next.bound - o.At + time.Duration(c.below(3)-1)
		}
	case k >= 106:
		o.Kind, o.N = OpAtMost, int(c.below(int64(c.model.burst())+3))-1
		c.leftOf(&o)
	case k < 104 || len(c.script.Ops) < 15:
		calls := slices.Concat(ahead.line, ahead.stopping)
		if c.crowd > 1 && (len(calls) == 0 || c.oneIn(2)) {
			o.Kind, o.N = c.entrance(), c.cost()
			c.costsOf(&o)
			break
		}
		o.Kind, o.Target = OpCancel, -1
		if len(calls) > 0 {
			o.Target = calls[c.below(int64(len(calls)))].index
		}
	case k < 105:
		o.Kind = OpClose
		if len(c.model.line) > 0 && c.oneIn(2) {
			o.At = max(o.At, min(c.due(), o.At+year)) // with the next departure
		}
	default:
		o.Kind = OpShutdown
		if c.oneIn(2) {
			o.Deadline = o.At + time.Duration(c.below(4*int64(min(year, c.step()))))
		}
	}
	return o
}

// entrance returns the call by which a request comes: with a cap mostly Acquire, which
// a capped bucket needs, and without one mostly WaitN.
func (c *composer) entrance() OpKind {
	if c.reserves && c.oneIn(2) {
		return OpReserve
	}
	if c.capped != c.oneIn(8) {
		return OpAcquire
	}
	return OpWait
}

// ended returns a call whose request is to be released or settled; -1 if there is none. It is one of those
// that have left, or now and then any of its kind, which ends a request twice, or before it has left.
func (c *composer) ended(kind OpKind, left []*waiter) int {
	var calls []int
	if c.oneIn(6) {
		for i, o := range c.script.Ops {
			if o.Kind == kind {
				calls = append(calls, i)
			}
		}
	} else {
		for _, w := range left {
			calls = append(calls, w.index)
		}
	}
	if len(calls) == 0 {
		return -1
	}
	return calls[c.below(int64(len(calls)))]
}

// actual returns the actual cost of a request of Reserve: mostly less than was estimated, or 0.
func (c *composer) actual(call int) int {
	if call < 0 {
		return 0
	}
	estimate := max(0, c.script.Ops[call].N)
	switch c.below(8) {
	case 0, 1:
		return 0
	case 2:
		return -1
	case 3:
		return min(estimate, math.MaxInt-8) + int(c.below(8))
	}
	return int(c.below(int64(min(estimate, math.MaxInt-1)) + 1))
}

// hold returns for how long to hold the line: often about as long as a request
// waits, or may wait.
func (c *composer) hold() time.Duration {
	switch c.below(8) {
	case 0, 1:
		return 0
	case 2:
		return []time.Duration{-1, 1, year, math.MaxInt64}[c.below(4)]
	case 3:
		return c.model.limits.MaxWait + time.Duration(c.below(3)) - 1
	case 4:
		return time.Duration(c.below(int64(min(year, c.step())) + 1))
	default:
		return time.Duration(c.below(12)) * min(year, c.step())
	}
}

// context gives a call an end of its context: a deadline near its departure, a
// deadline that is only announced, or an end that only Err tells.
func (c *composer) context(o *Op, ahead *simulator) {
	if o.N <= 0 && len(o.More) == 0 && !c.oneIn(4) {
		return
	}
	if wait := ahead.waits(&Op{N: max(o.N, 0), More: o.More})[len(ahead.line)]; wait < year {
		leaves := o.At + wait
		switch c.below(16) {
		case 0:
			o.Deadline = leaves + time.Duration(c.below(4)) - 1
		case 1, 2:
			o.Deadline = leaves + time.Duration(c.below(3*int64(c.step())))
		case 3:
			o.Deadline = o.At + time.Duration(c.below(int64(leaves-o.At)+1))
		case 4, 5, 6:
			o.Late = o.At + time.Duration(c.below(int64(leaves-o.At)+2))
		}
	}
	o.Deaf = o.Deadline != 0 && c.oneIn(3)
}
