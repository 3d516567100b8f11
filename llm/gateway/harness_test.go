package gateway_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/llm/llmtest"
	"example.com/leakybucket/shaper"
)

// A rig is a gateway with a line of its own. Teams are named by the header field X-Team.
type rig struct {
	*gateway.Gateway
	http.Handler
	line   *shaper.Shaper
	meters []shaper.Meter
	log    *logged

	mu      sync.Mutex
	records []gateway.Record
}

// A metered test has a line with a level for each limit.
type metered struct {
	testing.TB
	burst time.Duration
}

// newRig returns a gateway in front of a handler. change may change its configuration and the limits of the line.
func newRig(t testing.TB, provider string, q llm.Quota, next http.Handler, change func(*gateway.Config, *shaper.Limits)) *rig {
	t.Helper()
	limits, err := gateway.Limits(q, 1, 30*time.Second, 1000)
	require.NoError(t, err)
	g := &rig{log: &logged{}}
	if by, ok := t.(metered); ok {
		limits, g.meters, err = gateway.Levels(provider, q, by.burst, 1000)
		require.NoError(t, err)
	}
	c := gateway.Config{
		Provider: provider, Quota: q, Line: func() *shaper.Shaper { return g.line },
		Team: func(r *http.Request) (string, bool) { return r.Header.Get("X-Team"), true },
		Log:  slog.New(slog.NewTextHandler(g.log, nil)),
		Record: func(_ *http.Request, r gateway.Record) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.records = append(g.records, r)
		},
	}
	if change != nil {
		change(&c, &limits)
	}
	g.line, err = shaper.New(limits, shaper.WithFairQueue(c.Weight), shaper.WithMeters(g.meters...))
	require.NoError(t, err)
	g.Gateway, err = gateway.New(c)
	require.NoError(t, err)
	g.Begin()
	g.Handler = g.Wrap(next)
	return g
}

// call sends a call of a team and returns the answer. A call whose answer breaks off has been read as far as it came.
func (g *rig) call(team string, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r.Header.Set("X-Team", team)
	func() {
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				panic(p)
			}
		}()
		g.ServeHTTP(w, r)
	}()
	return w
}

// ended returns how many calls have ended.
func (g *rig) ended() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.records)
}

// last returns the latest record.
func (g *rig) last(t testing.TB) gateway.Record {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	require.NotEmpty(t, g.records)
	return g.records[len(g.records)-1]
}

// A logged takes a log. It is read when no call is under way.
type logged struct{ bytes.Buffer }

// lines returns the lines so far.
func (l *logged) lines() []string { return slices.Collect(strings.Lines(l.String())) }

// dialectOf returns the Dialect of a provider.
func dialectOf(provider string) llmtest.Dialect {
	return map[string]llmtest.Dialect{
		"openai": llmtest.OpenAI, "openai-compatible": llmtest.OpenAI, "anthropic": llmtest.Anthropic,
		"gemini": llmtest.Gemini, "bedrock": llmtest.Bedrock,
	}[provider]
}

// request returns a call of a provider.
func request(ctx context.Context, provider string, input, most int, stream bool) *http.Request {
	return llmtest.NewRequest(ctx, dialectOf(provider), llmtest.Call{Input: input, Most: most, Stream: stream})
}
