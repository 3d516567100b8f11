package fair

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// In virtual time no figure depends on the machine. A share depends, by less than a point, on the order in which callers begin.
func TestABurstBesideLightKeys(t *testing.T) {
	waits, shares := map[string]Waits{}, map[string]float64{}
	for _, by := range ways {
		waits[by.name], shares[by.name] = waitsOf(t, by, 2), shareOf(t, by).Value
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
}

func TestCostFillsAndEmptiesALine(t *testing.T) {
	for _, keys := range []int{0, 1, 10, 100} {
		found := cost(t, keys, 100)
		require.Positive(t, found.Admission)
		require.Positive(t, found.Refusal)
		require.Positive(t, found.Departure)
	}
}
