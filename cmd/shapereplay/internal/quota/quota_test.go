package quota_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
	"example.com/leakybucket/cmd/shapereplay/internal/quota"
	"example.com/leakybucket/cmd/shapereplay/internal/simulate"
	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/llm"
)

var start = time.Date(2026, time.November, 26, 15, 0, 0, 0, time.UTC)

// call is a call that reserves 1,000 tokens of input and as many of output, and takes half of both within 0.6 s.
func call(at time.Duration, team string) accesslog.Record {
	return accesslog.Record{At: start.Add(at), Status: 200, Call: &accesslog.Call{
		Team: team, Estimate: llm.Usage{Input: 1000, Output: 1000}, Actual: llm.Usage{Input: 500, Output: 500}, Known: true, Took: 600 * time.Millisecond,
	}}
}

// replayed returns what becomes of calls, at an API that allows 50,000 tokens a minute: one takes 1.2 ms.
func replayed(t *testing.T, change func(*quota.Setup), calls ...accesslog.Record) quota.Result {
	s := quota.Setup{Quota: llm.Quota{Tokens: 50_000}, Provider: "bedrock", Depth: 100}
	if change != nil {
		change(&s)
	}
	simulation, err := quota.New(s)
	require.NoError(t, err)
	for _, c := range calls {
		simulation.Arrive(&c)
	}
	return simulation.Result()
}

// fates tells in one line for each team how its calls fare.
func fates(r quota.Result) (all []string) {
	for _, t := range r.Teams {
		all = append(all, fmt.Sprintf("%s %d tokens, %d refused, mean %v, longest %v", t.Team, t.Tokens, t.Now.Refused, t.Now.WaitMean, t.Now.WaitMax))
	}
	return all
}

// four calls of one team at once, and then one of another.
var four = []accesslog.Record{call(0, "batch"), call(0, "batch"), call(0, "batch"), call(0, "batch"), call(100*time.Millisecond, "gold")}

// A call reserves 2,000 tokens, which take 2.4 s, and has taken 1,000 when it ends after 0.6 s. So the next
// leaves 1.2 s after it. The call of gold comes at 0.1 s, when three of batch are in line, and its turn comes
// before theirs only by its weight.
func TestCallsLeaveAtTheInstantsOfTheShaper(t *testing.T) {
	// batch leaves at 0, 1.2, 3.6 and 4.8 s, gold at 2.4 s: of equal tags the one goes first that has waited
	// longer as the head of its line.
	require.Equal(t, []string{
		"batch 4000 tokens, 0 refused, mean 2.4 s, longest 4.8 s",
		"gold 1000 tokens, 0 refused, mean 2.3 s, longest 2.3 s",
	}, fates(replayed(t, nil, four...)))

	// batch leaves at 0, 2.4, 3.6 and 4.8 s, gold at 1.2 s.
	require.Equal(t, []string{
		"batch 4000 tokens, 0 refused, mean 2.7 s, longest 4.8 s",
		"gold 1000 tokens, 0 refused, mean 1.1 s, longest 1.1 s",
	}, fates(replayed(t, func(s *quota.Setup) { s.Weights = map[string]int{"gold": 4} }, four...)))

	// The line is full when gold comes, so the last of batch is refused, which would leave last.
	require.Equal(t, []string{
		"batch 3000 tokens, 1 refused, mean 1.6 s, longest 3.6 s",
		"gold 1000 tokens, 0 refused, mean 2.3 s, longest 2.3 s",
	}, fates(replayed(t, func(s *quota.Setup) { s.Depth = 3 }, four...)))

	// When they come nothing is settled, so the fourth of batch is to wait for 7.2 s, which is too long.
	require.Equal(t, []string{
		"batch 3000 tokens, 1 refused, mean 1.6 s, longest 3.6 s",
		"gold 1000 tokens, 0 refused, mean 2.3 s, longest 2.3 s",
	}, fates(replayed(t, func(s *quota.Setup) { s.MaxWait = 5 * time.Second }, four...)))

	// A burst of 7.2 s lets three leave at once. When they have ended, after 0.6 s, the level is 6.6 − 3.6 = 3 s, so
	// the fourth leaves, and it is 5.4 s. gold leaves when it is 4.8 s again.
	require.Equal(t, []string{
		"batch 4000 tokens, 0 refused, mean 150 ms, longest 600 ms",
		"gold 1000 tokens, 0 refused, mean 1.1 s, longest 1.1 s",
	}, fates(replayed(t, func(s *quota.Setup) { s.Burst = 7200 * time.Millisecond }, four...)))
}

