package model_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
)

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
