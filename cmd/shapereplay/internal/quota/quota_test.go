package quota_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
	"example.com/leakybucket/cmd/shapereplay/internal/quota"
	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/llm"
)

// The tokens of a day may be more than 32 bits count, and a log may have nonsense. The transcript usage.md of
// shapereplay tests all else.
func TestSumsOfTokensDoNotOverflow(t *testing.T) {
	for _, each := range []int{math.MaxInt32, math.MaxInt} {
		s, err := quota.New(quota.Setup{Quota: llm.Quota{Tokens: 50_000, Input: 1000}, Provider: "bedrock", Depth: 100})
		require.NoError(t, err)
		for range 3 {
			s.Arrive(&accesslog.Record{At: time.Unix(0, 0), Status: 200, Call: &accesslog.Call{
				Team: "a", Estimate: llm.Usage{Input: each}, Actual: llm.Usage{Input: each}, Known: true, Took: time.Second,
			}})
		}
		r := s.Result()
		want := exact.Sum(int64(each), exact.Sum(int64(each), int64(each)))
		require.Equal(t, want, r.All.Tokens)
		require.Len(t, r.Limits, 2)
		for _, l := range r.Limits {
			require.Equal(t, want, l.Taken, l.Limit)
			require.Equal(t, int64(each), l.Most, l.Limit)
		}
	}
}
