package llm

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
)

// The experiment runs this test and takes its results. In virtual time they are the same on every machine, but for
// the chance in the pauses of backoff.
func TestWaysToKeepToAQuota(t *testing.T) {
	span := 3 * time.Minute
	if run.ResultsAreWanted() {
		span = 10 * time.Minute
	}
	var lines []report.Line
	found := map[string]Outcome{}
	for _, p := range providers {
		for _, callers := range []int{200, 1} {
			for _, by := range ways {
				synctest.Test(t, func(t *testing.T) {
					o := outcomeOf(p, by, callers, span)
					lines = append(lines, report.Lines(fmt.Sprintf("LLM/provider=%s/limiter=%s/callers=%d", p.name, by.name, callers), []Outcome{o})...)
					found[fmt.Sprint(p.name, " ", by.name, " ", callers)] = o
					t.Logf("%-8s %-16s %3d: %+v", p.name, by.name, callers, o)
				})
			}
		}
	}
	for name, o := range found {
		require.Positive(t, o.Used, name)
	}
	for _, p := range providers {
		for _, name := range []string{"shaper", "unsettled"} {
			require.Zero(t, found[p.name+" "+name+" 200"].Refused)
		}
	}
	require.Greater(t, found["Bedrock shaper 200"].Calls, 2*found["Bedrock unsettled 200"].Calls)
	require.Equal(t, found["OpenAI shaper 200"], found["OpenAI unsettled 200"], "settling gains nothing")
	require.Equal(t, found["Bedrock shaper 1"].Calls, found["Bedrock unsettled 1"].Calls, "nor does it for a lone caller")
	require.Positive(t, found["Bedrock backoff 200"].Refused)
	require.NoError(t, run.WriteResults(lines))
}
