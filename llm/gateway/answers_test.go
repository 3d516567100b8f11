package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
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

func answersOK(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }

// A record tells how long a call has been in line that ends there.
func TestARecordHasTheWaitOfACallThatGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, "openai", llm.Quota{Requests: 60}, http.HandlerFunc(answersOK), nil)
		g.line.Hold(time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		go g.call("a", request(ctx, "openai", 1, 1, false))
		synctest.Wait()
		time.Sleep(50 * time.Second)
		cancel()
		synctest.Wait()
		r := g.last(t)
		require.Equal(t, 50.0, r.Waited)
	})
}

// So it does of the second wait, for which the call has cost nothing.
func TestARecordHasTheSecondWaitOfACallThatGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, "openai", llm.Quota{Requests: 60}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "20")
			w.WriteHeader(429)
		}), nil)
		ctx, cancel := context.WithCancel(t.Context())
		go g.call("a", request(ctx, "openai", 1, 1, false))
		synctest.Wait()
		time.Sleep(5 * time.Second)
		cancel()
		synctest.Wait()
		r := g.last(t)
		require.Equal(t, 5.0, r.Waited)
		require.NotNil(t, r.Actual, "it has cost nothing")
	})
}

// And of a call that is refused in line.
func TestARecordHasTheWaitOfACallThatIsRefusedInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, "openai", llm.Quota{Requests: 60}, http.HandlerFunc(answersOK), nil)
		g.line.Hold(time.Hour)
		go g.call("a", request(t.Context(), "openai", 1, 1, false))
		synctest.Wait()
		time.Sleep(5 * time.Second)
		g.line.Close()
		synctest.Wait()
		r := g.last(t)
		require.Equal(t, 5.0, r.Waited)
	})
}

// The line may have been changed while a call was at the provider. The new one is held, too.
func TestARefusalHoldsTheLineThatAReloadHasMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := llm.Quota{Requests: 600}
		limits, err := gateway.Limits(q, 1, 30*time.Second, 1000)
		require.NoError(t, err)
		newLine := func() *shaper.Shaper {
			s, err := shaper.New(limits, shaper.WithFairQueue(nil))
			require.NoError(t, err)
			return s
		}
		old, now := newLine(), newLine()
		var line atomic.Pointer[shaper.Shaper]
		line.Store(old)
		gate := make(chan bool)
		g, err := gateway.New(gateway.Config{Provider: "openai", Quota: q, Line: line.Load})
		require.NoError(t, err)
		n := 0
		h := g.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if n++; n == 1 {
				<-gate
				w.Header().Set("Retry-After", "20")
				w.WriteHeader(429)
			}
		}))
		go h.ServeHTTP(httptest.NewRecorder(), request(t.Context(), "openai", 1, 1, false))
		synctest.Wait()
		line.Store(now)
		close(gate)
		synctest.Wait()
		begun := time.Now()
		h.ServeHTTP(httptest.NewRecorder(), request(t.Context(), "openai", 1, 1, false))
		require.Equal(t, 20*time.Second, time.Since(begun))
	})
}

// The WriteTimeout that begins anew after the wait is not for a connection that the second attempt has hijacked.
func TestASecondAttemptMayHijack(t *testing.T) {
	n := 0
	done := make(chan error, 1)
	g := newRig(t, "openai", llm.Quota{Requests: 600}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n++; n == 1 {
			w.Header().Set("Retry-After-Ms", "10")
			w.WriteHeader(429)
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			done <- err
			return
		}
		_ = conn.SetDeadline(time.Time{})
		go func() {
			time.Sleep(600 * time.Millisecond)
			_, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			conn.Close()
			done <- err
		}()
	}), nil)
	s := httptest.NewUnstartedServer(g)
	s.Config.WriteTimeout = 300 * time.Millisecond
	s.Start()
	defer s.Close()
	r, _ := http.NewRequest("POST", s.URL, strings.NewReader("{}"))
	resp, err := http.DefaultClient.Do(r)
	if err == nil {
		_ = resp.Body.Close()
	}
	require.NoError(t, <-done)
}

// A refused call that can not enter the line again has cost nothing.
func TestACallThatIsNotSentAgainAfterA503CostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := llm.Quota{Tokens: 100000}
		var line *shaper.Shaper
		g := newRig(t, "openai", q, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "50")
			w.WriteHeader(503)
		}), func(c *gateway.Config, l *shaper.Limits) {
			line, _ = shaper.New(*l, shaper.WithFairQueue(nil), shaper.WithLineTimeout(20*time.Second))
			c.Line = func() *shaper.Shaper { return line }
		})
		g.call("a", request(t.Context(), "openai", 1000, 1000, false))
		r := g.last(t)
		require.NotNil(t, r.Actual)
		require.Zero(t, g.Ledger().Status(time.Now(), 1).Minute.Requests)
	})
}

// A body that the handler closes before its end gives its room to others while its answer streams.
func TestAClosedBodyTakesNoRoom(t *testing.T) {
	var g *rig
	g = newRig(t, "openai", llm.Quota{Requests: 600}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.CopyN(io.Discard, r.Body, 1000)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		answersOK(w, r)
		require.Zero(t, g.Ledger().Status(time.Now(), 0).BodyBytes)
	}), nil)
	g.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "POST", "/v1/chat/completions", strings.NewReader(strings.Repeat("x", 900_000))))
}

