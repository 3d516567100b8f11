package lease

import (
	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/shared"
)

// A Clock knows how far the clock of a Bucket is ahead of the engine's: their
// difference lies in an interval, as nobody knows when between the question and the
// answer the Bucket read its clock. Each answer makes the interval narrower (Marzullo's
// algorithm with one source: the intersection of all that has been seen), and time makes it
// wider, as clocks drift. The wall clocks of the processes are not used.
//
// All numbers are nanoseconds.
type Clock struct {
	known    bool
	low      int64 // the least difference, Bucket's clock − engine's, at the instant at
	high     int64 // the greatest
	at       int64
	lastSeen int64 // the latest reading of the Bucket's clock, in microseconds
}

// perDrift is the time after which one clock may be ahead of the other by one unit of time
// more: 200 ppm. A quartz clock is off by up to 100 ppm, and both clocks may be, each to its
// side. A clock that is slewed faster, as some time daemons do to make up for an offset, looks
// as if it had been set: the leased units are dropped, and no rate is exceeded.
const perDrift = 5000

// drift returns by how much the clocks may have moved apart after a time, rounded up.
func drift(after int64) int64 { return (max(after, 0) + perDrift - 1) / perDrift }

// note adds an answer: the Bucket's clock showed now, in microseconds rounded down, at some
// time between the two instants. It reports whether the answer fits the earlier ones. If
// not, the clock has been set, or it is another server's, and the estimate begins anew.
func (c *Clock) note(sent, received, now int64) (fits bool) {
	low, high := now*1000-received, now*1000+1000-sent
	fits = true
	if c.known {
		oldLow, oldHigh := c.boundsAt(received)
		fits = max(low, oldLow) <= min(high, oldHigh)
		if fits {
			low, high = max(low, oldLow), min(high, oldHigh)
		}
	}
	if !fits {
		c.lastSeen = 0
	}
	c.known, c.low, c.high, c.at, c.lastSeen = true, low, high, received, max(c.lastSeen, now)
	return fits
}

// boundsAt returns the least and the greatest difference at an instant.
func (c *Clock) boundsAt(now int64) (low, high int64) {
	d := drift(now - c.at)
	return c.low - d, c.high + d
}

// Latest returns the latest that the Bucket's clock can show at an instant.
func (c *Clock) Latest(now int64) int64 {
	_, high := c.boundsAt(now)
	return now + high
}

// Reaches returns the instant of the engine's clock at which the Bucket's has certainly
// come to a reading, in nanoseconds.
func (c *Clock) Reaches(reading int64) int64 {
	after := exact.Sum(reading, -c.at-c.low)
	if after <= 0 {
		return c.at + after // The latest answer has shown that it had come.
	}
	// Meanwhile the Bucket's clock may lose what drift says: after·perDrift/(perDrift−1)
	// later, rounded up, it has gained at least after.
	return exact.Sum(c.at, exact.Sum(after, (after+perDrift-2)/(perDrift-1)))
}

// reading returns what the Bucket's clock shows, in nanoseconds, if its difference is the least that
// it can be. So Reaches of it is not before now.
func (c *Clock) reading(now int64) int64 { return now + c.low }

// NanosOf returns a [shared.Instant] of a rate as nanoseconds on the Bucket's clock.
func NanosOf(r shared.BucketRate, t shared.Instant) exact.Nanos {
	perNano := r.Parts / 1000
	return exact.Of(exact.Sum(t.Micros*1000, t.Part/perNano), uint64(t.Part%perNano))
}

// InstantOf returns nanoseconds on the Bucket's clock as a [shared.Instant] of a rate, rounded up
// to a microsecond.
func InstantOf(ns int64) shared.Instant { return shared.Instant{Micros: (ns + 999) / 1000} }

// Known reports whether there has been an answer.
func (c *Clock) Known() bool { return c.known }
