package main

import (
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
		"argument at end":   {[]string{"-once", "now"}, []string{`"now"`}},
		"no limits":         {[]string{"-limits", ""}, []string{"-limits", `""`}},
		"bad limits":        {[]string{"-limits", "50 apples"}, []string{"-limits", `"50 apples"`}},
		"no rate":           {[]string{"-limits", "0/s depth 3"}, []string{"-limits", `"0/s depth 3"`}},
		"newline in limits": {[]string{"-limits", "50/s\ndepht 3"}, []string{"-limits"}},
		"burst no number":   {[]string{"-burst", "many"}, []string{"-burst", `"many"`}},
		"negative burst":    {[]string{"-burst", "-1"}, []string{"-burst", `"-1"`, "negative"}},
		"huge burst":        {[]string{"-burst", "10001"}, []string{"-burst", `"10001"`, "10000"}},
		"burst beyond int":  {[]string{"-burst", "99999999999999999999"}, []string{"-burst", `"99999999999999999999"`}},
		"vanish no share":   {[]string{"-vanish", "0.5"}, []string{"-vanish", `"0.5"`, "0% to 100%"}},
		"vanish no sign":    {[]string{"-vanish", "50"}, []string{"-vanish", `"50"`, "sign"}},
		"vanish no number":  {[]string{"-vanish", "%"}, []string{"-vanish", `"%"`}},
		"vanish empty":      {[]string{"-vanish", ""}, []string{"-vanish", `""`}},
		"vanish above all":  {[]string{"-vanish", "101%"}, []string{"-vanish", `"101%"`, "100%"}},
		"vanish negative":   {[]string{"-vanish", "-1%"}, []string{"-vanish", `"-1%"`}},
		"vanish fraction":   {[]string{"-vanish", "12.5%"}, []string{"-vanish", `"12.5%"`, "whole"}},
		"vanish doubly":     {[]string{"-vanish", "50%%"}, []string{"-vanish", `"50%%"`}},
		"vanish of nobody":  {[]string{"-vanish", "50%", "-burst", "0"}, []string{`-vanish "50%"`, `-burst "0"`}},
		"vanish, upstream":  {[]string{"-vanish", "50%", "-upstream", "http://x"}, []string{`-vanish "50%"`, `-upstream "http://x"`}},
		"url without http":  {[]string{"-upstream", "localhost:3000"}, []string{"-upstream", `"localhost:3000"`, "http://"}},
		"url without host":  {[]string{"-upstream", "http://"}, []string{"-upstream", `"http://"`, "host"}},
		"url unparsable":    {[]string{"-upstream", "http://[::1"}, []string{"-upstream", `"http://[::1"`}},
		"url of no port":    {[]string{"-upstream", "http://x:99999999"}, []string{"-upstream", `"http://x:99999999"`, "port"}},
		"url with a query":  {[]string{"-upstream", "http://x/?q=1"}, []string{"-upstream", `"http://x/?q=1"`, "query"}},
		"url empty":         {[]string{"-upstream", ""}, []string{"-upstream", `""`}},
		"once and upstream": {[]string{"-once", "-upstream", "http://x"}, []string{"-once", `-upstream "http://x"`}},
		"svg and upstream":  {[]string{"-svg", "x.svg", "-upstream", "http://x"}, []string{`-svg "x.svg"`, `-upstream "http://x"`}},
		"once of nothing":   {[]string{"-once", "-burst", "0"}, []string{"-once", `-burst "0"`}},
		"svg without place": {[]string{"-svg", "no/such/folder/x.svg"}, []string{"-svg", `"no/such/folder/x.svg"`}},
		"svg is a folder":   {[]string{"-svg", "."}, []string{"-svg", `"."`, "folder"}},
		"svg without name":  {[]string{"-svg", ""}, []string{"-svg", `""`}},
		"callers no number": {[]string{"-outbound", "-callers", "all"}, []string{"-callers", `"all"`}},
		"one caller":        {[]string{"-outbound", "-callers", "1"}, []string{"-callers", `"1"`, "at least 2"}},
		"huge callers":      {[]string{"-outbound", "-callers", "10001"}, []string{"-callers", `"10001"`, "10000"}},
		"callers of nobody": {[]string{"-callers", "9"}, []string{`-callers "9"`, "-outbound"}},
		"outbound, addr":    {[]string{"-outbound", "-addr", "127.0.0.1:0"}, []string{"-outbound", "-addr"}},
		"outbound, burst":   {[]string{"-outbound", "-burst", "9"}, []string{"-outbound", "-burst"}},
		"outbound, vanish":  {[]string{"-outbound", "-vanish", "0%"}, []string{"-outbound", "-vanish"}},
		"outbound, svg":     {[]string{"-outbound", "-svg", "x.svg"}, []string{"-outbound", "-svg"}},
		"outbound, other":   {[]string{"-outbound", "-upstream", "http://x"}, []string{"-outbound", "-upstream"}},
		"cap on a burst":    {[]string{"-limits", "50/s depth 9 inflight 2"}, []string{"-limits", `"50/s depth 9 inflight 2"`, "-upstream"}},
		"inspect, once":     {[]string{"-once", "-inspect", "127.0.0.1:0"}, []string{`-inspect "127.0.0.1:0"`, "-once"}},
		"inspect, outbound": {[]string{"-outbound", "-inspect", ""}, []string{"-outbound", "-inspect"}},
		"inspect, no port":  {[]string{"-inspect", "localhost"}, []string{"-inspect", `"localhost"`}},
		"inspect for all":   {[]string{"-inspect", ":9000"}, []string{"-inspect", `":9000"`, "this machine only", "127.0.0.1:9000"}},
		"inspect elsewhere": {[]string{"-inspect", "192.0.2.1:9000"}, []string{"-inspect", `"192.0.2.1:9000"`, "this machine only"}},
		"inspect taken":     {[]string{"-inspect", taken.Addr().String()}, []string{"-inspect", taken.Addr().String(), "in use"}},
		"addr without port": {[]string{"-addr", "localhost"}, []string{"-addr", `"localhost"`}},
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
	c, err := parseFlags(nil)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:8080", c.addr)
	require.False(t, c.addrGiven)
	require.Equal(t, "127.0.0.1:0", c.inspect)
	require.Equal(t, "50/s depth 100", c.limits.String())
	require.Equal(t, 150, c.burst)
	require.Zero(t, c.vanish)
	require.Nil(t, c.upstream)
	require.False(t, c.once)
	require.False(t, c.outbound)
}

