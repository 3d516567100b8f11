package buckettest

import "time"

// A clock shows the time of [time.Now] until it is moved.
type clock struct {
	since time.Time // when it was last moved
	shown int64     // its reading then, in nanoseconds since 1970
	ppm   float64   // how much faster it has gone since, in millionths
}

func newClock() clock {
	now := time.Now()
	return clock{since: now, shown: now.UnixNano()}
}

// nanos returns the reading of the clock at an instant.
func (c clock) nanos(at time.Time) int64 {
	passed := at.Sub(c.since)
	return c.shown + int64(passed) + int64(float64(passed)*c.ppm/1e6)
}

// at returns the reading of the clock at an instant, in microseconds rounded down.
func (c clock) at(at time.Time) int64 { return c.nanos(at) / 1000 }

// Now returns the reading of the Memory's clock, in microseconds since 1970, rounded down.
func (m *Memory) Now() int64 {
	m.lock()
	defer m.mu.Unlock()
	return m.clock.at(time.Now())
}

// Step moves the clock forward by d, or back if d is negative.
func (m *Memory) Step(d time.Duration) {
	m.lock()
	defer m.mu.Unlock()
	m.clock.shown += int64(d)
}

// Drift makes the clock go faster than [time.Now] by ppm millionths from now on, or slower
// if ppm is negative.
func (m *Memory) Drift(ppm float64) {
	m.lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.clock = clock{since: now, shown: m.clock.nanos(now), ppm: ppm}
}
