package llm_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/shaper"
)

func TestLimitsAreMillionthsOfAMinute(t *testing.T) {
	q := llm.Quota{Requests: 500, Tokens: 90_000}
	for _, tt := range []struct {
		burst time.Duration
		want  int
	}{{0, 0}, {time.Second, 16_666}, {30 * time.Second, 500_000}, {time.Minute, 1_000_000}} {
		l, err := q.Limits(tt.burst, 10)
		require.NoError(t, err)
		require.Equal(t, shaper.Limits{Rate: 1e6 / 60.0, Burst: tt.want, Depth: 10}, l)
		require.NoError(t, l.Validate())
	}
}

func TestLimitsOfWhatIsNoQuota(t *testing.T) {
	for _, tt := range []struct {
		q     llm.Quota
		burst time.Duration
		depth int
		want  string
	}{
		{llm.Quota{}, time.Second, 1, "llm: the Quota has no limit"},
		{llm.Quota{Requests: -1}, time.Second, 1, "llm: Quota: requests is -1, must not be negative"},
		{llm.Quota{Requests: 1, Output: -2}, time.Second, 1, "llm: Quota: output is -2, must not be negative"},
		{llm.Quota{Tokens: 1}, -1, 1, "llm: Quota: burst is -1ns, must be from 0s to 1m"},
		{llm.Quota{Tokens: 1}, time.Minute + 1, 1, "llm: Quota: burst is 1m0.000000001s, must be from 0s to 1m"},
		{llm.Quota{Tokens: 1}, time.Second, -1, "shaper: Limits.Depth is -1, must not be negative"},
	} {
		_, err := tt.q.Limits(tt.burst, tt.depth)
		require.EqualError(t, err, tt.want)
	}
}

func TestWeightsOfTeamsAreRead(t *testing.T) {
	for _, tt := range []struct {
		text string
		want map[string]int
		says string
	}{
		{"", map[string]int{}, ""},
		{"gold=4, a=b = 1000,=2", map[string]int{"gold": 4, "a=b": 1000, "": 2}, ""},
		{"gold", nil, `"gold", must be a team, = and a number, as in gold=4`},
		{"gold=0", nil, `"gold=0", must be a number from 1 to 1000`},
		{"gold=1001", nil, `"gold=1001", must be a number from 1 to 1000`},
		{"gold=x", nil, `"gold=x", must be a number from 1 to 1000`},
		{"a=1,a =2", nil, `the team "a" is said twice`},
	} {
		weights, err := llm.ParseWeights(tt.text)
		require.Equal(t, tt.want, weights)
		if tt.says != "" {
			require.EqualError(t, err, tt.says)
		}
	}
}

func TestACallCostsTheLargestOfItsShares(t *testing.T) {
	const most = math.MaxInt
	q := llm.Quota{Requests: 500, Tokens: 90_000, Input: 60_000, Output: 30_000}
	for _, tt := range []struct {
		name string
		q    llm.Quota
		u    llm.Usage
		want int
	}{
		{"of requests", q, llm.Usage{Input: 10, Output: 10}, 2000},
		{"of tokens", llm.Quota{Requests: 500, Tokens: 90_000}, llm.Usage{Input: 900, Output: 360}, 14_000},
		{"rounded up", llm.Quota{Requests: 500, Tokens: 90_000}, llm.Usage{Input: 900, Output: 361}, 14_012},
		{"of input", q, llm.Usage{Input: 2000, Output: 100}, 33_334},
		{"of output", q, llm.Usage{Input: 100, Output: 2000}, 66_667},
		{"the cache is input", q, llm.Usage{Input: 1000, CacheRead: 500, CacheWrite: 500}, 33_334},
		{"of what is no limit", llm.Quota{Requests: 1000}, llm.Usage{Input: most, Output: most}, 1000},
		{"nothing is free", llm.Quota{Tokens: 90_000}, llm.Usage{}, 1},
		{"nor below 0", q, llm.Usage{Input: -most, Output: math.MinInt, CacheRead: -1}, 2000},
		{"negative tokens take nothing away", q, llm.Usage{Input: 6000, CacheRead: -5000}, 100_000},
		{"more than a minute has", q, llm.Usage{Input: 61_000}, 1_000_000},
		{"a sum beyond an int", q, llm.Usage{Input: most, Output: most, CacheRead: most, CacheWrite: most}, 1_000_000},
		{"a product beyond an int", llm.Quota{Tokens: most}, llm.Usage{Input: most / 2}, 500_000},
		{"the largest limit", llm.Quota{Tokens: most}, llm.Usage{Input: 1}, 1},
		{"a negative limit is none", llm.Quota{Requests: 10, Tokens: -1}, llm.Usage{Input: 1000}, 100_000},
	} {
		require.Equal(t, tt.want, tt.q.Cost(tt.u), tt.name)
	}
}

// Whatever the numbers are, the cost is what fractions without bounds say.
func TestCostsAreExact(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	number := func() int { return random.IntN(math.MaxInt) >> random.IntN(63) }
	share := func(limit int, numbers ...int) *big.Int {
		n := new(big.Int)
		if limit == 0 {
			return n
		}
		for _, number := range numbers {
			n.Add(n, big.NewInt(int64(number)))
		}
		n.Mul(n, big.NewInt(1_000_000))
		return n.Add(n, big.NewInt(int64(limit-1))).Div(n, big.NewInt(int64(limit)))
	}
	for range 20_000 {
		q := llm.Quota{Requests: number(), Tokens: number(), Input: number(), Output: number()}
		u := llm.Usage{Input: number(), Output: number(), CacheRead: number(), CacheWrite: number()}
		want := slices.MaxFunc([]*big.Int{
			big.NewInt(1), share(q.Requests, 1), share(q.Tokens, u.Input, u.CacheRead, u.CacheWrite, u.Output),
			share(q.Input, u.Input, u.CacheRead, u.CacheWrite), share(q.Output, u.Output),
		}, (*big.Int).Cmp)
		if million := big.NewInt(1_000_000); want.Cmp(million) > 0 {
			want = million
		}
		require.Equal(t, int(want.Int64()), q.Cost(u), "%+v %+v", q, u)
	}
}
