package llm_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
)

// A pair is estimated by what its latest calls took, and never above what a call asks for.
func TestEstimatesFollowWhatCallsTake(t *testing.T) {
	asked := llm.Usage{Input: 1000, Output: 32_000}
	var e llm.Estimates
	require.Equal(t, llm.Usage{Input: 1000, Output: 1000}, e.Estimate("gold", "m", asked), "before the first")
	require.Equal(t, llm.Usage{Input: 1000, Output: 200}, e.Estimate("gold", "m", llm.Usage{Input: 1000, Output: 200}))
	require.Equal(t, llm.Usage{Input: 1000, Output: 1000}, e.Estimate("gold", "m", llm.Usage{Input: 1000}), "it does not bound its answer")

	e.Learn("gold", "m", asked, llm.Usage{Input: 80, CacheWrite: 20, Output: 400}, 1600)
	for _, tt := range []struct{ input, most, wantInput, want int }{
		{1000, 32_000, 100, 400},
		{2001, 32_000, 201, 400}, // rounded up
		{1000, 300, 100, 300},
		{1000, 0, 100, 400},
	} {
		require.Equal(t, llm.Usage{Input: tt.wantInput, Output: tt.want}, e.Estimate("gold", "m", llm.Usage{Input: tt.input, Output: tt.most}))
	}
	e.Learn("gold", "m", asked, llm.Usage{Input: 290, Output: 1000}, 4000)
	// (0.9·100 + 290)/(0.9·1000 + 1000) of the input, and (0.9·400 + 1000)/1.9 of output.
	require.Equal(t, llm.Usage{Input: 200, Output: 716}, e.Estimate("gold", "m", asked))

	require.Equal(t, llm.Usage{Input: 1000, Output: 1000}, e.Estimate("batch", "m", asked), "another team")
	require.Equal(t, llm.Usage{Input: 1000, Output: 1000}, e.Estimate("gold", "n", asked), "another model")

	e.Learn("none", "m", asked, llm.Usage{}, 0)
	require.Equal(t, llm.Usage{Input: 0, Output: 1}, e.Estimate("none", "m", asked), "at least one token")
}

// Callers choose the names of models, so the pairs that were used longest ago are forgotten.
func TestEstimatesForgetThePairThatWasUsedLongestAgo(t *testing.T) {
	asked := llm.Usage{Input: 100, Output: 5000}
	var e llm.Estimates
	for i := range 10_000 {
		e.Learn("t", fmt.Sprint(i), asked, llm.Usage{Output: 7}, 0)
	}
	require.Equal(t, 7, e.Estimate("t", "0", asked).Output, "and so it is used last")
	e.Learn("t", "more", asked, llm.Usage{Output: 7}, 0)
	require.Equal(t, 7, e.Estimate("t", "0", asked).Output)
	require.Equal(t, 1000, e.Estimate("t", "1", asked).Output)
	require.Equal(t, 7, e.Estimate("t", "2", asked).Output)
}
