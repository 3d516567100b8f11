package shaper_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// A type that embeds a Shaper has the Shaper's methods too, by which a Chain could pass
// over the type's own WaitN. With a cap that WaitN is not used, because only Acquire keeps
// the cap.
func TestAChainAsksTheWaitNThatIsAboutAShapers(t *testing.T) {
	for limits, want := range map[string]int{"inf": 1, "inf inflight 1": 0} {
		t.Run(limits, func(t *testing.T) {
			asked := 0
			s := mustMake(t, limitsOf(t, limits))
			release, err := acquirerOf(shaper.Chain(ownWait{s, &asked}))(t.Context(), 1)
			require.NoError(t, err)
			require.Equal(t, want, asked)
			require.Equal(t, 1-want, s.Stats().InFlight)
			release()
			require.Zero(t, s.Stats().InFlight)
		})
	}
}

// A Transport finds out at each request what its Limiter can do, because the field may be
// set to another one. For a Shaper that allocates nothing, and for any other Limiter at
// most one object beside what the Limiter itself allocates.
func TestATransportAllocatesLittlePerRequest(t *testing.T) {
	free, capped := mustMake(t, limitsOf(t, "inf")), mustMake(t, limitsOf(t, "inf inflight 1"))
	group, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: rate.Inf}, nil })
	require.NoError(t, err)
	defer group.Close()
	answer := &http.Response{StatusCode: 200, Body: http.NoBody}
	base := roundTripFunc(func(*http.Request) (*http.Response, error) { return answer, nil })
	for name, row := range map[string]struct {
		l    shaper.Limiter
		want float64
	}{
		"Shaper":       {free, 0},
		"with a cap":   {capped, 1}, // its release
		"key of Group": {group.Limiter("a"), 1},
		"Chain":        {shaper.Chain(free, free), 2},
		"x/time":       {rate.NewLimiter(rate.Inf, 1), 1},
	} {
		t.Run(name, func(t *testing.T) {
			transport := &shaper.Transport{Limiter: row.l, Base: base}
			r, err := http.NewRequestWithContext(t.Context(), "GET", "http://upstream/", nil)
			require.NoError(t, err)
			failed := 0
			got := testing.AllocsPerRun(1000, func() {
				if _, err := transport.RoundTrip(r); err != nil {
					failed++
				}
			})
			require.LessOrEqual(t, got, row.want)
			require.Zero(t, failed)
		})
	}
}

// In a dry run no request waits and none is refused, so the Forecast of a Chain must leave
// it out.
func TestForecastOfAChainLeavesOutDryRuns(t *testing.T) {
	play(t, "1 per 10s depth 9", func(g *stage) {
		dry, err := shaper.New(limitsOf(g.t, "1 per 1h depth 1"), shaper.WithDryRun())
		require.NoError(t, err)
		group, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return limitsOf(g.t, "1 per 1h"), nil }, shaper.WithDryRun())
		require.NoError(t, err)
		defer group.Close()
		key := group.Limiter("a")
		require.True(t, g.Allow())
		require.NoError(t, dry.Wait(t.Context()))
		require.NoError(t, key.WaitN(t.Context(), 1))
		for name, l := range map[string]shaper.Limiter{
			"Shaper": dry, "key of a Group": key, "Chain": shaper.Chain(dry), "Shaper inside": ownWait{dry, new(int)},
		} {
			wait, err := shaper.Chain(l, g.Shaper).Forecast(1)
			require.NoError(t, err, name)
			require.Equal(t, 10*time.Second, wait, name)
		}
	})
}
