package model

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestModel holds the shaper to the model: random scripts must agree in
// result, instant, order, RetryAfter, Forecast, Stats and what the hooks are
// told. SHAPER_LONG=1 asks for a million operations.
func TestModel(t *testing.T) {
	budget := 50_000
	if long {
		budget = 1_000_000
	}
	done := 0
	for seed := uint64(1); done < budget; seed++ {
		s, want := composed(&source{chance: rand.New(rand.NewPCG(seed, 0))})
		done += len(s.ops)
		if problem := disagreement(t, s, want); problem != "" {
			s, problem = shrunk(t, s, problem)
			require.FailNow(t, "the shaper disagrees with the model", "seed %d\n%v\n%s", seed, s, problem)
		}
	}
	t.Logf("%d operations", done)
}

// FuzzModel is TestModel with the script's choices taken from the input.
func FuzzModel(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		s, want := composed(&source{data: data})
		if problem := disagreement(t, s, want); problem != "" {
			s, problem = shrunk(t, s, problem)
			require.FailNow(t, "the shaper disagrees with the model", "%v\n%s", s, problem)
		}
	})
}

// shrunk leaves out of a script every operation that the disagreement does
// not need.
func shrunk(t *testing.T, s script, problem string) (script, string) {
	for i := len(s.ops) - 1; i >= 0; i-- {
		less := s.without(i)
		want, open := less.predict(none)
		if open != "" {
			continue
		}
		if still := disagreement(t, less, want); still != "" {
			s, problem = less, still
		}
	}
	return s, problem
}

// disagreement plays a script on a Shaper and says where it first differs from
// what the model says; "" if nowhere.
func disagreement(t *testing.T, s script, want []answer) string {
	got, problem := played(t, s)
	if problem != "" {
		return problem
	}
	return difference(s, got, want)
}

// played is what the script shows of a real Shaper.
func played(t *testing.T, s script) (answers []answer, problem string) {
	defer func() {
		if r := recover(); r != nil {
			problem = fmt.Sprint("panic: ", r) // a bubble whose goroutines all hang panics
		}
	}()
	synctest.Test(t, func(*testing.T) {
		p := newPlayer(s)
		if problem = p.play(s); problem == "" {
			answers = p.answers
		}
	})
	return answers, problem
}
