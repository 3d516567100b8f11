package model

import (
	"time"

	"example.com/leakybucket/shaper"
)

// A tick is the 21st part of a nanosecond. All instants at which slots begin are whole
// ticks, as the rates of runs are chosen so; an int64 has room for 14 years of them.
type tick int64

const (
	perNano  tick = 21
	perMicro      = 1000 * perNano
)

// ticksOf returns an instant of the engine's clock, or a span of it.
func ticksOf(a shaper.Instant, r shaper.BucketRate) tick {
	return tick(a.Micros)*perMicro + tick(a.Part)*perMicro/tick(r.Parts)
}

// instantOf returns the first instant with the parts of r that is not before a.
func instantOf(a tick, r shaper.BucketRate) shaper.Instant {
	micros, rest := a/perMicro, a%perMicro
	part := (rest*tick(r.Parts) + perMicro - 1) / perMicro
	if part == tick(r.Parts) {
		micros, part = micros+1, 0
	}
	return shaper.Instant{Micros: int64(micros), Part: int64(part)}
}

// nanosUp returns the first whole nanosecond that is not before a.
func nanosUp(a tick) time.Duration { return time.Duration((a + perNano - 1) / perNano) }

// A localClock is the clock of a process. It began at another instant than the true time,
// and goes at another pace.
type localClock struct {
	offset time.Duration
	ppm    int64 // how much faster it goes, in millionths
}

// at returns the reading at a true time.
func (c localClock) at(t time.Duration) time.Duration {
	return c.offset + t + t/1e6*time.Duration(c.ppm) + t%1e6*time.Duration(c.ppm)/1e6
}

// when returns the first true time at which the reading is at least r.
func (c localClock) when(r time.Duration) time.Duration {
	t := r - c.offset
	t -= t / 1e6 * time.Duration(c.ppm)
	for c.at(t) >= r {
		t -= 1000
	}
	for step := time.Duration(1 << 20); step > 0; step /= 2 {
		for c.at(t+step) < r {
			t += step
		}
	}
	return t + 1
}

// A clockMap says by how much the engine's clock is ahead of that of a process: by at least
// low and at most high, at the local instant asOf. The zero clockMap knows nothing.
type clockMap struct {
	known     bool
	low, high time.Duration
	asOf      time.Duration
}

// drift is the part of a millionth by which the two clocks may drift apart.
const drift = 200

// at returns the map at a later instant: wider, as the clocks have drifted since.
func (m clockMap) at(local time.Duration) clockMap {
	wider := (local-m.asOf)*drift/1e6 + 1
	return clockMap{known: m.known, low: m.low - wider, high: m.high + wider, asOf: local}
}

// learn adds a reading of the engine's clock, in microseconds rounded down, which was made
// between two local instants. It reports whether the reading fits what was known. If it
// doesn't, the engine's clock has stepped, and the map begins anew.
func (m *clockMap) learn(reading int64, sent, received time.Duration) (fits bool) {
	engine := time.Duration(reading) * time.Microsecond
	news := clockMap{known: true, low: engine - received, high: engine + time.Microsecond - sent, asOf: sent}.at(received)
	old := m.at(received)
	if !m.known {
		*m = news
		return true
	}
	old.low, old.high = max(old.low, news.low), min(old.high, news.high)
	if old.low > old.high {
		*m = news
		return false
	}
	*m = old
	return true
}
