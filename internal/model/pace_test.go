package model_test

import (
	"context"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
)

const ms = time.Millisecond

// at returns departures of cost 1, each of a process of its own.
func at(instants ...time.Duration) (log []model.Departure) {
	for i, t := range instants {
		log = append(log, model.Departure{At: t, Process: i, Cost: 1})
	}
	return log
}

// pace returns the pace of 100/s.
func pace(burst int64, lateness time.Duration) model.SharedPace {
	return model.SharedPace{Interval: big.NewRat(int64(10*ms), 1), Burst: burst, Lateness: lateness}
}

// The bound is floor((W + D)/T) + Burst: these logs have as much as that, or one more.
func TestSharedPaceByHand(t *testing.T) {
	for name, row := range map[string]struct {
		pace   model.SharedPace
		log    []model.Departure
		excess int64
	}{
		"one alone":                               {pace(1, 0), at(0), 0},
		"two an interval apart":                   {pace(1, 0), at(0, 10*ms), 0},
		"two a nanosecond too near":               {pace(1, 0), at(0, 10*ms-1), 1},
		"the first late by D, the second not":     {pace(1, 9*ms), at(9*ms, 10*ms), 0},
		"a nanosecond more than D":                {pace(1, 9*ms), at(9*ms+1, 10*ms), 1},
		"D is as long as an interval":             {pace(1, 10*ms), at(10*ms, 10*ms), 0},
		"three at once":                           {pace(1, 10*ms), at(10*ms, 10*ms, 10*ms), 1},
		"a burst of three":                        {pace(3, 0), at(0, 0, 0, 10*ms), 0},
		"a burst of four":                         {pace(3, 0), at(0, 0, 0, 0), 1},
		"a burst, and the next too early":         {pace(3, 0), at(0, 0, 0, 10*ms-1), 1},
		"the excess builds up where D is used up": {pace(1, 5*ms), at(5*ms, 10*ms, 20*ms, 30*ms, 40*ms-1), 1},
		"an hour of idleness earns nothing":       {pace(1, 0), at(0, time.Hour, time.Hour), 1},
	} {
		t.Run(name, func(t *testing.T) {
			worst := row.pace.Worst(row.log)
			require.Equal(t, row.excess, worst.Excess(), "%v", worst)
			require.Equal(t, row.excess, row.pace.Surplus(row.log))
			if row.excess == 0 {
				require.NoError(t, row.pace.Check(row.log))
			} else {
				require.ErrorContains(t, row.pace.Check(row.log), "the pace was exceeded: cost ")
			}
		})
	}
}

func TestSharedPaceWithCosts(t *testing.T) {
	log := []model.Departure{{At: 0, Cost: 2}, {At: 10 * ms, Cost: 7, Number: 1}, {At: 80 * ms, Cost: 1, Number: 2}}
	require.Equal(t, model.Window{From: 0, To: 10 * ms, Cost: 9, Allowed: 8}, pace(1, 0).Worst(log))
	require.Zero(t, pace(1, 10*ms).Worst(log).Excess())
	log = []model.Departure{{Cost: 7}, {At: 10 * ms, Cost: 1, Number: 1}}
	require.Zero(t, pace(2, 0).Worst(log).Excess(), "7 stands in place of 2")
	log[1].At--
	require.Equal(t, int64(1), pace(2, 0).Worst(log).Excess())
	require.Equal(t, int64(0), pace(2, 1).Worst(log).Excess())
	require.Equal(t, "cost 2 in the 9ms from 1ms to 10ms, where 1 is allowed", pace(1, 0).Worst(at(ms, 10*ms)).String())
}

