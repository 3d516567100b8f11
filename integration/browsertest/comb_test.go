package browsertest_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
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

// tell lets the page hear the events that told returns in place of the real ones, and then what comes of
// later, which may be nil, so that a test chooses the figures whatever the speed of the machine.
func (s *scene) tell(told func() string, later <-chan string) {
	s.answerInstead("/api/v1/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for text := told(); ; {
			fmt.Fprint(w, text)
			_ = http.NewResponseController(w).Flush()
			select {
			case text = <-later:
			case <-r.Context().Done():
				return
			}
		}
	})
}

// event is one of a stream.
func event(name string, data any) string { return "event: " + name + "\ndata: " + js(data) + "\n\n" }

// greeting is the first event of a stream of the shaper upstream, with changes that were made.
func greeting(changes ...any) string {
	return event("hello", map[string]any{
		"at": time.Now(), "title": "", "control": false, "reports": []any{}, "changes": append([]any{}, changes...),
		"sources": []any{map[string]any{"name": "upstream", "kind": "shaper"}}, "selected": map[string]any{"source": "upstream", "key": "", "id": ""},
	})
}

// pointAt is a point of a history in which so many wait, as many arrive in a second, and ten times
// as many in its shortest time.
func pointAt(at time.Time, waiting float64) map[string]any {
	return map[string]any{"at_ms": at.UnixMilli(), "arrivals": waiting, "departures": waiting, "refusals": waiting, "abandoned": waiting,
		"brief":   map[string]any{"over_s": 0.1, "arrivals": 10 * waiting, "departures": waiting, "refusals": waiting, "abandoned": waiting},
		"waiting": waiting, "level": waiting, "in_flight": waiting, "rate": 0.3 * waiting, "depth": 1.02 * waiting, "held": false, "dry_run": false}
}

// historyOf is the second event, with points of the last minute and of the last hour.
func historyOf(points []any, long ...any) string {
	return event("history", map[string]any{"step_s": 0.1, "points": points, "long_step_s": 10, "long": append([]any{}, long...)})
}

// The numbers of an axis have their room: the canvas would cut off their first digits.
func TestTheAxisHasRoomForItsNumbers(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.tell(func() string {
		now := time.Now()
		return greeting() + historyOf([]any{pointAt(now.Add(-time.Second), 44_444), pointAt(now, 44_444)})
	}, nil)
	p := s.openPage(t, linkTo("source", "upstream"))
	const inked = `((c, from, to) => new Uint32Array(c.getContext("2d").getImageData(from, 0, to - from, c.height).data.buffer).some(pixel => pixel !== 0))`
	const chart = `(document.querySelector("#chart-rate canvas"), `
	p.expect("willReadFrequently")
	p.awaitTrue("there are numbers", inked+chart+"4, 50)")
	require.False(t, eval[bool](p, inked+chart+"0, 2)"))
	p.shoot("axis")
}

// Callers that give up have left neither a departure nor a refusal: without figures of their
// own nobody knows why the line got shorter.
func TestCallersThatGiveUpAreSeen(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	u := s.shaper("upstream", "1/h depth 100")
	p := s.openPage(t, linkTo("source", "upstream"))
	const legend = `document.querySelector(".legend [data-series=abandoned] .value").textContent`
	await(p, "nobody gives up", legend, func(value string) bool { return value == "0/s" })
	const most = `Math.max(globalThis.most ?? 0, ` // frames go by; what was shown remains
	eval[chromedp.Void](p, `new MutationObserver(() => { globalThis.most = `+most+figure("abandoned")+`) }).observe(document.querySelector("#tiles"), {subtree: true, childList: true, characterData: true})`)
	u.Allow()
	ctx, giveUp := context.WithCancel(s.ctx)
	for range 40 {
		s.requests.Go(func() { _ = u.Wait(ctx) })
	}
	await(p, "they wait", figure("waiting"), func(n float64) bool { return n == 40 })
	giveUp()
	await(p, "the tile tells that they gave up", "globalThis.most ?? 0", func(n float64) bool { return n > 10 })
	p.described("so does the chart", "#chart-rate", `Given up: up to ([\d.,]+)/s`, func(n []float64) bool { return n[0] > 10 })
	await(p, "the line is empty", figure("waiting"), func(n float64) bool { return n == 0 })
	p.shoot("gave-up")
}

