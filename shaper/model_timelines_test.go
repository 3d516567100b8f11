package shaper_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
)

// TestModelByHand holds the model to timelines computed by hand, and the shaper
// to the model on the same timelines: where the two disagree, these say which is
// right.
func TestModelByHand(t *testing.T) {
	one, acquire := model.Op{Kind: model.OpWait, N: 1}, model.Op{Kind: model.OpAcquire, N: 1}
	for _, test := range []struct {
		name string
		model.Script
		want []string
	}{
		{
			"burst 1 is a comb, and the line is bounded",
			model.Script{Limits: shaper.Limits{Rate: 50, Depth: 2}, Ops: []model.Op{one, one, one, one}},
			[]string{"left at 0s", "left at 20ms", "left at 40ms", "queue full at 0s, retry 20ms"},
		},
		{
			"without depth nobody waits",
			model.Script{Limits: shaper.Limits{Rate: 10, Burst: 2}, Ops: []model.Op{one, one, one, {Kind: model.OpWait, N: 3}}},
			[]string{"left at 0s", "left at 0s", "queue full at 0s, retry 100ms", "too costly at 0s"},
		},
		{
			"a cost above burst waits for an empty bucket and holds it",
			model.Script{Limits: shaper.Limits{Rate: 10, Burst: 2, Depth: 9}, Ops: []model.Op{one, {Kind: model.OpWait, N: 5}, one}},
			[]string{"left at 0s", "left at 100ms", "left at 500ms"},
		},
		{
			"7/s does not drift",
			model.Script{Limits: shaper.Limits{Rate: 7, Depth: 9}, Ops: []model.Op{one, one, one, one, one, one, one, one}},
			[]string{
				"left at 0s", "left at 142.857143ms", "left at 285.714286ms", "left at 428.571429ms",
				"left at 571.428572ms", "left at 714.285715ms", "left at 857.142858ms", "left at 1s",
			},
		},
		{
			"a late cancel hands its slot on",
			model.Script{Limits: shaper.Limits{Rate: 1, Depth: 9}, Ops: []model.Op{one, {Kind: model.OpWait, N: 1, Late: 1}, one, one}},
			[]string{"left at 0s", "gone at 1s", "left at 1s", "left at 2s"},
		},
		{
			"a costly head that gives up frees those behind",
			model.Script{Limits: shaper.Limits{Rate: 1, Burst: 4, Depth: 9}, Ops: []model.Op{
				one, {Kind: model.OpWait, N: 4}, one, one, one,
				{At: 500 * ms, Kind: model.OpCancel, Target: 1},
			}},
			[]string{
				"left at 0s", "context canceled at 500ms", "left at 500ms", "left at 500ms", "left at 500ms", "left at 500ms",
			},
		},
		{
			"Close comes after a departure of its instant",
			model.Script{Limits: shaper.Limits{Rate: 1, Depth: 9}, Ops: []model.Op{one, one, one, {At: 1000 * ms, Kind: model.OpClose, Race: true}}},
			[]string{"left at 0s", "left at 1s", "closed at 1s", "left at 1s"},
		},
		{
			"SetLimits keeps the level and re-times the line",
			model.Script{Limits: shaper.Limits{Rate: 1, Depth: 9}, Ops: []model.Op{
				one, one, one,
				{At: 500 * ms, Kind: model.OpSet, Limits: shaper.Limits{Rate: 2, Depth: 9}},
			}},
			[]string{"left at 0s", "left at 750ms", "left at 1.25s", "left at 500ms"},
		},
		{
			"rate.Inf and back empties the bucket",
			model.Script{Limits: shaper.Limits{Rate: 1, Depth: 9}, Ops: []model.Op{
				one, one, one,
				{At: 500 * ms, Kind: model.OpSet, Limits: shaper.Limits{Rate: rate.Inf}},
				{At: 500 * ms, Kind: model.OpSet, Limits: shaper.Limits{Rate: 1, Burst: 2, Depth: 9}},
				{At: 500 * ms, Kind: model.OpWait, N: 2},
				{At: 500 * ms, Kind: model.OpForecast, N: 1},
			}},
			[]string{
				"left at 0s", "left at 500ms", "left at 500ms", "left at 500ms", "left at 500ms", "left at 500ms",
				"left at 500ms, wait 1s",
			},
		},
		{
			"a deadline on the departure is too early",
			model.Script{Limits: shaper.Limits{Rate: 1, Depth: 9}, Ops: []model.Op{
				one,
				{Kind: model.OpWait, N: 1, Deadline: 1000 * ms},
				{Kind: model.OpWait, N: 1, Deadline: 1000*ms + 1},
			}},
			[]string{"left at 0s", "too late at 0s, retry 1ns", "left at 1s"},
		},
		{
			// At 1e9/s the half unit that is left at 500 ms is gone half a
			// nanosecond later.
			"a fraction of the level is not carried past an empty bucket",
			model.Script{Limits: shaper.Limits{Rate: 1, Depth: 9}, Ops: []model.Op{
				one,
				{At: 500 * ms, Kind: model.OpSet, Limits: shaper.Limits{Rate: 1e9, Depth: 9}},
				{At: 500*ms + 1, Kind: model.OpWait, N: 3},
				{At: 500*ms + 2, Kind: model.OpLook},
			}},
			[]string{"left at 0s", "left at 500ms", "left at 500.000001ms", "left at 500.000002ms, level 2"},
		},
		{
			"a seat that is released is the head's at once, if the bucket allows",
			model.Script{Limits: shaper.Limits{Rate: 10, Burst: 2, Depth: 9, InFlight: 1}, Ops: []model.Op{
				acquire, acquire, acquire,
				{At: 50 * ms, Kind: model.OpRelease, Target: 0},
				{At: 60 * ms, Kind: model.OpRelease, Target: 0},
				{At: 70 * ms, Kind: model.OpRelease, Target: 1},
				{At: 70 * ms, Kind: model.OpForecast, N: 1},
			}},
			[]string{
				"left at 0s", "left at 50ms", "left at 100ms", "left at 50ms", "left at 60ms", "left at 70ms",
				"left at 70ms, wait 130ms",
			},
		},
		{
			"a request that waits for a seat waits at least for the next moment",
			model.Script{Limits: shaper.Limits{Rate: 10, Burst: 3, Depth: 1, InFlight: 1}, Ops: []model.Op{
				acquire,
				{Kind: model.OpForecast, N: 1},
				acquire, acquire,
				{At: 1000 * ms, Kind: model.OpSet, Limits: shaper.Limits{Rate: 10, Depth: 1}},
				{At: 1000 * ms, Kind: model.OpSet, Limits: shaper.Limits{Rate: 10, Depth: 1, InFlight: 2}},
				{At: 1000 * ms, Kind: model.OpWait, N: 1},
				{At: 1000 * ms, Kind: model.OpAllow, N: 1},
			}},
			[]string{
				"left at 0s", "left at 0s, wait 1ms", "left at 1s", "queue full at 0s, retry 1ms",
				"invalid limits at 1s", "left at 1s", "use Acquire at 1s", "use Acquire at 1s",
			},
		},
		{
			"a late cancel hands its seat on with its slot",
			model.Script{Limits: shaper.Limits{Rate: 7, Depth: 9, InFlight: 1}, Ops: []model.Op{
				acquire, {Kind: model.OpAcquire, N: 1, Late: 1}, acquire, acquire,
				{At: 1000 * ms, Kind: model.OpRelease, Target: 0},
				{At: 1500 * ms, Kind: model.OpRelease, Target: 1},
				{At: 2000 * ms, Kind: model.OpRelease, Target: 2},
			}},
			[]string{"left at 0s", "gone at 1s", "left at 1s", "left at 2s"},
		},
		{
			"the later end of two holds counts, for MaxWait too",
			model.Script{Limits: shaper.Limits{Rate: 10, Burst: 2, Depth: 9, MaxWait: 1000 * ms}, Ops: []model.Op{
				{Kind: model.OpHold, Hold: 1000 * ms}, {Kind: model.OpHold, Hold: 500 * ms}, {Kind: model.OpHold, Hold: -1},
				one, one, one,
				{At: 500 * ms, Kind: model.OpHold, Hold: 1001 * ms},
				{At: 500 * ms, Kind: model.OpWait, N: 1},
			}},
			[]string{
				"left at 0s", "left at 0s", "left at 0s", "left at 1.501s", "left at 1.501s",
				"too late at 0s, retry 100ms", "left at 500ms", "too late at 500ms, retry 101ms",
			},
		},
		{
			"Hold(0) lets those leave that the bucket lets leave",
			model.Script{Limits: shaper.Limits{Rate: 10, Depth: 9}, Ops: []model.Op{
				one, one, one, {Kind: model.OpHold, Hold: 365 * 24 * time.Hour},
				{At: 550 * ms, Kind: model.OpHold},
			}},
			[]string{"left at 0s", "left at 550ms", "left at 650ms", "left at 0s", "left at 550ms"},
		},
		{
			// As above, but what the bucket is empty by is the end of a hold.
			"a fraction of the level is not carried past a hold",
			model.Script{Limits: shaper.Limits{Rate: 1, Depth: 9}, Ops: []model.Op{
				one,
				{At: 500 * ms, Kind: model.OpSet, Limits: shaper.Limits{Rate: 1e9, Depth: 9}},
				{At: 500 * ms, Kind: model.OpHold, Hold: 1},
				{At: 500 * ms, Kind: model.OpWait, N: 3},
				{At: 500*ms + 2, Kind: model.OpLook},
			}},
			[]string{
				"left at 0s", "left at 500ms", "left at 500ms", "left at 500.000001ms", "left at 500.000002ms, level 2",
			},
		},
		{
			// At rate.Inf no cost is too great, and a line is possible all the same.
			"costs in line may be more than any number holds",
			model.Script{Limits: shaper.Limits{Rate: rate.Inf, Depth: 9}, Ops: []model.Op{
				{Kind: model.OpHold, Hold: 1000 * ms},
				one, {Kind: model.OpWait, N: math.MaxInt}, {Kind: model.OpWait, N: math.MaxInt}, {Kind: model.OpWait, N: math.MaxInt},
				{At: 1 * ms, Kind: model.OpSet, Limits: shaper.Limits{Rate: 1e9, Depth: 9}},
				{At: 1 * ms, Kind: model.OpWait, N: 1, Deadline: 2000 * ms},
				{At: 2 * ms, Kind: model.OpCancel, Target: 2},
				{At: 2 * ms, Kind: model.OpCancel, Target: 3},
				{At: 2 * ms, Kind: model.OpCancel, Target: 4},
				{At: 2 * ms, Kind: model.OpForecast, N: 1},
			}},
			[]string{
				"left at 0s", "left at 1s", "context canceled at 2ms", "context canceled at 2ms", "context canceled at 2ms",
				"left at 1ms", "too late at 1ms, retry 2562047h47m14.855775808s",
				"left at 2ms", "left at 2ms", "left at 2ms", "left at 2ms, wait 998.000001ms",
			},
		},
		{
			"and so may the costs ahead of the last",
			model.Script{Limits: shaper.Limits{Rate: rate.Inf, Depth: 9}, Ops: []model.Op{
				{Kind: model.OpHold, Hold: 1000 * ms},
				one, {Kind: model.OpWait, N: math.MaxInt}, {Kind: model.OpWait, N: math.MaxInt},
				{At: 1 * ms, Kind: model.OpSet, Limits: shaper.Limits{Rate: 1e9, Depth: 9}},
				{At: 1 * ms, Kind: model.OpShutdown},
				{At: 1 * ms, Kind: model.OpForecast, N: 1},
				{At: 2 * ms, Kind: model.OpCancel, Target: 2},
				{At: 2 * ms, Kind: model.OpCancel, Target: 3},
			}},
			[]string{
				"left at 0s", "left at 1s", "context canceled at 2ms", "context canceled at 2ms", "left at 1ms",
				"left at 1s", "closed at 1ms, retry 2562047h47m16.854775807s",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			// What waits when a script ends is refused, so it ends late.
			test.Ops = append(test.Ops, model.Op{At: 10_000 * ms, Kind: model.OpLook})
			answers, open := test.Predict(model.NoMistake)
			require.Empty(t, open)
			var said []string
			for _, a := range answers[:len(test.want)] {
				line := fmt.Sprintf("%s at %v", a.Result, a.At)
				if a.Retry != 0 {
					line += fmt.Sprintf(", retry %v", a.Retry)
				}
				if a.Wait != 0 {
					line += fmt.Sprintf(", wait %v", a.Wait)
				}
				if a.Look.Level != 0 {
					line += fmt.Sprintf(", level %v", a.Look.Level)
				}
				said = append(said, line)
			}
			require.Equal(t, test.want, said)
			require.Empty(t, model.Compare(t, test.Script, answers, newSubject))
		})
	}
}
