package model

import (
	"time"

	"example.com/leakybucket/shaper"
)

// A sharedProcess is one process with a line and leases. All its instants are those of its
// own clock, or of the engine's.
type sharedProcess struct {
	run    *SharedRun
	id     int
	clock  localClock
	dead   bool
	paused time.Duration // true time until which it does nothing
	stops  time.Duration // for how long it will be paused between the next check and the departure

	line   []sharedRequest
	came   int // requests that have come into the line
	leases []stretch

	theta  clockMap
	rate   shaper.BucketRate // the newest that it knows
	high   shaper.Instant
	seen   int64
	floor  tick // of the engine's clock: no slot before is used
	latest tick // the end of the slot used last, or of the lease

	calling  *sharedCall
	metering bool          // a call of AllowN is on its way
	askAt    time.Duration // not before
	failed   int           // calls in a row
	pause    time.Duration // until the next probe

	local    tick // the level of the fallback reaches 0, on the local clock
	localMin time.Duration
	fallen   bool // in the fallback

	wake time.Duration // true time of the next look, if after now
}

// A sharedRequest is in a line.
type sharedRequest struct {
	number int
	cost   int64
}

// A stretch is what is left of a lease: the level from pos to end, on the engine's clock.
//
// It keeps the map of when it was leased. If the engine's clock goes back by less than the
// map is wide, the process does not notice, and what the map says later is no longer true
// of the clock on which these slots were leased: they would seem to be less late than they
// are.
type stretch struct {
	pos, end tick
	rate     shaper.BucketRate
	theta    clockMap
}

// unit returns the time of a cost unit.
func unit(r shaper.BucketRate) tick {
	return ticksOf(shaper.Instant{Micros: r.Micros, Part: r.Part}, r)
}

// held returns how many cost units are leased and not used.
func (p *sharedProcess) held() (units int64) {
	for _, s := range p.leases {
		units += int64((s.end - s.pos) / unit(s.rate))
	}
	return units
}

// now returns the reading of the process's clock.
func (p *sharedProcess) now() time.Duration { return p.clock.at(p.run.now) }

// works reports whether the process is alive and not paused.
func (p *sharedProcess) works() bool { return !p.dead && p.run.now >= p.paused }

// look lets requests leave whose slots have come, and asks the engine for more slots.
func (p *sharedProcess) look() {
	if !p.works() {
		return
	}
	for len(p.line) > 0 && p.works() {
		wait, left := p.serve(p.now())
		if wait > 0 {
			p.wakeAt(wait)
		}
		if !left {
			break
		}
	}
	p.ask()
}

// serve lets the head leave if a slot for it has come. If there is one that has not come, it
// returns the local instant at which it will have.
func (p *sharedProcess) serve(local time.Duration) (wait time.Duration, left bool) {
	n, theta, mistake := p.line[0].cost, p.theta.at(local), p.run.mistake
	atLeast := theta.low
	if mistake == EarlyByUncertainty {
		atLeast = theta.high
	}
	for len(p.leases) > 0 {
		s := &p.leases[0]
		atMost := max(theta.high, s.theta.at(local).high)
		if mistake == LateByUncertainty {
			atMost = theta.low
		}
		s.pos = max(s.pos, min(p.floor, s.end))
		if late := tick(local+atMost)*perNano - tick(p.run.Lateness)*perNano - s.pos; late > 0 && mistake != LatenessUnchecked {
			s.pos += late
		}
		if s.end-s.pos < tick(n)*unit(s.rate) {
			rest := *s
			p.leases = p.leases[1:]
			if len(p.leases) > 0 && p.leases[0].pos == rest.end && agree(p.leases[0].rate, rest.rate) && rest.pos < rest.end {
				p.leases[0].pos = rest.pos
			}
			continue
		}
		due := s.pos - tick(max(0, s.rate.Burst-n))*unit(s.rate)
		if tick(local+atLeast)*perNano < due {
			return max(local+1, nanosUp(due)-atLeast), false
		}
		s.pos += tick(n) * unit(s.rate)
		p.latest = s.pos
		p.leave(&p.run.Log)
		p.run.used += n
		return 0, true
	}
	if !p.fallen {
		return 0, false
	}
	return p.serveLocally(local, n)
}

