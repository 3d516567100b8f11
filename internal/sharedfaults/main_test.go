// Package sharedfaults_test shares buckets among several real processes, on real servers,
// and breaks something. It is a module of its own because it is the only place that knows
// several engines.
//
// A test starts a fleet of workers. A worker is this test binary, started again with a plan
// in its environment: it makes a Shaper with a shared bucket, sends requests through it as
// the plan says, and writes down each departure with the instant at which the shaper let
// it leave. The clock of those instants is the same for all processes. When the fleet has
// ended, the log of all departures is merged and judged by guarantee G1 of docs/shared.md:
// every window of length W has at most ⌊(W + D) / T⌋ + Burst departures. That holds on a
// machine that is busy as well, as a late process drops its slots. How near the rate the
// fleet comes is only asserted with SHAPER_LONG=2, which wants a quiet machine.
//
// Two kinds of faults need no processes: those of the clock of an engine, which can't be
// moved on a real server, are served by package buckettest over a small protocol
// ([startRemote]); and what is about one instant is in a synctest bubble.
package sharedfaults_test

import (
	"context"
	"flag"
	"os"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // It prints each connection that fails.
	if text := os.Getenv(planVariable); text != "" {
		work(text)
		return
	}
	flag.Parse()
	if !isSet("test.parallel") {
		if err := flag.Set("test.parallel", strconv.Itoa(fleets)); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func isSet(name string) (set bool) {
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

// long reports whether the long form is wanted: all tests, and more load (CI sets SHAPER_LONG=1).
// unloaded reports whether the machine has nothing else to do, so that tests may judge how near the
// rate a fleet comes, how the shares are, and how long gaps last (SHAPER_LONG=2).
var (
	unloaded = os.Getenv("SHAPER_LONG") == "2"
	long     = unloaded || os.Getenv("SHAPER_LONG") == "1"
)

// atLength leaves a test out that takes long and is of a rare fault, unless the long form is wanted.
func atLength(t *testing.T) {
	t.Helper()
	if !long {
		t.Skip("SHAPER_LONG=1 runs it")
	}
}