// An Extra is for the windows that it meets, and counts once in each.
func TestExtraCountsInEachWindowThatItMeets(t *testing.T) {
	log := at(0, 0, 100*ms, 200*ms, 200*ms)
	p := pace(1, 0)
	require.Equal(t, int64(1), p.Worst(log).Excess())
	require.Equal(t, int64(1), p.Worst(log, model.Extra{From: 0, To: 199 * ms, Cost: 1}).Excess(), "the second pair")
	require.Equal(t, int64(1), p.Worst(log, model.Extra{From: 1, To: 200 * ms, Cost: 1}).Excess(), "the first pair")
	require.NoError(t, p.Check(log, model.Extra{From: 0, To: 0, Cost: 1}, model.Extra{From: 200 * ms, To: time.Hour, Cost: 1}))
	require.NoError(t, p.Check(log, model.Extra{From: 0, To: 200 * ms, Cost: 1}))
}

func TestOrderWithinAProcess(t *testing.T) {
	log := []model.Departure{
		{At: 20 * ms, Process: 1, Number: 5, Cost: 1}, {At: 30 * ms, Process: 1, Number: 9, Cost: 1},
		{At: 10 * ms, Process: 2, Number: 9, Cost: 1}, {At: 25 * ms, Process: 2, Number: 10, Cost: 1},
	}
	require.NoError(t, model.CheckOrder(log))
	log[2].Number = 11
	require.EqualError(t, model.CheckOrder(log), "process 2 let request 10 leave at 25ms, which is after request 11 at 10ms")
	log[2].Number = 10
	require.EqualError(t, pace(9, 0).Check(log), "request 10 of process 2 left twice: at 10ms and at 25ms")
}

func TestLongestGap(t *testing.T) {
	log := at(10*ms, 20*ms, 60*ms, 70*ms)
	require.Equal(t, 40*ms, model.LongestGap(log, 5*ms, 75*ms))
	require.Equal(t, 55*ms, model.LongestGap(log, 5*ms, 125*ms))
}

// Worst must find the same as a comparison of each window with the bound.
func TestWorstWindowIsThatOfAllWindows(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 15))
	for range 3000 {
		p := model.SharedPace{
			Interval: big.NewRat(chance.Int64N(40)+1, chance.Int64N(7)+1),
			Burst:    chance.Int64N(4) + 1,
			Lateness: time.Duration(chance.IntN(20)),
		}
		var log []model.Departure
		for i := range chance.IntN(12) + 1 {
			log = append(log, model.Departure{At: time.Duration(chance.IntN(60)), Number: int64(i), Cost: max(1, chance.Int64N(16)-9)})
		}
		var extras []model.Extra
		for range chance.IntN(3) {
			from := time.Duration(chance.IntN(60))
			extras = append(extras, model.Extra{From: from, To: from + time.Duration(chance.IntN(20)), Cost: chance.Int64N(4)})
		}
		require.Equal(t, slowlyWorst(p, log, extras), p.Worst(log, extras...).Excess(), "%+v of %v with %+v", log, p, extras)
	}
}

// slowlyWorst returns the greatest excess of all windows from one departure to another.
func slowlyWorst(p model.SharedPace, log []model.Departure, extras []model.Extra) int64 {
	worst := int64(-1 << 62)
	for _, first := range log {
		for _, last := range log {
			if first.At > last.At {
				continue
			}
			cost, largest := int64(0), p.Burst
			for _, d := range log {
				if d.At >= first.At && d.At <= last.At {
					cost, largest = cost+d.Cost, max(largest, d.Cost)
				}
			}
			for _, e := range extras {
				if e.From <= last.At && e.To >= first.At {
					cost -= e.Cost
				}
			}
			worst = max(worst, cost-largest-p.Slots(last.At-first.At+p.Lateness))
		}
	}
	return worst
}

// An engine is a Shaper with something wrong about it.
type engine struct {
	*shaper.Shaper
	wait     func(*shaper.Shaper, context.Context, int) error
	forecast time.Duration // is added to what Forecast returns
}

func (e engine) WaitN(ctx context.Context, n int) error {
	if e.wait != nil {
		return e.wait(e.Shaper, ctx, n)
	}
	return e.Shaper.WaitN(ctx, n)
}

