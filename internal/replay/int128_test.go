package replay

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
)

// randomInt128 returns a number of any length up to 126 bits.
func randomInt128(chance *rand.Rand) int128 {
	bits := chance.IntN(127)
	return narrow(new(big.Int).Rsh(int128{int64(chance.Uint64() >> 2), chance.Uint64()}.big(), uint(126-bits)))
}

func TestArithmeticIsThatOfMathBig(t *testing.T) {
	chance := rand.New(rand.NewPCG(16, 3))
	most := forever.big()
	saturated := func(n *big.Int) *big.Int {
		if n.Cmp(most) > 0 {
			return most
		}
		return n
	}
	for range 5_000 {
		a, b, n := randomInt128(chance), randomInt128(chance), chance.Uint64()>>chance.IntN(64)
		require.Equal(t, a, narrow(a.big()))
		require.Zero(t, saturated(new(big.Int).Add(a.big(), b.big())).Cmp(a.plus(b).big()), "%v + %v", a, b)
		require.Zero(t, new(big.Int).Sub(a.big(), b.big()).Cmp(a.minus(b).big()), "%v − %v", a, b)
		require.Zero(t, new(big.Int).Add(a.minus(b).big(), b.big()).Cmp(a.big()))
		require.Equal(t, a, a.minus(b).plus(b))
		require.Zero(t, saturated(new(big.Int).Mul(a.big(), new(big.Int).SetUint64(n))).Cmp(a.times(n).big()), "%v · %d", a, n)
		require.Equal(t, a.big().Cmp(b.big()) > 0, a.after(b))
		require.Equal(t, a.minus(b).big().Sign() > 0, a.minus(b).after(int128{}))
		requireCeil(t, a, 1+chance.Uint64N(1<<50)>>chance.IntN(50))
	}
	require.Equal(t, Never, forever.ceil(3))
	require.Zero(t, wide(-5).ceil(2))
	require.Zero(t, wide(-5).big().Cmp(big.NewInt(-5)))
}

func requireCeil(t *testing.T, a int128, den uint64) {
	t.Helper()
	divisor := new(big.Int).SetUint64(den)
	want, rest := new(big.Int).QuoRem(a.big(), divisor, new(big.Int))
	if rest.Sign() > 0 {
		want.Add(want, big.NewInt(1))
	}
	if !want.IsInt64() {
		want.SetInt64(math.MaxInt64)
	}
	require.Equal(t, want.Int64(), int64(a.ceil(den)), "%v / %d", a, den)
}

// Every rate that is valid must fit, and be the fraction that package shaper makes of it,
// which is within one part in 2⁵⁰.
func TestEveryRateFits(t *testing.T) {
	chance := rand.New(rand.NewPCG(16, 4))
	low, high := math.Log(1/horizon.Seconds()), math.Log(1e9)
	for range 1000 {
		r := math.Exp(low + chance.Float64()*(high-low))
		num, den := intervalOf(rate.Limit(r))
		require.Less(t, den, uint64(1)<<50)
		require.Less(t, num.high, int64(1)<<(80-64))
		back := new(big.Rat).SetFrac(new(big.Int).Mul(big.NewInt(1e9), new(big.Int).SetUint64(den)), num.big())
		exact := new(big.Rat).SetFloat64(r)
		off := back.Sub(back, exact)
		off.Quo(off.Abs(off), exact)
		require.LessOrEqual(t, off.Cmp(big.NewRat(1, 1<<50)), 0, "%v", r)
	}
	num, den := intervalOf(rate.Inf)
	require.Zero(t, num)
	require.Equal(t, uint64(1), den)
}