func TestOutboundHasLimitsOfItsOwnUnlessTheyAreGiven(t *testing.T) {
	c, err := parseFlags([]string{"-outbound"})
	require.NoError(t, err)
	require.Equal(t, "50/s depth 100 slack 5ms", c.limits.String())
	require.Equal(t, 100, c.callers)

	c, err = parseFlags([]string{"-outbound", "-limits", defaultLimits, "-callers", "7"})
	require.NoError(t, err)
	require.Equal(t, "50/s depth 100", c.limits.String())
	require.Equal(t, 7, c.callers)
}

func TestACapGoesWithWhatFiresNoBurst(t *testing.T) {
	for _, args := range [][]string{{"-burst", "0"}, {"-upstream", "http://x"}, {"-outbound"}} {
		_, err := parseFlags(append(args, "-limits", "50/s depth 9 inflight 2"))
		require.NoError(t, err, args)
	}
}

func TestOnlyTheUsualPortMayMove(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()

	free, err := listenFront(config{addr: taken.Addr().String()})
	require.NoError(t, err)
	defer free.close()
	require.True(t, free.moved)
	require.NotEqual(t, taken.Addr().String(), free.listener.Addr().String())

	_, err = listenFront(config{addr: taken.Addr().String(), addrGiven: true})
	require.Error(t, err)
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
		c, err := parseFlags([]string{"-burst", "0", "-limits", limits})
		require.NoError(t, err)
		require.Equal(t, want, k6Line(c, "http://x"), limits)
	}
}
