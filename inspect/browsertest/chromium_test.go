package browsertest_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

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
	if bin := os.Getenv("CHROME_BIN"); bin != "" {
		program, err := exec.LookPath(bin)
		if err != nil {
			return "", fmt.Errorf("CHROME_BIN: %w", err)
		}
		return program, nil
	}
	for _, name := range []string{"chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome"} {
		if program, err := exec.LookPath(name); err == nil {
			return program, nil
		}
	}
	return "", errors.New("no Chromium in PATH, and CHROME_BIN is not set (Debian: apt-get install chromium-headless-shell fonts-dejavu-core)")
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

// stopBrowser ends the browser, and reports its remains: a process that names the folder for all it
// writes, or the profile in that folder.
func stopBrowser(dir string) error {
	if browser.stop == nil {
		return nil
	}
	stopped := browser.stop()
	if browser.err != nil {
		return nil // said already by each test
	}
	var left error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if left = leftBehind(dir); left == nil {
			break
		}
	}
	return cmp.Or(stopped, left)
}

func leftBehind(dir string) error {
	profiles, err := filepath.Glob(filepath.Join(dir, "chromedp-runner*"))
	if err != nil || len(profiles) > 0 {
		return fmt.Errorf("the browser's profile is still there: %v %w", profiles, err)
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return nil // not on this system
	}
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", p.Name(), "cmdline"))
		if err == nil && bytes.Contains(line, []byte(dir)) {
			return fmt.Errorf("process %d of the browser still runs: %q", pid, line)
		}
	}
	return nil
}

func TestChromiumIsFoundByItsVariableAndInThePath(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	t.Setenv("CHROME_BIN", "")
	_, err := findChromium()
	require.ErrorContains(t, err, "apt-get install chromium-headless-shell")

	for _, name := range []string{"google-chrome", "chromium", "chromium-headless-shell"} { // each before those of before
		program := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(program, []byte("#!"), 0o755))
		found, err := findChromium()
		require.NoError(t, err)
		require.Equal(t, program, found)
	}

	// What was asked for and is not there must not be replaced in silence.
	t.Setenv("CHROME_BIN", filepath.Join(dir, "missing"))
	_, err = findChromium()
	require.ErrorContains(t, err, "CHROME_BIN")
}
