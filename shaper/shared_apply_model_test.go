package shaper_test

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// checkApply compares one step of [shaper.Take.Apply] with its comment, which it follows
// word by word, in fractions. It returns the state after the step.
func checkApply(t *testing.T, take shaper.Take, l shaper.BucketLevel, now int64) shaper.BucketLevel {
	t.Helper()
	next, taken := take.Apply(l, now)
	at, longest := new(big.Rat).SetInt64(now), new(big.Rat).SetInt64(1<<51)
	units := func(n int64) *big.Rat {
		return earlier(new(big.Rat).Mul(new(big.Rat).SetInt64(n), unitOf(take.Rate)), longest)
	}

	var empty *big.Rat
	cold, write, rate := damaged(l), false, take.Rate
	switch {
	case cold: // step 1
		empty, write = new(big.Rat).SetInt64(now+take.Guard.Microseconds()), true
	default:
		empty = in(l.Rate, l.Empty)
		if l.At > now { // step 2
			empty, write = empty.Sub(empty, new(big.Rat).SetInt64(l.At-now)), true
		}
		own := l.Rate
		own.Version = take.Rate.Version
		if own == take.Rate { // step 3
			rate.Version = max(l.Rate.Version, take.Rate.Version)
			write = write || rate.Version > l.Rate.Version
		} else {
			if l.Rate.Version >= take.Rate.Version {
				require.Equal(t, l, next)
				require.Equal(t, &l.Rate, taken.Other)
				require.Equal(t, []any{false, false, now}, []any{taken.OK, taken.Cold, taken.Now})
				require.Zero(t, later(empty, at).Cmp(in(l.Rate, taken.Empty)), "%+v", taken)
				return next
			}
			empty, write = roundedUp(rescaled(take.Rate, l.Rate, empty, now, longest)), true
		}
	}
	if now >= take.Seen { // step 4
		empty = later(empty, in(take.Rate, take.High))
	}
	empty = later(empty, at)                                                    // step 5
	first := new(big.Rat).Sub(empty, units(max(0, take.Rate.Burst-take.First))) // step 6
	ok := first.Cmp(new(big.Rat).Add(at, new(big.Rat).SetInt64(take.Ahead.Microseconds()))) <= 0
	require.Equalf(t, []any{ok, cold, now}, []any{taken.OK, taken.Cold, taken.Now}, "%+v of %+v", take, l)
	require.Nil(t, taken.Other)
	require.Zerof(t, empty.Cmp(in(take.Rate, taken.Empty)), "%+v of %+v at %d: %+v", take, l, now, taken)
	require.True(t, taken.Empty.Part >= 0 && taken.Empty.Part < take.Rate.Parts, "%+v", taken)
	require.GreaterOrEqual(t, taken.Empty.Micros, now)
	if !ok && !write {
		require.Equal(t, l, next)
		return next
	}
	if ok {
		empty = new(big.Rat).Add(empty, units(take.Cost))
	}
	require.Zerof(t, empty.Cmp(in(take.Rate, next.Empty)), "%+v of %+v at %d: %+v", take, l, now, next)
	require.Equal(t, []any{rate, now}, []any{next.Rate, next.At})
	return next
}

// damaged reports whether a state counts as none.
func damaged(l shaper.BucketLevel) bool {
	r := l.Rate
	within := func(n, least, most int64) bool { return least <= n && n <= most }
	return !within(r.Version, 0, 1<<53) || !within(r.Parts, 1, 1e12) || !within(r.Part, 0, r.Parts-1) ||
		!within(r.Micros, 0, 1<<51) || r.Micros == 0 && r.Part == 0 || r.Burst < 1 ||
		!within(l.Empty.Micros, 0, 1<<53) || !within(l.Empty.Part, 0, r.Parts-1) || !within(l.At, 1, 1<<53)
}

func roundedUp(x *big.Rat) *big.Rat {
	quotient, rest := new(big.Int).QuoRem(x.Num(), x.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		quotient.Add(quotient, big.NewInt(1))
	}
	return new(big.Rat).SetInt(quotient)
}