// leave lets the head leave, which goes into one of the logs.
func (p *sharedProcess) leave(log *[]Departure) {
	head := 0
	if p.run.mistake == NewestFirst {
		head = len(p.line) - 1
	}
	w := p.line[head]
	if head == 0 {
		p.line = p.line[1:]
	} else {
		p.line = p.line[:head]
	}
	at := p.run.now
	if p.stops > 0 {
		at += p.stops
		p.run.pauseProcess(p, p.stops)
		p.run.extra(w.cost, at, at, "a pause before a departure")
		p.stops = 0
	}
	p.run.depart(log, Departure{At: at, Process: p.id, Number: w.number, Cost: w.cost})
	if p.run.Saturated {
		p.enter(p.run.cost())
	}
}

// enter puts a request into the line.
func (p *sharedProcess) enter(cost int64) {
	p.came++
	p.line = append(p.line, sharedRequest{number: p.came, cost: cost})
}

// ask leases the next slots if there are requests that have none, and at most as many
// slots are held as one lease has.
func (p *sharedProcess) ask() {
	local := p.now()
	held := p.held()
	if p.calling != nil || held > p.run.Batch {
		return
	}
	var covered, cost, first int64
	for _, w := range p.line {
		if covered+w.cost <= held {
			covered += w.cost
			continue
		}
		if first == 0 {
			first = w.cost
		}
		if cost += w.cost; cost >= p.run.Batch {
			break
		}
	}
	if cost == 0 {
		return
	}
	if local < p.askAt {
		p.wakeAt(p.askAt)
		return
	}
	take := p.take(cost, first, p.run.Ahead)
	p.calling = &sharedCall{take: take, sent: local}
	p.run.send(p, p.calling)
}

// take returns a Take of this process.
func (p *sharedProcess) take(cost, first int64, ahead time.Duration) shaper.Take {
	take := shaper.Take{Key: "shared", Cost: cost, First: first, Ahead: ahead, Rate: p.rate, High: p.high, Seen: p.seen, Guard: p.run.Guard}
	if p.fallen && p.theta.known {
		level := p.local + tick(p.theta.at(p.now()).high)*perNano
		take.High = instantOf(max(level, ticksOf(p.high, p.rate)), p.rate)
	}
	if p.run.mistake == HighNotSent {
		take.High, take.Seen = shaper.Instant{}, 0
	}
	return take
}

// answered takes in the answer to a lease.
func (p *sharedProcess) answered(c *sharedCall, taken shaper.Taken) {
	local := p.now()
	p.calling, p.failed, p.pause = nil, 0, 0
	p.read(taken, c.sent, local)
	if p.fallen {
		p.recover(local)
	}
	switch {
	case taken.Other != nil:
		p.adopt(*taken.Other, taken.Empty)
	case taken.OK:
		begin := ticksOf(taken.Empty, c.take.Rate)
		s := stretch{pos: begin, end: begin + tick(c.take.Cost)*unit(c.take.Rate), rate: c.take.Rate, theta: p.theta}
		p.leases = append(p.leases, s)
		p.raise(s.end, c.take.Rate)
	default:
		due := ticksOf(taken.Empty, c.take.Rate) - tick(max(0, c.take.Rate.Burst-c.take.First))*unit(c.take.Rate)
		p.askAt = nanosUp(due) - c.take.Ahead - p.theta.low
	}
	p.look()
}

