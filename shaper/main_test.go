package shaper_test

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Half of the parallel tests wait for a clock, so more of them may run at once than
	// there are processors. A flag -parallel comes later, and counts.
	if err := flag.Set("test.parallel", strconv.Itoa(max(4, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	// A connection that is closed with an unread body sleeps for half a second in
	// net/http, which is as long as goleak waits.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// long reports whether the great counts are wanted (CI sets SHAPER_LONG=1).
var long = os.Getenv("SHAPER_LONG") == "1"