// share lets requests of keys come again and again, so many of each within a second, until the scene
// ends.
func (s *scene) share(u *shaper.Shaper, perSecond map[string]int) {
	for key, n := range perSecond {
		s.every(time.Second/time.Duration(n), func() { s.burst(u.For(key), 1) })
	}
}

// lineUp lets n requests of a key come, until they wait.
func (s *scene) lineUp(u *shaper.Shaper, key string, n int) {
	s.t.Helper()
	before := u.Stats().Waiting
	s.burst(u.For(key), n)
	realtime.Until(s.t, func() bool { return u.Stats().Waiting >= before+n }, "so many wait")
}

const (
	turnRows  = `[...document.querySelectorAll("#turns-table tbody tr")]`
	turnNames = turnRows + `.map(row => row.querySelector(".swatch-of-turn").textContent + " " + row.querySelector(".name").textContent)`
	turnWaits = turnRows + `.map(row => Number(row.querySelector(".waiting").textContent))`
	turnBars  = turnRows + `.map(row => row.querySelector(".bar rect")).map(bar => [parseFloat(bar.getAttribute("width")), bar.getAttribute("fill") ?? "others"])`
)

// teams are a scene of twelve keys that share a rate.
func teams(t *testing.T) (*scene, *shaper.Shaper) {
	s := newScene(t)
	u := s.shaper("upstream", "40/s depth 2000", shaper.WithFairQueue(func(key string) int {
		return map[string]int{"gold": 4, "silver": 2}[key]
	}))
	u.Hold(time.Hour)
	s.lineUp(u, "batch-import", 300)
	for n, key := range []string{"gold", "silver", "search", "mobile", "reports", "billing", "crawler", "partner-a", "partner-b", "partner-c", "staff"} {
		s.lineUp(u, key, 120-10*n)
	}
	return s, u
}

func TestTheLineIsABarForEachKey(t *testing.T) {
	t.Parallel()
	s, u := teams(t)
	p := s.openPage(t, linkTo("source", "upstream"))
	names := await(p, "the keys are there", turnNames, func(names []string) bool { return len(names) == 9 })
	require.Equal(t, []string{"1 batch-import", "2 gold", "3 silver", "4 search", "5 mobile", "6 reports", "7 billing", "8 crawler", " 4 other keys"}, names)
	require.Equal(t, []int{300, 120, 110, 100, 90, 80, 70, 60, 50 + 40 + 30 + 20}, eval[[]int](p, turnWaits))
	bars := eval[[][]any](p, turnBars)
	require.Equal(t, []any{100.0, "url(#turn-1)"}, bars[0])
	require.Equal(t, []any{40.0, "url(#turn-2)"}, bars[1])
	require.Equal(t, "others", bars[8][1])
	require.Equal(t, "4", eval[string](p, turnRows+`[1].querySelector(".weight").textContent`))
	p.click("#turns-more")
	await(p, "all keys are there", turnNames, func(names []string) bool { return len(names) == 12 })
	p.click("#turns-more")
	await(p, "the others are one again", turnNames, func(names []string) bool { return len(names) == 9 })
	u.Hold(0)
	testTheBand(p)
	p.readableByAll("turns")
	p.phone()
	require.Empty(t, eval[[]string](p, `[...document.querySelectorAll("#turns *")].filter(e => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML.slice(0, 100))`))
	require.True(t, eval[bool](p, `(table => table.scrollWidth <= table.clientWidth)(document.querySelector("#turns .scroll"))`), "all columns of the table are seen")
	require.Empty(t, p.violations())
	p.shoot("turns on a phone")
}

// testTheBand looks at the keys of the teams while requests leave.
func testTheBand(p *tab) {
	p.t.Helper()
	const layers = `[...document.querySelectorAll("#turns-band path")].filter(layer => layer.getAttribute("d")).length`
	await(p, "whose requests left is a layer for each key", layers, func(n int) bool { return n == 9 })
	const left = turnRows + `.map(row => parseInt(row.querySelector(".left").textContent))`
	await(p, "gold has more turns than others", left, func(left []int) bool { return left[1] > left[0]+5 && left[1] > left[2]+5 })
	const waiting = turnRows + `.findIndex(row => row.querySelector(".name").textContent === "gold" && Number(row.querySelector(".waiting").textContent) < 60)`
	await(p, "gold keeps its number while its line drains", waiting, func(place int) bool { return place == 1 })
	const keys = `[...document.querySelectorAll("#waiters tbody tr td:nth-child(5)")].map(cell => cell.textContent)`
	await(p, "those in line are told with their keys", keys, func(keys []string) bool { return len(keys) == 6 })
}

