package gateway_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/llm/llmtest"
	"example.com/leakybucket/shaper"
)

// As issue 30 demands: 200 callers of ten teams share 500 requests and 90,000 tokens a minute, for ten minutes.
func TestTenTeamsShareAQuotaWithoutARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := llm.Quota{Requests: 500, Tokens: 90_000}
		server := llmtest.New(llmtest.Config{Dialect: llmtest.OpenAI, Quota: q, Answer: func(c llmtest.Call) llmtest.Answer {
			return llmtest.Answer{First: 500 * time.Millisecond, Took: time.Duration(1000+5*c.Most) * time.Millisecond}
		}})
		g := newRig(t, "openai", q, server, func(_ *gateway.Config, l *shaper.Limits) { l.Depth = 200 })
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				random := rand.New(rand.NewPCG(1, uint64(i)))
				for ctx.Err() == nil {
					w := g.call(fmt.Sprint("team ", i%10), request(ctx, "openai", 50+random.IntN(300), 100+random.IntN(1000), random.IntN(2) == 0))
					if ctx.Err() == nil {
						require.Equal(t, 200, w.Code, w.Body)
					}
				}
			})
			synctest.Wait() // A burst goes to those who come first, so the teams come by turns.
		}
		time.Sleep(10*time.Minute - time.Nanosecond)
		g.line.Hold(time.Hour)
		time.Sleep(30 * time.Second) // The calls that have left end.
		st, taken := server.Stats(), g.Ledger().Status(time.Now(), 20)
		stop()
		all.Wait()
		require.Zero(t, st.Refused)
		require.Zero(t, taken.Refusals)
		used := float64(st.Counted.Tokens) / (11 * 90_000) // The provider's bucket was full at first.
		t.Logf("%.1f %% of the tokens, %d calls", 100*used, st.Answered)
		require.GreaterOrEqual(t, used, 0.95)
		require.Len(t, taken.Teams, 10)
		for _, team := range taken.Teams {
			require.InEpsilon(t, float64(taken.Hour.Tokens)/10, team.Hour.Tokens, 0.02, team.Team)
		}
	})
}

func TestABurstOfOneTeamDelaysAnotherByOneCallOfEachTeam(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := llm.Quota{Requests: 50} // A call in 1.2 s.
		server := llmtest.New(llmtest.Config{Dialect: llmtest.OpenAI, Quota: llm.Quota{Requests: 1e6}})
		g := newRig(t, "openai", q, server, func(_ *gateway.Config, l *shaper.Limits) { l.Burst = 0 })
		ctx, stop := context.WithCancel(t.Context())
		for range 1000 {
			go g.call("batch", request(ctx, "openai", 10, 10, false))
		}
		synctest.Wait()
		for _, teams := range []int{1, 3} { // in line beside the caller's
			for i := range teams - 1 {
				go g.call(fmt.Sprint("other ", i), request(ctx, "openai", 10, 10, false))
				synctest.Wait()
			}
			begun := time.Now()
			require.Equal(t, 200, g.call("lone", request(t.Context(), "openai", 10, 10, false)).Code)
			require.LessOrEqual(t, time.Since(begun), time.Duration(teams+1)*1200*time.Millisecond)
		}
		stop()
		synctest.Wait()
		require.Zero(t, g.line.Stats().Waiting, "a caller that has gone frees its place")
		require.Equal(t, gateway.StatusGone, g.last(t).Status)
		require.Zero(t, g.last(t).Duration)
	})
}

