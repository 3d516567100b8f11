package browsertest_test

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// figure is an expression for the number of a tile; -1 while it has none.
func figure(tile string) string {
	return `Number(document.querySelector("#tiles [data-tile=` + tile + `] .number").textContent.replaceAll(",", "") || -1)`
}

// A frame has the figures in the tiles at an instant.
type frame struct{ Waiting, Departures float64 }

// described waits until the description of a chart is as wanted. It is for readers who do not see
// the chart, so it tells the same as the chart.
func (p *tab) described(what, chart, pattern string, wanted func(numbers []float64) bool) {
	p.t.Helper()
	expression := regexp.MustCompile(pattern)
	await(p, what, `document.querySelector(`+js(chart)+`).ariaLabel ?? ""`, func(label string) bool {
		found := expression.FindStringSubmatch(label)
		if found == nil {
			return false
		}
		var numbers []float64
		for _, number := range found[1:] {
			n, err := strconv.ParseFloat(strings.ReplaceAll(number, ",", ""), 64)
			require.NoError(p.t, err, label)
			numbers = append(numbers, n)
		}
		return wanted(numbers)
	})
}

// What the page is there for: a burst comes in as a peak and goes out as a comb.
func TestABurstLeavesAsAComb(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	u := s.shaper("upstream", "10/s depth 40") // It drains for so long that hardly a stall hides it.
	p := s.openPage(t, linkTo("source", "upstream"))
	await(p, "nothing yet", figure("waiting"), func(n float64) bool { return n == 0 })
	eval[chromedp.Void](p, `new MutationObserver(() => (globalThis.seen ??= []).push({waiting: `+figure("waiting")+`, departures: `+figure("departures")+`}))
		.observe(document.querySelector("#tiles"), {subtree: true, childList: true, characterData: true})`)
	const sent = 100
	for attempt := uint64(1); ; attempt++ {
		s.burst(u, sent) // one leaves at once, 40 wait, 59 are refused; fewer if the burst takes its time
		shown := await(p, "the line fills, and drains at the drain rate", "globalThis.seen ?? []", func(shown []frame) bool {
			full := slices.IndexFunc(shown, func(f frame) bool { return f.Waiting > 20 })
			return full >= 0 && slices.ContainsFunc(shown[full:], func(f frame) bool { return f.Waiting == 0 })
		})
		require.False(t, slices.ContainsFunc(shown, func(f frame) bool { return f.Departures > 14 }), shown)
		st := u.Stats()
		require.EqualValues(t, attempt*sent, st.Departed+st.Refused)
		require.GreaterOrEqual(t, st.Departed, attempt*40)
		// The page can only show a rate that the line has had for a second. Missed is the number of
		// departures that the line has lost while the machine stood still.
		if slices.ContainsFunc(shown, func(f frame) bool { return f.Departures >= 8 && f.Departures <= 12 }) {
			break
		}
		require.True(t, st.Missed > 5 && attempt < 5, "%v missed, %v", st.Missed, shown)
		eval[chromedp.Void](p, "globalThis.seen = []")
	}

	p.described("arrivals were a peak", "#chart-rate", `Arrivals: up to ([\d.,]+)/s`, func(n []float64) bool { return n[0] >= 20 })
	p.described("departures a band", "#chart-rate", `Departures: up to ([\d.,]+)/s`, func(n []float64) bool { return n[0] >= 8 && n[0] <= 14 })
	p.described("some were refused", "#chart-rate", `refused: up to ([\d.,]+)/s`, func(n []float64) bool { return n[0] >= 5 })
	p.described("the line was full", "#chart-line", `up to ([\d.,]+), now ([\d.,]+)\. .* full at ([\d.,]+)`, func(n []float64) bool {
		return n[0] > 20 && n[0] <= 40 && n[1] == 0 && n[2] == 40
	})
	// The longest bar is above the mark 1×, give or take one bar.
	const off = `((bars, marks) => {
		const heights = bars.map(bar => bar.height), top = bars[heights.indexOf(Math.max(...heights))];
		const mark = marks.find(mark => mark.textContent === "1×").getBoundingClientRect();
		return Math.abs((top.left + top.right) / 2 - (mark.left + mark.right) / 2) / top.width;
	})([...document.querySelectorAll("#spacing .bars i")].map(bar => bar.getBoundingClientRect()), [...document.querySelectorAll("#spacing .axis span")])`
	await(p, "the spacing is counted", text("#spacing .words"), func(words string) bool {
		return strings.Contains(words, "departures") && !strings.HasPrefix(words, "No ")
	})
	await(p, "its spike is at 1×", off, func(bars float64) bool { return bars < 1.5 })
	for _, chart := range []string{"#chart-rate", "#chart-line"} {
		require.Greater(t, eval[int](p, `(c => new Set(new Uint32Array(c.getContext("2d").getImageData(0, 0, c.width, c.height).data.buffer)).size)(document.querySelector("`+chart+` canvas"))`),
			5, "%s has many colors", chart)
	}
	p.shoot("comb")
}
