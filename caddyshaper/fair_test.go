package caddyshaper_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
)

// fairShape is a shape whose requests take turns by their header X-Team. The cap keeps those in order who
// leave shortly one after another.
func fairShape(limits, weights string) string {
	return "shape line {\n limits " + limits + " depth 9 inflight 1\n fair header X-Team {\n" + weights + "\n }\n}" + proxied
}

// A reload that changes weights and limits loses no request in line, and those that come afterwards
// have the new weight.
func TestTeamsTakeTurnsOverAReload(t *testing.T) {
	s := serve(t, fairShape("1/h", ""))
	require.Equal(t, 200, s.get("/0").status)
	burst := s.inLineWith([]string{"X-Team", "burst"}, "line", "/a1", "/a2", "/a3", "/a4")
	s.reload(fairShape("1/h", "weight gold 4"))
	gold := s.inLineWith([]string{"X-Team", "gold"}, "line", "/g1", "/g2", "/g3", "/g4")
	require.Equal(t, 8, caddyshaper.Waiting("line"))
	_, all := caddyshaper.Names()
	require.Equal(t, []string{"line"}, all)

	s.reload(fairShape("1000/s", ""))
	for _, a := range append(burst(), gold()...) {
		require.Equal(t, 200, a.status)
	}
	require.Equal(t, []string{"/0", "/g1", "/g2", "/g3", "/a1", "/g4", "/a2", "/a3", "/a4"}, s.upstream.paths())
}

// A file of rules says who takes turns: weights, keys and limits that change lose no request in line, and
// count for those that come afterwards.
func TestAFileSaysWhoTakesTurns(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(limits, fair string) {
		text := "default: " + limits + " depth 9 inflight 1\nfair: {" + fair + "}\n"
		require.NoError(t, os.WriteFile(rules, []byte(text), 0o600))
	}
	reloads, failures := uint64(0), uint64(0)
	inForce := func(counted *uint64) {
		*counted++
		require.Eventually(t, func() bool {
			r, f := caddyshaper.RuleChanges("line")
			return r == reloads && f == failures
		}, enough, time.Millisecond)
	}
	write("1/h", "by: header X-Team")
	directives := "shape line {\n rules " + rules + "\n fair\n}" + proxied
	s := serve(t, directives)
	require.Equal(t, 200, s.get("/0").status)
	burst := s.inLineWith([]string{"X-Team", "burst"}, "line", "/a1", "/a2", "/a3", "/a4")
	write("1/h", "by: header X-Team, weights: {gold: 4}")
	inForce(&reloads)
	gold := s.inLineWith([]string{"X-Team", "gold"}, "line", "/g1", "/g2", "/g3")
	require.NoError(t, os.WriteFile(rules, []byte("default: 1/s"), 0o600))
	inForce(&failures) // It is no longer for one line, so the rules stay.
	write("1/h", "by: host header X-User, weights: {shop.example/ann: 4}")
	inForce(&reloads)
	ann := s.inLineWith([]string{"X-Team", "burst", "X-User", "ann"}, "line", "/u1")
	s.reload(directives + "\n header X new")
	require.Equal(t, 8, caddyshaper.Waiting("line"))

	write("1000/s", "by: client_ip")
	for _, a := range append(append(burst(), gold()...), ann()...) {
		require.Equal(t, 200, a.status)
	}
	require.Equal(t, []string{"/0", "/g1", "/u1", "/g2", "/g3", "/a1", "/a2", "/a3", "/a4"}, s.upstream.paths())
	_, all := caddyshaper.Names()
	require.Equal(t, []string{"line"}, all)
}

// A cap that a file adds needs a new line, which has the level of the old one.
func TestAFileThatAddsACapMakesANewLine(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(limits string) {
		require.NoError(t, os.WriteFile(rules, []byte("fair: {by: host}\ndefault: "+limits), 0o600))
	}
	write("1/h burst 2 depth 9")
	s := serve(t, "shape line {\n rules "+rules+"\n fair\n}"+proxied)
	require.Equal(t, 200, s.get("/0").status)
	require.Equal(t, 200, s.get("/1").status)
	waits := s.inLine("line", "/2")
	write("1/h burst 2 inflight 3")
	require.Eventually(t, func() bool {
		reloads, _ := caddyshaper.RuleChanges("line")
		return reloads == 1
	}, enough, time.Millisecond)
	require.Eventually(t, func() bool { return s.get("/3").status == 429 }, enough, time.Millisecond, "the new line has no places")
	s.giveUp()
	require.Error(t, waits()[0].err, "it stayed in the old line")
}