func (e engine) Forecast(n int) (time.Duration, error) {
	wait, err := e.Shaper.Forecast(n)
	return wait + e.forecast, err
}

// open returns a function that opens engines which are wrong as wrong is.
func open(wrong engine) model.Open {
	return func(l shaper.Limits, options ...shaper.Option) (model.Subject, error) {
		s, err := shaper.New(l, options...)
		wrong.Shaper = s
		return wrong, err
	}
}

// An engine's tests are worth as much as the comparison can tell.
func TestAnEngineThatIsWrongIsTold(t *testing.T) {
	late := func(s *shaper.Shaper, ctx context.Context, n int) error {
		time.Sleep(time.Nanosecond)
		return s.WaitN(ctx, n)
	}
	deaf := func(s *shaper.Shaper, ctx context.Context, n int) error {
		return s.WaitN(context.WithoutCancel(ctx), n)
	}
	stuck := func(*shaper.Shaper, context.Context, int) error { select {} }
	script := model.Script{Limits: shaper.Limits{Rate: 10, Depth: 9}, Ops: []model.Op{
		{Kind: model.OpAllow, N: 1},
		{Kind: model.OpWait, N: 1},
		{Kind: model.OpForecast, N: 1},
		{At: 50 * time.Millisecond, Kind: model.OpCancel, Target: 1},
	}}
	want, ambiguous := script.Predict(model.NoMistake)
	require.Empty(t, ambiguous)
	require.Empty(t, model.Compare(t, script, want, open(engine{})))
	for name, row := range map[string]struct {
		wrong engine
		told  string
	}{
		"Forecast is a nanosecond off":    {engine{forecast: 1}, "operation 2 {At: 0, Kind: model.OpForecast, N: 1}\nengine: left at 0, wait 200000001\nmodel:  left at 0, wait 200000000"},
		"a call enters a nanosecond late": {engine{wait: late}, "operation 1 {At: 0, Kind: model.OpWait, N: 1}\nengine: context canceled at 50000000; enqueued at 1 "},
		"a context's end is not noticed":  {engine{wait: deaf}, "operation 1 {At: 0, Kind: model.OpWait, N: 1}\nengine: closed at 50000000;"},
		"a call never returns":            {engine{wait: stuck}, "operation 1 {At: 0, Kind: model.OpWait, N: 1} never returned"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, model.Compare(t, script, want, open(row.wrong)), row.told)
		})
	}
}

// A test must show a difference in a form that is short enough to be understood.
func TestShrinkKeepsOnlyTheOperationsThatADifferenceNeeds(t *testing.T) {
	wrong := open(engine{forecast: 1})
	for seed := uint64(1); seed <= 20; seed++ {
		script, want := model.Random(rand.New(rand.NewPCG(seed, 0)))
		difference := model.Compare(t, script, want, wrong)
		if difference == "" {
			continue // No Forecast in it returns a wait.
		}
		script, difference = model.Shrink(t, script, difference, wrong)
		require.NotEmpty(t, difference)
		require.Len(t, script.Ops, 1, "%v", script)
		require.Equal(t, model.OpForecast, script.Ops[0].Kind)
	}
}

// A release or cancel goes on meaning its call when others are left out.
func TestWithoutKeepsTargets(t *testing.T) {
	script := model.Script{Ops: []model.Op{
		{Kind: model.OpAcquire}, {Kind: model.OpAcquire}, {Kind: model.OpAcquire},
		{Kind: model.OpRelease, Target: 0}, {Kind: model.OpRelease, Target: 1}, {Kind: model.OpCancel, Target: 2},
	}}
	var targets []int
	for _, o := range script.Without(1).Ops[2:] {
		targets = append(targets, o.Target)
	}
	require.Equal(t, []int{0, -1, 1}, targets)
}
