package model

import (
	"time"

	"example.com/leakybucket/shaper"
)

// engineBegan is the reading of the engine's clock at the true time 0.
const engineBegan = 1_000_000 * time.Second

// engineNow returns the reading of the engine's clock in microseconds.
func (r *SharedRun) engineNow() int64 { return (engineBegan + r.now + r.stepped).Microseconds() }

// A sharedCall is a Take on its way.
type sharedCall struct {
	take     shaper.Take
	sent     time.Duration // on the process's clock
	attempts int           // see TimedOutReplayed
}

// trip returns how long a message is on its way.
func (r *SharedRun) trip() time.Duration {
	return r.Trip/4 + time.Duration(r.chance.Int64N(int64(r.Trip*3/4)))
}

// lost reports whether a message is lost.
func (r *SharedRun) lost(kind Faults) bool { return r.Faults.has(kind) && r.chance.IntN(25) == 0 }

// send sends a call of a process: it may be lost, its answer may be lost or slow.
func (r *SharedRun) send(p *sharedProcess, c *sharedCall) {
	c.attempts++
	timeout := r.now + r.Timeout
	r.at(timeout, func() { r.whenWorks(p, func() { r.timeout(p, c) }) })
	if r.lost(FaultLostRequest) {
		return
	}
	r.at(r.now+r.trip(), func() {
		if r.now < r.downUntil {
			return
		}
		taken := r.take(c.take)
		trip := r.trip()
		if r.lost(FaultSlowAnswer) {
			trip += time.Duration(r.chance.Int64N(int64(r.Timeout)))
			r.mayWaste(r.most(), "a slow answer")
		}
		if r.lost(FaultLostReply) {
			return
		}
		r.at(r.now+trip, func() { r.whenWorks(p, func() { r.answer(p, c, taken) }) })
	})
}

// whenWorks does something at once, or when the process is not paused any more.
func (r *SharedRun) whenWorks(p *sharedProcess, do func()) {
	switch {
	case p.dead:
	case r.now < p.paused:
		r.at(p.paused, func() { r.whenWorks(p, do) })
	default:
		do()
	}
}

// take does a Take.
func (r *SharedRun) take(t shaper.Take) shaper.Taken {
	taken := r.engine.take(t, r.engineNow())
	if taken.OK {
		r.taken += t.Cost
	}
	return taken
}

// timeout ends a call that has had no answer.
func (r *SharedRun) timeout(p *sharedProcess, c *sharedCall) {
	switch {
	case p.calling != c:
	case r.mistake == TimedOutReplayed && c.attempts < 3:
		r.send(p, c)
	default:
		p.timedOut(c)
	}
}

// answer hands an answer to a process, if it still waits for it.
func (r *SharedRun) answer(p *sharedProcess, c *sharedCall, taken shaper.Taken) {
	if p.calling == c {
		p.answered(c, taken)
	}
}

// sendBack sends a GiveBack, which may be lost. Nothing waits for its end.
func (r *SharedRun) sendBack(t shaper.Take, end shaper.Instant) {
	r.mayWaste(t.Cost, "a GiveBack")
	if r.lost(FaultLostRequest) {
		return
	}
	r.at(r.now+r.trip(), func() {
		if r.now >= r.downUntil && r.engine.giveBack(t, end) {
			r.returned += t.Cost
			r.wasted -= t.Cost
		}
	})
}

// meter lets a process ask for one request that doesn't wait, as AllowN does.
func (r *SharedRun) meter(p *sharedProcess) {
	if p.metering || !p.works() {
		return
	}
	p.metering = true
	cost := r.cost()
	take := p.take(cost, cost, 0)
	sent := p.now()
	r.mayWaste(cost, "AllowN")
	r.at(r.now+r.trip(), func() {
		if r.now < r.downUntil {
			p.metering = false
			return
		}
		taken := r.take(take)
		r.at(r.now+r.trip(), func() {
			p.metering = false
			if !p.works() {
				return
			}
			p.read(taken, sent, p.now())
			switch {
			case taken.Other != nil:
				p.adopt(*taken.Other, taken.Empty)
			case taken.OK:
				begin := ticksOf(taken.Empty, take.Rate)
				p.raise(begin+tick(cost)*unit(take.Rate), take.Rate)
				if tick(p.now()+p.theta.high)*perNano <= begin+tick(r.Lateness)*perNano || r.mistake == LatenessUnchecked {
					r.depart(&r.Log, Departure{At: r.now, Process: -len(r.Log) - 1, Cost: cost})
					r.used += cost
				}
			}
			p.look()
		})
	})
}
