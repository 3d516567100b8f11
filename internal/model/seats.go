package model

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A SeatEvent is what happened in one of several processes that share a cap on what is under way. A log of them, in
// whatever order, is what [SharedCap] judges; of two at one instant the earlier in the log came first.
type SeatEvent struct {
	At      time.Duration // on one clock for all processes
	Process int           // which one, from 0; a process that was restarted is another
	What    SeatWhat
	Since   time.Duration // of Leased: when the process asked; of Ends: when the call began
}

// SeatWhat says what happened.
type SeatWhat int

const (
	Waits     SeatWhat = iota // a request enters the line
	GivesUp                   // one leaves the line without a call
	Begins                    // one leaves the line, and its call begins
	Ends                      // a call ends
	Leased                    // an answer leases seats to the process, from when it asked
	Stops                     // the process is stopped or killed; its calls do no work, and stay under way
	GoesOn                    // it goes on
	IsCutOff                  // it can't ask for seats
	IsReached                 // it can again
)

// A SharedCap is the common promise of processes that share a cap: at no instant are more calls than Cap under way by
// seats whose lease lasts. A lease lasts from when its process asked. A call that outlives the lease of its process has
// no seat from then on, even if the process gets a lease later.
type SharedCap struct {
	Cap   int
	Lease time.Duration
}

// SeatUse is how processes have used their seats.
type SeatUse struct {
	Most     int   // the most calls at once by seats whose lease lasted
	Outlived int   // the most at once that had outlived the lease of their process
	Beyond   int   // the most at once of all, less the cap; 0 if that is negative
	Unleased int   // calls that began when their process had no lease
	Overstay []int // Outlived, of each process

	// Of the time from one instant to another:
	Calls   int             // that began
	Use     float64         // the mean part of the cap that was under way in processes that were not stopped, while there was a line
	Each    []float64       // the mean number of calls that each process had under way
	Starved time.Duration   // the longest in which a process that could ask had a line, and no call under way
	Line    time.Duration   // for how long there was a line in all
	Lines   []time.Duration // and in each process, while it was not stopped
	Leases  []time.Duration // for how long each process had a lease, and no line
}

func (u SeatUse) String() string {
	return fmt.Sprintf("use %5.1f %%, most %d, beyond %d, outlived %d, %d calls, starved %.1f s",
		100*u.Use, u.Most, u.Beyond, u.Outlived, u.Calls, u.Starved.Seconds())
}

// Check returns an error that says which part of the promise was not kept.
func (c SharedCap) Check(u SeatUse) error {
	switch {
	case u.Most > c.Cap:
		return fmt.Errorf("%d calls were under way by seats whose lease lasted, %d are allowed", u.Most, c.Cap)
	case u.Unleased > 0:
		return fmt.Errorf("%d calls began when their process had no lease", u.Unleased)
	}
	return nil
}

// A seated is a process as a log has told so far.
type seated struct {
	begun            []seatedCall
	waiting          int
	leaseEnds        time.Duration // 0: it has none
	stopped, cutOff  bool
	hungry           bool
	hungrySince      time.Duration
	used             float64 // seats, times nanoseconds
	lined, onlyLease time.Duration
}

type seatedCall struct {
	at       time.Duration
	outlived bool
}

// lasting returns how many calls are under way by seats whose lease lasts.
func (p *seated) lasting() (n int) {
	for _, c := range p.begun {
		if !c.outlived {
			n++
		}
	}
	return n
}

// A seatJudge reads a log.
type seatJudge struct {
	SharedCap
	from, to time.Duration
	now      time.Duration
	all      []seated
	use      SeatUse
	used     float64 // seats while there was a line, times nanoseconds
}