// An answer passes byte for byte, and what it reports is what the bucket, the ledger and the record have in the end.
func TestAnAnswerPassesAsItIsAndSettles(t *testing.T) {
	for _, provider := range gateway.Providers() {
		t.Run(provider, func(t *testing.T) {
			for _, stream := range []bool{false, true} {
				for _, compressed := range []bool{false, true} {
					synctest.Test(t, func(t *testing.T) {
						q := llm.Quota{Requests: 1000, Tokens: 100_000}
						config := llmtest.Config{Dialect: dialectOf(provider), Answer: func(llmtest.Call) llmtest.Answer {
							return llmtest.Answer{Output: 400, CacheRead: 50, Gzip: compressed}
						}}
						alone, err := llmtest.New(config).RoundTrip(request(t.Context(), provider, 2000, 5000, stream))
						require.NoError(t, err)
						want, err := io.ReadAll(alone.Body)
						require.NoError(t, err)

						g := newRig(t, provider, q, llmtest.New(config), nil)
						w := g.call("gold", request(t.Context(), provider, 2000, 5000, stream))
						require.Equal(t, string(want), w.Body.String())
						require.Equal(t, alone.Header.Get("Content-Type"), w.Header().Get("Content-Type"))
						require.Equal(t, "shape;dur=0.000", w.Header().Get("Server-Timing"))
						require.True(t, w.Flushed)
						record := g.last(t)
						require.Equal(t, &gateway.Actual{Used: gateway.Used{Input: 1950, Output: 400}, CacheRead: 50}, record.Actual)
						require.Equal(t, gateway.Used{Input: 2000, Output: 5000}, record.Estimate)
						counted := llm.Usage{Input: 1950, Output: 400, CacheRead: 50}
						if strings.HasPrefix(provider, "anthropic") || provider == "bedrock" {
							counted.CacheRead = 0
						}
						if provider == "gemini" {
							counted.Output = 0
						}
						require.InDelta(t, q.Cost(counted), g.line.Stats().Level, 1)
						require.Zero(t, g.line.Stats().Reserved)
						taken := g.Ledger().Status(time.Now(), 1).Teams[0]
						require.Equal(t, "gold", taken.Team)
						require.Equal(t, uint64(counted.Input+counted.CacheRead+counted.Output), taken.Minute.Tokens)
						require.Empty(t, g.log.lines())
					})
				}
			}
		})
	}
}

// A record has the model that a call names in its body or path, and not what the path asks of the model.
func TestARecordHasTheModel(t *testing.T) {
	for _, c := range []struct{ method, path, body, model string }{
		{"POST", "/v1/chat/completions", `{"model":"gpt-5"}`, "gpt-5"},
		{"POST", "/v1beta/models/gemini-3:generateContent", "{}", "gemini-3"},
		{"POST", "/v1beta/models/gemini-3:countTokens?key=k", "{}", "gemini-3"},
		{"POST", "/v1/projects/p/locations/l/publishers/anthropic/models/claude@5:streamRawPredict", "{}", "claude@5"},
		{"POST", "/model/anthropic.claude-v1%3A0/converse", "{}", "anthropic.claude-v1:0"},
		{"POST", "/model/anthropic.claude-v1:0/converse", "{}", "anthropic.claude-v1:0"},
		{"POST", "/openai/deployments/ours/chat/completions", "{}", "ours"},
		{"GET", "/v1/models/llama3:latest", "", "llama3:latest"},
		{"POST", "/v1/chat/completions", `{"model":"a","model":"gpt-5"}`, "gpt-5"},
		{"POST", "/v1beta/models/embedding-1:embedContent", `{"model":"models/another"}`, "embedding-1"},
		{"POST", "/openai/deployments/ours/chat/completions", `{"model":"gpt-5"}`, "ours"},
		{"POST", "/model/amazon.nova-pro-v1:0/converse-stream", `{"model":"another"}`, "amazon.nova-pro-v1:0"},
		{"POST", "/models/some/model/v1/chat/completions", `{"model":"some/model"}`, "some/model"},
		{"GET", "/v1/models", "", ""},
	} {
		g := newRig(t, "openai", llm.Quota{Requests: 100}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil)
		g.call("gold", httptest.NewRequestWithContext(t.Context(), c.method, c.path, strings.NewReader(c.body)))
		require.Equal(t, c.model, g.last(t).Model, c.path)
	}
}

