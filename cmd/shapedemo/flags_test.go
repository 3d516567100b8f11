package main

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatCannotBeFollowedIsToldInOneLine(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()

	for name, c := range map[string]struct {
		args []string
		says []string // the flag and its value
	}{
		"unknown flag":      {[]string{"-frobnicate"}, []string{"-frobnicate"}},
		"missing value":     {[]string{"-burst"}, []string{"-burst"}},
		"argument":          {[]string{"50/s"}, []string{`"50/s"`}},
		"bad limits":        {[]string{"-limits", "50 apples"}, []string{"-limits", `"50 apples"`}},
		"newline in limits": {[]string{"-limits", "50/s\ndepht 3"}, []string{"-limits"}},
		"burst no number":   {[]string{"-burst", "many"}, []string{"-burst", `"many"`}},
		"negative burst":    {[]string{"-burst", "-1"}, []string{"-burst", `"-1"`, "from 0"}},
		"huge burst":        {[]string{"-burst", "10001"}, []string{"-burst", `"10001"`, "10000"}},
		"vanish no share":   {[]string{"-vanish", "0.5"}, []string{"-vanish", `"0.5"`, "0% to 100%"}},
		"vanish no sign":    {[]string{"-vanish", "50"}, []string{"-vanish", `"50"`, "sign"}},
		"vanish above all":  {[]string{"-vanish", "101%"}, []string{"-vanish", `"101%"`, "100%"}},
		"vanish fraction":   {[]string{"-vanish", "12.5%"}, []string{"-vanish", `"12.5%"`, "whole"}},
		"vanish of nobody":  {[]string{"-vanish", "50%", "-burst", "0"}, []string{`-vanish "50%"`, `-burst "0"`}},
		"vanish, upstream":  {[]string{"-vanish", "50%", "-upstream", "http://x"}, []string{`-vanish "50%"`, `-upstream "http://x"`}},
		"url without http":  {[]string{"-upstream", "localhost:3000"}, []string{"-upstream", `"localhost:3000"`, "http://"}},
		"url without host":  {[]string{"-upstream", "http://"}, []string{"-upstream", `"http://"`, "host"}},
		"url unparsable":    {[]string{"-upstream", "http://[::1"}, []string{"-upstream", `"http://[::1"`}},
		"url with a query":  {[]string{"-upstream", "http://x/?q=1"}, []string{"-upstream", `"http://x/?q=1"`, "query"}},
		"once and upstream": {[]string{"-once", "-upstream", "http://x"}, []string{"-once", `-upstream "http://x"`}},
		"svg and upstream":  {[]string{"-svg", "x.svg", "-upstream", "http://x"}, []string{`-svg "x.svg"`, `-upstream "http://x"`}},
		"once of nothing":   {[]string{"-once", "-burst", "0"}, []string{"-once", `-burst "0"`}},
		"svg without place": {[]string{"-svg", "no/such/folder/x.svg"}, []string{"-svg", `"no/such/folder/x.svg"`}},
		"svg is a folder":   {[]string{"-svg", "."}, []string{"-svg", `"."`, "a file"}},
		"one caller":        {[]string{"-outbound", "-callers", "1"}, []string{"-callers", `"1"`, "from 2"}},
		"huge callers":      {[]string{"-outbound", "-callers", "10001"}, []string{"-callers", `"10001"`, "10000"}},
		"callers of nobody": {[]string{"-callers", "9"}, []string{"-callers", "-outbound"}},
		"outbound, addr":    {[]string{"-outbound", "-addr", "127.0.0.1:0"}, []string{"-outbound", "-addr"}},
		"outbound, svg":     {[]string{"-outbound", "-svg", "x.svg"}, []string{"-outbound", "-svg"}},
		"cap on a burst":    {[]string{"-limits", "50/s depth 9 inflight 2"}, []string{"-limits", `"50/s depth 9 inflight 2"`, "-upstream"}},
		"inspect, once":     {[]string{"-once", "-inspect", "127.0.0.1:0"}, []string{`-inspect "127.0.0.1:0"`, "-once"}},
		"inspect, outbound": {[]string{"-outbound", "-inspect", ""}, []string{"-outbound", "-inspect"}},
		"inspect for all":   {[]string{"-inspect", ":9000"}, []string{"-inspect", `":9000"`, "this machine only", "127.0.0.1:9000"}},
		"inspect taken":     {[]string{"-inspect", taken.Addr().String()}, []string{"-inspect", taken.Addr().String(), "in use"}},
		"addr taken":        {[]string{"-addr", taken.Addr().String()}, []string{"-addr", taken.Addr().String(), "in use"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(c.args...)
			require.Equal(t, exitUsage, p.ends(t))
			require.Empty(t, p.stdout.String())
			said := p.stderr.String()
			require.Equal(t, 1, strings.Count(said, "\n"), said)
			require.True(t, strings.HasPrefix(said, "shapedemo: "), said)
			for _, says := range c.says {
				require.Contains(t, said, says)
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	for args, want := range map[string]string{
		"":                      "50/s depth 100, 150 sent to 127.0.0.1:8080 and a page at 127.0.0.1:0",
		"-outbound":             "50/s depth 100 slack 5ms, 100 callers",
		"-outbound -limits 9/s": "9/s depth 0, 100 callers",
	} {
		c, err := parseFlags(strings.Fields(args))
		require.NoError(t, err)
		got := fmt.Sprintf("%s, %d sent to %s and a page at %s", c.limits, c.burst, c.addr, c.inspect)
		if c.scene.flag == "outbound" {
			got = fmt.Sprintf("%s, %d callers", c.limits, c.callers)
		}
		require.Equal(t, want, got)
	}
}

func TestACapGoesWithWhateverSendsNoBurst(t *testing.T) {
	for _, args := range [][]string{{"-burst", "0"}, {"-upstream", "http://x"}, {"-outbound"}} {
		_, err := parseFlags(append(args, "-limits", "50/s depth 9 inflight 2"))
		require.NoError(t, err, args)
	}
}

func TestOnlyTheUsualPortMayMove(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	front, err := listenFront(config{addr: taken.Addr().String()})
	require.NoError(t, err)
	defer front.close()
	require.True(t, front.moved)
	require.NotEqual(t, taken.Addr().String(), front.listener.Addr().String())
}

func TestHelpShowsExamples(t *testing.T) {
	p := start("-h")
	require.Equal(t, exitOK, p.ends(t))
	require.Contains(t, p.stdout.String(), "Examples:")
	require.Empty(t, p.stderr.String())
	for line := range strings.Lines(p.stdout.String()) {
		require.LessOrEqual(t, len(line), 81, line)
	}
}

func TestTheLoadScriptIsOfferedWhereItCanJudge(t *testing.T) {
	for limits, want := range map[string]string{
		defaultLimits:             "k6 run -e BASE_URL=http://x loadtest/k6.js",
		"50/s burst 40 depth 100": "k6 run -e BASE_URL=http://x -e RATE=50 -e DEPTH=100 -e BURST=40 loadtest/k6.js",
		"50/s depth 100 wait 2s":  "k6 run -e BASE_URL=http://x -e RATE=50 -e DEPTH=100 -e BURST=1 loadtest/k6.js",
		"50/s depth 100 wait 1s":  "",
		"50/s depth 49":           "",
		"10, 1/sec":               "",
		"5 per 1h depth 2":        "",
		"0.5/s depth 9":           "",
		"inf depth 100":           "",

		"50/s depth 100 inflight 9": "",
	} {
		require.Equal(t, want, k6Line(limitsOf(t, limits), "http://x"), limits)
	}
}