// Where keys have buckets of their own, or there are none, nothing is said of turns.
func TestTurnsAreShownWhereThereAreSome(t *testing.T) {
	t.Parallel()
	s, _ := teams(t)
	s.shaper("plain", "1/h depth 3")
	s.group("clients", "1/h depth 3")
	p := s.openPage(t, linkTo("source", "upstream"))
	p.awaitTrue("there are turns", `document.querySelector("#turns").checkVisibility()`)
	for _, other := range []string{"plain", "clients"} {
		p.open(s.address(linkTo("source", other)))
		p.live()
		p.awaitTrue("its story is told", `document.querySelector("#story").textContent`)
		await(p, "a second passes", `document.querySelector("#waits .words").textContent`, func(words string) bool { return words != "" })
		require.False(t, eval[bool](p, `document.querySelector("#turns").checkVisibility()`))
	}
}

// A bucket with several levels shows each of them beside its limits.
func TestEachLevelIsShown(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	u := s.shaper("upstream", "1/h burst 9", shaper.WithMeters(shaper.Meter{Name: "<b>input", Rate: 1.0 / 3600, Burst: 4000}, shaper.Meter{Name: "output", Rate: rate.Inf}))
	_, err := u.ReserveEach(t.Context(), 1, 3000, 7)
	require.NoError(t, err)
	p := s.openPage(t, linkTo("source", "upstream"))
	levels := await(p, "the levels are there", `[...document.querySelectorAll("#meters li")].map(item => item.innerText)`, func(levels []string) bool { return len(levels) == 2 })
	require.Equal(t, "<b>input: 1/h, burst 4,000; its level is 3,000, 75 % of the burst.", levels[0])
	require.Equal(t, "output: lets all pass.", levels[1])
	p.harmless()
	require.Empty(t, p.violations())
}

// While others take their turns, a long line drains at the share of its key alone.
func TestTheLastOfALongLineWaitsForTheTurnsOfOthers(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	u := s.shaper("upstream", "1/min depth 600", shaper.WithFairQueue(func(key string) int { return map[string]int{"gold": 3}[key] }))
	require.True(t, u.For("gold").Allow())
	s.lineUp(u, "long", 30)
	s.lineUp(u, "gold", 3)
	p := s.openPage(t, linkTo("source", "upstream"))
	await(p, "the last of the long line", text("#story"), func(story string) bool {
		found := regexp.MustCompile(`the last of long leaves in about (\d+) h`).FindStringSubmatch(story)
		return found != nil && found[1] == "2"
	})
}

func TestHostileKeysAreTextAmongTheTurns(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	u := s.shaper("upstream", "1/h depth 600", shaper.WithFairQueue(nil))
	require.NoError(t, u.Wait(context.Background()))
	for n, key := range hostile {
		s.lineUp(u, key, n+1)
	}
	for n := range 100 {
		s.lineUp(u, fmt.Sprint("made up ", n), 1)
	}
	p := s.openPage(t, linkTo("source", "upstream"))
	await(p, "the keys are there", turnNames, func(names []string) bool { return len(names) == 9 })
	p.click("#turns-more")
	names := await(p, "more keys are there", turnNames, func(names []string) bool { return len(names) == 25 })
	require.Regexp(t, `^ \d+ other keys$`, names[24])
	for k := range names {
		names[k] = strings.TrimLeft(names[k], "12345678 ")
		require.LessOrEqual(t, len(names[k]), 260)
	}
	require.Subset(t, names, []string{"(empty key)", `\u{202e}right to left\u{2066}`, `nul\u{0}byte`, `not\xff\xfetext`, "`;window.owned = 8//\\"})
	p.harmless()
}