// Each provider counts differently, and only what has been reserved too much comes back.
func TestCallsCountAsTheirProviderCounts(t *testing.T) {
	two := []accesslog.Record{call(0, "a"), call(0, "a")}
	for _, c := range []struct {
		provider string
		quota    llm.Quota
		second   time.Duration // when the second call leaves
		taken    int
	}{
		{"openai", llm.Quota{Tokens: 50_000}, 1200 * time.Millisecond, 2000},            // max(1,000, 1,000) tokens, which stand
		{"openai-compatible", llm.Quota{Tokens: 50_000}, 1200 * time.Millisecond, 2000}, // 500 + 500
		{"bedrock", llm.Quota{Tokens: 50_000}, 1200 * time.Millisecond, 2000},
		{"gemini", llm.Quota{Input: 50_000}, 600 * time.Millisecond, 1000}, // input alone: 500, in 0.6 s
		{"anthropic", llm.Quota{Output: 25_000}, 1200 * time.Millisecond, 1000},
	} {
		r := replayed(t, func(s *quota.Setup) { s.Provider, s.Quota = c.provider, c.quota }, two...)
		require.Equal(t, simulate.Seconds(c.second), r.All.Now.WaitMax, c.provider)
		require.Len(t, r.Limits, 1)
		require.EqualValues(t, c.taken, r.Limits[0].Taken, c.provider)
	}
}

// What has not run has no duration, and what reports no usage keeps its estimate.
func TestWhatALogCanNotTell(t *testing.T) {
	unknown, refused, gone := call(0, "a"), call(0, "a"), call(0, "a")
	unknown.Call.Known = false
	refused.Call = &accesslog.Call{Team: "a", Estimate: refused.Call.Estimate}
	refused.Status = 429
	gone.Call = &accesslog.Call{Team: "a", Estimate: gone.Call.Estimate, Waited: 5 * time.Second}
	gone.Status = 499
	last := call(0, "a")
	r := replayed(t, nil, unknown, refused, gone, last)
	require.Equal(t, 1, r.Unknown)
	require.Equal(t, 2, r.NotRun)
	require.Equal(t, 1, r.All.Then.Refused)
	require.EqualValues(t, 7200*time.Millisecond, r.All.Now.WaitMax, "three estimates of 2.4 s stand")
	require.EqualValues(t, 7000, r.All.Tokens)
}

// What never came to the line then would not come to it now, and a gateway that ends refuses with 503.
func TestCallsThatTheGatewayHasAnswered(t *testing.T) {
	answered := func(status int) accesslog.Record {
		return accesslog.Record{At: start, Status: status, Call: &accesslog.Call{Team: "a", Estimate: llm.Usage{Input: 1000, Output: 1000}}}
	}
	failed := call(0, "a")
	failed.Status = 503 // By the provider, which has taken time for it.
	r := replayed(t, nil, answered(400), answered(401), answered(413), answered(503), answered(429), failed)
	require.Equal(t, 3, r.NotInLine)
	require.Equal(t, 2, r.NotRun)
	require.Equal(t, 3, r.All.Now.Calls)
	require.Equal(t, 2, r.All.Then.Refused)
	require.Zero(t, r.Unknown)
}

// The use of a quota is told on average and of the fullest minute.
func TestHowMuchOfAQuotaIsUsed(t *testing.T) {
	var calls []accesslog.Record
	for i := range 100 { // 1,000 tokens every 1.2 s
		calls = append(calls, call(time.Duration(i)*1200*time.Millisecond, "a"))
	}
	r := replayed(t, func(s *quota.Setup) { s.Quota.Requests = 100 }, calls...)
	require.Zero(t, r.All.Now.WaitMax)
	span := (99 * 1200 * time.Millisecond).Minutes()
	require.Equal(t, []quota.Limit{
		{Limit: "requests", Minute: 100, Taken: 100, Mean: 100 / span, Most: 50},
		{Limit: "tokens", Minute: 50_000, Taken: 100_000, Mean: 100_000 / span, Most: 50_000},
	}, r.Limits)
	require.EqualValues(t, 100*20_000, r.Settled.GivenBack)
}

// The tokens of a day may be more than 32 bits count, and a log may have nonsense.
func TestSumsOfTokensDoNotOverflow(t *testing.T) {
	for _, each := range []int{math.MaxInt32, math.MaxInt} {
		large := call(0, "a")
		large.Call.Estimate, large.Call.Actual = llm.Usage{Input: each}, llm.Usage{Input: each}
		r := replayed(t, func(s *quota.Setup) { s.Quota.Input = 1000 }, large, large, large)
		want := exact.Sum(int64(each), exact.Sum(int64(each), int64(each)))
		require.Equal(t, want, r.All.Tokens)
		for _, l := range r.Limits {
			require.Equal(t, want, l.Taken, l.Limit)
			require.Equal(t, int64(each), l.Most, l.Limit)
		}
	}
}
