package shaper_test

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Most of the parallel tests wait for a clock, so more of them may run at once than
	// there are processors. A flag -parallel comes later, and counts.
	atOnce := 8
	if underRace {
		atOnce = 4
	}
	if err := flag.Set("test.parallel", strconv.Itoa(max(atOnce, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	// A connection that is closed with an unread body sleeps for half a second in
	// net/http, which is as long as goleak waits.
	closing := goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait")
	goleak.VerifyTestMain(settling{m, closing}, closing)
}

// settling runs the tests. If they pass, it gives goroutines that have still to end half a minute
// instead of goleak's half a second, which is too short on a busy machine. (If a test fails,
// goleak does not look.)
type settling struct {
	*testing.M
	ignored goleak.Option
}

func (s settling) Run() int {
	code := s.M.Run()
	for patience := time.Now().Add(30 * time.Second); code == 0 && time.Now().Before(patience) && goleak.Find(s.ignored) != nil; {
	}
	return code
}

// long reports whether the great counts are wanted (CI sets SHAPER_LONG=1), and longest whether
// those are, too, that take minutes of processor time and have found no more (SHAPER_LONG=2).
var (
	longest = os.Getenv("SHAPER_LONG") == "2"
	long    = longest || os.Getenv("SHAPER_LONG") == "1"
)

// rounds returns how often a test repeats itself: a few times, or as often as the great counts say.
func rounds(few, many, most int) int {
	switch {
	case longest:
		return most
	case long:
		return many
	}
	return few
}
