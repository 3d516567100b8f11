package caddyshaper_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
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
	for was := ""; ; time.Sleep(time.Millisecond) {
		if now := fmt.Sprintf("waiting %d ready %t", caddyshaper.Waiting("line"), caddyshaper.Ready()); now != was {
			was = now
			fmt.Println(now)
		}
	}
}

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

// ends waits for the end of the process.
func (p *process) ends() {
	p.t.Helper()
	for p.lines.Scan() { // Wait must not be called before all is read.
	}
	require.NoError(p.t, p.Wait())
}

func TestWhenTheProcessEndsLinesDrainWithinTheGracePeriod(t *testing.T) {
	s := newSite(t)
	p := s.start("shape line limits 1 per 2s depth 4" + proxied)
	require.Equal(t, 200, s.get("/0").status)
	answers := make(chan answer, 3)
	for i := range 3 {
		go func() { answers <- s.get(fmt.Sprint("/", i+1)) }()
	}
	p.says("waiting 3")
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	p.says("ready false")
	for range 3 {
		require.Equal(t, 200, (<-answers).status)
	}
	p.ends()
}

func TestWhoStillWaitsAtTheEndOfTheGracePeriodIsTold(t *testing.T) {
	s := newSite(t)
	s.grace = "2s"
	p := s.start("shape line {\n limits 1 per 2h depth 4\n}" + proxied)
	require.Equal(t, 200, s.get("/0").status)
	answers := make(chan answer, 2)
	for i := range 2 {
		go func() { answers <- s.get(fmt.Sprint("/", i+1)) }()
	}
	p.says("waiting 2")
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	for range 2 {
		a := <-answers
		require.NoError(t, a.err)
		require.Equal(t, 503, a.status)
		require.NotEmpty(t, a.header.Get("Retry-After"))
	}
	p.ends()
	require.Len(t, s.upstream.arrivals(), 1)
}

func TestLevelsAreSavedWhenTheProcessEnds(t *testing.T) {
	s := newSite(t)
	directives := "shape line {\n limits 1/min\n state " + s.log + ".levels\n}" + proxied
	p := s.start(directives)
	require.Equal(t, 200, s.get("/").status)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	p.ends()
	p = s.start(directives)
	require.Equal(t, 429, s.get("/").status)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	p.ends()
}