// Random calls of several processes for one level, with clocks that step, states that are
// lost, and rates that change.
func TestApplyIsWhatItsCommentSays(t *testing.T) {
	t.Parallel()
	for seed := range uint64(rounds(300, 2_000, 20_000)) {
		random := rand.New(rand.NewPCG(seed, 8))
		now, l, version := int64(t0), shaper.BucketLevel{}, int64(1)
		rates := []shaper.BucketRate{bucketRates[random.IntN(len(bucketRates))]}
		var high shaper.Instant
		for range 100 {
			now += random.Int64N(1<<30) >> random.IntN(31)
			if random.IntN(10) == 0 {
				now -= random.Int64N(1<<30) >> random.IntN(31)
			}
			if random.IntN(20) == 0 {
				version += random.Int64N(3) - 1
				r := bucketRates[random.IntN(len(bucketRates))]
				r.Burst = 1 + random.Int64N(1<<20)>>random.IntN(21)
				if random.IntN(2) == 0 {
					r = rates[len(rates)-1] // of a process that was started at another time
				}
				r.Version = max(0, version)
				rates = append(rates, r)
			}
			take := shaper.Take{
				Key: "k", Cost: 1 + random.Int64N(1<<20)>>random.IntN(21), First: 1 + random.Int64N(1<<10)>>random.IntN(11),
				Ahead: time.Duration(random.Int64N(2_000_001)>>random.IntN(21)) * time.Microsecond,
				Rate:  rates[max(0, len(rates)-1-random.IntN(3))],
				Guard: time.Duration(random.Int64N(1<<26)>>random.IntN(27)) * time.Microsecond,
			}
			if random.IntN(3) == 0 && high.Part < take.Rate.Parts {
				take.High, take.Seen = high, now+random.Int64N(3)-1
			}
			l = checkApply(t, take, l, now)
			switch random.IntN(30) {
			case 0:
				l = shaper.BucketLevel{}
			case 1:
				l = take.ApplyGiveBack(l, l.Empty)
			case 2:
				high = l.Empty
			}
		}
	}
}

func FuzzTakeApply(f *testing.F) {
	f.Add(int64(t0), int64(0), int64(1), int64(100), int64(0), int64(1), int64(1), int64(t0),
		int64(1), int64(1), int64(0), int64(1), int64(100), int64(0), int64(1), int64(1), int64(0), int64(0), int64(0), int64(0), int64(t0))
	f.Add(int64(t0+500), int64(1), int64(1), int64(33), int64(1), int64(3), int64(7), int64(t0+9),
		int64(9), int64(2), int64(2_000_000), int64(2), int64(0), int64(1), int64(1e12), int64(1<<60), int64(t0+900), int64(5), int64(t0), int64(1e6), int64(t0))
	f.Add(int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(0), int64(0), int64(-1),
		int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1))
	f.Fuzz(func(t *testing.T, empty, emptyPart, version, micros, part, parts, burst, at,
		cost, first, ahead, takeVersion, takeMicros, takePart, takeParts, takeBurst, high, highPart, seen, guard, now int64) {
		// The state may be anything; a Take is what the comments of its fields allow.
		l := shaper.BucketLevel{
			Empty: shaper.Instant{Micros: empty, Part: emptyPart}, At: at,
			Rate: shaper.BucketRate{Version: version, Micros: micros, Part: part, Parts: parts, Burst: burst},
		}
		from := func(least, most, n int64) int64 { return least + int64(uint64(n)%uint64(most-least+1)) }
		r := shaper.BucketRate{
			Version: from(0, 1<<53, takeVersion), Micros: from(0, 365*24*60*60*1_000_000, takeMicros),
			Parts: from(1, 1e12, takeParts), Burst: max(1, from(0, 1<<62, takeBurst)),
		}
		r.Part = from(0, r.Parts-1, takePart)
		if r.Micros == 0 && r.Part == 0 {
			r.Micros = 1
		}
		take := shaper.Take{
			Key: "k", Cost: from(1, 1<<62, cost), First: from(1, 1<<62, first), Rate: r,
			Ahead: time.Duration(from(0, 2_000_000, ahead)) * time.Microsecond,
			High:  shaper.Instant{Micros: from(0, 1<<52, high), Part: from(0, r.Parts-1, highPart)}, Seen: from(0, 1<<53, seen),
			Guard: time.Duration(from(0, 60_000_000, guard)) * time.Microsecond,
		}
		checkApply(t, take, l, from(1, 1<<52, now))
	})
}
