package gateway_test

import (
	"encoding/base64"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/shaper"
)

// posted returns a call with a body, as a server has it.
func posted(t testing.TB, path, body string) *http.Request {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://llm.test"+path, io.NopCloser(strings.NewReader(body)))
	require.NoError(t, err)
	r.ContentLength = int64(len(body))
	return r
}

// A compressed call is estimated by what it holds, waits in the line of its model, and is sent as it came (langwatch#6344: Codex sends
// zstd). One that holds too much is refused, and costs nothing.
func TestACompressedCall(t *testing.T) {
	packed := func(text string) string {
		z, err := zstd.NewWriter(nil)
		require.NoError(t, err)
		return string(z.EncodeAll([]byte(text), nil))
	}
	body := packed(`{"model":"gpt-5","input":"` + strings.Repeat("word ", 24_000) + `","max_output_tokens":263}`)
	got := ""
	g := newRig(t, "openai", llm.Quota{Requests: 1000, Tokens: 100_000}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		got = string(sent)
		answersOK(w, r)
	}), nil)
	r := posted(t, "/v1/responses", body)
	r.Header.Set("Content-Encoding", "zstd")
	require.Equal(t, 200, g.call("gold", r).Code)
	require.True(t, body == got, "it passes as it came")
	require.Equal(t, "gpt-5", g.last(t).Model)
	require.Equal(t, gateway.Used{Input: 30_013, Output: 263}, g.last(t).Estimate)

	before := g.line.Stats().Level
	got = ""
	r = posted(t, "/v1/responses", packed(strings.Repeat("x", 65<<20)))
	r.Header.Set("Content-Encoding", "zstd")
	w := g.call("gold", r)
	require.Equal(t, http.StatusRequestEntityTooLarge, w.Code)
	require.Contains(t, w.Body.String(), "The body of the call is too long")
	require.Empty(t, got, "it is not sent")
	require.LessOrEqual(t, g.line.Stats().Level, before)
}

// A body that is longer than 1 MiB is scanned as it passes, so that a picture behind the first 1 MiB is none of text: what a call
// reserved too much comes back, also at OpenAI, where the estimate stands. The bytes pass as they are.
func TestACallThatIsLongerThanWhatIsRead(t *testing.T) {
	random := make([]byte, 1_500_000)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(random)
	copy(random, "\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR\x00\x00\x04\x00\x00\x00\x04\x00") // 1,024 × 1,024
	text := strings.Repeat("word ", 240_000)
	body := `{"model":"gpt-5","messages":[{"content":"` + text + `"},{"content":[{"image_url":{"url":"data:image/png;base64,` +
		base64.StdEncoding.EncodeToString(random) + `"}}]}],"max_completion_tokens":300}`
	for _, tt := range []struct {
		provider string
		fields   []string
		answer   string
		tokens   int
	}{
		{"openai", []string{"X-Ratelimit-Remaining-Tokens", "9000000"}, `{"usage":{"prompt_tokens":5,"completion_tokens":5}}`, 301_056},
		{"openai", nil, `{}`, 301_056},
		{"openai-compatible", nil, `{"usage":{"prompt_tokens":5,"completion_tokens":5}}`, 10},
		{"anthropic", nil, `{}`, 301_632},
	} {
		synctest.Test(t, func(t *testing.T) {
			var g *rig
			g = newRig(t, tt.provider, llm.Quota{Tokens: 1_000_000}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				require.Greater(t, g.line.Stats().Level, 700_000.0, "what has not come is taken for text")
				sent, err := io.ReadAll(r.Body)
				require.NoError(t, err)
				require.True(t, body == string(sent))
				for i := 0; i < len(tt.fields); i += 2 {
					w.Header().Set(tt.fields[i], tt.fields[i+1])
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, tt.answer)
			}), nil)
			require.Equal(t, 200, g.call("gold", posted(t, "/v1/chat/completions", body)).Code)
			require.InDelta(t, tt.tokens, g.line.Stats().Level, 400, tt.provider)
			require.InDelta(t, tt.tokens, g.Ledger().Status(time.Now(), 1).Minute.Tokens, 400, tt.provider)
			require.Equal(t, "gpt-5", g.last(t).Model)
		})
	}
}

