package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
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
