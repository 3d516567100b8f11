package llm_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
)

// A mix returns the usage of one call after the other.
type mix struct {
	name string
	next func(random *rand.Rand) llm.Usage
}

// either returns calls of two kinds, of the first with a probability.
func either(first float64, a, b func(*rand.Rand) llm.Usage) func(*rand.Rand) llm.Usage {
	return func(random *rand.Rand) llm.Usage {
		if random.Float64() < first {
			return a(random)
		}
		return b(random)
	}
}

// about returns calls whose numbers of tokens are between half of these and half as much again.
func about(input, output int) func(*rand.Rand) llm.Usage {
	return func(random *rand.Rand) llm.Usage {
		return llm.Usage{Input: input/2 + random.IntN(input+1), Output: output/2 + random.IntN(output+1)}
	}
}

// What one bucket keeps of the calls that a bucket for each limit would let through, when as many wait as may. Over a long
// time the latter lets through what the most used limit allows. testdata/shares.md has this table.
func TestWhatOneBucketKeeps(t *testing.T) {
	quotas := []struct {
		name string
		q    llm.Quota
	}{
		{"500 requests, 90,000 tokens", llm.Quota{Requests: 500, Tokens: 90_000}},
		{"5,000 requests, 450,000 tokens", llm.Quota{Requests: 5000, Tokens: 450_000}},
		{"50 requests, 30,000 in, 8,000 out", llm.Quota{Requests: 50, Input: 30_000, Output: 8000}},
		{"1,000 requests, 80,000 in, 16,000 out", llm.Quota{Requests: 1000, Input: 80_000, Output: 16_000}},
	}
	chat := about(800, 300)
	var b strings.Builder
	b.WriteString("| calls |")
	for _, q := range quotas {
		fmt.Fprintf(&b, " %s |", q.name)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(quotas)) + "\n")
	for _, m := range []mix{
		{"chat", chat},
		{"half chat, half extraction", either(0.5, chat, about(8000, 100))},
		{"90 % tiny, 10 % long", either(0.9, about(100, 30), about(3000, 1000))},
		{"half summaries, half writing", either(0.5, about(4000, 200), about(200, 1000))},
	} {
		fmt.Fprintf(&b, "| %s |", m.name)
		for _, q := range quotas {
			random := rand.New(rand.NewPCG(1, 2))
			const calls = 100_000
			cost, input, output := int64(0), 0, 0
			for range calls {
				u := m.next(random)
				cost += int64(q.q.Cost(u))
				input += u.Input
				output += u.Output
			}
			each := math.Inf(1) // calls a minute, with a bucket for each limit
			for _, limit := range []struct{ n, used int }{
				{q.q.Requests, calls}, {q.q.Tokens, input + output}, {q.q.Input, input}, {q.q.Output, output},
			} {
				if limit.n > 0 {
					each = min(each, calls*float64(limit.n)/float64(limit.used))
				}
			}
			one := calls * 1e6 / float64(cost)
			require.Less(t, one, each*1.0001)
			fmt.Fprintf(&b, " %.0f %% |", 100*one/each)
		}
		b.WriteString("\n")
	}
	document, err := os.ReadFile("testdata/shares.md")
	require.NoError(t, err)
	require.Contains(t, string(document), b.String())
}