// A request that reads the answer of another call is not charged its usage again (OpenAI's answers in the background are polled), and
// neither is any other that makes no model run.
func TestReadingAStoredAnswerCostsARequestsShare(t *testing.T) {
	for _, tt := range []struct{ method, path, provider, answer string }{
		{"GET", "/v1/responses/resp_1", "openai-compatible", `{"object":"response","status":"completed","usage":{"input_tokens":5000,"output_tokens":5000}}`},
		{"POST", "/v1/responses/resp_1/cancel", "openai-compatible", `{"object":"response","status":"cancelled","usage":{"input_tokens":5000,"output_tokens":5000}}`},
		{"GET", "/v1/messages/batches/b/results", "anthropic", `{"result":{"type":"succeeded","message":{}},"type":"message","usage":{"input_tokens":5000,"output_tokens":5000}}`},
		{"DELETE", "/v1beta/cachedContents/c", "gemini", `{"usageMetadata":{"promptTokenCount":5000,"totalTokenCount":10000}}`},
	} {
		synctest.Test(t, func(t *testing.T) {
			next := &answering{status: 200, fields: []string{"Content-Type", "application/json"}, body: tt.answer}
			g := newRig(t, tt.provider, llm.Quota{Requests: 1000, Tokens: 100_000}, next, nil)
			r := posted(t, tt.path, "")
			r.Method = tt.method
			require.Equal(t, tt.answer, g.call("gold", r).Body.String())
			require.InDelta(t, 1000, g.line.Stats().Level, 1, tt.path)
			require.Empty(t, g.log.lines())
		})
	}
}

// A browser sends no token with the request that asks whether a page may call. The provider answers it, and it neither waits nor counts
// (agentgateway#926).
func TestABrowsersPreflightPassesAGatewayWithTeams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := []string(nil)
		g := newRig(t, "openai", llm.Quota{Requests: 60}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen = append(seen, r.Method)
			w.Header().Set("Access-Control-Allow-Origin", "*")
			w.WriteHeader(http.StatusNoContent)
		}), func(c *gateway.Config, _ *shaper.Limits) {
			c.Team = func(*http.Request) (string, bool) { return "", false }
		})
		g.line.Hold(time.Hour)
		r, err := http.NewRequest(http.MethodOptions, "http://llm.test/v1/chat/completions", nil)
		require.NoError(t, err)
		r.Header.Set("Origin", "https://app.example")
		require.Equal(t, http.StatusUnauthorized, g.call("", r.Clone(t.Context())).Code, "it is no preflight")
		r.Header.Set("Access-Control-Request-Method", "POST")
		r.Header.Set("Access-Control-Request-Headers", "authorization")
		w := g.call("", r)
		require.Equal(t, http.StatusNoContent, w.Code)
		require.Equal(t, "*", w.Header().Get("Access-Control-Allow-Origin"))
		require.Equal(t, []string{"OPTIONS"}, seen)
		r.Method = http.MethodPost
		require.Equal(t, http.StatusUnauthorized, g.call("", r).Code, "a call needs a token")
	})
}

// A provider may answer before it has read all of a body, which then still passes while the call settles.
func TestAnAnswerBeforeTheBodyHasPassed(t *testing.T) {
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"message":"the body is too long"}}`)
	}))
	defer provider.Close()
	to, err := url.Parse(provider.URL)
	require.NoError(t, err)
	g := newRig(t, "openai", llm.Quota{Tokens: 10_000_000}, httputil.NewSingleHostReverseProxy(to), nil)
	front := httptest.NewServer(g)
	defer front.Close()
	for range 5 {
		body := `{"model":"gpt-5","input":"` + strings.Repeat("word ", 1<<20) + `"}`
		r, err := http.Post(front.URL+"/v1/responses", "application/json", strings.NewReader(body))
		if err != nil {
			continue // The connection may be reset while the body is sent.
		}
		_, _ = io.Copy(io.Discard, r.Body)
		require.NoError(t, r.Body.Close())
		require.Contains(t, []int{http.StatusBadRequest, http.StatusBadGateway}, r.StatusCode)
	}
	require.Eventually(t, func() bool { return g.line.Stats().Reserved == 0 }, 5*time.Second, time.Millisecond)
}
