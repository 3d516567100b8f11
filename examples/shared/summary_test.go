package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSummary(t *testing.T) {
	r := result{
		config: config{rate: 20, processes: 3, length: time.Second},
		killed: 500 * ms, roundTrips: 9, lateness: 60 * ms,
		log: []departure{
			{2, 450 * ms}, // reports of different processes come in any order
			{0, 0}, {1, 50 * ms}, {0, 100 * ms}, {1, 150 * ms}, {0, 200 * ms}, {2, 250 * ms}, {1, 300 * ms}, {0, 350 * ms}, {2, 400 * ms},
			{0, 600 * ms}, {1, 610 * ms}, {1, 650 * ms}, {0, 700 * ms}, {1, 750 * ms}, {1, 800 * ms}, {0, 850 * ms}, {1, 960 * ms},
		},
	}
	require.Equal(t, `departures   18 in 1s: 18.0 per second, of 20
shares       before the kill a 40 %, b 30 %, c 30 %
             after the kill  a 38 %, b 62 %, c 0 %
longest gap  before the kill 50ms; from then on 150ms; slots are 50ms apart
excess       at most 1.00 above 1 + rate × time, in any window; the guarantee is 1.20
round trips  0.50 per departure
`, r.summary())
}

func TestGapsCountToTheEnd(t *testing.T) {
	r := result{log: []departure{{at: 10 * ms}, {at: 90 * ms}}}
	require.Equal(t, 910*ms, r.longestGap(500*ms, time.Second))
	require.Equal(t, 80*ms, r.longestGap(0, 100*ms))
	require.Equal(t, 90*ms, result{log: []departure{{at: 90 * ms}}}.longestGap(0, 100*ms))
	require.Equal(t, 500*ms, result{}.longestGap(0, 500*ms))
}

func TestExcessIsThatOfTheWorstWindow(t *testing.T) {
	r := result{config: config{rate: 10}}
	require.Zero(t, r.excess())
	for _, at := range []time.Duration{0, 100 * ms, 250 * ms, 300 * ms, 400 * ms, 1000 * ms, 1020 * ms} {
		r.log = append(r.log, departure{at: at})
	}
	require.InDelta(t, 0.8, r.excess(), 1e-9)
	require.InDelta(t, 0.5, result{config: r.config, log: r.log[:5]}.excess(), 1e-9)
	require.InDelta(t, 0, result{config: r.config, log: r.log[:2]}.excess(), 1e-9)
}
