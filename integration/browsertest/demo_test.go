package browsertest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
)

// demoFolder holds the program that adds a script of its own to the page.
const demoFolder = "../../cmd/shapedemo"

// A demo is shapedemo, built from the tree and started.
type demo struct {
	*servers.Process
	page string // address of its page
}

// builtDemo returns the program, which is built once for all tests.
var builtDemo = sync.OnceValues(func() (string, error) {
	program := filepath.Join(os.Getenv("TMPDIR"), "shapedemo") // The suite deletes this folder.
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = demoFolder
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, said)
	}
	return program, nil
})

// startDemo starts shapedemo without a burst, and waits for the link to its page.
func startDemo(t testing.TB, args ...string) *demo {
	t.Helper()
	requireChromium(t)
	sources, err := filepath.Glob(demoFolder + "/*")
	require.NoError(t, err)
	for _, file := range sources { // So that the go command's test cache notices a change.
		_, err := os.ReadFile(file)
		require.NoError(t, err)
	}
	program, err := builtDemo()
	require.NoError(t, err)

	d := &demo{Process: servers.Start(t, exec.Command(program, append([]string{"-addr", "127.0.0.1:0", "-burst", "0"}, args...)...))}
	link := regexp.MustCompile(`Watch it:  (http://\S+)`)
	d.Until(func() bool { return link.MatchString(d.Output()) }, "the demo says where its page is")
	d.page = link.FindStringSubmatch(d.Output())[1]
	return d
}

// press presses a button of the demo's own.
func (p *tab) press(name string) {
	p.t.Helper()
	p.click("button[data-demo=" + name + "]")
}

// told waits until the demo has told a result that matches the pattern.
func (p *tab) told(pattern string) {
	p.t.Helper()
	await(p, "the demo tells "+pattern, text("#demo-result"), regexp.MustCompile(pattern).MatchString)
}

// slide moves the slider of the rate to a place, as a hand does: many events come, and then
// one that ends them.
func (p *tab) slide(place string) {
	p.t.Helper()
	eval[chromedp.Void](p, `((slider) => {
		slider.value = `+place+`;
		for (let i = 0; i < 5; i++) slider.dispatchEvent(new Event("input", {bubbles: true}));
		slider.dispatchEvent(new Event("change", {bubbles: true}));
	})(document.querySelector("#demo-rate"))`)
}

// Whoever opens the page of the demo sees a line without pressing anything.
func TestTheDemoShowsALineToWhoeverOpensItsPage(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	p := newTab(t, d.page)
	p.open(d.page)
	p.live()
	p.told(`^Traffic comes: a burst of 152 every 8 s`)
	await(p, "the line fills", figure("waiting"), func(n float64) bool { return n > 50 })
	p.described("arrivals were a peak", "#chart-rate", `Arrivals: up to ([\d.,]+)/s`, func(n []float64) bool { return n[0] >= 70 })
	p.described("departures a band", "#chart-rate", `Departures: up to ([\d.,]+)/s`, func(n []float64) bool { return n[0] >= 40 && n[0] <= 60 })
	p.shoot("traffic")
	require.Empty(t, p.violations())
	testTheSlider(p)
	p.phone()
	p.shoot("phone")
	require.LessOrEqual(t, eval[float64](p, "document.documentElement.scrollWidth"), 390.0)
	require.Empty(t, p.violations())
	d.interrupted(p)
}

func TestTheButtonsOfTheDemo(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-limits", "40/s depth 20")
	p := newTab(t, d.page)
	p.prefers("prefers-color-scheme", "dark")
	p.open(d.page)
	p.live()
	p.told(`^Traffic comes`)

	p.set("#demo-clients", "60")
	p.press("burst")
	p.told(`^Burst: of 60 clients, \d+ served, \d+ refused\.$`)
	const pressed = `document.querySelector("button[data-demo=traffic]").ariaPressed`
	await(p, "the traffic has ended", pressed, func(pressed string) bool { return pressed == "false" })
	p.press("herd")
	p.told(`^Herd: of 60 clients( in \d+ requests)?, 60 served, \d+ refused\.$`)
	p.press("impatient")
	p.told(`^Clients that give up: of 60 clients, \d+ served`)

	// The line is re-timed before one's eyes.
	p.slide("0")
	await(p, "the rate is a tenth", text("#limits-text"), func(limits string) bool { return limits == "4/s depth 20" })
	p.press("burst")
	// At the rate of before the last of 20 would leave in half a second.
	await(p, "the line is slow", text(".demo"), regexp.MustCompile(`\b\d+ in line, the last leaves in (0\.[6-9]|[1-5](\.\d)?) s\.`).MatchString)
	p.slide("200")
	await(p, "the rate is four times what it was", text("#limits-text"), func(limits string) bool { return limits == "160/s depth 20" })
	p.told(`^Burst: of 60 clients`)

	p.press("stop")
	p.press("traffic")
	await(p, "the traffic goes on", pressed, func(pressed string) bool { return pressed == "true" })
	p.shoot("buttons")
	require.Empty(t, p.violations("color-contrast"), "in dark")
	d.interrupted(p)
}

// A slider that gets wider or moves while it is dragged runs away from the pointer.
func testTheSlider(p *tab) {
	p.t.Helper()
	for _, width := range []int64{320, 390, 768, 1024, 1280, 1920} {
		p.do(chromedp.EmulateViewport(width, 900))
		boxes := eval[[]string](p, `[...Array(51).keys()].map(i => {
			const slider = document.querySelector("#demo-rate");
			slider.value = 4 * i;
			slider.dispatchEvent(new Event("input", {bubbles: true}));
			const box = slider.getBoundingClientRect();
			return [box.left, box.top + scrollY, box.width].map(Math.round).join(" ");
		})`)
		require.Len(p.t, slices.Compact(boxes), 1, "at %d px", width)
	}
}

// interrupted ends the demo by Ctrl-C while its page is open: it must not wait for the page.
func (d *demo) interrupted(p *tab) {
	p.t.Helper()
	p.expect("net::ERR_")
	p.expect(`400.*/demo/traffic$`) // A demo that ends takes no more of the traffic that the page sends.
	require.Zero(p.t, d.Stop(os.Interrupt))
}
