package caddyshaper_test

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/caddyserver/caddy/v2"
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

// JSON has what no Caddyfile can say.
func TestMistakesOfFairInJSONAreTold(t *testing.T) {
	s := newSite(t)
	for fair, want := range map[string]string{
		`{}`:                                   `fair: by is missing`,
		`{"by":["all"]}`:                       `fair: "all" tells no requests apart`,
		`{"by":["host"],"weights":{"a":1001}}`: `fair: the weight of "a" is 1001, must be from 1 to 1000`,
		`{"by":["host"],"weights":{"a":0}}`:    `fair: the weight of "a" is 0, must be from 1 to 1000`,
		`{"by":["host"],"weights":{"a/b":2}}`:  `fair: the weight of "a/b" is for a key of 2 parts, but each key has 1`,
		`{"by":["host"],"weights":{"a":1.5}}`:  `weights`,
		`{"by":["host"],"weight":{"a":1}}`:     `unknown field "weight"`,
		`{"by":["header:"]}`:                   `fair: "header:", must have the name of a header field`,
	} {
		config, err := adapt(s.caddyfile("shape {\n limits 5/s\n}" + proxied))
		require.NoError(t, err)
		var fields any
		require.NoError(t, json.Unmarshal(config, &fields))
		addFair(fields, json.RawMessage(fair))
		config, err = json.Marshal(fields)
		require.NoError(t, err)
		require.ErrorContains(t, caddy.Load(config, true), want, fair)
	}
}

// addFair adds a field to all handlers that have limits.
func addFair(in any, fair json.RawMessage) {
	switch v := in.(type) {
	case []any:
		for _, one := range v {
			addFair(one, fair)
		}
	case map[string]any:
		if v["limits"] != nil {
			v["fair"] = fair
		}
		for _, one := range v {
			addFair(one, fair)
		}
	}
}
