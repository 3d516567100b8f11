package model

import (
	"math/rand/v2"
	"time"

	"example.com/leakybucket/shaper"
)

// RandomSharedPlan returns a plan. Of each kind of fault it is random whether it happens.
func RandomSharedPlan(chance *rand.Rand, steps int) SharedPlan {
	pick := func(n int) int { return chance.IntN(n) }
	upTo := func(d time.Duration) time.Duration { return time.Duration(chance.Int64N(int64(d)) + 1) }
	p := SharedPlan{
		Processes: 1 + pick(5), Rate: randomRate(chance, 1), MaxCost: 1, Steps: steps,
		Trip: 4 * upTo([]time.Duration{25 * time.Microsecond, 250 * time.Microsecond, 2500 * time.Microsecond}[pick(3)]),
	}
	if pick(4) == 0 {
		p.MaxCost = 1 + chance.Int64N(6)
	}
	interval := nanosUp(unit(p.Rate))
	p.Batch = 1 + chance.Int64N(min([]int64{4, 16, 64}[pick(3)], 1+int64(200*time.Millisecond/interval)))
	p.Lateness = 4*p.Trip + 2*time.Millisecond // A slow bucket asks seldom, and clocks drift apart in between.
	if pick(2) == 0 {
		p.Lateness = max(interval, 10*time.Millisecond, p.Lateness)
	}
	p.Timeout = 50*time.Millisecond + 8*p.Trip
	p.Ahead = p.Lateness + 4*p.Trip + time.Duration(p.Batch*int64(1+pick(10)))*interval
	p.Ahead = min(p.Ahead, shaper.MaxAhead-time.Duration(p.Batch+p.MaxCost)*interval).Truncate(time.Microsecond)
	for kind := Faults(1); kind < allFaults; kind <<= 1 {
		if pick(4) == 0 {
			p.Faults |= kind
		}
	}
	if pick(3) == 0 {
		p.Guard = p.Ahead + time.Duration(p.Rate.Burst-1+p.Batch+2*p.MaxCost)*interval
		p.Guard = p.Guard.Truncate(time.Microsecond) + time.Microsecond
	}
	if pick(3) == 0 {
		p.Instances = int64(p.Processes)
	}
	return p
}

// randomRate returns a rate from 10/s to 10,000/s of a version. The interval is a whole
// number of ticks, and in most cases no whole number of nanoseconds.
func randomRate(chance *rand.Rand, version int64) shaper.BucketRate {
	r := shaper.BucketRate{Version: version, Parts: []int64{1, 3, 7, 21, 1000, 3000, 21000}[chance.IntN(7)], Burst: 1}
	r.Micros = 100 + chance.Int64N([]int64{400, 4_000, 100_000}[chance.IntN(3)])
	r.Part = chance.Int64N(r.Parts)
	if chance.IntN(3) == 0 {
		r.Burst = 1 + chance.Int64N(10)
	}
	return r
}

// step does one random operation.
func (r *SharedRun) step() {
	p := r.processes[r.chance.IntN(len(r.processes))]
	if r.chance.IntN(3) > 0 {
		r.arrive(p)
		return
	}
	kind := Faults(1) << r.chance.IntN(16)
	if !r.Faults.has(kind) {
		r.arrive(p)
		return
	}
	switch kind {
	case FaultCancel:
		r.cancel(p)
	case FaultMeter:
		r.meter(p)
	case FaultRateChange:
		r.changeRate(p)
	default:
		if r.chance.IntN(6) == 0 {
			r.fault(p, kind)
		}
	}
	// A copy of the state as a replica may have it that lags.
	if r.chance.IntN(4) == 0 {
		r.old = r.engine.state
	}
}

// arrive lets some requests come to a process.
func (r *SharedRun) arrive(p *sharedProcess) {
	for range 1 + r.chance.IntN(8) {
		p.enter(r.cost())
	}
	r.noteStall()
	p.look()
}

