package browsertest_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// requireChromium returns the program to run. Where there is none the test is skipped,
// unless nothing may be missing.
func requireChromium(t testing.TB) string {
	t.Helper()
	program, err := findChromium()
	if err != nil && os.Getenv("SHAPER_REQUIRE_ALL") != "1" {
		t.Skip(err)
	}
	require.NoError(t, err)
	return program
}

// findChromium returns the program that CHROME_BIN names, or else the first in PATH of
// those that are Chromium or Chrome. The headless shell is Chromium without its windows:
// it draws pages with the same code, and takes a third of the processor time.
func findChromium() (string, error) {
	names := []string{"chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome"}
	if bin := os.Getenv("CHROME_BIN"); bin != "" { // It must not be replaced in silence if it is missing.
		names = []string{bin}
	}
	for _, name := range names {
		if program, err := exec.LookPath(name); err == nil {
			return program, nil
		}
	}
	return "", fmt.Errorf("none of %q is in PATH (Debian: apt-get install chromium-headless-shell fonts-dejavu-core)", names)
}

// browser is shared by all tests, as it takes a second to start. It is started by the
// first test that needs it.
var browser struct {
	once sync.Once
	ctx  context.Context
	err  error
	stop func() error // nil before the start
}

// requireBrowser returns the context of the browser; the context of a tab is made from it.
func requireBrowser(t testing.TB) context.Context {
	t.Helper()
	program := requireChromium(t)
	browser.once.Do(func() { startBrowser(program) })
	require.NoError(t, browser.err)
	return browser.ctx
}

func startBrowser(program string) {
	var output bytes.Buffer
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program),
		chromedp.CombinedOutput(&output),
		chromedp.WSURLReadTimeout(patience),
		chromedp.Env("HOME="+os.Getenv("TMPDIR")), // Debian's launcher and NSS look there
		// The sandbox cannot start as root, nor in many a container. It would protect from
		// foreign pages, and there are none: all names lead nowhere.
		chromedp.NoSandbox,
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
		chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("lang", "en-US"),
		chromedp.WindowSize(1280, 900),
	)
	allocator, stopAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	browser.ctx = ctx
	browser.stop = func() error {
		defer stopAllocator()
		defer cancel()
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return chromedp.Cancel(ctx)
	}
	if err := chromedp.Do(ctx); err != nil {
		browser.err = fmt.Errorf("%s does not start: %w\n%s", program, err, &output)
	}
}

// stopBrowser ends the browser, and waits for its end.
func stopBrowser() error {
	if browser.stop == nil || browser.err != nil { // The error was said already by each test.
		return nil
	}
	return browser.stop()
}
