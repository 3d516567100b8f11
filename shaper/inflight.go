package shaper

import "time"

// free frees a seat, if it has not been released before. The lock is not held.
//
// If no request is in line, when that happens does not matter, and reading the clock would be a
// third of the time of a release, so it is read only if the seat is timed. To a level it may matter.
func (held *seat) free(d *dispatcher, f *flow) {
	d.mu.Lock()
	if *held != freed && (f.waiting() > 0 || d.levels != nil) {
		d.mu.Unlock()
		held.freeAwaited(d, f)
		return
	}
	if *held != freed {
		f.line.seatsTaken--
		if *held != untimed {
			f.noteSeatTime(int64(time.Since(d.epoch)) - int64(*held))
		}
		*held = freed
		if d.host != nil {
			d.updateDepartureLocked(f)
		}
	}
	d.mu.Unlock()
}

// freeAwaited is free for a flow that had requests in line a moment ago, or may have a level.
func (held *seat) freeAwaited(d *dispatcher, f *flow) {
	now := d.lockFlow(f)
	defer d.unlockAndArm()
	if *held == freed {
		return
	}
	if *held != untimed {
		f.noteSeatTime(now - int64(*held))
	}
	*held = freed
	f.freeSeat(now)
	d.markDirtyLocked(f)
	d.advanceLocked(now, headFirst)
}

// freeSeat frees a seat at an instant. If all were taken, the head of the line has been waiting for
// this seat: it could not leave before, and is not late.
func (f *flow) freeSeat(now int64) {
	if !f.hasSeat() {
		f.notBefore(now)
		f.bucket.idleUntil(now) // Units that have just been given back may have emptied it before.
	}
	f.line.seatsTaken--
}

// A seat says whether a request that has left a flow with a cap still counts against
// the cap, and if its time is measured, when it was taken. Releasing a seat twice
// releases it once. The lock guards it.
type seat int64

const (
	untimed seat = -1 // taken, and its time is not measured
	freed   seat = -2

	// firstTimed and timedEvery say which seats of a flow are timed while the mean
	// is below longSeatTime: the first ones, so that there soon is a mean, and then
	// one in timedEvery. To time every seat would make a release a third slower; this
	// makes a call of Acquire and its release 3 % slower. From longSeatTime on all are
	// timed: compared with that time, reading the clock is nothing.
	firstTimed   = 16
	timedEvery   = 64
	longSeatTime = int64(50 * time.Microsecond)

	// seatTimeWeight divides the difference that the latest seat makes to the
	// average: an eighth of it counts, as in TCP's smoothed round-trip time (RFC
	// 6298). That evens out single seats, follows a change to nearly nine tenths
	// within 16 seats, and needs no more memory than the average itself.
	seatTimeWeight = 8

	// shortestSeatWait is the least that is told to wait for a seat, so that a
	// caller which sleeps for as long as it is told does not spin.
	shortestSeatWait = time.Millisecond
)

// A seatPool has the seats that have been made and not been taken yet.
type seatPool []seat

// take takes a seat for the departure with that number, at an instant. Seats are
// made 64 at a time, because one by one they would cost as much as the rest of a release. None
// is used again, as its caller may release it once more.
func (p *seatPool) take(f *flow, departureNo uint32, at int64) *seat {
	if len(*p) == 0 {
		*p = make([]seat, 64)
	}
	last := len(*p) - 1
	held := &(*p)[last]
	*p = (*p)[:last]
	*held = untimed
	if f.timesSeatOf(departureNo) {
		*held = seat(at)
	}
	return held
}

// timesSeatOf reports whether the time for which the seat of the departure with that number
// is taken is to be measured.
func (f *flow) timesSeatOf(departureNo uint32) bool {
	return departureNo%timedEvery == 0 || departureNo <= firstTimed || f.seatTime() >= longSeatTime
}

// seatTime returns the moving average of the time for which seats have been taken of
// late, in nanoseconds; 0 if none has been measured.
func (f *flow) seatTime() int64 { return f.bucket.coldOrNone().seatTime }

// noteSeatTime counts the time for which a seat that is released was taken. A mean of 0
// counts as none.
func (f *flow) noteSeatTime(span int64) {
	mean := &f.bucket.coldOrNew().seatTime
	span = max(0, span)
	if *mean == 0 {
		*mean = span
		return
	}
	*mean += (span - *mean) / seatTimeWeight
}