func TestMistakesInAConfigAreNamed(t *testing.T) {
	line := func() *shaper.Shaper { return nil }
	for want, c := range map[string]gateway.Config{
		`the provider "closedai" is unknown, must be one of anthropic`: {Provider: "closedai", Quota: llm.Quota{Requests: 1}, Line: line},
		"the Quota has no limit":                         {Provider: "openai", Line: line},
		"Config.Line is nil":                             {Provider: "openai", Quota: llm.Quota{Requests: 1}},
		"Config.Scale is -1, must be a number above 0":   {Provider: "openai", Quota: llm.Quota{Requests: 1}, Line: line, Scale: -1},
		"Config.Scale is NaN, must be a number above 0":  {Provider: "openai", Quota: llm.Quota{Requests: 1}, Line: line, Scale: math.NaN()},
		"Config.Scale is +Inf, must be a number above 0": {Provider: "openai", Quota: llm.Quota{Requests: 1}, Line: line, Scale: math.Inf(1)},
	} {
		_, err := gateway.New(c)
		require.ErrorContains(t, err, want)
	}
	for _, scale := range []float64{-1, math.NaN(), math.Inf(1)} {
		_, err := gateway.Limits(llm.Quota{Requests: 1}, scale, 0, 0)
		require.ErrorContains(t, err, fmt.Sprintf("the scale is %v, must be a number above 0", scale))
	}
}

// Each call waits in the line of its model.
func TestACallWaitsInTheLineOfItsModel(t *testing.T) {
	const all, none = true, false
	for _, tt := range []struct {
		method, path, model string
		hasAny              bool // there is a quota for any model
		want                int  // of the lines; -1: refused
	}{
		{"POST", "/v1/messages", "claude-sonnet-4-5", none, 0},
		{"POST", "/v1/messages", "claude-haiku-4-5", none, 1},
		{"POST", "/v1/messages", "models/claude-sonnet-4-5", none, 0},
		{"POST", "/v1/messages", "claude-sonnet", none, -1},
		{"POST", "/v1/messages", "claude-opus-4", none, -1},
		{"POST", "/v1/messages", "claude-opus-4", all, 2},
		{"POST", "/v1/messages", "", none, 0}, // the provider will say what is wrong
		{"POST", "/v1/messages", "", all, 2},
		{"GET", "/v1/models", "", none, 0},
		{"GET", "/v1/models/claude-opus-4", "", none, 0},
		{"POST", "/model/us.anthropic.claude-haiku-4-5:0/converse", "", none, 1},
		{"POST", "/model/claude-haiku-4-5:0/converse", "", none, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			next := http.HandlerFunc(answersOK)
			models := gateway.Models{}
			rigs := []*rig{}
			for _, pattern := range []string{"claude-sonnet-*", "*-haiku-*", ""} {
				g := newRig(t, "anthropic", llm.Quota{Requests: 60}, next, nil)
				if rigs = append(rigs, g); pattern != "" || tt.hasAny {
					models = append(models, gateway.Model{Pattern: pattern, Gateway: g.Gateway})
				}
			}
			w := httptest.NewRecorder()
			r := httptest.NewRequest(tt.method, tt.path, strings.NewReader(fmt.Sprintf(`{"model":%q,"max_tokens":100}`, tt.model)))
			if tt.method == "GET" {
				r.Body = http.NoBody
			}
			models.Wrap(next).ServeHTTP(w, r)
			if tt.want < 0 {
				require.Equal(t, 404, w.Code)
				require.JSONEq(t, `{"type":"error","error":{"type":"not_found_error","message":
					"The gateway has no quota for the model of the call; it has quotas for claude-sonnet-*, *-haiku-*."}}`, w.Body.String())
			}
			for i, g := range rigs {
				departed := uint64(0)
				if i == tt.want {
					departed = 1
				}
				require.Equal(t, departed, g.line.Stats().Departed, "%v, line %d", tt, i)
			}
		})
	}
}

