package lease

import (
	"math"
	"math/big"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/shared"
)

// This file decides how much of a level a process leases, and when: so that all get the same, and
// the rate is reached with few round trips.

const (
	// longestBatch bounds the part of the level that one process has at a time, unless a single
	// request costs more, or round trips are longer.
	longestBatch = 50 * time.Millisecond
	// shortBatch is how much is leased at once at high rates, even if few wait, so that
	// there are few round trips per departure: at 1,000/s an eighth.
	shortBatch = 8 * time.Millisecond
	// paceWeight divides the difference that the latest lease makes to the average.
	paceWeight = 8
)

// trips knows how long calls of the Bucket take.
type trips struct {
	rtts     [8]int64 // the latest round trips
	RTT      int64    // the shortest of them; 0: unknown
	MeanTrip int64    // their moving average
}

// BatchFor returns how many requests to lease units for, of so many that wait, at a
// number of units per second: an eighth of them, so that processes take turns; as many as
// leave within shortBatch; or as many as leave within a little more than two round trips, as
// the next lease is asked for when half is used. Of these, only the share of this process
// would be needed. But a process that leases more has a greater share, and would keep it for
// ever; and one whose round trips have been a little longer would get all. So it is the same
// for all.
func (r *trips) BatchFor(queued int, perSecond float64) int64 {
	trips := 2.25 * r.tripSeconds() * perSecond
	k := max(float64(queued)/8, trips, shortBatch.Seconds()*perSecond)
	k = min(math.Ceil(k), float64(queued), r.LongestBatch()*perSecond)
	return int64(max(k, 1))
}

// MostAhead returns how many cost units may be leased ahead at most, as round trips and costs
// have been so far: two batches, each as large as the departures in LongestBatch or as a single
// request. Units leased of a burst leave at once, and those that a greater rate has left are used up.
func (l *Lease) MostAhead() int64 {
	if l.Off {
		return 0
	}
	perSecond := l.Interval.Units(exact.At(int64(time.Second)))
	return max(2*max(int64(l.LongestBatch()*perSecond), l.Largest, 1), l.Leased())
}

// LongestBatch returns how much a batch may be, in seconds of the rate.
func (r *trips) LongestBatch() float64 {
	return max(longestBatch.Seconds(), 2.25*r.tripSeconds())
}

// tripSeconds returns the mean round trip, rounded up to a power of two of a
// millisecond, so that it is the same for processes whose way to the Bucket is.
func (r *trips) tripSeconds() float64 {
	return math.Exp2(math.Ceil(math.Log2(float64(max(r.MeanTrip, 1))/1e6))) / 1e3
}

// courtesy returns for how long this process lets others ask before it, at rates so slow
// that one can lease only one slot at a time: longest if it has had the latest one, and the
// less the more the others have had since. Without it they would all ask at the instant at
// which the next slot may be leased, and the one that is nearest to the Bucket would get
// it, each time. As that slot is still nearly [shared.MaxAhead] away, nothing is lost.
func (l *Lease) courtesy(empty shared.Instant) int64 {
	if l.end == (shared.Instant{}) {
		return 0
	}
	since := l.Interval.Units(NanosOf(l.Rate, l.Rate.Minus(empty, l.end))) / float64(max(l.batch, 1))
	return int64(float64(l.LongestCourtesy()) / (1 + max(since, 0)/4))
}

// LongestCourtesy is for how long the process that has had the latest slot lets others ask
// before it.
func (l *Lease) LongestCourtesy() int64 {
	return min(l.Interval.Whole()/4, int64(shared.MaxAhead)/8)
}

// notePace measures which part of the level's movement is this process's: two of its
// successive leases lie as far apart as all others and the first of the two together. If the
// level was at 0, no other process kept this one from having more.
func (l *Lease) notePace(t shared.Take, taken shared.Taken) {
	if l.lastCost > 0 {
		units := 1.0
		if taken.Empty.Micros > taken.Now {
			moved := l.Rate.Minus(taken.Empty, l.lastBegan)
			units = l.Interval.Units(NanosOf(l.Rate, moved)) / float64(l.lastCost)
		}
		l.Pace += (min(max(units, 1), 1e6) - l.Pace) / paceWeight
	}
	l.lastBegan, l.lastCost = taken.Empty, t.Cost
}

// noteRoundTrip notes how long a call took: rtt is the shortest of the latest few, and
// meanTrip the moving average.
func (r *trips) noteRoundTrip(rtt int64) {
	if r.MeanTrip == 0 {
		r.MeanTrip = rtt
	}
	r.MeanTrip += (rtt - r.MeanTrip) / paceWeight
	copy(r.rtts[1:], r.rtts[:])
	r.rtts[0], r.RTT = rtt, rtt
	for _, of := range r.rtts {
		if of > 0 {
			r.RTT = min(r.RTT, of)
		}
	}
}

// PaceInterval returns the interval between departures of cost 1 from this process, as its
// share has been of late. It changes in steps of an eighth.
func (l *Lease) PaceInterval() exact.Interval {
	steps := math.Round(8 * math.Log2(l.Pace))
	if steps <= 0 {
		return l.Interval
	}
	ns := l.Interval.Units(exact.At(int64(time.Second))) // units per second
	return exact.IntervalOfFraction(int64(min(1e9/ns*math.Exp2(steps/8), float64(horizon))), 0, 1)
}

