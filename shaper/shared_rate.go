package shaper

import (
	"math/big"
	"sync"

	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/shared"
)

// bucketRateOf returns the rate of [Limits], which is finite. A rate whose interval has a
// denominator above 10⁹ in nanoseconds, as only few that people write have, is rounded down:
// its interval is rounded up to a billionth of a nanosecond.
func bucketRateOf(l Limits, version int64) BucketRate {
	ns := exact.IntervalOf(l.Rate).Rat()
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
	return BucketRate{Version: version, Micros: micros.Int64(), Part: part.Int64(), Parts: parts.Int64(), Burst: l.burst()}
}

// rates remembers BucketRates, as making one takes tens of microseconds. It needs no lock of the
// dispatcher.
type rates struct {
	mu   sync.Mutex
	made map[rateAndBurst]BucketRate // of version 0
}

type rateAndBurst struct {
	rate  rate.Limit
	burst int64
}

// mostRates bounds the memory of rates.
const mostRates = 1024

// of returns the [BucketRate] of a plan, of version 0. At rate.Inf there is none.
func (m *rates) of(p *plan) BucketRate {
	if p.interval.IsZero() {
		return BucketRate{Parts: 1000, Burst: p.burst}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := rateAndBurst{p.limits.Rate, p.burst}
	r, ok := m.made[key]
	if !ok {
		if m.made == nil || len(m.made) >= mostRates {
			m.made = make(map[rateAndBurst]BucketRate)
		}
		r = bucketRateOf(p.limits, 0)
		m.made[key] = r
	}
	return r
}

// perSecond returns a rate as [Limits] have it.
func perSecond(r BucketRate) rate.Limit {
	interval := r.Rat(Instant{Micros: r.Micros, Part: r.Part})
	perSecond, _ := interval.Quo(big.NewRat(1e6, 1), interval).Float64()
	return rate.Limit(perSecond)
}
