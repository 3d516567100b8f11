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
	// As a test alone, and with -quick, the run is short, with so many callers that they still ask for more than the quota.
	span, crowd := 90*time.Second, 40
	if run.AtLength() {
		span, crowd = 10*time.Minute, 200
	}
	var lines []report.Line
	found := map[string]Outcome{}
	for _, p := range providers {
		for _, callers := range []int{crowd, 1} {
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
	crowded := func(name string) Outcome { return found[fmt.Sprint(name, " ", crowd)] }
	for name, o := range found {
		require.Positive(t, o.Used, name)
	}
	for _, p := range providers {
		for _, name := range []string{"shaper", "unsettled"} {
			require.Zero(t, crowded(p.name+" "+name).Refused)
		}
	}
	require.Greater(t, crowded("Bedrock shaper").Calls, 2*crowded("Bedrock unsettled").Calls)
	require.Equal(t, crowded("OpenAI shaper"), crowded("OpenAI unsettled"), "settling gains nothing")
	require.Equal(t, found["Bedrock shaper 1"].Calls, found["Bedrock unsettled 1"].Calls, "nor does it for a lone caller")
	require.Positive(t, crowded("Bedrock backoff").Refused)
	require.NoError(t, run.WriteResults(lines))
}
