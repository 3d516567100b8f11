package model_test

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
)

// Random operations and faults of one to five processes and one engine: the departures keep
// the pace, but for what each fault is said to cost; each process lets its requests leave
// in order; no more slots are wasted than deaths, lost answers and the like explain; nobody
// waits for longer than slots may be held. And [shaper.Take.Apply] does what its comment says.
func TestProcessesWithOneBucketKeepThePromises(t *testing.T) {
	ops := 30_000
	if os.Getenv("SHAPER_LONG") == "1" {
		ops = 1_000_000
	}
	chance := rand.New(rand.NewPCG(1, 2))
	for seed := uint64(1); ops > 0; seed++ {
		plan := model.RandomSharedPlan(chance, 200)
		require.NoError(t, model.NewSharedRun(plan, seed, model.NoSharedMistake).Run(), "seed %d: %+v", seed, plan)
		ops -= plan.Steps
	}
}

// The test above is worth as much as it can tell.
func TestSharedMistakesAreTold(t *testing.T) {
	for _, mistake := range model.SharedMistakes() {
		t.Run(mistake.String(), func(t *testing.T) {
			chance := rand.New(rand.NewPCG(15, 2))
			for seed := uint64(1); seed <= 500; seed++ {
				plan := provoking(mistake, model.RandomSharedPlan(chance, 200))
				if model.NewSharedRun(plan, seed, mistake).Run() != nil {
					require.NoError(t, model.NewSharedRun(plan, seed, model.NoSharedMistake).Run(), "seed %d: %+v", seed, plan)
					return
				}
			}
			t.Fatal("not told within 100,000 operations")
		})
	}
}

// provoking returns a plan in which nothing goes wrong but what makes the mistake matter.
func provoking(mistake model.SharedMistake, plan model.SharedPlan) model.SharedPlan {
	plan.Faults = mistake.Faults()
	if mistake == model.EarlyByUncertainty || mistake == model.LateByUncertainty {
		// What a process does not know of the engine's clock must be worth some slots.
		interval := time.Duration(plan.Rate.Micros) * time.Microsecond
		plan.Trip = min(20*interval, 20*ms)
		plan.Lateness = 4*plan.Trip + 2*ms
		plan.Ahead = max(plan.Ahead, 2*plan.Lateness)
		plan.Batch = 64
	}
	return plan
}

// With nothing wrong, no slot is left unused for which somebody waits.
func TestSharedSlotsAreUsed(t *testing.T) {
	chance := rand.New(rand.NewPCG(3, 4))
	for seed := uint64(1); seed <= 25; seed++ {
		plan := model.RandomSharedPlan(chance, 400)
		plan.Faults, plan.MaxCost, plan.Guard, plan.Saturated = 0, 1, 0, true
		plan.Batch = max(plan.Batch, model.NewSharedRun(plan, 0, model.NoSharedMistake).Pace().Slots(4*plan.Trip)/int64(plan.Processes)+1)
		run := model.NewSharedRun(plan, seed, model.NoSharedMistake)
		require.NoError(t, run.Run(), "seed %d: %+v", seed, plan)
		first, last := run.Log[0].At, run.Log[len(run.Log)-1].At
		slots := run.Pace().Slots(last - first)
		require.LessOrEqual(t, float64(run.Pace().Unused(run.Log, first, last)), 0.01*float64(slots)+1, "seed %d: %+v", seed, plan)
	}
}
