// Package browsertest_test looks at the page of package inspect with a real browser:
// Chromium, headless, driven by chromedp.
//
// The tests run in real time, as a browser has no other. So they never wait for a fixed
// time: they ask again until the page is as it must be, and give up late.
package browsertest_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(suite{m}) }

// A suite ends the browser after the last test, before goroutines are counted.
type suite struct{ *testing.M }

func (s suite) Run() int {
	dir, err := os.MkdirTemp("", "browsertest")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// The tests wait for the browser more than they work, so more of them may run at once
	// than there are processors. A flag -parallel comes later, and counts.
	if err := flag.Set("test.parallel", strconv.Itoa(max(4, runtime.GOMAXPROCS(0)))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	os.Setenv("TMPDIR", dir) // for the profile of the browser, and all that it writes
	code := s.M.Run()
	if err := stopBrowser(); err != nil {
		fmt.Fprintln(os.Stderr, "after the tests:", err)
		code = max(code, 1)
	}
	os.RemoveAll(dir)
	return code
}
