package model

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// TestModelByHand holds the model to timelines computed by hand, and the
// shaper to the model on the same: where the two disagree, these say who is
// right.
func TestModelByHand(t *testing.T) {
	const ms = 1_000_000
	one, acquire := op{kind: opWait, n: 1}, op{kind: opAcquire, n: 1}
	for _, test := range []struct {
		name string
		script
		want []string
	}{
		{
			"burst 1 is a comb, and the line is bounded",
			script{shaper.Limits{Rate: 50, Depth: 2}, []op{one, one, one, one}},
			[]string{"left at 0s", "left at 20ms", "left at 40ms", "queue full at 0s, retry 20ms"},
		},
		{
			"without depth nobody waits",
			script{shaper.Limits{Rate: 10, Burst: 2}, []op{one, one, one, {kind: opWait, n: 3}}},
			[]string{"left at 0s", "left at 0s", "queue full at 0s, retry 100ms", "too costly at 0s"},
		},
		{
			"a cost above burst waits for an empty bucket and holds it",
			script{shaper.Limits{Rate: 10, Burst: 2, Depth: 9}, []op{one, {kind: opWait, n: 5}, one}},
			[]string{"left at 0s", "left at 100ms", "left at 500ms"},
		},
		{
			"7/s does not drift",
			script{shaper.Limits{Rate: 7, Depth: 9}, []op{one, one, one, one, one, one, one, one}},
			[]string{
				"left at 0s", "left at 142.857143ms", "left at 285.714286ms", "left at 428.571429ms",
				"left at 571.428572ms", "left at 714.285715ms", "left at 857.142858ms", "left at 1s",
			},
		},
		{
			"a late cancel hands its slot on",
			script{shaper.Limits{Rate: 1, Depth: 9}, []op{one, {kind: opWait, n: 1, late: 1}, one, one}},
			[]string{"left at 0s", "gone at 1s", "left at 1s", "left at 2s"},
		},
		{
			"a dear head that gives up frees those behind",
			script{shaper.Limits{Rate: 1, Burst: 4, Depth: 9}, []op{
				one, {kind: opWait, n: 4}, one, one, one,
				{at: 500 * ms, kind: opCancel, target: 1},
			}},
			[]string{
				"left at 0s", "context canceled at 500ms", "left at 500ms", "left at 500ms", "left at 500ms", "left at 500ms",
			},
		},
		{
			"Close comes after a departure of its instant",
			script{shaper.Limits{Rate: 1, Depth: 9}, []op{one, one, one, {at: 1000 * ms, kind: opClose, race: true}}},
			[]string{"left at 0s", "left at 1s", "closed at 1s", "left at 1s"},
		},
		{
			"SetLimits keeps the level and re-times the line",
			script{shaper.Limits{Rate: 1, Depth: 9}, []op{
				one, one, one,
				{at: 500 * ms, kind: opSet, limits: shaper.Limits{Rate: 2, Depth: 9}},
			}},
			[]string{"left at 0s", "left at 750ms", "left at 1.25s", "left at 500ms"},
		},
		{
			"rate.Inf and back empties the bucket",
			script{shaper.Limits{Rate: 1, Depth: 9}, []op{
				one, one, one,
				{at: 500 * ms, kind: opSet, limits: shaper.Limits{Rate: rate.Inf}},
				{at: 500 * ms, kind: opSet, limits: shaper.Limits{Rate: 1, Burst: 2, Depth: 9}},
				{at: 500 * ms, kind: opWait, n: 2},
				{at: 500 * ms, kind: opForecast, n: 1},
			}},
			[]string{
				"left at 0s", "left at 500ms", "left at 500ms", "left at 500ms", "left at 500ms", "left at 500ms",
				"left at 500ms, wait 1s",
			},
		},
		{
			"a deadline on the departure is too early",
			script{shaper.Limits{Rate: 1, Depth: 9}, []op{
				one,
				{kind: opWait, n: 1, deadline: 1000 * ms},
				{kind: opWait, n: 1, deadline: 1000*ms + 1},
			}},
			[]string{"left at 0s", "too late at 0s, retry 1ns", "left at 1s"},
		},
		{
			// At 1e9/s the half unit that is left at 500 ms is gone half a
			// nanosecond later.
			"a fraction of the level is not carried past an empty bucket",
			script{shaper.Limits{Rate: 1, Depth: 9}, []op{
				one,
				{at: 500 * ms, kind: opSet, limits: shaper.Limits{Rate: 1e9, Depth: 9}},
				{at: 500*ms + 1, kind: opWait, n: 3},
				{at: 500*ms + 2, kind: opLook},
			}},
			[]string{"left at 0s", "left at 500ms", "left at 500.000001ms", "left at 500.000002ms, level 2"},
		},
		{
			"a place that comes back is the head's at once, if the bucket allows",
			script{shaper.Limits{Rate: 10, Burst: 2, Depth: 9, InFlight: 1}, []op{
				acquire, acquire, acquire,
				{at: 50 * ms, kind: opRelease, target: 0},
				{at: 60 * ms, kind: opRelease, target: 0},
				{at: 70 * ms, kind: opRelease, target: 1},
				{at: 70 * ms, kind: opForecast, n: 1},
			}},
			[]string{
				"left at 0s", "left at 50ms", "left at 100ms", "left at 50ms", "left at 60ms", "left at 70ms",
				"left at 70ms, wait 130ms",
			},
		},
		{
			"who waits for a place waits at least for the next moment",
			script{shaper.Limits{Rate: 10, Burst: 3, Depth: 1, InFlight: 1}, []op{
				acquire,
				{kind: opForecast, n: 1},
				acquire, acquire,
				{at: 1000 * ms, kind: opSet, limits: shaper.Limits{Rate: 10, Depth: 1}},
				{at: 1000 * ms, kind: opSet, limits: shaper.Limits{Rate: 10, Depth: 1, InFlight: 2}},
				{at: 1000 * ms, kind: opWait, n: 1},
				{at: 1000 * ms, kind: opAllow, n: 1},
			}},
			[]string{
				"left at 0s", "left at 0s, wait 1ns", "left at 1s", "queue full at 0s, retry 1ns",
				"invalid limits at 1s", "left at 1s", "use Acquire at 1s", "use Acquire at 1s",
			},
		},
		{
			"a late cancel hands its place on with its slot",
			script{shaper.Limits{Rate: 7, Depth: 9, InFlight: 1}, []op{
				acquire, {kind: opAcquire, n: 1, late: 1}, acquire, acquire,
				{at: 1000 * ms, kind: opRelease, target: 0},
				{at: 1500 * ms, kind: opRelease, target: 1},
				{at: 2000 * ms, kind: opRelease, target: 2},
			}},
			[]string{"left at 0s", "gone at 1s", "left at 1s", "left at 2s"},
		},
		{
			"the later end of two holds counts, for MaxWait too",
			script{shaper.Limits{Rate: 10, Burst: 2, Depth: 9, MaxWait: 1000 * ms}, []op{
				{kind: opHold, hold: 1000 * ms}, {kind: opHold, hold: 500 * ms}, {kind: opHold, hold: -1},
				one, one, one,
				{at: 500 * ms, kind: opHold, hold: 1001 * ms},
				{at: 500 * ms, kind: opWait, n: 1},
			}},
			[]string{
				"left at 0s", "left at 0s", "left at 0s", "left at 1.501s", "left at 1.501s",
				"too late at 0s, retry 100ms", "left at 500ms", "too late at 500ms, retry 101ms",
			},
		},
		{
			"Hold(0) lets leave whom the bucket lets leave",
			script{shaper.Limits{Rate: 10, Depth: 9}, []op{
				one, one, one, {kind: opHold, hold: year},
				{at: 550 * ms, kind: opHold},
			}},
			[]string{"left at 0s", "left at 550ms", "left at 650ms", "left at 0s", "left at 550ms"},
		},
		{
			// As above, but what the bucket is empty by is the end of a hold.
			"a fraction of the level is not carried past a hold",
			script{shaper.Limits{Rate: 1, Depth: 9}, []op{
				one,
				{at: 500 * ms, kind: opSet, limits: shaper.Limits{Rate: 1e9, Depth: 9}},
				{at: 500 * ms, kind: opHold, hold: 1},
				{at: 500 * ms, kind: opWait, n: 3},
				{at: 500*ms + 2, kind: opLook},
			}},
			[]string{
				"left at 0s", "left at 500ms", "left at 500ms", "left at 500.000001ms", "left at 500.000002ms, level 2",
			},
		},
		{
			// At rate.Inf no cost is too great, and a line is possible all the same.
			"costs in line may be more than any number holds",
			script{shaper.Limits{Rate: rate.Inf, Depth: 9}, []op{
				{kind: opHold, hold: 1000 * ms},
				one, {kind: opWait, n: math.MaxInt}, {kind: opWait, n: math.MaxInt}, {kind: opWait, n: math.MaxInt},
				{at: 1 * ms, kind: opSet, limits: shaper.Limits{Rate: 1e9, Depth: 9}},
				{at: 1 * ms, kind: opWait, n: 1, deadline: 2000 * ms},
				{at: 2 * ms, kind: opCancel, target: 2},
				{at: 2 * ms, kind: opCancel, target: 3},
				{at: 2 * ms, kind: opCancel, target: 4},
				{at: 2 * ms, kind: opForecast, n: 1},
			}},
			[]string{
				"left at 0s", "left at 1s", "context canceled at 2ms", "context canceled at 2ms", "context canceled at 2ms",
				"left at 1ms", "too late at 1ms, retry 2562047h47m14.855775808s",
				"left at 2ms", "left at 2ms", "left at 2ms", "left at 2ms, wait 998.000001ms",
			},
		},
		{
			"and so may those ahead of the last",
			script{shaper.Limits{Rate: rate.Inf, Depth: 9}, []op{
				{kind: opHold, hold: 1000 * ms},
				one, {kind: opWait, n: math.MaxInt}, {kind: opWait, n: math.MaxInt},
				{at: 1 * ms, kind: opSet, limits: shaper.Limits{Rate: 1e9, Depth: 9}},
				{at: 1 * ms, kind: opShutdown},
				{at: 1 * ms, kind: opForecast, n: 1},
				{at: 2 * ms, kind: opCancel, target: 2},
				{at: 2 * ms, kind: opCancel, target: 3},
			}},
			[]string{
				"left at 0s", "left at 1s", "context canceled at 2ms", "context canceled at 2ms", "left at 1ms",
				"left at 1s", "closed at 1ms, retry 2562047h47m16.854775807s",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			// Who waits when a script ends is refused, so it ends late.
			test.ops = append(test.ops, op{at: 10_000 * ms, kind: opLook})
			answers, open := test.predict(none)
			require.Empty(t, open)
			var said []string
			for _, a := range answers[:len(test.want)] {
				line := fmt.Sprintf("%s at %v", a.result, a.at)
				if a.retry != 0 {
					line += fmt.Sprintf(", retry %v", a.retry)
				}
				if a.wait != 0 {
					line += fmt.Sprintf(", wait %v", a.wait)
				}
				if a.look.level != 0 {
					line += fmt.Sprintf(", level %v", a.look.level)
				}
				said = append(said, line)
			}
			require.Equal(t, test.want, said)
			require.Empty(t, disagreement(t, test.script, answers))
		})
	}
}