// gateway is a scene of ten teams that share the quota of a provider.
func gateway(t *testing.T) *scene {
	s := newScene(t)
	u := made.Shaper(t, "20/s burst 30 depth 500", shaper.WithFairQueue(func(key string) int { return map[string]int{"gold": 4}[key] }))
	s.inspector.Add("openai", inspect.OfQuota(u, func(int) inspect.Quota {
		return inspect.Quota{
			Provider: "openai",
			Parts:    []inspect.QuotaPart{{Name: "requests", Used: 212, Limit: 500, Level: 0.1}, {Name: "tokens", Used: 83_700, Limit: 90_000, Level: 0.82, Reserved: 0.28}},
			Level:    0.41, Reserved: 0.14, Capacity: 0.5,
			Teams: []inspect.QuotaTeam{
				{Team: "gold", Weight: 4, Waiting: 21, MinuteRequests: 60, HourRequests: 3300, MinuteTokens: 33_480, HourTokens: 1_900_000, LongestWait: 2300 * time.Millisecond},
				{Team: "batch", Weight: 1, Waiting: 180, MinuteRequests: 20, HourRequests: 1100, MinuteTokens: 8370, HourTokens: 480_000, LongestWait: 97 * time.Second, Refused: 12},
				{Team: "search", Weight: 1, Waiting: 4, MinuteRequests: 19, HourRequests: 700, MinuteTokens: 8100, HourTokens: 300_000, LongestWait: 1200 * time.Millisecond},
				{Team: "<b>hostile\u202e</b>", Weight: 1, MinuteTokens: 500, HourTokens: 900},
			},
			Others:      inspect.QuotaTeam{Waiting: 3, MinuteTokens: 33_250, HourTokens: 800_000, HourRequests: 900, LongestWait: 900 * time.Millisecond},
			LongestWait: 97 * time.Second, Refused: 12, Forfeited: 41_000,
			Hint:     "31 % of the tokens that calls had reserved in excess came back too late for others: a larger burst keeps them",
			Replicas: "This replica has the line.",
		}
	}))
	u.Hold(time.Hour)
	for key, n := range map[string]int{"gold": 21, "batch": 180, "search": 4} {
		s.lineUp(u, key, n)
	}
	u.Hold(0)
	s.share(u, map[string]int{"gold": 9, "batch": 4, "search": 3})
	return s
}

func TestAQuotaIsShownWithItsTeams(t *testing.T) {
	t.Parallel()
	s := gateway(t)
	p := s.openPage(t, "")
	teams := await(p, "the teams are there", `[...document.querySelectorAll("#quota-teams tbody .name")].map(name => name.textContent)`,
		func(teams []string) bool { return len(teams) == 5 })
	require.Equal(t, []string{"gold", "batch", "search", `<b>hostile\u{202e}</b>`, "all others"}, teams)
	require.Equal(t, "This replica has the line. The scarcest is tokens: the last minute took 93 % of what a minute may.", eval[string](p, text("#quota-words")))
	require.Contains(t, eval[string](p, text("#quota-parts")), "212 of 500")
	require.Contains(t, eval[string](p, text("#quota-parts .scarcest")), "83,700 of 90,000")
	require.Contains(t, eval[string](p, text("#quota-parts .scarcest")), "82 % of what may leave at once is taken, 28 % by calls")
	require.Equal(t, []float64{54, 28}, eval[[]float64](p, `[...document.querySelectorAll("#quota-parts .scarcest .level rect")].map(r => parseFloat(r.getAttribute("width")))`),
		"what is reserved is hatched")
	require.Contains(t, eval[string](p, text("#quota-figures")), "0, as it should be")
	require.Contains(t, eval[string](p, text("#quota-hint")), "larger burst")
	const same = `(name => [...document.querySelectorAll("#quota-teams tbody tr, #turns-table tbody tr")].filter(row => row.querySelector(".name").textContent === name).map(row => row.querySelector(".swatch-of-turn").textContent))("batch")`
	await(p, "a team has one number in both tables", same, func(numbers []string) bool {
		return len(numbers) == 2 && numbers[0] == numbers[1] && numbers[0] != ""
	})
	story := p.shows("its costs are not taken for requests", "#story", "within the quota")
	require.NotContains(t, story, "one every")
	require.NotContains(t, eval[string](p, text("#tiles")), "drain rate")
	require.Equal(t, "Calls come as they like, and leave as the quota allows.", eval[string](p, text("#pace")))
	p.shows("the level is the highest, as a share", `[data-tile="level"]`, "of the tokens that may leave at once")
	p.awaitTrue("neither costs nor limits are told in units", `[...document.querySelectorAll("#turns-table .cost, #limits-text")].every(e => !e.checkVisibility())`)
	p.shows("an even comb is not looked for", "#spacing", "Not counted: a call leaves when all limits")
	p.awaitTrue("no drain rate is beside requests", `!document.querySelector('.legend [data-series="rate"]').checkVisibility()`)
	p.harmless()
	p.readableByAll("quota")
	p.phone()
	require.Empty(t, eval[[]string](p, `[...document.querySelectorAll("#quota, #quota *")].filter(e => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML.slice(0, 100))`))
	require.Empty(t, p.violations())
	p.shoot("quota on a phone")
}
