package replay_test

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/internal/replay"
	"example.com/leakybucket/shaper"
)

const ms = time.Millisecond

// at returns a request of cost 1 whose caller stays.
func at(instant time.Duration) replay.Request {
	return replay.Request{At: instant, Cost: 1, Deadline: replay.Never, Patience: replay.Never}
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

func TestABucketKnowsItsLine(t *testing.T) {
	plan, bucket := replay.NewPlan(shaper.Limits{Rate: 50, Burst: 2, Depth: 3}), replay.Bucket{}
	for _, line := range []int{0, 0, 1, 2, 3, 3} {
		bucket.Arrive(plan, 0, 1)
		require.Equal(t, line, bucket.Line())
	}
	bucket.Arrive(plan, 40*ms, 1) // It takes the place of one that leaves at 20 ms, as 40 ms do.
	require.Equal(t, 2, bucket.Line())
}

// However long the log is, only those in line are remembered, and a request that does not
// wait costs no memory.
func TestRequestsThatDoNotWaitAllocateNothing(t *testing.T) {
	plan, bucket, at := replay.NewPlan(shaper.Limits{Rate: 1000.0 / 7, Burst: 3, Depth: 10}), replay.Bucket{}, time.Duration(0)
	waited := false
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		at += 8 * ms
		waited = waited || bucket.Arrive(plan, at, 1) != replay.Fate{Result: replay.Departed}
	}))
	require.False(t, waited)
	// A line that has been as long before does not either.
	four := func() {
		at += time.Second
		for range 7 {
			bucket.Arrive(plan, at, 1)
		}
	}
	four()
	require.Equal(t, 4, bucket.Line())
	require.Zero(t, testing.AllocsPerRun(1000, four))
}

// An arrival is a request that comes to the bucket of a key.
type arrival struct {
	at        time.Duration
	key, cost int
}

// A replay that differed from the shaper by one request or by one nanosecond would give
// operators numbers of something else. So the same random requests are played to a Group
// and to Buckets.
func TestBucketsDoWhatAGroupDoes(t *testing.T) {
	chance := rand.New(rand.NewPCG(16, 1))
	met, waited := map[replay.Result]int{}, 0
	for n := range 120 {
		limits, arrivals := randomGroup(chance)
		want := playedByGroup(t, limits, arrivals)
		plans, buckets := make([]*replay.Plan, len(limits)), make([]replay.Bucket, len(limits))
		for i, l := range limits {
			plans[i] = replay.NewPlan(l)
		}
		for i, a := range arrivals {
			got := buckets[a.key].Arrive(plans[a.key], a.at, a.cost)
			require.Equal(t, want[i], got, "load %d, request %d: %+v under %v", n, i, a, limits[a.key])
			met[got.Result]++
			if got.Waited > 0 {
				waited++
			}
		}
	}
	require.Greater(t, waited, 3000)
	for _, result := range []replay.Result{replay.Departed, replay.QueueFull, replay.TooLate, replay.TooCostly} {
		require.Greater(t, met[result], 200, "requests with result %d, of %v", result, met)
	}
}

// randomGroup returns the limits of some keys, and arrivals that are near to the instants
// at which requests of these keys leave.
func randomGroup(chance *rand.Rand) ([]shaper.Limits, []arrival) {
	limits := make([]shaper.Limits, 1+chance.IntN(12))
	steps := make([]time.Duration, len(limits))
	for i := range limits {
		limits[i], steps[i] = randomLimits(chance)
	}
	at := time.Duration(0)
	arrivals := make([]arrival, 150)
	for i := range arrivals {
		key := chance.IntN(len(limits))
		if chance.IntN(2) == 0 {
			at += max(0, time.Duration(chance.IntN(6))*steps[key]/time.Duration(1+chance.IntN(2*len(limits)))+time.Duration(chance.IntN(3)-1))
		}
		arrivals[i] = arrival{at, key, 1}
		switch chance.IntN(12) {
		case 0, 1:
			arrivals[i].cost += chance.IntN(8)
		case 2:
			arrivals[i].cost = tooCostly(steps[key])
		}
	}
	return limits, arrivals
}

// randomLimits returns limits, and about how long a cost unit takes.
func randomLimits(chance *rand.Rand) (l shaper.Limits, step time.Duration) {
	l = shaper.Limits{
		Rate:  rate.Limit(math.Exp(chance.Float64()*10 - 1)), // up to 8,000 per second
		Burst: chance.IntN(6),
		Depth: []int{0, 1, 2, 5, 20}[chance.IntN(5)],
	}
	switch chance.IntN(4) {
	case 0:
		l.Rate = []rate.Limit{7, 50, 1.0 / 3, 1000.0 / 7, 1e6, rate.Every(3 * time.Second)}[chance.IntN(6)]
	case 1:
		l.Rate = rate.Limit(math.Round(float64(l.Rate)) + 1)
	}
	step = time.Duration(float64(time.Second) / float64(l.Rate))
	if chance.IntN(3) == 0 {
		l.MaxWait = 1 + time.Duration(chance.IntN(8))*step
	}
	if chance.IntN(12) == 0 {
		l.Rate = rate.Inf
	}
	return l, step
}

// tooCostly returns a cost of more than a year, or 1 if an int of 32 bits can't hold it.
func tooCostly(step time.Duration) int {
	if cost := 400 * 24 * time.Hour / step; cost <= math.MaxInt {
		return int(cost)
	}
	return 1
}