// A team that goes on calling a model whose limit is used up takes nothing from the callers of another model.
func TestAModelThatIsUsedUpKeepsNoOtherWaiting(t *testing.T) {
	for _, together := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				text, err := io.ReadAll(r.Body)
				if err != nil {
					return
				}
				if strings.Contains(string(text), `"model":"used-up"`) {
					w.Header().Set("Retry-After", "60")
					w.Header().Set("Anthropic-Ratelimit-Requests-Limit", "600")
					w.Header().Set("Anthropic-Ratelimit-Requests-Remaining", "0")
					w.WriteHeader(429)
					return
				}
				answersOK(w, r)
			})
			q := llm.Quota{Requests: 600}
			of := newRig(t, "anthropic", q, next, nil)
			models := gateway.Models{{Pattern: "used-up", Gateway: newRig(t, "anthropic", q, next, nil).Gateway}, {Gateway: of.Gateway}}
			if together {
				models = models[1:]
			}
			h := models.Wrap(next)
			end := time.Now().Add(10 * time.Minute)
			answered := 0
			var both sync.WaitGroup
			for _, model := range []string{"used-up", "other"} {
				both.Go(func() {
					for time.Now().Before(end) {
						w := httptest.NewRecorder()
						h.ServeHTTP(w, httptest.NewRequest("POST", "/v1/messages", strings.NewReader(fmt.Sprintf(`{"model":%q,"max_tokens":100}`, model))))
						if model == "other" && w.Code == 200 {
							answered++
						}
					}
				})
			}
			both.Wait()
			if together {
				require.Less(t, answered, 400)
				return
			}
			require.InDelta(t, 6300, answered, 1, "600 a minute, and 300 at once")
		})
	}
}

// A call whose model is not known for lack of room is in no other model's line.
func TestACallWithoutRoomIsInNoOtherModelsLine(t *testing.T) {
	for _, several := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			next := http.HandlerFunc(answersOK)
			narrow := func(c *gateway.Config, _ *shaper.Limits) { c.Bodies = 1 << 20 }
			a, b := newRig(t, "anthropic", llm.Quota{Requests: 600}, next, narrow), newRig(t, "anthropic", llm.Quota{Requests: 600}, next, narrow)
			models := gateway.Models{{Pattern: "a", Gateway: a.Gateway}, {Gateway: b.Gateway}}
			if !several {
				models = gateway.Models{{Gateway: a.Gateway}}
			}
			h := models.Wrap(next)
			call := func(model string, size int) *httptest.ResponseRecorder {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("POST", "/v1/messages", strings.NewReader(fmt.Sprintf(`{"model":%q,"x":%q}`, model, strings.Repeat("x", size)))))
				return w
			}
			a.line.Hold(time.Minute)
			isDone := done(func() { call("a", 700<<10) })
			synctest.Wait()
			require.Equal(t, 1, a.line.Stats().Waiting)
			w := call("b", 700<<10)
			if !several {
				require.Equal(t, 200, w.Code)
				return
			}
			require.Equal(t, 503, w.Code)
			require.Contains(t, w.Body.String(), "no room for the body that says the model")
			require.Equal(t, 200, call("b", 100<<10).Code)
			require.EqualValues(t, 1, b.line.Stats().Departed)
			time.Sleep(time.Minute)
			synctest.Wait()
			require.True(t, isDone())
			require.Equal(t, 200, call("b", 700<<10).Code)
			require.EqualValues(t, 1, a.line.Stats().Departed)
		})
	}
}

// done runs a function in a goroutine of its own, and reports whether it has returned.
func done(f func()) func() bool {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	return func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}
}

