package promledger_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/llm/promledger"
	"example.com/leakybucket/shaper"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Only as many teams as are wanted have labels of their own.
func TestLedgersTellWhatCallsHaveTaken(t *testing.T) {
	limits, err := gateway.Limits(llm.Quota{Requests: 1000, Input: 100_000}, 1, 0, 0)
	require.NoError(t, err)
	limits.Burst = 1e6
	line, err := shaper.New(limits, shaper.WithFairQueue(nil))
	require.NoError(t, err)
	g, err := gateway.New(gateway.Config{
		Provider: "anthropic", Quota: llm.Quota{Requests: 1000, Input: 100_000}, Labels: 1, Bodies: 1000,
		Line: func() *shaper.Shaper { return line },
		Team: func(r *http.Request) (string, bool) { return r.Header.Get("X-Team"), true },
	})
	require.NoError(t, err)
	g.Begin()
	answers := g.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"usage":{"input_tokens":10,"output_tokens":3}}`))
	}))
	for _, team := range []string{"gold", "gold", "batch", "late"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/messages", strings.NewReader("{}"))
		r.Header.Set("X-Team", team)
		answers.ServeHTTP(httptest.NewRecorder(), r)
	}
	collector := promledger.New(func() map[string]*gateway.Ledger { return map[string]*gateway.Ledger{"claude": g.Ledger()} })
	require.NoError(t, testutil.CollectAndCompare(collector, strings.NewReader(`
# HELP shaper_llm_body_bytes Bytes that are held of the bodies of calls.
# TYPE shaper_llm_body_bytes gauge
shaper_llm_body_bytes{rule="claude"} 0
# HELP shaper_llm_body_bytes_limit Bytes that may be held of the bodies of calls.
# TYPE shaper_llm_body_bytes_limit gauge
shaper_llm_body_bytes_limit{rule="claude"} 1000
# HELP shaper_llm_calls_total Calls of a language model that have ended.
# TYPE shaper_llm_calls_total counter
shaper_llm_calls_total{rule="claude",team="gold"} 2
shaper_llm_calls_total{rule="claude",team="other"} 2
# HELP shaper_llm_provider_refusals_total Answers of the provider with status 429; there should be none.
# TYPE shaper_llm_provider_refusals_total counter
shaper_llm_provider_refusals_total{rule="claude"} 0
# HELP shaper_llm_quota_per_minute The quota of the provider per minute.
# TYPE shaper_llm_quota_per_minute gauge
shaper_llm_quota_per_minute{kind="input-tokens",rule="claude"} 100000
shaper_llm_quota_per_minute{kind="requests",rule="claude"} 1000
# HELP shaper_llm_refused_total Calls that the gateway has refused.
# TYPE shaper_llm_refused_total counter
shaper_llm_refused_total{rule="claude",team="gold"} 0
shaper_llm_refused_total{rule="claude",team="other"} 0
# HELP shaper_llm_tokens_total Tokens of these calls, as the provider counts them.
# TYPE shaper_llm_tokens_total counter
shaper_llm_tokens_total{direction="input",rule="claude",team="gold"} 20
shaper_llm_tokens_total{direction="input",rule="claude",team="other"} 20
shaper_llm_tokens_total{direction="output",rule="claude",team="gold"} 6
shaper_llm_tokens_total{direction="output",rule="claude",team="other"} 6
`)))
}
