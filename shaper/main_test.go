package shaper_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long says whether the great counts are wanted (CI sets SHAPER_LONG=1).
var long = os.Getenv("SHAPER_LONG") == "1"