// bucketRateOf returns the rate of a limit, which is finite, of version 0. A rate whose interval
// has a denominator above 10⁹ in nanoseconds, as only few that people write have, is rounded down:
// its interval is rounded up to a billionth of a nanosecond.
func bucketRateOf(r rate.Limit, burst int64) shared.BucketRate {
	ns := exact.IntervalOf(r).Rat()
	parts := new(big.Int).Mul(ns.Denom(), big.NewInt(1000))
	if parts.Cmp(big.NewInt(shared.MaxParts)) > 0 {
		parts.SetInt64(shared.MaxParts)
	}
	scaled := new(big.Int).Mul(ns.Num(), parts)
	scaled, rest := scaled.QuoRem(scaled, new(big.Int).Mul(ns.Denom(), big.NewInt(1000)), new(big.Int))
	if rest.Sign() > 0 {
		scaled.Add(scaled, big.NewInt(1))
	}
	micros, part := scaled.QuoRem(scaled, parts, new(big.Int))
	return shared.BucketRate{Micros: micros.Int64(), Part: part.Int64(), Parts: parts.Int64(), Burst: burst}
}

// Rates remembers BucketRates, as making one takes tens of microseconds. It needs no lock of the
// engine. The zero value is ready to use.
type Rates struct {
	mu   sync.Mutex
	made map[rateAndBurst]shared.BucketRate
}

type rateAndBurst struct {
	rate  rate.Limit
	burst int64
}

// mostRates bounds the memory of Rates.
const mostRates = 1024

// Of returns the [shared.BucketRate] of a limit, of version 0. At rate.Inf there is none.
func (m *Rates) Of(r rate.Limit, burst int64) shared.BucketRate {
	if r == rate.Inf {
		return shared.BucketRate{Parts: 1000, Burst: burst}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := rateAndBurst{r, burst}
	made, ok := m.made[key]
	if !ok {
		if m.made == nil || len(m.made) >= mostRates {
			m.made = make(map[rateAndBurst]shared.BucketRate)
		}
		made = bucketRateOf(r, burst)
		m.made[key] = made
	}
	return made
}

// PerSecond returns a rate as cost units per second.
func PerSecond(r shared.BucketRate) rate.Limit {
	interval := r.Rat(shared.Instant{Micros: r.Micros, Part: r.Part})
	perSecond, _ := interval.Quo(big.NewRat(1e6, 1), interval).Float64()
	return rate.Limit(perSecond)
}

// A Breaker is the circuit breaker of one of the servers of a Bucket, whose keys can be asked for
// or can't together. It is open after FailuresToOpen failures in a row. Then the server is asked
// again after 50 ms, and after twice as long each time, up to 2 s.
type Breaker struct {
	Name     string // of the server
	Failures int    // in a row
	Open     bool   // the server counts as unavailable
	OpenedAt int64
	ProbeAt  int64 // when it is asked again
	Err      error // the latest failure
	backoff  time.Duration
}

// FailuresToOpen is after how many failures in a row a server counts as unavailable.
const FailuresToOpen = 3

const (
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = 2 * time.Second
)

// MayAsk reports whether the server may be asked now; if not, it returns when it may be.
func (b *Breaker) MayAsk(now int64) (until int64, ok bool) {
	if !b.Open || now >= b.ProbeAt { // A probe has moved that on; see Asks.
		return now, true
	}
	return max(b.ProbeAt, now+int64(leastPause)), false
}

// Asks notes that the server is asked in a call that ends within timeout. If the Breaker is open,
// this is the one probe.
func (b *Breaker) Asks(now int64, timeout time.Duration) {
	if b.Open {
		b.ProbeAt = now + int64(timeout+b.backoff)
	}
}

// Failed notes that a call which began at sent has failed at now. It reports whether that opens the
// Breaker.
func (b *Breaker) Failed(sent, now int64, err error) (opens bool) {
	b.Failures++
	b.Err = err
	switch {
	case b.Open && sent < b.OpenedAt:
		return false // It is no probe, and says nothing new.
	case b.Open:
		b.backoff = min(2*b.backoff, lastBackoff)
	case b.Failures >= FailuresToOpen:
		b.Open, b.backoff, b.OpenedAt = true, firstBackoff, now
		opens = true
	default:
		return false
	}
	b.ProbeAt = now + int64(b.backoff)*3/4 + rand.Int64N(int64(b.backoff)/2)
	return opens
}

// Succeeded notes a success. It reports whether that closes the Breaker.
func (b *Breaker) Succeeded() (closes bool) {
	closes = b.Open
	b.Failures, b.Err, b.Open = 0, nil, false
	return closes
}

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

// MayReach returns the instant of the engine's clock before which the Bucket's has certainly not come to a
// reading, in nanoseconds.
func (c *Clock) MayReach(reading int64) int64 {
	after := max(exact.Sum(reading, -c.at-c.high), 0)
	return c.at + after - (after+perDrift)/(perDrift+1)
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