// playedByGroup returns the fates of the arrivals at a Group in a bubble.
func playedByGroup(t *testing.T, limits []shaper.Limits, arrivals []arrival) []replay.Fate {
	t.Helper()
	fates := make([]replay.Fate, len(arrivals))
	synctest.Test(t, func(t *testing.T) {
		group, err := shaper.NewGroup(func(key int) (shaper.Limits, error) { return limits[key], nil })
		require.NoError(t, err)
		defer group.Close()
		start := time.Now()
		var calls sync.WaitGroup
		for i, a := range arrivals {
			time.Sleep(a.at - time.Since(start))
			calls.Go(func() {
				err := group.WaitN(t.Context(), a.key, a.cost)
				fates[i] = replay.Fate{Result: resultOf(err), Waited: time.Since(start) - a.at}
			})
			synctest.Wait()
		}
		calls.Wait()
	})
	return fates
}

// resultOf returns the result that the error of a call means.
func resultOf(err error) replay.Result {
	switch {
	case err == nil:
		return replay.Departed
	case errors.Is(err, shaper.ErrQueueFull):
		return replay.QueueFull
	case errors.Is(err, shaper.ErrTooLate):
		return replay.TooLate
	case errors.Is(err, shaper.ErrTooCostly):
		return replay.TooCostly
	}
	panic(err)
}

// results are the model's words for what becomes of a request.
var results = map[string]replay.Result{
	model.Left:      replay.Departed,
	model.QueueFull: replay.QueueFull,
	model.TooLate:   replay.TooLate,
	model.TooCostly: replay.TooCostly,
	model.Canceled:  replay.Abandoned,
	model.Closed:    replay.Waiting, // A script ends with a Close.
}

func TestTheReplaySaysWhatTheModelSays(t *testing.T) {
	chance := rand.New(rand.NewPCG(14, 3))
	compared, met := 0, map[replay.Result]int{}
	for range 150 {
		l, requests := randomLoad(chance)
		end := requests[len(requests)-1].At + time.Duration(chance.Int64N(int64(time.Second)))
		want, open := predict(l, requests, end)
		if open {
			continue
		}
		got := replay.Run(l, replay.Start{}, requests, end)
		require.Equal(t, want, got, "%v\n%+v", l, requests)
		compared++
		for _, f := range got {
			met[f.Result]++
		}
	}
	require.Greater(t, compared, 100)
	for _, result := range results {
		require.Greater(t, met[result], 40, "requests with result %d, of %v", result, met)
	}
}

// randomLoad returns limits and requests that crowd around the instants of departures.
func randomLoad(chance *rand.Rand) (shaper.Limits, []replay.Request) {
	l, step := randomLimits(chance)
	span := func() time.Duration {
		return max(0, time.Duration(chance.IntN(8))*step+time.Duration(chance.IntN(3)-1))
	}
	at := time.Duration(0)
	requests := make([]replay.Request, 60)
	for i := range requests {
		if chance.IntN(2) == 0 {
			at += span() / time.Duration(1+chance.IntN(4))
		}
		r := replay.Request{At: at, Cost: 1, Deadline: replay.Never, Patience: replay.Never}
		switch chance.IntN(8) {
		case 0, 1:
			r.Cost += chance.IntN(8)
		case 2:
			r.Cost = tooCostly(step)
		}
		switch chance.IntN(8) {
		case 0:
			r.Allow = true
		case 1:
			r.Deadline = at + 1 + span()
		case 2, 3:
			r.Patience = span()
		}
		requests[i] = r
	}
	return l, requests
}

// predict returns the fates that the model gives the requests, or that it leaves open.
func predict(l shaper.Limits, requests []replay.Request, end time.Duration) (fates []replay.Fate, open bool) {
	s := model.Script{Limits: l}
	type cancel struct {
		at     time.Duration
		target int // the index of the operation
	}
	var cancels []cancel
	emit := func(until time.Duration) {
		slices.SortStableFunc(cancels, func(a, b cancel) int { return cmp.Compare(a.at, b.at) })
		for len(cancels) > 0 && cancels[0].at <= until {
			s.Ops = append(s.Ops, model.Op{At: cancels[0].at, Kind: model.OpCancel, Target: cancels[0].target})
			cancels = cancels[1:]
		}
	}
	ops := make([]int, len(requests))
	for i, r := range requests {
		emit(r.At)
		o := model.Op{At: r.At, Kind: model.OpWait, N: r.Cost}
		if r.Allow {
			o.Kind = model.OpAllow
		}
		if r.Deadline != replay.Never {
			o.Deadline = r.Deadline
		}
		if ops[i] = len(s.Ops); r.Patience != replay.Never && !r.Allow {
			cancels = append(cancels, cancel{r.At + r.Patience, ops[i]})
		}
		s.Ops = append(s.Ops, o)
	}
	emit(end)
	s.Ops = append(s.Ops, model.Op{At: end, Kind: model.OpLook})
	answers, reason := s.Predict(model.NoMistake)
	if reason != "" {
		return nil, true
	}
	for i, r := range requests {
		a := answers[ops[i]]
		result, known := results[a.Result]
		if !known {
			panic(fmt.Sprintf("the model answers %v", a))
		}
		fates = append(fates, replay.Fate{Result: result, Waited: a.At - r.At})
	}
	return fates, false
}
