package gateway_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
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
