package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMediansAndGoals(t *testing.T) {
	half := 0.5
	c := comparison{
		Rounds: 3,
		Spacings: []spacingRow{
			{Proxy: theirs, Rate: 100, Rounds: []spacing{{ErrorP50: 500}, {ErrorP50: 400}, {ErrorP50: 9000}}},
			{Proxy: ours, Rate: 100, Rounds: []spacing{{ErrorP50: 125, OvertakenQueue: &half}, {ErrorP50: 1, OvertakenQueue: &half}, {ErrorP50: 200, OvertakenQueue: &half}}},
			{Proxy: theirs, Rate: 1000, Rounds: []spacing{{ErrorP50: 399}}},
			{Proxy: ours, Rate: 1000, Rounds: []spacing{{ErrorP50: 100, OvertakenQueue: &half}}},
		},
		Ceilings: []ceilingRow{{Proxy: ours, Rounds: []ceiling{{3, 1}, {1, 2}, {2, 9}}}},
	}
	c.conclude()
	require.Equal(t, spacing{ErrorP50: 500}, c.Spacings[0].Median)
	require.Equal(t, spacing{ErrorP50: 125, OvertakenQueue: &half}, c.Spacings[1].Median)
	require.Equal(t, ceiling{PerSecond: 2, CPUPer100k: 2}, c.Ceilings[0].Median)
	require.Equal(t, []goal{
		{"median spacing error at 100/s, nginx against ours", 4, 4, true},
		{"median spacing error at 1000/s, nginx against ours", 4, 3.99, false},
	}, c.Goals)

	var out strings.Builder
	c.print(&out)
	require.Contains(t, out.String(), "at 100/s, nginx against ours: 4.0 × lower, at least 4 × wanted: reached")
	require.Contains(t, out.String(), "NOT reached")
}

func TestTablesAreAligned(t *testing.T) {
	var out strings.Builder
	printTable(&out, "T", [][]string{{"who", "µs"}, {"a", "7"}, {"longer", "1234"}}, 1, "N")
	require.Equal(t, "\nT\n\n  who       µs\n  a          7\n  longer  1234\n\nN\n", out.String())
}

func TestVersionAndModelName(t *testing.T) {
	version, err := parseVersion("nginx version: nginx/1.22.1 (Ubuntu)\n")
	require.NoError(t, err)
	require.Equal(t, "nginx/1.22.1", version)
	_, err = parseVersion("command not found")
	require.ErrorContains(t, err, "command not found")

	require.Equal(t, "Some CPU @ 3 GHz", modelName("processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\nflags\t: a\n"))
	require.Empty(t, modelName(""))
}

func TestNginxIsConfiguredWithWhatIsMeasured(t *testing.T) {
	config := configureNginx("127.0.0.1:1", "127.0.0.1:2", 100)
	for _, want := range []string{"listen 127.0.0.1:1 ", "server 127.0.0.1:2;", "rate=100r/s;", "worker_processes 1;", "daemon off;", "access_log off;"} {
		require.Contains(t, config, want)
	}
	require.NotRegexp(t, `\{(listen|upstream|rate)\}`, config)
}
