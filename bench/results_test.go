package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func sampleResults() results {
	return results{
		Date:    time.Date(2025, 11, 21, 8, 0, 0, 0, time.UTC),
		Command: "go run ./bench -quick",
		Machine: machine{System: "linux/amd64", Processor: "Abacus", CPUs: 2, Go: "go1.26.8", GOMAXPROCS: 2},
		Parts: []partResult{
			{"spacing", report{
				Tables: []table{{Title: "Spacing", Columns: []string{"who"}, Rows: [][]string{{"ours"}}}},
				Data:   []spacingResult{{Contestant: "shaper", Rate: 10, Departures: 2, Histogram: []int{1, 2}}, {Contestant: "x-time"}},
				Goals:  []goal{{What: "even", Want: "≥ 8×", Got: "9×", Reached: true}},
			}},
			{"scale", report{
				Data:  map[string]int{"bytes": 190},
				Goals: []goal{{What: "small", Want: "≤ 200", Got: "201"}},
			}},
		},
	}
}

func TestJSONHasOneMeasurementALine(t *testing.T) {
	data, err := sampleResults().json()
	require.NoError(t, err)
	require.Equal(t, `{
"date": "2025-11-21T08:00:00Z",
"command": "go run ./bench -quick",
"machine": {"system":"linux/amd64","processor":"Abacus","cpus":2,"go":"go1.26.8","gomaxprocs":2},
"parts": [
{"name": "spacing", "data": [
{"contestant":"shaper","rate":10,"waiters":0,"load":"","rate_reached":0,"error_p50_us":0,"error_p99_us":0,"bunched_percent":0,"overtaken_percent":0,"burst_ms":0,"cpu_seconds_per_100k":0,"allocs_per_wait":0,"rounds":0,"departures":2,"histogram":[1,2]},
{"contestant":"x-time","rate":0,"waiters":0,"load":"","rate_reached":0,"error_p50_us":0,"error_p99_us":0,"bunched_percent":0,"overtaken_percent":0,"burst_ms":0,"cpu_seconds_per_100k":0,"allocs_per_wait":0,"rounds":0,"departures":0}
]},
{"name": "scale", "data": {"bytes":190}}
],
"goals": [
{"what":"even","want":"≥ 8×","got":"9×","reached":true},
{"what":"small","want":"≤ 200","got":"201","reached":false}
]
}
`, string(data))
	require.True(t, json.Valid(data))
}

func TestJSONOfNothingIsValid(t *testing.T) {
	for _, r := range []results{{}, {Parts: []partResult{{name: "empty"}}}} {
		data, err := r.json()
		require.NoError(t, err)
		require.True(t, json.Valid(data), "%s", data)
	}
}

func TestJSONOfWhatHasNoneIsAnError(t *testing.T) {
	_, err := results{Parts: []partResult{{"odd", report{Data: func() {}}}}}.json()
	require.ErrorContains(t, err, "odd: ")
}

func TestMarkdownBeginsWithTheGoals(t *testing.T) {
	require.Equal(t, "# Results of `go run ./bench -quick`\n\n"+
		"2025-11-21: linux/amd64, Abacus (2 CPUs), go1.26.8, GOMAXPROCS 2.\n\n"+
		"### Goals\n\n"+
		"| goal  | wanted | found | reached |\n"+
		"| ----- | ------ | ----: | ------- |\n"+
		"| even  | ≥ 8×   |    9× | yes     |\n"+
		"| small | ≤ 200  |   201 | NO      |\n\n"+
		"### Spacing\n\n"+
		"| who  |\n| ---- |\n| ours |\n", sampleResults().markdown())
}

func TestMachineSaysWhatItKnows(t *testing.T) {
	m := machine{System: "linux/amd64", Processor: "Abacus", CPUs: 1, Memory: "4.0 GiB", Kernel: "6.18", Go: "go1.26.8", GOMAXPROCS: 1, Commit: "abc, modified"}
	require.Equal(t, "linux/amd64, Abacus (1 CPU), 4.0 GiB, kernel 6.18, go1.26.8, GOMAXPROCS 1, commit abc, modified", m.String())
	here := thisMachine()
	require.NotEmpty(t, here.Processor)
	require.Positive(t, here.GOMAXPROCS)
	require.Contains(t, here.String(), here.Go)
}
