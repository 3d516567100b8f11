// Package sharedfaults_test shares buckets among several real processes, on real servers,
// and breaks something.
//
// A test starts a fleet of workers. A worker is this test binary, started again with a plan
// in its environment: it makes a Shaper with a shared bucket, sends requests through it as
// the plan says, and writes down each departure with the instant at which the shaper let
// it leave. The clock of those instants is the same for all processes. When the fleet has
// ended, the log of all departures is merged and judged by guarantee G1 of docs/shared-guarantees.md:
// every window of length W has at most ⌊(W + D) / T⌋ + Burst departures. That holds on a
// machine that is busy as well, as a late process drops its slots. How near the rate a fleet
// comes, how long it takes to recover, and how equal the shares are depends on the machine, so
// it is judged in bubbles alone, in the tests of package shaper.
package sharedfaults_test

import (
	"context"
	"flag"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// fleets is how many tests run at once. Most of a test's time is waiting, but fleets of four
// processes need a processor each time they wake.
const fleets = "5"

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // It prints each connection that fails.
	if text := os.Getenv(planVariable); text != "" {
		work(text)
		return
	}
	if err := flag.Set("test.parallel", fleets); err != nil { // The command line is read later, and wins.
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// atLength leaves a test out that takes long and is of a rare fault, unless the long form is wanted.
func atLength(t *testing.T) {
	t.Helper()
	if os.Getenv("SHAPER_LONG") == "" {
		t.Skip("SHAPER_LONG=1 runs it")
	}
}
