package llm

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// In virtual time the figures are the same on every machine, but for the chance in the pauses of backoff.
func TestWaysToKeepToAQuota(t *testing.T) {
	const span, crowd = 90 * time.Second, 40
	found := map[string]Outcome{}
	for _, p := range providers {
		for _, callers := range []int{crowd, 1} {
			for _, by := range ways {
				o := outcomeOf(t, p, by, callers, span)
				found[fmt.Sprint(p.name, " ", by.name, " ", callers)] = o
				t.Logf("%-8s %-16s %3d: %+v", p.name, by.name, callers, o)
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
}
