package caddyshaper_test

import (
	"bufio"
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

// A process is a Caddy in a process of its own.
type process struct {
	*exec.Cmd
	t     testing.TB
	lines *bufio.Scanner
}

func (s *site) start(directives string) *process {
	s.t.Helper()
	file := s.log + ".caddyfile"
	require.NoError(s.t, os.WriteFile(file, []byte(s.caddyfile(directives)), 0o600))
	p := &process{Cmd: exec.Command(os.Args[0]), t: s.t}
	p.Env = append(os.Environ(), serveFile+"="+file)
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	require.NoError(s.t, err)
	require.NoError(s.t, p.Start())
	s.t.Cleanup(func() { _ = p.Process.Kill() })
	p.lines = bufio.NewScanner(out)
	p.says("ready true")
	return p
}

// says waits until the process says something.
func (p *process) says(part string) {
	p.t.Helper()
	for p.lines.Scan() {
		if strings.Contains(p.lines.Text(), part) {
			return
		}
	}
	p.t.Fatalf("the process has ended without saying %q", part)
}

// ends waits for the end of the process. It returns for how long the process stood still, of
// the time since the line that was last waited for.
func (p *process) ends() (stalled time.Duration) {
	p.t.Helper()
	for p.lines.Scan() { // Wait must not be called before all is read.
		if pause, ok := strings.CutPrefix(p.lines.Text(), stalledFor); ok {
			d, err := time.ParseDuration(strings.TrimSpace(pause))
			require.NoError(p.t, err)
			stalled += d
		}
	}
	require.NoError(p.t, p.Wait())
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
	p.says("waiting 3")
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	p.says("ready false")
	require.NoError(t, os.WriteFile(rules, []byte("default: 2/s depth 4\n"), 0o600))
	for range 3 {
		a := <-answers
		require.NoError(t, a.err)
		require.Equal(t, 200, a.status)
	}
	p.ends()
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
		p.says("waiting 2")
		require.NoError(t, p.Process.Signal(syscall.SIGTERM))
		first, second := <-answers, <-answers
		stalled := p.ends()
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

func TestLevelsAreSavedWhenTheProcessEnds(t *testing.T) {
	s := newSite(t)
	directives := "shape line {\n limits 1/h\n state " + s.log + ".levels\n}" + proxied
	p := s.start(directives)
	require.Equal(t, 200, s.get("/").status)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	p.ends()
	p = s.start(directives)
	require.Equal(t, 429, s.get("/").status)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	p.ends()
}
