package caddyshaper_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
	"example.com/leakybucket/internal/servers"
)

// serveFile names a Caddyfile for a process that is this test's program, as only the end of a
// process lets Caddy wait for its servers.
const serveFile = "CADDYSHAPER_TEST_SERVE"

// longPause is what serveAlone takes for a stall, and tells.
const longPause = 20 * time.Millisecond

// serveAlone runs Caddy until it is told to end, and tells of each change that tests wait for.
func serveAlone(file string) {
	text, err := os.ReadFile(file)
	if err == nil {
		text, err = adapt(string(text))
	}
	if err == nil {
		caddy.TrapSignals()
		err = caddy.Load(text, true)
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	var mu sync.Mutex
	looked := time.Now()
	tellStall := func() {
		mu.Lock()
		defer mu.Unlock()
		pause := time.Since(looked)
		if looked = looked.Add(pause); pause > longPause {
			fmt.Println(stalledFor, pause)
		}
	}
	caddy.OnExit(func(context.Context) { tellStall() }) // The loop may not see the last one.
	for was := ""; ; time.Sleep(time.Millisecond) {
		tellStall()
		if now := fmt.Sprintf("waiting %d ready %t", caddyshaper.Waiting("line"), caddyshaper.Ready()); now != was {
			was = now
			fmt.Println(now)
		}
	}
}

// stalledFor stands before the time for which a process stood still.
const stalledFor = "stalled for "

// start runs Caddy in a process of its own, and returns when it is ready.
func (s *site) start(directives string) *servers.Process {
	s.t.Helper()
	file := s.log + ".caddyfile"
	require.NoError(s.t, os.WriteFile(file, []byte(s.caddyfile(directives)), 0o600))
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), serveFile+"="+file)
	p := servers.Start(s.t, command)
	p.Says("ready true")
	return p
}

// stalledSince returns for how long a process stood still after it had said something.
func stalledSince(t *testing.T, p *servers.Process, said string) (stalled time.Duration) {
	t.Helper()
	_, since, _ := strings.Cut(p.Output(), said)
	for line := range strings.Lines(since) {
		if pause, ok := strings.CutPrefix(line, stalledFor); ok {
			d, err := time.ParseDuration(strings.TrimSpace(pause))
			require.NoError(t, err)
			stalled += d
		}
	}
	return stalled
}

func TestWhenTheProcessEndsLinesDrainWithinTheGracePeriod(t *testing.T) {
	s := newSite(t)
	// Nobody leaves before all are there.
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(rules, []byte("default: 1/h depth 4\n"), 0o600))
	p := s.start("shape line {\n rules " + rules + "\n}" + proxied)
	require.Equal(t, 200, s.get("/0").status)
	answers := make(chan answer, 3)
	for i := range 3 {
		go func() { answers <- s.get(fmt.Sprint("/", i+1)) }()
	}
	p.Says("waiting 3")
	p.Signal(syscall.SIGTERM)
	p.Says("ready false")
	require.NoError(t, os.WriteFile(rules, []byte("default: 2/s depth 4\n"), 0o600))
	for range 3 {
		a := <-answers
		require.NoError(t, a.err)
		require.Equal(t, 200, a.status)
	}
	require.Zero(t, p.Wait())
}

func TestWhoStillWaitsAtTheEndOfTheGracePeriodIsTold(t *testing.T) {
	// A tenth of the grace period is left for the answers. A process that stands still for about
	// as long may be late with them: then they have twice the time.
	for grace := 2 * time.Second; ; grace *= 2 {
		s := newSite(t)
		s.grace = grace.String()
		p := s.start("shape line {\n limits 1 per 2h depth 4\n}" + proxied)
		require.Equal(t, 200, s.get("/0").status)
		answers := make(chan answer, 2)
		for i := range 2 {
			go func() { answers <- s.get(fmt.Sprint("/", i+1)) }()
		}
		p.Says("waiting 2")
		p.Signal(syscall.SIGTERM)
		first, second := <-answers, <-answers
		require.Zero(t, p.Wait())
		stalled := stalledSince(t, p, "waiting 2")
		if (first.err != nil || second.err != nil) && stalled > grace/20 && grace <= 8*time.Second {
			t.Logf("of a grace period of %v the process stood still for %v", grace, stalled)
			continue
		}
		for _, a := range []answer{first, second} {
			require.NoError(t, a.err)
			require.Equal(t, 503, a.status)
			require.NotEmpty(t, a.header.Get("Retry-After"))
		}
		require.Len(t, s.upstream.arrivals(), 1)
		return
	}
}
