package caddyshaper_test

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
	"example.com/leakybucket/internal/realtime"
)

// The first request keeps the only seat, so the next one would wait for as long as that takes.
func TestNobodyWaitsForLongerThanTheLinesSay(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(rules, []byte("default: 100/s depth 5 wait 300ms inflight 1\n"), 0o600))
	const limits = "limits 100/s depth 5 inflight 1"
	for name, test := range map[string]struct {
		lines string
		after bool // it leaves when the seat is free, however late
	}{
		"limits":       {lines: limits + " wait 300ms"},
		"line_timeout": {lines: limits + "\n line_timeout 300ms"},
		"off":          {limits + " wait 300ms\n line_timeout off", true},
		"longer":       {limits + " wait 300ms\n line_timeout 1h", true},
		"site":         {lines: "limits 1000/s burst 10\n site 100/s depth 5 inflight 1 wait 300ms"},
		"fair":         {lines: limits + " wait 300ms\n fair host"},
		"rules":        {lines: "rules " + rules},
		"quota":        {lines: "quota openai {\n requests 60000\n }\n wait 300ms\n inflight 1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, "shape line {\n "+test.lines+"\n}"+proxied)
			free := make(chan bool)
			s.upstream.serves(func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/0" {
					<-free
				}
			})
			first := make(chan answer, 1)
			go func() { first <- s.get("/0") }()
			realtime.Until(t, func() bool { return len(s.upstream.arrivals()) == 1 }, "the seat is taken")
			came := time.Now()
			if test.after {
				answers := s.inLine("line", "/1")
				time.Sleep(600 * time.Millisecond)
				require.Equal(t, 1, caddyshaper.Waiting("line"))
				close(free)
				require.Equal(t, 200, answers()[0].status)
			} else {
				a := s.get("/1")
				require.Equal(t, 429, a.status)
				require.GreaterOrEqual(t, time.Since(came), 300*time.Millisecond)
				require.NotEmpty(t, a.header.Get("Retry-After"))
				require.Contains(t, a.body, "The request has waited too long.")
				close(free)
			}
			require.Equal(t, 200, (<-first).status)
		})
	}
}

// It can't change for lines in use, and requests in line keep the bounds that they have.
func TestAnotherLineTimeoutMakesOtherLines(t *testing.T) {
	const lines = "shape line {\n limits 1/h depth 5"
	s := serve(t, lines+"\n}"+proxied)
	require.Equal(t, 200, s.get("/0").status)
	answers := s.inLine("line", "/1")
	s.reload(lines + "\n line_timeout 1s\n}" + proxied)
	_, all := caddyshaper.Names()
	require.Equal(t, []string{"line", "line"}, all)
	require.Equal(t, 429, s.get("/2").status, "the new line has the level of the old one")
	require.Equal(t, 1, caddyshaper.Waiting("line"))
	s.giveUp()
	require.Error(t, answers()[0].err)
}

// No wait within the line's cures such a refusal, so each caller gets the provider's own.
func TestARefusalForHoursIsPassedOnAndHoldsNobody(t *testing.T) {
	s := serve(t, "shape line {\n quota openai {\n requests 60000\n }\n wait 1m\n inflight 1\n}"+proxied)
	refuse := make(chan bool)
	s.upstream.serves(func(w http.ResponseWriter, _ *http.Request) {
		<-refuse
		w.Header().Set("Retry-After", "7200")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	first := make(chan answer, 1)
	go func() { first <- s.get("/0") }()
	realtime.Until(t, func() bool { return len(s.upstream.arrivals()) == 1 }, "the seat is taken")
	answers := s.inLine("line", "/1", "/2")
	close(refuse)
	for _, a := range append(answers(), <-first) {
		require.Equal(t, 429, a.status)
		require.Equal(t, "7200", a.header.Get("Retry-After"))
	}
	require.ElementsMatch(t, []string{"/0", "/1", "/2"}, s.upstream.paths(), "each was sent once")
}
