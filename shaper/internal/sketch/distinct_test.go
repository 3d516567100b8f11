package sketch

import (
	"hash/maphash"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// long reports whether the great counts are wanted (CI sets SHAPER_LONG=1).
var long = os.Getenv("SHAPER_LONG") == "1"

// distinctError is the standard error that HyperLogLog promises.
var distinctError = 1.04 / math.Sqrt(registerCount)

// splitmix is a fixed hash: the n-th output of the SplitMix64 of Steele, Lea and
// Flood (OOPSLA 2014) from seed. With it the tests give the same figures in each
// run.
func splitmix(seed, n uint64) uint64 {
	z := seed + n*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// relativeErrors returns the relative errors for n different hashes, with 40 seeds.
func relativeErrors(n int) (errors []float64) {
	for seed := range uint64(40) {
		var d Distinct
		start := splitmix(1, seed)
		for i := range n {
			d.Add(splitmix(start, uint64(i)))
		}
		errors = append(errors, float64(d.Estimate())/float64(n)-1)
	}
	return errors
}

// Each estimate is within three standard errors, or 1. The mean of all is compared too,
// because it shows a bias that a single estimate hides. The bias of the method of 2007 is
// largest at 2.5 m = 41,000, where the method changes from one formula to another.
func TestDistinctKeepsItsError(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 3, 10, 30, 100, 1000, 5000, 10_000, 25_000, 41_000, 60_000, 100_000, 1_000_000} {
		if !long && n > 100_000 {
			continue
		}
		errors := relativeErrors(n)
		mean, square := 0.0, 0.0
		for _, e := range errors {
			require.LessOrEqual(t, math.Abs(e), max(3*distinctError, 1.000001/float64(n)), "%d hashes", n)
			mean += e / float64(len(errors))
			square += e * e / float64(len(errors))
		}
		t.Logf("%8d hashes: mean %+.4f, standard error %.4f", n, mean, math.Sqrt(square))
		require.LessOrEqual(t, math.Abs(mean), 3*distinctError/math.Sqrt(float64(len(errors))), "%d hashes: a bias", n)
		require.LessOrEqual(t, math.Sqrt(square), 1.35*distinctError, "%d hashes", n) // 1.35 is three standard deviations of this figure above 1
	}
}

func TestFewDistinctAreExact(t *testing.T) {
	for seed := range uint64(1000) {
		var d Distinct
		require.Zero(t, d.Estimate())
		d.Add(splitmix(7, seed))
		require.Equal(t, uint64(1), d.Estimate())
	}
	for rank := range uint(rankBits + 1) { // a single hash, however rare its rank
		var d Distinct
		d.Add(1 << rankBits >> (rank + 1))
		require.Equal(t, uint64(1), d.Estimate(), "rank %d", rank+1)
	}
	// As long as no two hashes share a register, the number is exact, whatever the ranks.
	var d Distinct
	for i := range uint64(100) {
		d.Add(i<<rankBits | splitmix(1, i)>>indexBits)
		require.Equal(t, i+1, d.Estimate())
	}
	// After that the estimate allows for hashes that are likely to share one, as linear
	// counting does.
	for i := range uint64(400) {
		d.Add((100+i)<<rankBits | splitmix(1, i)>>indexBits)
		linear := registerCount * -math.Log1p(-float64(101+i)/registerCount)
		require.InDelta(t, linear, d.Estimate(), 0.7)
	}
}

// So many hashes can't be added one by one. But the state that they leave can be made: the
// rank of each register is at most k with probability (1 − 2^−k)^(n/m).
func TestDistinctHoldsUpToTheLargestNumbers(t *testing.T) {
	t.Parallel()
	var atMost [maxRank]float64 // logarithms of the probability that a rank is at most this
	for rank := range atMost {
		atMost[rank] = math.Log1p(-math.Ldexp(1, -rank))
	}
	for _, n := range []float64{1e9, 1e12, 1e15, 1e17, 1e18, 1e19} {
		random := rand.New(rand.NewPCG(3, uint64(n)))
		mean := 0.0
		const sketches = 10
		for range sketches {
			var d Distinct
			for register := range uint64(registerCount) {
				u, rank := math.Log(random.Float64())*registerCount/n, 1
				for rank < maxRank && u > atMost[rank] {
					rank++
				}
				d.Add(register<<rankBits | 1<<rankBits>>rank)
			}
			e := float64(d.Estimate())/n - 1
			require.LessOrEqual(t, math.Abs(e), 3*distinctError, "%g hashes", n)
			mean += e / sketches
		}
		t.Logf("%g hashes: mean %+.4f", n, mean)
		require.LessOrEqual(t, math.Abs(mean), 3*distinctError/math.Sqrt(sketches), "%g hashes", n)
	}
	var d Distinct
	for register := range uint64(registerCount) {
		d.Add(register<<rankBits | 1) // the last rank but one
	}
	for register := range uint64(registerCount) {
		d.Add(register << rankBits)
		if register == registerCount-2 {
			require.Equal(t, uint64(math.MaxUint64), d.Estimate(), "more than there are")
		}
	}
	require.Equal(t, uint64(math.MaxUint64), d.Estimate(), "nothing is left to tell from")
}

func TestAHashThatWasSeenBeforeChangesNothing(t *testing.T) {
	var d Distinct
	for i := range uint64(10_000) {
		d.Add(splitmix(5, i))
	}
	before := *d.registers
	for i := range uint64(10_000) { // in another order
		d.Add(splitmix(5, 9_999-i))
	}
	require.Equal(t, before, *d.registers)
}

// The counts by rank must agree with the registers.
func TestDistinctCountsItsRegisters(t *testing.T) {
	var d Distinct
	for i := range uint64(100_000) {
		d.Add(splitmix(9, i))
	}
	d.Add(0)
	var with [maxRank + 1]uint16
	for _, rank := range d.rank {
		if rank > 0 {
			with[rank]++
		}
	}
	require.Equal(t, with, d.with)
	require.Equal(t, uint16(1), with[maxRank], "a hash that is all zeros")
}

func TestDistinctIsOfFixedSize(t *testing.T) {
	var d Distinct
	require.Nil(t, d.registers, "an idle group pays nothing")
	require.Zero(t, d.Estimate())
	require.Nil(t, d.registers)
	d.Add(1)
	require.LessOrEqual(t, unsafe.Sizeof(*d.registers), uintptr(16<<10+128))
	n := uint64(0)
	// The mean of ten runs is rounded down, so an allocation of the runtime's does not count.
	require.Zero(t, testing.AllocsPerRun(10, func() {
		for range 100_000 {
			n++
			d.Add(splitmix(2, n))
		}
		d.Estimate()
	}))
}

// The hash that a Group uses must be good enough, whatever its seed. The error may be ten
// times the standard error, so that the test does not fail by chance.
func TestDistinctOfSimilarKeys(t *testing.T) {
	const n = 100_000
	var d Distinct
	seed := maphash.MakeSeed()
	for i := range n {
		d.Add(maphash.Comparable(seed, [2]int{i, 0}))
	}
	require.InEpsilon(t, n, d.Estimate(), 10*distinctError)
}