// Judge returns how processes have used their seats. The promise is judged over the whole log, and the rest from one
// instant to another.
func (c SharedCap) Judge(log []SeatEvent, from, to time.Duration) SeatUse {
	log = slices.Clone(log)
	slices.SortStableFunc(log, func(a, b SeatEvent) int { return cmp.Compare(a.At, b.At) })
	j := &seatJudge{SharedCap: c, from: from, to: to}
	for _, e := range log {
		for len(j.all) <= e.Process {
			j.all, j.use.Overstay = append(j.all, seated{}), append(j.use.Overstay, 0)
		}
		j.passes(e.At)
		j.happens(e)
	}
	j.passes(max(to, j.now))
	for i := range j.all {
		p := &j.all[i]
		j.feeds(p)
		j.use.Each = append(j.use.Each, p.used/float64(to-from))
		j.use.Lines, j.use.Leases = append(j.use.Lines, p.lined), append(j.use.Leases, p.onlyLease)
	}
	if j.use.Line > 0 {
		j.use.Use = j.used / float64(j.use.Line) / float64(c.Cap)
	}
	return j.use
}

// passes lets time pass until an instant, and leases end that end until then.
func (j *seatJudge) passes(until time.Duration) {
	for j.now < until {
		next := until
		for i := range j.all {
			if end := j.all[i].leaseEnds; end > 0 {
				next = min(next, max(end, j.now))
			}
		}
		j.counts(max(j.now, j.from), min(next, j.to))
		j.now = next
		for i := range j.all {
			if p := &j.all[i]; p.leaseEnds > 0 && p.leaseEnds <= j.now {
				p.leaseEnds = 0
				for k := range p.begun {
					p.begun[k].outlived = true
				}
			}
		}
		j.looks()
	}
}

// counts counts what was used in a span in which nothing happened.
func (j *seatJudge) counts(from, to time.Duration) {
	if to <= from {
		return
	}
	span, line, works := to-from, 0, 0
	for i := range j.all {
		p := &j.all[i]
		if p.stopped {
			continue
		}
		n := len(p.begun)
		p.used += float64(n) * float64(span)
		line += p.waiting
		works += n
		switch {
		case p.waiting > 0:
			p.lined += span
		case p.leaseEnds > 0:
			p.onlyLease += span
		}
	}
	if line > 0 {
		j.use.Line += span
		j.used += float64(min(works, j.Cap)) * float64(span)
	}
}

// looks notes how many calls are under way.
func (j *seatJudge) looks() {
	lasting, all := 0, 0
	u := &j.use
	for i := range j.all {
		p := &j.all[i]
		n := p.lasting()
		lasting += n
		all += len(p.begun)
		u.Overstay[i] = max(u.Overstay[i], len(p.begun)-n)
	}
	u.Most, u.Outlived, u.Beyond = max(u.Most, lasting), max(u.Outlived, all-lasting), max(u.Beyond, all-j.Cap)
}

// happens takes an event in.
func (j *seatJudge) happens(e SeatEvent) {
	p := &j.all[e.Process]
	switch e.What {
	case Waits:
		p.waiting++
	case GivesUp:
		p.waiting--
	case Begins:
		p.waiting--
		if p.leaseEnds == 0 {
			j.use.Unleased++
		}
		if j.from <= e.At && e.At < j.to {
			j.use.Calls++
		}
		p.begun = append(p.begun, seatedCall{at: e.At, outlived: p.leaseEnds == 0})
		j.looks()
	case Ends:
		i := slices.IndexFunc(p.begun, func(c seatedCall) bool { return c.at == e.Since })
		p.begun = slices.Delete(p.begun, i, i+1)
	case Leased:
		if end := e.Since + j.Lease; end > e.At {
			p.leaseEnds = max(p.leaseEnds, end)
		}
	case Stops, GoesOn:
		p.stopped = e.What == Stops
	case IsCutOff, IsReached:
		p.cutOff = e.What == IsCutOff
	}
	j.feeds(p)
}

// feeds notes for how long a process was starved, and whether it is now.
func (j *seatJudge) feeds(p *seated) {
	if p.hungry {
		j.use.Starved = max(j.use.Starved, min(j.now, j.to)-max(p.hungrySince, j.from))
	}
	hungry := p.waiting > 0 && len(p.begun) == 0 && !p.stopped && !p.cutOff
	if hungry && !p.hungry {
		p.hungrySince = j.now
	}
	p.hungry = hungry
}
