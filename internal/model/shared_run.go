package model

import (
	"container/heap"
	"fmt"
	"math/big"
	"math/rand/v2"
	"time"

	"example.com/leakybucket/shaper"
)

// A SharedRun is a random run of processes that share one level of one engine, in virtual
// time. True time goes at the pace of the engine's clock, so its instants differ from
// those of the engine by what the engine's clock has stepped.
type SharedRun struct {
	SharedPlan
	mistake SharedMistake
	chance  *rand.Rand

	now       time.Duration
	events    eventHeap
	engine    sharedEngine
	stepped   time.Duration // the engine's clock, forward
	downUntil time.Duration // no call reaches the engine before
	old       shaper.BucketLevel
	processes []*sharedProcess
	started   int
	rates     []shaper.BucketRate // by version

	Log    []Departure // at slots of the engine
	Local  []Departure // in the fallback
	Extras []Extra     // what has gone wrong, and may thus exceed the pace
	Ops    int

	taken, returned, used int64 // cost units: by the engine's account, and by the processes'
	wasted                int64 // cost units that may be unused
	whyWasted             map[string]int
	epochs                int
	busySince             time.Duration // since when a request waits, or the last departure
	Stall                 time.Duration // the longest time without a departure while a request waited
}

// A SharedPlan is what a run is made of.
type SharedPlan struct {
	Processes int
	Rate      shaper.BucketRate
	Batch     int64 // cost units per lease
	MaxCost   int64
	Ahead     time.Duration
	Lateness  time.Duration // D
	Guard     time.Duration
	Trip      time.Duration // the longest time that a request or an answer takes on its way
	Timeout   time.Duration
	Instances int64 // of the fallback; 0: it is closed
	Steps     int
	Faults    Faults
	Saturated bool // each process always has a request in line
}

// Faults are kinds of what may go wrong in a run.
type Faults int

const (
	FaultLostRequest Faults = 1 << iota
	FaultLostReply
	FaultSlowAnswer
	FaultStateLost
	FaultStateRestored
	FaultClockForward
	FaultClockBack
	FaultClockNudged // by a few milliseconds, either way
	FaultOutage
	FaultPause
	FaultPauseBeforeDeparture
	FaultDeath
	FaultShutdown
	FaultCancel
	FaultRateChange
	FaultMeter // no fault: calls of AllowN
	allFaults  = 1<<iota - 1
)

// faultsThatStall may keep all processes from leaving for longer than the slots take that
// they may hold. A change of the rate does because the level stays what it is in cost units.
const faultsThatStall = FaultLostRequest | FaultLostReply | FaultSlowAnswer | FaultOutage | FaultRateChange

// has reports whether faults of a kind may happen.
func (f Faults) has(kind Faults) bool { return f&kind != 0 }

// most returns the greatest number of cost units that a process holds, or has asked for.
func (r *SharedRun) most() int64 {
	if r.Faults.has(FaultMeter) {
		return 2*r.Batch + 2*r.MaxCost
	}
	return 2*r.Batch + r.MaxCost - 1
}

// horizon returns for how long slots may still be used that are leased now.
func (r *SharedRun) horizon() time.Duration {
	return r.Ahead + nanosUp(tick(r.most()+r.MaxCost)*r.slowest()) + 2*r.Lateness + 4*r.Trip
}

// slowest returns the time of a cost unit at the lowest rate of the run.
func (r *SharedRun) slowest() (t tick) {
	for _, rate := range r.rates {
		t = max(t, unit(rate))
	}
	return t
}

// Pace returns what the processes of the run promise together.
func (r *SharedRun) Pace() SharedPace {
	fastest, burst := unit(r.rates[0]), r.rates[0].Burst
	for _, rate := range r.rates {
		fastest, burst = min(fastest, unit(rate)), max(burst, rate.Burst)
	}
	return SharedPace{Interval: big.NewRat(int64(fastest), int64(perNano)), Burst: burst, Lateness: r.Lateness}
}

// NewSharedRun returns a run whose chances come from a seed.
func NewSharedRun(plan SharedPlan, seed uint64, mistake SharedMistake) *SharedRun {
	r := &SharedRun{
		SharedPlan: plan, mistake: mistake, chance: rand.New(rand.NewPCG(seed, 15)),
		engine: sharedEngine{mistake: mistake}, rates: []shaper.BucketRate{plan.Rate}, whyWasted: map[string]int{}, busySince: -1,
	}
	for range plan.Processes {
		r.start()
	}
	return r
}

// Run does all steps of the run, and returns an error that says what is wrong with it.
func (r *SharedRun) Run() error {
	for range r.Steps {
		r.until(r.now + r.between())
		r.step()
		r.Ops++
	}
	r.until(r.now + r.horizon() + r.Timeout)
	return r.judge()
}

// judge compares what has happened with what is promised.
func (r *SharedRun) judge() error {
	if r.engine.differs != "" {
		return fmt.Errorf("the engine differs: %s", r.engine.differs)
	}
	if err := r.judgePace(); err != nil {
		return err
	}
	if stall := r.horizon() + r.Guard; r.Stall > stall && r.Faults&faultsThatStall == 0 {
		return fmt.Errorf("somebody waited and nobody left for %v, which is more than %v", r.Stall, stall)
	}
	held := int64(0)
	for _, p := range r.processes {
		held += p.held()
		if p.calling != nil {
			held += p.calling.take.Cost
		}
	}
	if waste := r.taken - r.returned - r.used; waste > r.wasted+held {
		return fmt.Errorf("waste: %d units were taken, %d given back, %d used, and only %d may be wasted (%v)",
			r.taken, r.returned, r.used, r.wasted+held, r.whyWasted)
	}
	return nil
}