// read takes in a reading of the engine's clock.
func (p *sharedProcess) read(taken shaper.Taken, sent, received time.Duration) {
	before := p.theta.at(received)
	fits := p.theta.learn(taken.Now, sent, received)
	p.seen = taken.Now
	if fits {
		return
	}
	p.run.epochs++
	if p.run.mistake == OldEpochKept {
		return
	}
	p.run.mayWaste(p.run.most(), "the engine's clock stepped")
	p.leases = nil
	p.high = taken.Empty
	if taken.Other != nil {
		p.high = shaper.Instant{}
	}
	// What has left at slots of the old epoch has left: the next slot is not before the end
	// of the last of them, wherever the engine's clock is.
	if floor := max(p.latest, p.floor); floor > 0 && p.run.mistake != EpochForgets {
		p.floor = floor - tick(before.low)*perNano + tick(p.theta.high)*perNano
	} else {
		p.floor = 0
	}
	p.latest = 0
}

// raise notes that the level has been raised to an instant.
func (p *sharedProcess) raise(to tick, r shaper.BucketRate) {
	if agree(p.rate, r) {
		p.high = instantOf(max(to, p.floor, ticksOf(p.high, r)), r)
	}
}

// adopt puts a newer rate in force. empty is when the level reaches 0, if that is known. The
// next slot is not before the end of what this process holds at the old rate.
func (p *sharedProcess) adopt(r shaper.BucketRate, empty shaper.Instant) {
	high := ticksOf(empty, r)
	if p.high != (shaper.Instant{}) {
		next := ticksOf(p.high, p.rate) - tick(p.rate.Burst-1)*unit(p.rate)
		high = max(high, next+tick(r.Burst-1)*unit(r))
	}
	p.rate, p.high, p.askAt = r, instantOf(high, r), 0
}

// timedOut counts a call that failed; it is not known whether anything was taken.
func (p *sharedProcess) timedOut(c *sharedCall) {
	p.run.mayWaste(c.take.Cost, "a call timed out")
	p.calling = nil
	p.failed++
	if p.failed < 3 {
		p.look()
		return
	}
	local := p.now()
	p.pause = min(2*time.Second, max(50*time.Millisecond, 2*p.pause))
	p.askAt = local + p.pause/2 + time.Duration(p.run.chance.Int64N(int64(p.pause/2)))
	if !p.fallen && p.run.Instances > 0 {
		p.fall(local)
	}
	p.look()
}

// cancel takes a request out of the line, and gives back what is not needed any more.
func (p *sharedProcess) cancel(at int) {
	w := p.line[at]
	p.line = append(p.line[:at:at], p.line[at+1:]...)
	waiting := int64(0)
	for _, w := range p.line {
		waiting += w.cost
	}
	if surplus := p.held() - waiting; surplus > 0 && p.calling == nil {
		p.giveBack(surplus)
	}
	// Costs that don't fit what is leased leave a rest of it.
	p.run.mayWaste(w.cost+(p.run.MaxCost-1)*p.run.most(), "a cancel")
	p.look()
}

// giveBack gives back cost units of the last lease, at most as many as are left of it.
func (p *sharedProcess) giveBack(cost int64) {
	if len(p.leases) == 0 {
		return
	}
	s := &p.leases[len(p.leases)-1]
	cost = min(cost, int64((s.end-min(s.end, max(s.pos, p.floor)))/unit(s.rate)))
	if cost == 0 || !agree(s.rate, p.rate) {
		return
	}
	end := instantOf(s.end, s.rate)
	begin := s.end - tick(cost)*unit(s.rate)
	if p.high == end {
		p.high = instantOf(begin, s.rate)
	}
	if p.run.mistake != GivenBackStillUsed {
		s.end = begin
	}
	p.run.sendBack(shaper.Take{Key: "shared", Cost: cost, First: 1, Rate: s.rate}, end)
}

// wakeAt makes the process look at a local instant, or a little later.
func (p *sharedProcess) wakeAt(local time.Duration) {
	at := max(p.run.now, p.clock.when(local)) + p.run.timerLate()
	if p.wake > p.run.now && p.wake <= at {
		return
	}
	p.wake = at
	p.run.at(at, func() {
		if p.wake == at {
			p.wake = 0
			p.look()
		}
	})
}