// Whatever a provider does, nothing hangs, nothing is free, and the log says so once.
func TestNothingThatAProviderDoesIsFree(t *testing.T) {
	answer := func(contentType, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			_, _ = io.WriteString(w, body)
		}
	}
	usage := func(input, output string) http.HandlerFunc {
		return answer("application/json", `{"usage":{"prompt_tokens":`+input+`,"completion_tokens":`+output+`}}`)
	}
	const json, events = "application/json", "text/event-stream"
	for name, next := range map[string]http.HandlerFunc{
		"killed before the answer": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"no answer at all":         func(http.ResponseWriter, *http.Request) {},
		"killed in the answer": func(w http.ResponseWriter, r *http.Request) {
			answer(events, "data: {}\n\n")(w, r)
			panic(http.ErrAbortHandler)
		},
		"killed behind the usage": func(w http.ResponseWriter, r *http.Request) {
			answer(events, `data: {"usage":{"prompt_tokens":5,"completion_tokens":5}}`+"\n\n")(w, r)
			panic(http.ErrAbortHandler)
		},
		"truncated": answer(json, `{"usage":{"prompt_tokens":5,"completion`),
		"shorter than it says": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000")
			answer(events, `data: {"usage":{"prompt_tokens":5,"completion_tokens":5}}`+"\n\n")(w, r)
		},
		"no usage":       answer(json, `{"choices":[]}`),
		"usage null":     answer(json, `{"usage":null}`),
		"usage negative": usage("5", "-5"),
		"usage 0":        usage("0", "0"),
		"usage 2⁶³":      usage("9223372036854775808", "5"),
		"not JSON":       answer("text/html", "<html>"),
		"a stream without end": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				answer(events, "data: {}\n\n")(w, r)
				time.Sleep(time.Second)
			}
		},
		"silence": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := llm.Quota{Tokens: 100_000}
				g := newRig(t, "openai-compatible", q, next, func(_ *gateway.Config, l *shaper.Limits) { l.InFlight = 1 })
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute-time.Nanosecond)
				defer cancel()
				g.call("gold", request(ctx, "openai", 1000, 4000, false))
				cost := 50_000 - time.Since(epoch).Seconds()*1e6/60
				st := g.line.Stats()
				require.InDelta(t, max(0, cost), st.Level, 1)
				require.Zero(t, st.Reserved)
				require.Zero(t, st.InFlight, "the seat is free")
				require.Equal(t, uint64(5000), g.Ledger().Status(time.Now(), 1).Hour.Tokens)
				require.Nil(t, g.last(t).Actual)
				require.Len(t, g.log.lines(), 1)
				require.Contains(t, g.log.lines()[0], "the estimate stands")
				require.NotContains(t, g.log.lines()[0], "gold")
			})
		})
	}
}

// A caller may go while the provider is silent. The call has been sent, so its estimate stands, and the record says that nobody got an answer.
func TestACallerThatGoesBeforeTheAnswerIsCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		g := newRig(t, "openai", llm.Quota{Tokens: 100_000}, next, nil)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(3*time.Second, cancel)
		g.call("gold", request(ctx, "openai", 1000, 4000, false))
		require.Equal(t, gateway.StatusGone, g.last(t).Status)
		require.InDelta(t, 3, g.last(t).Duration, 0)
		require.Equal(t, uint64(4000), g.Ledger().Status(time.Now(), 1).Hour.Tokens)
	})
}

// A thousand faults are a line or two, with their count.
func TestManyFaultsAreFewLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, "openai", llm.Quota{Requests: 1e6}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil)
		for range 100 {
			g.call("gold", request(t.Context(), "openai", 10, 10, false))
			time.Sleep(time.Second)
		}
		lines := g.log.lines()
		require.Len(t, lines, 2)
		require.Contains(t, lines[0], "calls=1")
		require.Contains(t, lines[1], "calls=60")
	})
}

// Of the bodies of calls that wait at most 1 MiB each is read and kept; the rest is read when it is passed on.
func TestBodiesOfCallsThatWaitAreKeptOnce(t *testing.T) {
	for name, c := range map[string]struct{ calls, size, kept int }{
		"a thousand of 100 kB": {1000, 100_000, 110_000},
		"twenty of 5 MB":       {20, 5_000_000, 3 << 19},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				read, passed := new(tally), new(tally)
				next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					_, err := io.Copy(passed, r.Body)
					require.NoError(t, err)
				})
				g := newRig(t, "openai", llm.Quota{Requests: 600}, next, func(_ *gateway.Config, l *shaper.Limits) { l.Depth = 2000 })
				g.line.Hold(time.Minute)
				text := strings.Repeat("x", c.size) // It is no JSON.
				before := heap()
				for i := range c.calls {
					body := io.TeeReader(strings.NewReader(text), read)
					r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://llm.test/v1/chat/completions", body)
					require.NoError(t, err)
					r.ContentLength = int64(c.size)
					go g.call(fmt.Sprint("team ", i%10), r)
				}
				synctest.Wait()
				require.Equal(t, c.calls, g.line.Stats().Waiting)
				require.LessOrEqual(t, read.Load(), int64(c.calls)*min(int64(c.size), 1<<20+1))
				each := (int64(heap()) - int64(before)) / int64(c.calls)
				t.Logf("%d bytes for each call", each)
				require.LessOrEqual(t, each, int64(c.kept))
				time.Sleep(3 * time.Minute)
				require.Equal(t, int64(c.calls)*int64(c.size), passed.Load())
				require.Equal(t, passed.Load(), read.Load())
			})
		})
	}
}

// heap returns how much is in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A tally counts the bytes that are written to it.
type tally struct{ atomic.Int64 }

func (t *tally) Write(p []byte) (n int, err error) {
	t.Add(int64(len(p)))
	return len(p), nil
}