// judgePace compares the departures with the pace. Those at slots of the engine keep it
// together, and so do all of one process. In the fallback each process keeps its part.
func (r *SharedRun) judgePace() error {
	pace := r.Pace()
	if err := pace.Check(r.Log, r.Extras...); err != nil {
		return err
	}
	if len(r.Local) == 0 {
		return nil
	}
	// The clock of a process may be fast.
	pace.Interval.Mul(pace.Interval, big.NewRat(1e6-drift, 1e6))
	part := SharedPace{
		Interval: new(big.Rat).Mul(pace.Interval, new(big.Rat).SetInt64(r.Instances)),
		Burst:    max(1, pace.Burst/r.Instances),
	}
	for id := 1; id <= r.started; id++ {
		local := departuresOf(r.Local, id)
		if err := part.Check(local, r.Extras...); err != nil {
			return fmt.Errorf("the fallback of process %d: %w", id, err)
		}
		if err := pace.Check(append(local, departuresOf(r.Log, id)...), r.Extras...); err != nil {
			return fmt.Errorf("process %d: %w", id, err)
		}
	}
	return nil
}

// departuresOf returns those of one process.
func departuresOf(log []Departure, process int) (of []Departure) {
	for _, d := range log {
		if d.Process == process {
			of = append(of, d)
		}
	}
	return of
}

// start starts a process.
func (r *SharedRun) start() *sharedProcess {
	r.started++
	p := &sharedProcess{
		run: r, id: r.started, rate: r.rates[len(r.rates)-1],
		clock: localClock{offset: time.Duration(r.chance.Int64N(int64(time.Hour))), ppm: r.chance.Int64N(181) - 90},
	}
	r.processes = append(r.processes, p)
	if r.Saturated {
		for range 4 * r.Batch {
			p.enter(r.cost())
		}
		p.look()
	}
	return p
}

// cost returns a random cost.
func (r *SharedRun) cost() int64 { return 1 + r.chance.Int64N(r.MaxCost) }

// between returns a random time from one step to the next.
func (r *SharedRun) between() time.Duration {
	span := int64(nanosUp(unit(r.rates[len(r.rates)-1]))) * 6
	if r.chance.IntN(50) == 0 {
		span *= 30
	}
	return time.Duration(r.chance.Int64N(span))
}

// timerLate returns by how much a timer is late.
func (r *SharedRun) timerLate() time.Duration {
	switch r.chance.IntN(16) {
	case 0:
		return time.Duration(r.chance.Int64N(int64(r.Lateness/2) + 1))
	case 1, 2, 3:
		return time.Duration(r.chance.Int64N(int64(time.Millisecond / 8)))
	}
	return 0
}

// depart notes a departure.
func (r *SharedRun) depart(log *[]Departure, d Departure) {
	*log = append(*log, d)
	r.noteStall()
	r.busySince = r.now
}

// noteStall notes for how long no request has left though one waits in a process that is
// not paused.
func (r *SharedRun) noteStall() {
	waits, since := false, r.now
	for _, p := range r.processes {
		if p.works() && len(p.line) > 0 {
			waits, since = true, min(since, max(r.busySince, p.paused))
		}
	}
	switch {
	case !waits:
		r.busySince = -1
	case r.busySince < 0:
		r.busySince = r.now
	default:
		r.Stall = max(r.Stall, r.now-since)
	}
}

// extra notes that a cost more may leave, from one instant to another.
func (r *SharedRun) extra(cost int64, from, to time.Duration, why string) {
	r.Extras = append(r.Extras, Extra{From: from, To: to, Cost: cost, Why: why})
}

// mayWaste notes that a cost may be wasted.
func (r *SharedRun) mayWaste(cost int64, why string) {
	r.wasted += cost
	r.whyWasted[why]++
}

// An event is what happens at an instant. Events of one instant happen in the order in which
// they were planned.
type event struct {
	at     time.Duration
	number int
	do     func()
}

type eventHeap struct {
	events []event
	number int
}

func (h *eventHeap) Len() int { return len(h.events) }
func (h *eventHeap) Less(i, j int) bool {
	a, b := h.events[i], h.events[j]
	return a.at < b.at || a.at == b.at && a.number < b.number
}
func (h *eventHeap) Swap(i, j int) { h.events[i], h.events[j] = h.events[j], h.events[i] }
func (h *eventHeap) Push(x any)    { h.events = append(h.events, x.(event)) }
func (h *eventHeap) Pop() any {
	last := h.events[len(h.events)-1]
	h.events = h.events[:len(h.events)-1]
	return last
}

// at plans an event.
func (r *SharedRun) at(t time.Duration, do func()) {
	r.events.number++
	heap.Push(&r.events, event{at: t, number: r.events.number, do: do})
}

// until lets happen what happens up to an instant.
func (r *SharedRun) until(t time.Duration) {
	for r.events.Len() > 0 && r.events.events[0].at <= t {
		e := heap.Pop(&r.events).(event)
		r.now = e.at
		e.do()
	}
	r.now = t
	r.noteStall()
}
