package lease

import (
	"math/big"
	"sync"

	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/shared"
)

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
