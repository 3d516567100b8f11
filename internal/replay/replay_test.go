package replay_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/replay"
	"example.com/leakybucket/shaper"
)

const ms = time.Millisecond

// at returns a request of cost 1 whose caller stays.
func at(instant time.Duration) replay.Request {
	return replay.Request{At: instant, Cost: 1, Deadline: replay.Never, Patience: replay.Never}
}

func TestABurstIsReplayedAsAComb(t *testing.T) {
	burst := []replay.Request{at(0), at(0), at(0), at(0)}
	require.Equal(t, []replay.Fate{
		{replay.Departed, 0}, {replay.Departed, 20 * ms}, {replay.Departed, 40 * ms}, {replay.QueueFull, 0},
	}, replay.Run(shaper.Limits{Rate: 50, Depth: 2}, replay.Start{}, burst, time.Second))
	require.Equal(t, []replay.Fate{
		{replay.Departed, 0}, {replay.Departed, 0}, {replay.QueueFull, 0}, {replay.QueueFull, 0},
	}, replay.Run(shaper.Limits{Rate: 50, Burst: 2}, replay.Start{}, burst, time.Second))
	require.Equal(t, []replay.Fate{
		{replay.Departed, 0}, {replay.Departed, 0}, {replay.Departed, 0}, {replay.Departed, 0},
	}, replay.Run(shaper.Limits{Rate: rate.Inf}, replay.Start{}, burst, time.Second))
}

func TestACallerThatGivesUpIsReplayedAsOneThatGivesUpAtTheSameAge(t *testing.T) {
	l := shaper.Limits{Rate: 50, Depth: 10}
	impatient, stays := at(0), at(0)
	impatient.Patience = 30 * ms
	require.Equal(t, []replay.Fate{
		{replay.Departed, 0}, {replay.Departed, 20 * ms}, {replay.Abandoned, 30 * ms}, {replay.Departed, 40 * ms},
	}, replay.Run(l, replay.Start{}, []replay.Request{stays, impatient, impatient, stays}, time.Second))
	// One whose slot comes at that very instant has left.
	impatient.Patience = 40 * ms
	require.Equal(t, []replay.Fate{
		{replay.Departed, 0}, {replay.Departed, 20 * ms}, {replay.Departed, 40 * ms}, {replay.Departed, 60 * ms},
	}, replay.Run(l, replay.Start{}, []replay.Request{stays, stays, impatient, stays}, time.Second))
}

// Whoever gives up at the instant of an arrival makes room for it, in either order of
// the two in the recording.
func TestAPlaceThatIsGivenUpAtTheInstantOfAnArrivalIsFree(t *testing.T) {
	l := shaper.Limits{Rate: 50, Depth: 1}
	atOnce, later := at(5*ms), at(0)
	atOnce.Patience = 0
	later.Patience = 5 * ms
	require.Equal(t, []replay.Fate{
		{replay.Departed, 0}, {replay.Abandoned, 5 * ms}, {replay.Abandoned, 0}, {replay.Departed, 15 * ms},
	}, replay.Run(l, replay.Start{}, []replay.Request{at(0), later, atOnce, at(5 * ms)}, time.Second))
}

func TestTheReplayBeginsWithTheLevelAndTheLineThatThereWere(t *testing.T) {
	l := shaper.Limits{Rate: 50, Depth: 3}
	start := replay.Start{Level: 0.5, Line: []replay.Request{at(-30 * ms), at(-10 * ms)}}
	// The line leaves at 10 and 30 ms, and the newcomers behind it.
	require.Equal(t, []replay.Fate{
		{replay.Departed, 50 * ms}, {replay.QueueFull, 0}, {replay.Departed, 50 * ms},
	}, replay.Run(l, start, []replay.Request{at(0), at(0), at(20 * ms)}, time.Second))
	require.Equal(t, []replay.Fate{
		{replay.Departed, 0},
	}, replay.Run(shaper.Limits{Rate: rate.Inf}, start, []replay.Request{at(0)}, time.Second))
}

func TestThoseInLineAtTheEndStillWait(t *testing.T) {
	require.Equal(t, []replay.Fate{
		{replay.Departed, 0}, {replay.Departed, 20 * ms}, {replay.Waiting, 39 * ms}, {replay.Waiting, 4 * ms},
	}, replay.Run(shaper.Limits{Rate: 50, Depth: 9}, replay.Start{}, []replay.Request{at(0), at(0), at(0), at(35 * ms)}, 39*ms))
}

func TestADeadlineIsReplayed(t *testing.T) {
	l := shaper.Limits{Rate: 50, Depth: 9}
	r, inTime, passed := at(10*ms), at(10*ms), at(10*ms)
	r.Deadline = 20 * ms // It would leave then, which is too late.
	inTime.Deadline = 20*ms + 1
	passed.Deadline = 10 * ms
	require.Equal(t, []replay.Fate{
		{replay.Departed, 0}, {replay.TooLate, 0}, {replay.Departed, 10 * ms}, {replay.TooLate, 0},
	}, replay.Run(l, replay.Start{}, []replay.Request{at(0), r, inTime, passed}, time.Second))
	// A deadline that has passed is too late even for an idle bucket.
	passed.At = 2 * time.Second
	passed.Deadline = passed.At
	require.Equal(t, []replay.Fate{{replay.TooLate, 0}}, replay.Run(l, replay.Start{}, []replay.Request{passed}, time.Minute))
}

// The recording of a bucket holds 10,000 arrivals, and a page may ask for a replay at
// each turn of a knob. The line is as long as it can be, and half of its callers leave.
func BenchmarkReplay(b *testing.B) {
	requests := make([]replay.Request, 10_000)
	for i := range requests {
		requests[i] = at(time.Duration(i) * 6 * ms)
		if i%2 == 0 {
			requests[i].Patience = 20 * time.Second
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		replay.Run(shaper.Limits{Rate: 50.0 / 3, Burst: 3, Depth: 10_000}, replay.Start{}, requests, time.Minute)
	}
}
