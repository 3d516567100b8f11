package sketch

import (
	"math"
	"math/bits"
)

// A Distinct estimates how many different hashes it has been given, in fixed memory:
// the HyperLogLog of Flajolet, Fusy, Gandouet and Meunier ("HyperLogLog: the analysis
// of a near-optimal cardinality estimation algorithm", AofA 2007). Some bits of a hash
// choose a register, which keeps the highest rank that it has met: the position of the
// first 1 among the other bits. High ranks are rare, so they are a sign of many hashes.
//
// The estimate is the improved raw estimator of Ertl ("New cardinality estimation
// algorithms for HyperLogLog sketches", arXiv:1702.01284, 2017). It needs no tables
// against bias and no change of method between small and large numbers. Its standard
// error is 1.04/√m for m registers, here 0.81 %, and less for small numbers. Up to 100
// the estimate is exact as long as no two hashes choose one register. Of 18 hashes, two
// do so in one case of a hundred.
//
// The hashes must have 64 good bits, as maphash.Comparable returns, with a seed
// that the clients that choose the keys do not know. The zero Distinct is ready for use.
// It holds no memory before the first hash; from then on it holds 16 KiB and allocates
// nothing.
//
// A Distinct is not safe for concurrent use: its owner guards it with a lock.
type Distinct struct{ *registers }

const (
	indexBits     = 14 // of a hash choose its register
	registerCount = 1 << indexBits
	rankBits      = 64 - indexBits // the others, which give its rank
	maxRank       = rankBits + 1   // of a hash that has no 1 among them
)

// registers are the memory of a Distinct.
type registers struct {
	rank [registerCount]uint8 // 0: it has met no hash

	// with counts the registers of each rank, from 1, so that an estimate need not go
	// through all registers. It changes only when a register does, which becomes rare.
	with [maxRank + 1]uint16
}

// Add notes a hash. A hash that was added before changes nothing.
func (d *Distinct) Add(hash uint64) {
	if d.registers == nil {
		d.registers = new(registers)
	}
	register := &d.rank[hash>>rankBits]
	// The 1 behind the last bit of the hash ends the search at maxRank.
	rank := uint8(bits.LeadingZeros64(hash<<indexBits|1<<(indexBits-1)) + 1)
	if rank <= *register {
		return
	}
	if *register > 0 {
		d.with[*register]--
	}
	d.with[rank]++
	*register = rank
}

// Estimate returns an estimate of how many different hashes have been added, as a whole
// number. For no hash it is 0, for one hash 1.
func (d *Distinct) Estimate() uint64 {
	if d.registers == nil {
		return 0
	}
	const m = registerCount
	untouched := m
	z := m * tau(1-float64(d.with[maxRank])/m)
	for rank := maxRank - 1; rank >= 1; rank-- {
		z = (z + float64(d.with[rank])) / 2
		untouched -= int(d.with[rank])
	}
	untouched -= int(d.with[maxRank])
	z += m * sigma(float64(untouched)/m)
	estimate := math.Round(m * m / (2 * math.Ln2 * z))
	if estimate >= 1<<64 {
		return math.MaxUint64 // All registers have the highest rank, and z is 0.
	}
	return uint64(estimate)
}

// sigma returns x + Σ x^(2^k)·2^(k−1), k ≥ 1, for 0 ≤ x < 1. x is the share of the
// registers that no hash has chosen.
func sigma(x float64) float64 {
	sum, weight := x, 1.0
	for {
		x *= x
		before := sum
		sum += x * weight
		if sum == before {
			return sum
		}
		weight *= 2
	}
}

// tau returns (1 − x − Σ (1 − x^(2^−k))²·2^(−k))/3, k ≥ 1, for 0 ≤ x ≤ 1, where 1 − x is
// the share of the registers that have the highest rank. At 0 it is 0, at which the loop
// would arrive only after a thousand rounds.
func tau(x float64) float64 {
	if x == 0 {
		return 0
	}
	sum, weight := 1-x, 1.0
	for {
		x = math.Sqrt(x)
		before := sum
		weight /= 2
		sum -= (1 - x) * (1 - x) * weight
		if sum == before {
			return sum / 3
		}
	}
}