// cancel lets one request of a process give up, or now and then all of them.
func (r *SharedRun) cancel(p *sharedProcess) {
	if len(p.line) == 0 || !p.works() {
		return
	}
	p.cancel(r.chance.IntN(len(p.line)))
	for all := r.chance.IntN(8) == 0; all && len(p.line) > 0; {
		p.cancel(len(p.line) - 1)
	}
}

// changeRate gives a process the newest rate, which is now and then made anew, or only its
// version.
func (r *SharedRun) changeRate(p *sharedProcess) {
	newest := r.rates[len(r.rates)-1]
	if r.chance.IntN(4) == 0 && len(r.rates) < 4 {
		version := newest.Version + 1
		if r.chance.IntN(3) > 0 {
			newest = randomRate(r.chance, version)
		}
		newest.Version = version
		r.rates = append(r.rates, newest)
	}
	if p.rate.Version < newest.Version && p.works() {
		p.adopt(newest, shaper.Instant{})
		p.look()
	}
}

// fault lets something go wrong.
func (r *SharedRun) fault(p *sharedProcess, kind Faults) {
	switch kind {
	case FaultStateLost:
		if r.Guard == 0 || len(r.rates) > 1 {
			r.loseLevel("state lost")
		}
		r.engine.state = shaper.BucketLevel{}
	case FaultStateRestored:
		r.loseLevel("an old state restored")
		r.engine.state = r.old
	case FaultClockForward:
		r.stepClock(time.Duration(r.chance.Int64N(int64(5 * time.Second))))
	case FaultClockBack:
		r.stepClock(-time.Duration(r.chance.Int64N(int64(5 * time.Second))))
	case FaultClockNudged:
		r.stepClock(time.Duration(r.chance.Int64N(int64(40*time.Millisecond))) - 20*time.Millisecond)
	case FaultOutage:
		r.downUntil = r.now + time.Duration(r.chance.Int64N(int64(12*r.Timeout)))
	case FaultPause:
		most := 2 * r.horizon()
		if r.chance.IntN(2) == 0 {
			most = 2 * r.Lateness
		}
		r.pauseProcess(p, time.Duration(r.chance.Int64N(int64(most))))
	case FaultPauseBeforeDeparture:
		p.stops = time.Duration(r.chance.Int64N(int64(2 * r.horizon())))
	case FaultDeath:
		r.stop(p)
		r.mayWaste(r.most(), "a death")
		r.start()
	case FaultShutdown:
		for p.works() && len(p.leases) > 0 {
			p.giveBack(p.held())
			p.leases = p.leases[:len(p.leases)-1]
		}
		r.stop(p)
		r.mayWaste(r.most(), "a shutdown")
		r.start()
	}
}

// stepClock steps the engine's clock.
func (r *SharedRun) stepClock(by time.Duration) {
	r.stepped += by
	if by > 0 {
		r.loseLevel("the engine's clock stepped forward")
	}
}

// loseLevel allows what may leave too early when the engine forgets the level: the slots of
// all processes but the first that asks again, and a burst that has left already. If there
// has been only one process, it knows all that the engine knew.
func (r *SharedRun) loseLevel(why string) {
	if r.started == 1 {
		return
	}
	r.extra(int64(len(r.processes)-1)*r.most()+r.Pace().Burst, r.now, r.now+r.horizon(), why)
}

// pauseProcess pauses a process for a time.
func (r *SharedRun) pauseProcess(p *sharedProcess, d time.Duration) {
	p.paused = max(p.paused, r.now+d)
	r.noteStall()
	r.mayWaste(r.most(), "a pause")
	r.at(p.paused, p.look)
}

// stop ends a process at once.
func (r *SharedRun) stop(p *sharedProcess) {
	p.dead = true
	for i, q := range r.processes {
		if q == p {
			r.processes = append(r.processes[:i:i], r.processes[i+1:]...)
		}
	}
}
