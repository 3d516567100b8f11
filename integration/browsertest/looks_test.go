package browsertest_test

import (
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/shaper"
)

// busy is a scene with something to see everywhere: a line that drains, refusals, many
// keys, one bucket in dry run, and the control part.
func busy(t *testing.T) *scene {
	s := newScene(t, inspect.WithControl(token))
	u := s.shaper("upstream", "20/s depth 100")
	crowd(s, 8)
	shadow := s.group("shadow", "1/h depth 3", shaper.WithDryRun())
	s.burst(u, 120)
	s.burst(shadow.Limiter("would:be"), 8)
	return s
}

// views are what people look at, by name.
var views = map[string]string{
	"the line":       linkTo("source", "upstream"),
	"a bucket":       linkTo("source", "clients", "key", "message_send:07", "contains", "message", "filter", "waiting"),
	"a dry run":      linkTo("source", "shadow", "key", "would:be"),
	"a gone bucket":  linkTo("source", "clients", "key", "nobody", "contains", "nobody"),
	"a whole source": linkTo("source", "clients"),
}

// look opens a view and waits until all of it is there.
func (s *scene) look(p *tab, name string) {
	p.t.Helper()
	p.open(s.address(views[name]))
	p.live()
	switch name {
	case "a whole source":
	case "a gone bucket":
		p.expect("404")
		await(p, "it says so", text("#gone"), func(shown string) bool { return shown != "" })
	default:
		await(p, "the bucket is explained", text("#limits-text"), func(shown string) bool { return shown != "" })
	}
}

// Each view can be used by everybody: at a desk in light and dark colors, and on a phone, where it scrolls
// in one direction.
func TestEachViewShutsNobodyOut(t *testing.T) {
	t.Parallel()
	s := busy(t)
	p := newTab(t, s.address(""))
	for name := range views {
		p.do(chromedp.EmulateReset())
		s.look(p, name)
		if name != "a whole source" { // EachSourceHasAMark looks at one
			p.readableByAll(name)
		}
		p.phone()
		wide := eval[[]string](p, `document.documentElement.scrollWidth <= innerWidth && innerWidth <= 390 ? [] :
			[innerWidth + " px", ...[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > 390).map(e => e.outerHTML.slice(0, 100))]`)
		require.Empty(t, wide, name)
		p.shoot(name + " on a phone")
		if name == "a bucket" {
			require.Empty(t, p.violations())
		}
	}
}

// What the reader prefers, and paper, are heeded by one page without reading it anew.
func TestThePageHeedsWhatItsReaderPrefers(t *testing.T) {
	t.Parallel()
	s := busy(t)
	s.burst(s.shaper("long line", "20/s depth 1000"), 1000)
	p := newTab(t, s.address(""))
	p.prefers("prefers-color-scheme", "dark")
	p.open(s.address(linkTo("source", "long line")))
	p.live()
	await(p, "the bucket is explained", text("#limits-text"), func(shown string) bool { return shown != "" })
	testLightAndDark(p)
	testReducedMotion(p)
	testForcedColors(p)
	testPaper(p)
}

func testLightAndDark(p *tab) {
	p.t.Helper()
	const brightness = `(c => 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2])(
		[document.body, document.documentElement].map(e => getComputedStyle(e).backgroundColor).find(c => c !== "rgba(0, 0, 0, 0)").match(/[\d.]+/g).map(Number))`
	require.Less(p.t, eval[float64](p, brightness), 60.0)
	p.prefers("prefers-color-scheme", "light")
	await(p, "it follows at once", brightness, func(b float64) bool { return b > 200 })
}

func testReducedMotion(p *tab) {
	p.t.Helper()
	const drops = `document.querySelector("#picture .outflow").style.strokeDashoffset`
	await(p, "the drops fall", drops, func(offset string) bool { return offset != "" && offset != "0" })
	p.prefers("prefers-reduced-motion", "reduce")
	await(p, "they stand still", drops, func(offset string) bool { return offset == "0" })
	const moving = `[...document.querySelectorAll("*")].filter(e => {
		const s = getComputedStyle(e);
		const longest = list => Math.max(...list.split(",").map(x => parseFloat(x) * (x.trim().endsWith("ms") ? 1 : 1000)));
		return longest(s.transitionDuration) > 10 || s.animationName !== "none" && longest(s.animationDuration) > 10;
	}).map(e => e.outerHTML.slice(0, 100))`
	require.Empty(p.t, eval[[]string](p, moving))
	require.Equal(p.t, "auto", eval[string](p, "getComputedStyle(document.documentElement).scrollBehavior"))
}

// The browser replaces the colors of texts by the reader's own. What the page draws by itself must
// take them as well, and must not become one area of one color.
func testForcedColors(p *tab) {
	p.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		p.prefers("forced-colors", "active", "prefers-color-scheme", scheme)
		const colors = `import("/web/theme.js").then(theme => ({...theme.colors(), ground: getComputedStyle(document.body).backgroundColor, text: getComputedStyle(document.body).color}))`
		drawn := await(p, "departures have the color of texts in "+scheme, colors, func(drawn map[string]string) bool { return drawn["text"] == drawn["departures"] })
		require.NotEqual(p.t, drawn["ground"], drawn["text"])
		require.NotEqual(p.t, drawn["arrivals"], drawn["departures"])
		for _, name := range []string{"arrivals", "refusals", "gave-up", "line"} {
			require.NotEqual(p.t, drawn["ground"], drawn[name], name)
			if fill, ok := drawn[name+"-fill"]; ok {
				require.NotEqual(p.t, drawn[name], fill, name)
			}
		}
		p.shoot("forced colors " + scheme)
	}
}

// On paper nothing can be pressed, and nothing is cut off.
func testPaper(p *tab) {
	p.t.Helper()
	p.prefers("prefers-color-scheme", "dark")
	p.do(call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: "print"}), chromedp.EmulateViewport(718, 1000))
	p.awaitTrue("it is drawn in the colors of paper", `import("/web/theme.js").then(theme => theme.colors().departures === "rgb(0, 122, 90)")`)
	require.Empty(p.t, eval[[]string](p, `[...document.querySelectorAll("button, input, select")].filter(e => e.checkVisibility() && !e.closest("thead")).map(e => e.outerHTML.slice(0, 100))`))
	require.Empty(p.t, eval[[]string](p, `[...document.querySelectorAll(".card canvas, .card svg, .card p, #tiles li, table")].filter(e => {
		const inner = e.getBoundingClientRect(), outer = (e.closest(".card") ?? document.body).getBoundingClientRect();
		return inner.height > 0 && (inner.bottom > outer.bottom + 1 || inner.right > outer.right + 1);
	}).map(e => e.outerHTML.slice(0, 100))`))
	for _, chart := range []string{"#chart-rate", "#chart-line"} {
		require.Greater(p.t, eval[float64](p, `document.querySelector("`+chart+` canvas").getBoundingClientRect().height`), 80.0, "%s is there", chart)
	}
	p.shoot("print")
}
