package shaper_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// A connection that is closed with an unread body sleeps for half a second in
	// net/http, which is as long as goleak waits.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// long reports whether the great counts are wanted (CI sets SHAPER_LONG=1).
var long = os.Getenv("SHAPER_LONG") == "1"
