package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// module writes a module of one package, whose tests are given.
func module(t *testing.T, tests string) {
	t.Helper()
	t.Chdir(t.TempDir())
	t.Setenv("GOWORK", "off")
	for name, text := range map[string]string{
		"go.mod":       "module a\n\ngo 1.26\n",
		"play/play.go": "// Package play is what tests share.\npackage play\n\nimport (\n\"testing\"\n\"testing/synctest\"\n)\n\nfunc Play(t *testing.T, f func(*testing.T)) { synctest.Test(t, f) }\n",
		"a_test.go":    "package a\n\nimport (\n\"testing\"\n\"testing/synctest\"\n\n\"a/play\"\n)\n\nvar _ = play.Play\n\n" + tests,
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
}

func TestEveryWayToABubbleIsSeen(t *testing.T) {
	module(t, `
func TestDirect(t *testing.T) { synctest.Test(t, func(*testing.T) {}) }

func TestOfAnotherPackage(t *testing.T) { play.Play(t, func(*testing.T) {}) }

func helper[T any](t *testing.T, _ T) { inner(t) }
func inner(t *testing.T) { play.Play(t, func(*testing.T) {}) }
func FuzzByAGenericHelper(f *testing.F) { f.Fuzz(func(t *testing.T, n int) { helper(t, n) }) }

type stage[T any] struct{ t *testing.T }
func (s stage[T]) begin() { inner(s.t) }
func TestByAMethod(t *testing.T) { stage[int]{t}.begin() }

var rows = []func(*testing.T){inner}
func TestByATable(t *testing.T) { for _, f := range rows { f(t) } }

func TestOnTheRealClock(t *testing.T) { synctest.Wait() }
func Testable(t *testing.T) { inner(t) }
func TestOfTestable(t *testing.T) { Testable(t) }
func BenchmarkInABubble(b *testing.B) { inner(nil) }
`)
	tests, err := find("./...")
	require.NoError(t, err)
	require.Equal(t, []string{"FuzzByAGenericHelper", "TestByAMethod", "TestByATable", "TestDirect", "TestOfAnotherPackage", "TestOfTestable"}, tests)
}

func TestAWayThatIsNotSeenIsAnError(t *testing.T) {
	module(t, `
type runner interface{ run(*testing.T) }
type inABubble struct{}
func (inABubble) run(t *testing.T) { synctest.Test(t, func(*testing.T) {}) }
func start(t *testing.T, r runner) { r.run(t) }
func TestThroughAnInterface(t *testing.T) { start(t, inABubble{}) }
func TestOther(t *testing.T) { play.Play(t, func(*testing.T) {}) }
`)
	_, err := find("./...")
	require.ErrorContains(t, err, "a_test.go:15:18 starts a bubble, and no test uses it")
}

func TestWithoutBubblesThereIsNoList(t *testing.T) {
	module(t, "func TestOnTheRealClock(t *testing.T) { synctest.Wait() }\n")
	_, err := find(".")
	require.ErrorContains(t, err, "no test starts a bubble") // An empty list would run nothing, and pass.
}

// All of this module's bubbles must be in its own list.
func TestBubblesOfThisModule(t *testing.T) {
	tests, err := find("example.com/leakybucket/...")
	require.NoError(t, err)
	require.Subset(t, tests, []string{"TestModel", "FuzzModel", "TestNaiveKeepsATickFromIdleTime", "TestABurstLeavesAsAComb"})
	require.NotContains(t, tests, "TestEveryRefusalReachesAClientThatIsStillSending")
}
