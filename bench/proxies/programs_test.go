package proxies

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/run"
)

func TestWhereProgramsAreMissingTheReportSaysHowToGetThem(t *testing.T) {
	t.Setenv("PATH", filepath.Join(t.TempDir(), "bin")) // Go is not there, either.
	p := findPrograms(t.Context(), run.Options{}, t.TempDir(), os.Getenv("PATH"))
	require.Len(t, p.missing, 3)
	require.EqualError(t, p.missing[0], "nginx is missing; to get it, on Debian: apt-get install nginx-light")
	require.EqualError(t, p.missing[1], "haproxy is missing; to get it, on Debian: apt-get install haproxy")
	require.ErrorContains(t, p.missing[2], "shaperd is missing; it is built with Go from within this project's tree")
	for _, r := range rivals {
		require.Equal(t, r.name == middleware, p.has(r.name), r.name)
	}
	require.Empty(t, present(p, casesOf(run.Options{}).leavings[2:]), "the others are worth their time")

	for _, missing := range p.missing {
		require.Contains(t, note(p), missing.Error())
	}

	t.Setenv("SHAPER_REQUIRE_ALL", "")
	require.NoError(t, p.required())
	t.Setenv("SHAPER_REQUIRE_ALL", "1")
	require.ErrorIs(t, p.required(), p.missing[1])
	_, err := compare(t.Context(), run.Options{}, os.Getenv("PATH"), cases{})
	require.ErrorContains(t, err, "haproxy is missing")
}

func TestProgramsAreFoundBesideThePath(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sbin"), 0o755))
	program := filepath.Join(dir, "sbin", "nginx")
	require.NoError(t, os.WriteFile(program, []byte("#!"), 0o755))
	found, err := findProgram(filepath.Join(dir, "bin"), "nginx", "nginx-light")
	require.NoError(t, err)
	require.Equal(t, program, found)

	require.NoError(t, os.Chmod(program, 0o644))
	_, err = findProgram(filepath.Join(dir, "bin"), "nginx", "nginx-light")
	require.Error(t, err, "it can't be run")
}

func TestVersionsAreThosePrinted(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	say := func(text string) {
		require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho '"+text+"' >&2\n"), 0o755))
	}
	say("nginx version: nginx/1.22.1 (Ubuntu)")
	c := candidate{asked: []string{"-v"}, version: regexp.MustCompile(`nginx/\S+`)}
	version, err := c.askVersion(t.Context(), program)
	require.NoError(t, err)
	require.Equal(t, "nginx/1.22.1", version)

	say("something else")
	_, err = c.askVersion(t.Context(), program)
	require.ErrorContains(t, err, "something else")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	_, err = c.askVersion(ctx, program)
	require.ErrorIs(t, err, context.Canceled)
}

func TestProxiesAreConfiguredWithWhatIsMeasured(t *testing.T) {
	s := setting{Listen: "127.0.0.1:1", Upstream: "127.0.0.1:2", Rate: 100, Line: 300, AtOnce: 7}
	for _, config := range []string{nginxConfig, haproxyConfig, caddyConfig} {
		require.Contains(t, s.in(config, 4000), "127.0.0.1:2")
		require.NotRegexp(t, `\{(listen|upstream|rate|line|at-once|files)\}`, s.in(config, 4000))
	}
	for _, want := range []string{"listen 127.0.0.1:1 ", "server 127.0.0.1:2;", "rate=100r/s;", "burst=300;", "worker_connections 4000;", "daemon off;", "access_log off;"} {
		require.Contains(t, s.in(nginxConfig, 4000), want)
	}
}
