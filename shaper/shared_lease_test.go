package shaper_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A request that finds an idle bucket pays one round trip, to the nanosecond.
func TestIdleBucketCostsOneRoundTrip(t *testing.T) {
	for _, limits := range []string{"1000/s depth 9", "3/s depth 9", "1/min depth 9", "1/h depth 9 slack 5ms"} {
		share(t, 2, limits, 2*ms, func(p *processes) {
			p.arrive(0, 1)
			p.at(3 * time.Hour)
			p.arrive(1, 1)
			p.at(6 * time.Hour)
			require.Equal(t, []time.Duration{2 * ms, 3*time.Hour + 2*ms}, p.instants(), limits)
			takes, givenBack := p.takes()
			require.Len(t, takes, 2, limits)
			require.Empty(t, givenBack, limits)
		})
	}
}

// With a lateness of less than what clocks may drift apart within an interval, slots must not
// be dropped before they come: then nobody would ever leave.
func TestSlowRateWithALittleSlackIsNotStuck(t *testing.T) {
	share(t, 1, "1/min depth 9 slack 10ms", 2*ms, func(p *processes) {
		p.arrive(0, 1, 1, 1)
		p.at(3 * time.Minute)
		for i, at := range p.instants() {
			want := time.Duration(i) * time.Minute
			require.GreaterOrEqual(t, at, want)
			require.LessOrEqual(t, at, want+2*ms+1*ms)
		}
		require.Len(t, p.instants(), 3)
		require.Zero(t, p.all[0].Stats().Bucket.Dropped)
	})
}