// What a program gives the Ledger may ask the Ledger, and calls end meanwhile.
func TestWhatALedgerCallsMayAskTheLedger(t *testing.T) {
	var g *rig
	asks := func() {
		_ = g.Ledger().Totals()
		g.Ledger().Refuse("gold")
	}
	line := (*shaper.Shaper)(nil)
	g = newRig(t, "openai", llm.Quota{Requests: 50}, http.NotFoundHandler(), func(c *gateway.Config, _ *shaper.Limits) {
		c.Weight = func(string) int { asks(); return 2 }
		c.Line = func() *shaper.Shaper {
			if line == nil {
				return g.line
			}
			asks()
			return line
		}
	})
	g.call("gold", request(t.Context(), "openai", 10, 10, false))
	line = g.line
	var st gateway.Status
	realtime.Until(t, done(func() { st = g.Ledger().Status(time.Now(), 5) }), "the Ledger answers")
	require.Equal(t, 2, st.Teams[0].Weight)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A team at its cap waits outside the line, and holds up no other, however many calls it sends.
func TestATeamAtItsCapHoldsUpNoOther(t *testing.T) {
	for _, teamCap := range []int{0, 4} {
		synctest.Test(t, func(t *testing.T) {
			most, now := map[string]int{}, map[string]int{}
			var mu sync.Mutex
			next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				team := r.Header.Get("X-Team")
				mu.Lock()
				now[team]++
				most[team] = max(most[team], now[team])
				mu.Unlock()
				time.Sleep(time.Minute)
				mu.Lock()
				now[team]--
				mu.Unlock()
				answersOK(w, r)
			})
			g := newRig(t, "openai", llm.Quota{Requests: 6000}, next, func(c *gateway.Config, l *shaper.Limits) {
				c.TeamInFlight, l.InFlight = teamCap, 16
			})
			var all sync.WaitGroup
			call := func(team string, n int) {
				for range n {
					all.Go(func() {
						if status := g.call(team, request(t.Context(), "openai", 1, 1, false)).Code; status != 200 {
							t.Errorf("status %d", status)
						}
					})
				}
				synctest.Wait()
			}
			call("greedy", 100)
			call("other", 8)
			st, waiting := g.Ledger().Status(time.Now(), 2), 0
			for _, team := range append(st.Teams, st.Others) {
				waiting += team.Waiting
			}
			require.Equal(t, 108-map[int]int{0: 16, 4: 8}[teamCap], waiting, "the page tells of all that wait")
			all.Wait()
			other := time.Duration(0)
			for _, r := range g.records {
				if r.Team == "other" {
					other = max(other, time.Duration(r.Waited*float64(time.Second)))
				}
			}
			if teamCap == 0 {
				require.Equal(t, 16, most["greedy"])
				require.GreaterOrEqual(t, other, time.Minute)
				return
			}
			require.Equal(t, map[string]int{"greedy": 4, "other": 4}, most)
			require.Equal(t, time.Minute, other, "its own cap lets four call at once, and four after them")
		})
	}
}

// A caller that leaves in mid-stream has taken its input, as the answer has reported it, and the text that has come; what comes
// beyond the estimate is charged as it comes.
func TestACallerThatLeavesAStreamHasTakenWhatCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":30,\"output_tokens\":1}}}\n\n")
			_, _ = fmt.Fprintf(w, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":%q}}\n\n", strings.Repeat("a", 4800))
			<-r.Context().Done()
			panic(http.ErrAbortHandler) // as a reverse proxy does
		})
		g := newRig(metered{t, time.Minute}, "anthropic", llm.Quota{Requests: 60_000, Input: 60_000, Output: 60_000}, next, func(c *gateway.Config, _ *shaper.Limits) {
			c.Estimate = "learned"
		})
		levels := func() []int {
			m := g.line.Meters()
			return []int{int(g.line.Stats().Level + 0.5), int(m[0].Level + 0.5), int(m[1].Level + 0.5)}
		}
		ctx, leave := context.WithCancel(t.Context())
		go g.call("a", request(ctx, "anthropic", 200, 32_000, true))
		synctest.Wait()
		require.Equal(t, []int{1, 200, 1200}, levels(), "1,000 were reserved")
		leave()
		synctest.Wait()
		require.Equal(t, []int{1, 30, 1200}, levels())
		require.Contains(t, g.log.String(), "its caller has gone, and its text counts as far as it was seen")
	})
}
