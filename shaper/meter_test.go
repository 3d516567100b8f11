package shaper_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// With a Depth of 0 a bucket is a meter: a request that does not fit is refused, and nobody waits.
// The rows are from well-known descriptions, with their own numbers.

// A metered call comes at an instant, and is let through, or refused until the next
// drip.
type metered struct {
	at   time.Duration
	cost int
	want string
}

func TestMeter(t *testing.T) {
	for _, row := range []struct {
		name   string
		limits shaper.Limits
		calls  []metered
	}{
		{"capacity 3, leak 1.5 a second", shaper.Limits{Rate: 1.5, Burst: 3}, []metered{
			{0, 1, "left"}, {0, 1, "left"}, {0, 1, "left"},
			{0, 1, "full, retry 666.666667ms"},
			{500 * ms, 1, "full, retry 166.666667ms"},
			{666666666, 1, "full, retry 1ns"},
			{666666667, 1, "left"},                     // One has dripped,
			{666666667, 1, "full, retry 666.666667ms"}, // and no more (but the part of a nanosecond that was rounded up).
			{2 * time.Second, 1, "left"}, {2 * time.Second, 1, "left"},
			{2 * time.Second, 1, "full, retry 666.666667ms"},
			{time.Minute, 3, "left"}, {time.Minute, 1, "full, retry 666.666667ms"},
		}},
		{"10 calls per 10 s", shaper.Limits{Rate: rate.Every(time.Second), Burst: 10}, []metered{
			{0, 9, "left"}, {100 * ms, 1, "left"}, {100 * ms, 1, "full, retry 900ms"},
			{999 * ms, 1, "full, retry 1ms"}, {time.Second, 1, "left"},
			{5 * time.Second, 5, "full, retry 1s"}, {5 * time.Second, 4, "left"},
			{14 * time.Second, 10, "full, retry 1s"}, {15 * time.Second, 10, "left"},
		}},
		{"10, 1/sec", limitsOf(t, "10, 1/sec"), []metered{
			{0, 10, "left"}, {0, 1, "full, retry 1s"}, {0, 11, "costly, retry 0s"},
			{3500 * ms, 4, "full, retry 500ms"}, {3500 * ms, 3, "left"},
			{3500 * ms, 1, "full, retry 500ms"},
		}},
		{"500, 100/sec", limitsOf(t, "500, 100/sec"), []metered{
			{0, 500, "left"}, {0, 1, "full, retry 10ms"}, {0, 500, "full, retry 5s"},
			{300 * ms, 31, "full, retry 10ms"}, {300 * ms, 30, "left"},
			{300 * ms, 501, "costly, retry 0s"}, {5300 * ms, 500, "left"},
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			playLimits(t, row.limits, func(g *stage) {
				for _, c := range row.calls {
					g.at(c.at)
					wait, err := g.Forecast(c.cost)
					require.Equal(t, c.want, outcome(err), "foreseen at %v", c.at)
					require.Zero(t, wait)
					require.Equal(t, c.want, outcome(g.WaitN(context.Background(), c.cost)), "at %v", c.at)
					require.Equal(t, c.at, time.Since(g.start), "nobody waits")
				}
			})
		})
	}
}
