package replay_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/internal/replay"
	"example.com/leakybucket/shaper"
)

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
	l := shaper.Limits{
		Rate:  []rate.Limit{7, 50, 1.0 / 3, 1000.0 / 7, 1e6, rate.Every(3 * time.Second), rate.Inf}[chance.IntN(7)],
		Burst: chance.IntN(6),
		Depth: []int{0, 1, 2, 5, 20}[chance.IntN(5)],
	}
	if chance.IntN(4) == 0 {
		l.Rate = rate.Limit(math.Exp(chance.Float64()*20 - 5))
	}
	step := time.Millisecond
	if l.Rate != rate.Inf {
		step = time.Duration(float64(time.Second) / float64(l.Rate))
	}
	if chance.IntN(3) == 0 {
		l.MaxWait = 1 + time.Duration(chance.IntN(8))*step
	}
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
			r.Cost = int(400 * 24 * time.Hour / step) // too costly
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
