package simulate_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/cmd/shapereplay/internal/simulate"
	"example.com/leakybucket/config"
	"example.com/leakybucket/shaper"
)

const (
	ms   = time.Millisecond
	wait = 1e6 // ns
)

var start = time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)

const rules = `
default: 10/s
limits:
  api: {rate: 10/s, depth: 2, candidate: 20/s depth 5}
  late: 10/s depth 5 wait 150ms
`

func newSimulation(t *testing.T, text string, o simulate.Options) *simulate.Simulation {
	t.Helper()
	parsed, err := config.Parse("test.yaml", []byte(text))
	require.NoError(t, err)
	return simulate.New(parsed, o)
}

// come lets n requests of a key arrive at the same instant.
func come(s *simulate.Simulation, at time.Duration, key string, n int) {
	for range n {
		s.Arrive(start.Add(at), key, key+".example")
	}
}

func TestEveryRequestCountsOnce(t *testing.T) {
	s := newSimulation(t, rules, simulate.Options{})
	come(s, 0, "other", 2)
	come(s, 0, "api/1", 5)
	come(s, 0, "api/2", 2)
	come(s, 0, "late", 5)
	come(s, 50*ms, "api/2", 1)
	come(s, -time.Hour, "other", 1) // It is taken for 50 ms.
	come(s, 300*ms, "other", 1)
	r := s.Result()
	require.Equal(t, start, r.First)
	require.Equal(t, start.Add(300*ms), r.Last)
	require.Equal(t, 4, r.Keys)
	require.Equal(t, simulate.Count{Requests: 17, AtOnce: 5, Waited: 5, Refused: 7, QueueFull: 4, TooLate: 3, TotalWait: 650 * wait, Longest: 200 * wait}, r.All)
	require.Len(t, r.Rules, 3)

	other, api, late := r.Rules[0], r.Rules[1], r.Rules[2]
	require.Equal(t, simulate.Count{Requests: 4, AtOnce: 2, Refused: 2, QueueFull: 2}, other.Count)
	require.Equal(t, simulate.Count{Requests: 8, AtOnce: 2, Waited: 4, Refused: 2, QueueFull: 2, TotalWait: 550 * wait, Longest: 200 * wait}, api.Count)
	require.Equal(t, simulate.Count{Requests: 5, AtOnce: 1, Waited: 1, Refused: 3, TooLate: 3, TotalWait: 100 * wait, Longest: 100 * wait}, late.Count)
	require.Len(t, api.Keys, 2)
	require.Nil(t, api.Keys[0].Arrivals)
	require.Equal(t, 2, api.Line)
	require.Equal(t, "test.yaml", api.File)
	require.Equal(t, 4, api.Rule.Line)
	require.Equal(t, shaper.Limits{Rate: 10, Depth: 2}, api.Simulated)
	require.False(t, api.Nothing)
}

func TestTheWorstKeysComeFirst(t *testing.T) {
	s := newSimulation(t, rules, simulate.Options{})
	come(s, 0, "api/a", 4)
	come(s, 0, "api/b", 9)
	come(s, 0, "api/c", 4)
	come(s, 0, "api/d", 1)
	come(s, 0, "late", 2)
	r := s.Result()
	names := func(keys []*simulate.Key) (all []string) {
		for _, k := range keys {
			all = append(all, k.Key)
		}
		return all
	}
	require.Equal(t, []string{"api/b", "api/a", "api/c"}, names(r.RefusedMost(9)))
	require.Equal(t, []string{"api/b", "api/a"}, names(r.RefusedMost(2)))
	require.Equal(t, []string{"api/a", "api/b", "api/c", "late"}, names(r.WaitedLongest(9)))
	require.Empty(t, r.RefusedMost(0))
	require.Equal(t, "api", r.RefusedMost(1)[0].Rule.Key)
}

// A firewall knows addresses, and an address may have several keys. With one bucket for all, or one per route, a key
// has many clients, and the client that came first must not be blocked for the others.
func TestAddressesThatWereRefusedAreAddedUpOverKeys(t *testing.T) {
	s := newSimulation(t, "default: 1/s", simulate.Options{})
	for key, n := range map[string]int{"a/192.0.2.1": 5, "b/192.0.2.1": 5, "a/192.0.2.2": 8, "a/192.0.2.3": 3, "a/192.0.2.4": 1} {
		for range n {
			s.Arrive(start, key, key[2:])
		}
	}
	for range 99 {
		s.Arrive(start, "a/-", "")
	}
	s.Arrive(start, "all", "192.0.2.5")
	s.Arrive(start, "all", "192.0.2.6")
	r := s.Result()
	require.Equal(t, []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.6"}, r.AddressesRefusedMost(9))
	require.Equal(t, []string{"192.0.2.1"}, r.AddressesRefusedMost(1))
}

func TestQuantilesAreNearlyExact(t *testing.T) {
	chance := rand.New(rand.NewPCG(16, 6))
	for range 20 {
		// One request waits for each depth, so the waits follow from the rate.
		s := newSimulation(t, "default: 37/s depth 5000", simulate.Options{})
		var waits []time.Duration
		at, free := time.Duration(0), time.Duration(0)
		const interval = time.Second / 37
		for range 2000 {
			at += time.Duration(chance.Int64N(int64(2 * interval)))
			s.Arrive(start.Add(at), "a", "")
			waits = append(waits, max(0, free-at))
			free = max(free, at) + interval
		}
		slices.Sort(waits)
		w := s.Result().Rules[0].Waits
		for _, q := range []float64{0, 0.01, 0.5, 0.95, 0.99, 1} {
			exact := waits[max(1, int(math.Ceil(q*2000)))-1]
			// The true interval is a fraction of a nanosecond longer than the interval of this
			// test.
			require.InDelta(t, exact.Seconds(), w.Quantile(q).Seconds(), exact.Seconds()*0.008+3e-6)
			require.GreaterOrEqual(t, w.Quantile(q), exact)
		}
	}
	require.Zero(t, new(simulate.Waits).Quantile(0.5))
}

// A duration ends after 292 years, and the waits of a long line together may take longer.
func TestTheWaitsOfALongLineAddUp(t *testing.T) {
	s := newSimulation(t, "default: 1/d depth 1000", simulate.Options{})
	for _, key := range []string{"a", "b", "c"} {
		come(s, 0, key, 366) // The last waits for 365 days, and all for 66,795.
	}
	const day = 24 * 3600e9
	r := s.Result()
	require.Equal(t, simulate.Total(3*66_795*day), r.All.TotalWait)
	require.Equal(t, simulate.Seconds(183*day), r.All.TotalWait.Mean(r.All.Waited))
}
