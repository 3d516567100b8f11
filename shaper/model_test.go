package shaper_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
)

// newSubject makes a Shaper for a script to be played on. It refuses without its lock wherever
// it can, and repeats that under the lock.
func newSubject(l shaper.Limits, options ...shaper.Option) (model.Subject, error) {
	s, err := shaper.New(l, options...)
	if err == nil {
		shaper.AuditRefusals(s)
	}
	return s, err
}

// TestModel holds the shaper to the model: random scripts must agree in
// result, instant, order, RetryAfter, Forecast, Stats and what the hooks are
// told. SHAPER_LONG=2 asks for a million operations.
func TestModel(t *testing.T) {
	t.Parallel()
	budget := rounds(10_000, 300_000, 1_000_000)
	done := 0
	for seed := uint64(1); done < budget; seed++ {
		script, want := model.Random(rand.New(rand.NewPCG(seed, 0)))
		done += len(script.Ops)
		requireAgreement(t, script, want, "seed %d", seed)
	}
	t.Logf("%d operations", done)
}

// FuzzModel is TestModel with the script's choices taken from the input.
func FuzzModel(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		script, want := model.FromBytes(data)
		requireAgreement(t, script, want, "%d bytes", len(data))
	})
}

// requireAgreement plays a script on a Shaper, and shows the shortest part of it
// on which the Shaper and the model disagree.
func requireAgreement(t *testing.T, script model.Script, want []model.Answer, of string, args ...any) {
	t.Helper()
	difference := model.Compare(t, script, want, newSubject)
	if difference != "" {
		script, difference = model.Shrink(t, script, difference, newSubject)
		require.FailNow(t, "the shaper disagrees with the model", "%s\n%v\n%s", fmt.Sprintf(of, args...), script, difference)
	}
}

// TestModelTellsMistakes tests the checker: each of sixteen mistakes must show
// within 100,000 operations, on scripts on which the model without it agrees with
// the shaper.
func TestModelTellsMistakes(t *testing.T) {
	t.Parallel()
	require.Len(t, model.Mistakes(), 16)
	for _, mistake := range model.Mistakes() {
		t.Run(mistake.String(), func(t *testing.T) {
			t.Parallel()
			done := 0
			for seed := uint64(1); done < 100_000; seed++ {
				script, right := model.Random(rand.New(rand.NewPCG(seed, uint64(mistake))))
				done += len(script.Ops)
				wrong, _ := script.Predict(mistake)
				if model.Difference(script, right, wrong) == "" {
					continue // The mistake does not show in this script, so a Shaper need not play it.
				}
				got, problem := model.Play(t, script, newSubject)
				require.Empty(t, problem, "%v", script)
				require.Empty(t, model.Difference(script, got, right), "without a mistake, seed %d\n%v", seed, script)
				if told := model.Difference(script, got, wrong); told != "" {
					t.Logf("told after %d operations: %s", done, told)
					return
				}
			}
			require.FailNow(t, "not told", fmt.Sprint(done, " operations agree with the mistake"))
		})
	}
}
