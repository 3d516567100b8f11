package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/shaper"
)

// An answering is a provider that has one answer.
type answering struct {
	status int
	fields []string
	body   string
	calls  int
}

func (a *answering) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	a.calls++
	for i := 0; i < len(a.fields); i += 2 {
		w.Header().Set(a.fields[i], a.fields[i+1])
	}
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.body)
}

// What no wait cures, or no wait that a call may have, is passed on at once, and nobody is held. Other refusals hold the line, and
// the call is sent again once.
func TestWhichRefusalHoldsTheLine(t *testing.T) {
	for _, tt := range []struct {
		name, source, provider string
		answer                 answering
		hold                   time.Duration
	}{
		{"a time", "", "openai", answering{status: 429, fields: []string{"Retry-After", "20"}}, 20 * time.Second},
		{"no time", "", "openai", answering{status: 429}, time.Second},
		{"as long as a call may wait", "", "openai", answering{status: 429, fields: []string{"Retry-After", "100"}}, 100 * time.Second},
		{"longer than a minute", "", "openai", answering{status: 429, fields: []string{"Retry-After", "90"}}, 90 * time.Second},
		{"longer than a call may wait", "openclaw#7941", "openai", answering{status: 429, fields: []string{"Retry-After", "101"}}, 0},
		{"an hour", "openclaw#7941", "openai", answering{status: 429, fields: []string{"Retry-After", "3600"}}, 0},
		{"a quota that is used up", "2389-research/tracker#547", "openai", answering{status: 429, body: `{"error":{"code":"insufficient_quota"}}`}, 0},
		{"x-should-retry: false", "NousResearch/hermes-agent#93455", "anthropic", answering{status: 429, fields: []string{"Retry-After", "5", "X-Should-Retry", "false"}}, 0},
		{"no RetryInfo", "google-gemini/gemini-cli#22994", "gemini", answering{status: 429, body: `{"error":{"status":"RESOURCE_EXHAUSTED"}}`}, 0},
		{"a time in the text", "decolua/9router#3612", "openai", answering{status: 429, body: `{"error":{"message":"Please try again in 14.036s."}}`}, 14_036 * time.Millisecond},
		{"no money", "", "openai", answering{status: 402, fields: []string{"Retry-After", "5"}}, 0},
		{"no permission", "", "openai", answering{status: 403, body: `{"error":{"code":"insufficient_quota"}}`}, 0},
		{"an overload", "", "anthropic", answering{status: 529}, 0},
		{"an overload with a time", "", "anthropic", answering{status: 529, fields: []string{"Retry-After", "5"}}, 5 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, tt.provider, llm.Quota{Requests: 600}, &tt.answer, func(_ *gateway.Config, l *shaper.Limits) { l.MaxWait = 100 * time.Second })
			begun := time.Now()
			w := g.call("gold", request(t.Context(), tt.provider, 100, 100, false))
			require.Equal(t, tt.answer.status, w.Code, tt.name)
			require.Equal(t, tt.answer.body, w.Body.String(), tt.name)
			calls := 1
			if tt.hold > 0 {
				calls = 2
			}
			require.Equal(t, calls, tt.answer.calls, "%s (%s)", tt.name, tt.source)
			require.Equal(t, tt.hold, time.Since(begun), tt.name)
			held := time.Duration(0)
			if until := g.line.Stats().HeldUntil; !until.IsZero() {
				held = time.Until(until) // By the second refusal.
			}
			require.Equal(t, tt.hold, held, tt.name)
		})
	}
}

// What was reserved for the answer of a call for which no model ran comes back: the next one does not wait for it.
func TestACallForWhichNoModelRanGivesItsAnswerBack(t *testing.T) {
	q := llm.Quota{Requests: 1000, Input: 10_000, Output: 8000}
	for status, cost := range map[int]float64{
		400: 10_000, 401: 1000, 402: 1000, 403: 1000, 404: 1000, 405: 1000, 413: 1000, 415: 1000, 422: 10_000, 500: 10_000, 503: 10_000, 529: 10_000,
	} {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, "anthropic", q, &answering{status: status, body: `{"type":"error"}`}, nil)
			g.call("gold", request(t.Context(), "anthropic", 100, 8000, false))
			require.InDelta(t, cost, g.line.Stats().Level, 1, "%d (sourcegraph#51879, google-gemini/gemini-cli#15184)", status)
			require.Zero(t, g.line.Stats().Reserved)
			require.Zero(t, g.last(t).Actual.Output)
		})
	}
}

// A refusal in a stream passes as it comes, is counted, holds the line if it has a time, and gives back what was reserved.
func TestARefusalInAStream(t *testing.T) {
	const failed = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"error\":" +
		"{\"code\":\"rate_limit_exceeded\",\"message\":\"Rate limit reached. Please try again in 14.036s.\"}}}\n\n"
	for _, tt := range []struct {
		name, source, contentType, body string
		refusals                        uint64
		hold                            time.Duration
	}{
		{"with a time", "openai/codex#10055", "text/event-stream", failed, 1, 14_036 * time.Millisecond},
		{"without one", "better-ccflare#388", "text/event-stream", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\"}}\n\n", 1, 0},
		{"longer than a call may wait", "", "text/event-stream", strings.Replace(failed, "14.036s", "1h0m0s", 1), 1, 0},
		{"an error in a body", "", "application/json", `{"error":{"message":"no such tool"}}`, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			next := &answering{status: 200, fields: []string{"Content-Type", tt.contentType}, body: tt.body}
			g := newRig(t, "openai", llm.Quota{Tokens: 100_000}, next, func(_ *gateway.Config, l *shaper.Limits) { l.MaxWait = 30 * time.Second })
			w := g.call("gold", request(t.Context(), "openai", 100, 8000, true))
			require.Equal(t, tt.body, w.Body.String(), "%s (%s)", tt.name, tt.source)
			st := g.line.Stats()
			require.Zero(t, st.Level, tt.name)
			require.Equal(t, tt.refusals, g.Ledger().Status(time.Now(), 1).Refusals, tt.name)
			held := time.Duration(0)
			if !st.HeldUntil.IsZero() {
				held = time.Until(st.HeldUntil)
			}
			require.Equal(t, tt.hold, held, tt.name)
		})
	}
}

// The provider may be at work when the gateway gives up on its answer, so the estimate stands.
func TestAnAnswerInTheProvidersPlaceGivesNothingBack(t *testing.T) {
	for _, status := range []int{502, 503, 504} {
		synctest.Test(t, func(t *testing.T) {
			var g *rig
			g = newRig(t, "anthropic", llm.Quota{Output: 8000}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				require.True(t, g.WriteUnreachable(w, status))
			}), nil)
			g.call("gold", request(t.Context(), "anthropic", 100, 4000, false))
			require.InDelta(t, 500_000, g.line.Stats().Level, 1)
		})
	}
}
