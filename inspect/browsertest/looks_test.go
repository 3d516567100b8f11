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

func TestAxeFindsNothing(t *testing.T) {
	t.Parallel()
	s := busy(t)
	for scheme, names := range map[string][]string{"light": {"the line", "a gone bucket"}, "dark": {"a bucket", "a dry run"}} {
		p := newTab(t, s.address(""))
		p.prefers("prefers-color-scheme", scheme)
		for _, name := range names {
			s.look(p, name)
			p.shoot(name + " " + scheme)
			require.Empty(t, p.violations(), "%s, %s", name, scheme)
		}
	}
}

func TestLightAndDarkFollowTheSystem(t *testing.T) {
	t.Parallel()
	s := busy(t)
	p := newTab(t, s.address(""))
	p.prefers("prefers-color-scheme", "dark")
	s.look(p, "the line")
	const brightness = `(c => 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2])(
		[document.body, document.documentElement].map(e => getComputedStyle(e).backgroundColor).find(c => c !== "rgba(0, 0, 0, 0)").match(/[\d.]+/g).map(Number))`
	require.Less(t, eval[float64](p, brightness), 60.0)
	p.prefers("prefers-color-scheme", "light")
	await(p, "it follows at once", brightness, func(b float64) bool { return b > 200 })
}

func TestAPhoneScrollsInOneDirection(t *testing.T) {
	t.Parallel()
	s := busy(t)
	p := newTab(t, s.address(""))
	p.phone()
	for name := range views {
		s.look(p, name)
		p.shoot(name)
		wide := eval[[]string](p, `document.documentElement.scrollWidth <= innerWidth && innerWidth <= 390 ? [] :
			[innerWidth + " px", ...[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > 390).map(e => e.outerHTML.slice(0, 100))]`)
		require.Empty(t, wide, name)
	}
	s.look(p, "a bucket")
	require.Empty(t, p.violations())
}

func TestReducedMotionIsHeeded(t *testing.T) {
	t.Parallel()
	s := busy(t)
	p := newTab(t, s.address(""))
	p.prefers("prefers-reduced-motion", "reduce")
	p.open(s.address(""))
	p.live()
	const moving = `[...document.querySelectorAll("*")].filter(e => {
		const s = getComputedStyle(e);
		const longest = list => Math.max(...list.split(",").map(x => parseFloat(x) * (x.trim().endsWith("ms") ? 1 : 1000)));
		return longest(s.transitionDuration) > 10 || s.animationName !== "none" && longest(s.animationDuration) > 10;
	}).map(e => e.outerHTML.slice(0, 100))`
	require.Empty(t, eval[[]string](p, moving))
	require.Equal(t, "auto", eval[string](p, "getComputedStyle(document.documentElement).scrollBehavior"))
}

// The browser replaces the colors of texts by the reader's own. What the page draws by itself must
// take them as well, and must not become one area of one color.
func TestForcedColorsLeaveTheChartsReadable(t *testing.T) {
	t.Parallel()
	s := busy(t)
	p := newTab(t, s.address(""))
	for _, scheme := range []string{"light", "dark"} {
		p.prefers("forced-colors", "active", "prefers-color-scheme", scheme)
		s.look(p, "the line")
		drawn := eval[map[string]string](p, `import("/web/theme.js").then(theme => ({...theme.colors(), ground: getComputedStyle(document.body).backgroundColor, text: getComputedStyle(document.body).color}))`)
		require.Equal(t, drawn["text"], drawn["departures"], "%s", scheme)
		require.NotEqual(t, drawn["ground"], drawn["text"])
		require.NotEqual(t, drawn["arrivals"], drawn["departures"])
		for _, name := range []string{"arrivals", "refusals", "gave-up", "line"} {
			require.NotEqual(t, drawn["ground"], drawn[name], name)
			if fill, ok := drawn[name+"-fill"]; ok {
				require.NotEqual(t, drawn[name], fill, name)
			}
		}
		p.shoot("forced colors " + scheme)
	}
}

// On paper nothing can be pressed, and nothing is cut off.
func TestThePageIsPrintedWithoutItsControls(t *testing.T) {
	t.Parallel()
	s := busy(t)
	p := newTab(t, s.address(""))
	p.prefers("prefers-color-scheme", "dark")
	s.look(p, "the line")
	p.do(call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: "print"}), chromedp.EmulateViewport(718, 1000))
	p.awaitTrue("it is drawn in the colors of paper", `import("/web/theme.js").then(theme => theme.colors().departures === "rgb(0, 122, 90)")`)
	require.Empty(t, eval[[]string](p, `[...document.querySelectorAll("button, input, select")].filter(e => e.checkVisibility() && !e.closest("thead")).map(e => e.outerHTML.slice(0, 100))`))
	require.Empty(t, eval[[]string](p, `[...document.querySelectorAll(".card canvas, .card svg, .card p, #tiles li, table")].filter(e => {
		const inner = e.getBoundingClientRect(), outer = (e.closest(".card") ?? document.body).getBoundingClientRect();
		return inner.height > 0 && (inner.bottom > outer.bottom + 1 || inner.right > outer.right + 1);
	}).map(e => e.outerHTML.slice(0, 100))`))
	for _, chart := range []string{"#chart-rate", "#chart-line"} {
		require.Greater(t, eval[float64](p, `document.querySelector("`+chart+` canvas").getBoundingClientRect().height`), 80.0, "%s is there", chart)
	}
	p.shoot("print")
}