// What is meant for one line would give each key the whole rate.
func TestFairOfAFileAndOfAShapeGoTogether(t *testing.T) {
	s := newSite(t)
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	for text, c := range map[string]struct{ fair, err string }{
		"default: 5/s\nfair: {by: host}": {"", rules + ":2:1: fair: the program gives each key a rate of its own"},
		"default: inf\nfair: {by: host}": {"fair\n store redis://127.0.0.1:1", "rules: the default is inf beside fair and a store"},
		"default: 5/s":                   {"fair", rules + `: neither this file nor a later one says "fair"`},
		"default: 5/s\nfair: {by: route, weights: {GET %2Fa%2F: 2, GET %2F{: 2}}": {"fair", "not YAML"},
		"default: 5/s\nfair: {by: route, weights: {'GET %2F{': 2}}":               {"fair", `routes: ` + rules + `:2: "GET %2F{": "GET /{" cannot be a route`},
	} {
		require.NoError(t, os.WriteFile(rules, []byte(text), 0o600))
		require.ErrorContains(t, s.load("shape {\n rules "+rules+"\n "+c.fair+"\n}"+proxied), c.err, text)
	}
}

// Of a file whose keys are routes, the weights name the routes, beside those of the Caddyfile.
func TestRoutesOfAFileTakeTurns(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(rules, []byte("default: 5/h burst 5\nfair: {by: route, weights: {'GET %2Fa%2F': 2}}"), 0o600))
	s := serve(t, "shape line {\n rules "+rules+"\n fair\n routes /b\n}\n	header >X-Key {http.shape.key}"+proxied)
	for path, want := range map[string]string{"/a/7": "GET %2Fa%2F", "/b": "%2Fb", "/c": "-"} {
		require.Equal(t, want, s.get(path).header.Get("X-Key"), path)
	}
}

// A newcomer of a team that waits less pushes out the last request of the burst that fills the line.
func TestABurstFillsNoPlaceAgainstTheOthers(t *testing.T) {
	shape := func(limits string) string {
		return "shape line {\n limits " + limits + "\n fair header:X-Team\n}" + proxied
	}
	s := serve(t, shape("1/h depth 2 inflight 1"))
	require.Equal(t, 200, s.get("/0").status)
	team := []string{"X-Team", "burst"}
	first := s.inLineWith(team, "line", "/a1")
	second := s.inLineWith(team, "line", "/a2")
	other := make(chan answer, 1)
	go func() { other <- s.get("/b1", "X-Team", "other") }()
	pushedOut := second()[0]
	require.Equal(t, 429, pushedOut.status)
	require.NotEmpty(t, pushedOut.header.Get("Retry-After"))

	s.reload(shape("1000/s depth 2 inflight 1"))
	require.Equal(t, 200, first()[0].status)
	require.Equal(t, 200, (<-other).status)
	require.Equal(t, []string{"/0", "/a1", "/b1"}, s.upstream.paths())
}

func TestTheLevelOfAFairLineOutlivesTheProcessAndAnInflight(t *testing.T) {
	file := filepath.Join(t.TempDir(), "levels.json")
	shape := func(limits string) string {
		return "shape line {\n limits " + limits + "\n fair client_ip\n state " + file + "\n}" + proxied
	}
	directives := shape("1/h burst 2")
	s := serve(t, directives)
	require.Equal(t, 200, s.get("/0").status)
	s.stop()
	s.reload(directives)
	require.Equal(t, 200, s.get("/1").status)
	require.Equal(t, 429, s.get("/2").status)
	s.reload(shape("1/h burst 2 inflight 1"))
	require.Equal(t, 429, s.get("/3").status)
}
