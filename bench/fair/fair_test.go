package fair

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
)

// The experiment runs this test and takes its results. In virtual time they are the same on every machine.
func TestABurstBesideLightKeys(t *testing.T) {
	times := 2
	if run.AtLength() {
		times = 20
	}
	var lines []report.Line
	waits, shares := map[string]Waits{}, map[string]float64{}
	for _, by := range ways {
		var light, bursts []time.Duration
		unused := 0.0
		for seed := range times {
			synctest.Test(t, func(*testing.T) {
				some, burst, part := besideABurst(by, uint64(seed))
				light, bursts = append(light, some...), append(bursts, burst)
				unused += part / float64(times)
			})
		}
		waits[by.name] = waitsOf(light, bursts, unused)
		synctest.Test(t, func(*testing.T) { shares[by.name] = shareError(by) })
		lines = append(lines, report.Lines("Fair/limiter="+by.name, []Waits{waits[by.name]})...)
		lines = append(lines, report.Line{Name: "FairShares/limiter=" + by.name, Figures: []report.Figure{{Value: shares[by.name], Unit: "share-err-%"}}})
		t.Logf("%-12s %+v, share off by %.1f", by.name, waits[by.name], shares[by.name])
	}
	require.Greater(t, waits["one-line"].Median, 5*time.Second)
	require.Less(t, waits["fair"].Longest, 100*time.Millisecond)
	require.Less(t, waits["one-line"].Burst, waits["fair"].Burst, "the burst itself is through sooner in one line")
	require.Zero(t, waits["group"].Median, "nor does a key wait that has a bucket of its own")
	require.Greater(t, waits["group"].Unused, 80.0)
	require.Less(t, waits["fair"].Unused, 1.0)
	require.Less(t, shares["fair"], 1.0)
	require.Greater(t, shares["round-robin"], 50.0)
	require.Less(t, waits["queueset"].Longest, 100*time.Millisecond)
	require.Less(t, waits["queueset"].Unused, 1.0, "the seat is never free while a request waits")
	require.InDelta(t, 25, shares["queueset"], 1, "queueset charges the cost, but has no weights")
	require.NoError(t, run.WriteResults(lines))
}

func TestCostFillsAndEmptiesALine(t *testing.T) {
	for _, keys := range []int{0, 1, 10, 100} {
		found, err := cost(costInput{keys, 100})
		require.NoError(t, err)
		require.Positive(t, found.Admission)
		require.Positive(t, found.Refusal)
		require.Positive(t, found.Departure)
		require.Equal(t, keys, found.Keys)
	}
}
