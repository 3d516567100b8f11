package browsertest_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
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

// overlaps is an expression for the texts, drawings, marks and fields that lie over each other, for texts that
// leave the card or tile they are in, and for what is wider than the window. Of a text the box is where
// its letters are, as far as the boxes around it do not cut it off.
const overlaps = `(() => {
	const name = e => e.tagName.toLowerCase() + (e.id ? "#" + e.id : "") + (e.classList.length ? "." + [...e.classList].join(".") : "") + " " + JSON.stringify(e.textContent.trim().slice(0, 40));
	const both = (a, b) => ({ left: Math.max(a.left, b.left), right: Math.min(a.right, b.right), top: Math.max(a.top, b.top), bottom: Math.min(a.bottom, b.bottom) });
	const rooms = new Map([[document.body, { left: -Infinity, right: Infinity, top: -Infinity, bottom: Infinity }]]);
	const roomOf = e => { // where what is in an element can be seen
		if (!rooms.has(e)) {
			const around = roomOf(e.parentElement);
			rooms.set(e, e instanceof SVGElement || getComputedStyle(e).overflowX === "visible" ? around : both(around, e.getBoundingClientRect()));
		}
		return rooms.get(e);
	};
	const parts = [], found = [];
	for (const e of document.querySelectorAll("body *:not(svg *), svg text")) {
		if (!e.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
		const whole = e.getBoundingClientRect();
		if (whole.right < 0) continue; // the link that is shown when the keyboard comes to it
		if (whole.right > innerWidth + 0.5 && !e.closest(".scroll *, svg *")) found.push(name(e) + " ends at " + whole.right);
		const boxes = [];
		if (e.matches("svg, canvas, input, #status i, .mark, .swatch")) boxes.push(whole);
		if (e.matches(".lines > span")) boxes.push({ left: whole.left, right: whole.left + 1, top: whole.top, bottom: whole.bottom });
		for (const node of e.childNodes) {
			if (node.nodeType !== Node.TEXT_NODE || !node.data.trim()) continue;
			const range = document.createRange();
			range.selectNodeContents(node);
			boxes.push(...range.getClientRects());
		}
		const around = e.closest(".card, #tiles > li, header, .report");
		if (around && !e.closest(".scroll *, #changes ol *, svg *") && getComputedStyle(e).textOverflow !== "ellipsis") {
			const outer = around.getBoundingClientRect();
			if (boxes.some(b => b.left < outer.left || b.right > outer.right + 0.5 || b.top < outer.top - 0.5 || b.bottom > outer.bottom + 0.5)) found.push(name(e) + " leaves " + name(around));
		}
		for (const box of boxes.map(box => both(box, roomOf(e)))) if (box.right - box.left > 0.5 && box.bottom - box.top > 0.5) parts.push({ e, box });
	}
	parts.sort((a, b) => a.box.top - b.box.top);
	parts.forEach(({ e, box }, i) => {
		for (const { e: other, box: below } of parts.slice(i + 1)) {
			if (below.top > box.bottom) break;
			const wide = Math.min(box.right, below.right) - Math.max(box.left, below.left), high = Math.min(box.bottom, below.bottom) - below.top;
			if (wide > 0.5 && high > 1 && !e.contains(other) && !other.contains(e)) found.push(name(e) + " and " + name(other) + " overlap by " + wide.toFixed(1) + " × " + high.toFixed(1));
		}
	});
	if (document.documentElement.scrollWidth > innerWidth) found.push("the page scrolls sideways");
	return [...new Set(found)].slice(0, 20).map(what => "at " + innerWidth + " px " + what);
})()`

var (
	smallFigure = regexp.MustCompile(`"(waiting|cost|departed|departed_sum|refused|queue_full|too_late|abandoned|level)":[\d.]+`)
	shortTime   = regexp.MustCompile(`"(oldest_wait_s|waited_s|idle_s|leaves_in_s)":[\d.e-]+`)
)

// seatsOfMany is the JSON of a shared bucket with the greatest cap of all processes.
const seatsOfMany = `"shared":{"state":"shared","error":null,"rtt_s":0.001,"share":0.25,"lateness_s":0.02,"held":123456,"ahead":123456,` +
	`"in_flight_max":2147483647,"seats":1234567890,"round_trips":1,"failures":0,"leased":1,"dropped":0,"given_back":0}`

// enlarged is JSON of the Inspector's with the figures that a source of 100,000/s has after some hours.
func enlarged(text string) string {
	text = strings.ReplaceAll(text, `"shared":null`, seatsOfMany)
	return shortTime.ReplaceAllString(smallFigure.ReplaceAllString(text, `"$1":1234567`), `"$1":12345.6`)
}

// crowded is a scene with as much to show as a page can hold: a quota with fair turns, and a group with many
// keys, all with long names. It tells the figures of a source of 100,000/s, and then frames.
func crowded(t *testing.T, frames <-chan string) *scene {
	s := newScene(t, inspect.WithControl(token))
	const limits = "100000/s burst 1000000 depth 1000000"
	u := made.Shaper(t, limits, shaper.WithFairQueue(nil))
	team := func(n int) string { return fmt.Sprintf("a-team-with-a-long-name-%02d", n) }
	s.inspector.Add("the-quota-of-a-provider", inspect.OfQuota(u, func(int) inspect.Quota {
		q := inspect.Quota{
			Provider: "a provider with a long name", Level: 123_456_789, Reserved: 23_456_789, Capacity: 150_000_000,
			Parts:       []inspect.QuotaPart{{Name: "requests", Used: 5_123_456, Limit: 6_000_000}, {Name: "tokens", Used: 599_123_456, Limit: 600_000_000}},
			LongestWait: 97 * time.Second, Refused: 1_234_567, Refusals: 12_345, Forfeited: 123_456_789,
			Hint: "31 % of the tokens that calls had reserved in excess came back too late for others: a larger burst keeps them",
		}
		for n := range 8 {
			q.Teams = append(q.Teams, inspect.QuotaTeam{Team: team(n), Weight: 1000, Waiting: 123_456, MinuteRequests: 600_000, HourRequests: 36_000_000,
				MinuteTokens: 59_123_456, HourTokens: 3_599_123_456, LongestWait: 97 * time.Second, Refused: 123_456})
		}
		return q
	}))
	u.Hold(time.Hour)
	for n := range 12 {
		s.lineUp(u, team(n), 13-n)
	}
	g := s.group("clients-of-the-gateway", "1/s burst 1000000 depth 1000000") // or its buckets would be empty at once, and forgotten
	for n := range 60 {
		require.NoError(t, g.WaitN(s.ctx, fmt.Sprintf("message_send:a-client-with-a-long-name-%02d", n), 1000))
	}
	s.shaper("another-upstream", limits, shaper.WithDryRun())

	beginning := s.beginning("the-quota-of-a-provider")
	hello, detail := beginning["hello"], beginning["detail"]
	hello["reports"] = []any{map[string]any{"at": time.Now(), "message": "limits.yaml:12:3: rate " + strings.Repeat("fast", 60) + " is not a rate"}}
	hello["changes"] = []any{map[string]any{"at": time.Now(), "who": strings.Repeat("somebody", 9), "what": "limits set to " + limits,
		"source": "clients-of-the-gateway", "key": strings.Repeat("k", 200), "id": strings.Repeat("k", 200), "until": time.Now()}}
	detail["histograms"] = map[string]any{"of": "bucket", "spacing": []any{[]any{1.04, 1_234_567}, []any{3.9, 12_345}},
		"wait": []any{[]any{0.01, 1_234_567}, []any{12.3, 12_345}}, "wait_p50_s": 0.0101, "wait_p95_s": 0.0202, "wait_p99_s": 12.3}
	point := pointAt(time.Now(), 100_000)
	s.tell(func() string {
		return event("hello", hello) + historyOf([]any{point, point}, pointAt(time.Now().Add(-30*time.Minute), 100_000)) + enlarged(event("detail", detail))
	}, frames)
	for _, path := range []string{"/api/v1/buckets", "/api/v1/buckets/the-quota-of-a-provider/"} {
		s.answerInstead(path, func(w http.ResponseWriter, r *http.Request) {
			answer := s.asked(r)
			send(w, answer, enlarged(answer.Body.String()))
		})
	}
	return s
}

// beginning returns the data of the first events of the stream of a source, up to its detail, by their names.
func (s *scene) beginning(source string) map[string]map[string]any {
	s.t.Helper()
	r, err := http.Get(s.address("api/v1/events" + linkTo("source", source)))
	require.NoError(s.t, err)
	defer r.Body.Close()
	events, name := map[string]map[string]any{}, ""
	for stream := bufio.NewReader(r.Body); events["detail"] == nil; {
		line, err := stream.ReadString('\n')
		require.NoError(s.t, err)
		if of, ok := strings.CutPrefix(line, "event: "); ok {
			name = strings.TrimSpace(of)
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			of := map[string]any{}
			require.NoError(s.t, json.Unmarshal([]byte(data), &of))
			events[name] = of
		}
	}
	return events
}

// Texts over each other can't be read: at no width, whatever the figures are.
func TestNothingOverlapsWhateverTheFigures(t *testing.T) {
	t.Parallel()
	frames := make(chan string)
	p := crowded(t, frames).openPage(t, "")
	await(p, "the turns are there", turnNames, func(names []string) bool { return len(names) == 9 })
	await(p, "the quota is there", text("#quota-hint"), func(hint string) bool { return hint != "" })
	await(p, "the table is there", rows, func(ids []string) bool { return len(ids) == 50 })
	await(p, "the detail is there", text("#limits-text"), func(limits string) bool { return limits != "" })
	p.shows("the cap of all is there", "#tiles [data-tile=in_flight]", "of at most 2.15 G, of all")
	at := time.Now()
	for _, width := range []int64{320, 390, 719, 721, 768, 1024, 1198, 1200, 1280, 1920} {
		p.do(chromedp.EmulateViewport(width, 900))
		p.awaitTrue("the charts have the new width", `[...document.querySelectorAll("canvas")].every(c => c.getBoundingClientRect().right <= c.closest(".card").getBoundingClientRect().right)`)
		for _, f := range []struct {
			figure float64
			dry    bool
			number string
		}{{0.3, false, "0.3"}, {2000, false, "2,000"}, {23_456, true, "23,500"}, {100_000, false, "100,000"}} {
			for range 10 { // The page shows each second frame, and its slow parts with each tenth
				at = at.Add(100 * time.Millisecond)
				point := pointAt(at, f.figure)
				point["dry_run"] = f.dry
				frames <- event("frame", point)
			}
			await(p, "the figures are there", `document.querySelector("[data-tile=arrivals] .number").textContent`, func(number string) bool { return number == f.number })
			for _, what := range eval[[]string](p, overlaps) {
				t.Errorf("%v/s, dry run %v: %s", f.figure, f.dry, what)
			}
		}
	}
}

// maxPicture bounds a picture of the documents, which everybody downloads with the tree.
const maxPicture = 200_000

// TestPicturesOfThePage makes the pictures of the documents by playing their scenes: bursts at a shaper for a
// minute, and a group with many keys. It takes that minute, so it is only made on demand:
//
//	GOWORK=$PWD/all.work SHAPER_SCREENSHOTS=../../docs go test -run=TestPicturesOfThePage ./integration/browsertest
func TestPicturesOfThePage(t *testing.T) {
	dir := os.Getenv("SHAPER_SCREENSHOTS")
	if dir == "" {
		t.Skip("SHAPER_SCREENSHOTS names no folder")
	}
	s := newScene(t)
	u := s.shaper("upstream", "50/s depth 100")
	g := s.group("clients", "1 per 5s burst 4 depth 10")
	s.every(50*time.Millisecond, func() { s.burst(u, 1) })
	s.every(9*time.Second, func() { // 150 within 600 ms: a third is refused
		for range 30 {
			s.burst(u, 6)
			time.Sleep(20 * time.Millisecond)
		}
	})
	kinds := []string{"message_send", "login", "search", "upload"}
	s.every(10*time.Millisecond, func() { // few keys get most
		user := int(rand.ExpFloat64() * 300)
		s.burst(g.Limiter(fmt.Sprintf("%s:user-%04d", kinds[user%len(kinds)], 1000+user*7)), 1)
	})

	tabs := map[string]*tab{}
	for _, scheme := range []string{"light", "dark"} {
		p := newTab(t, s.address(""))
		p.prefers("prefers-color-scheme", scheme)
		p.do(chromedp.EmulateViewport(1200, 1280))
		p.open(s.address(linkTo("source", "upstream")))
		p.live()
		tabs[scheme] = p
	}
	time.Sleep(time.Minute)
	for scheme, p := range tabs {
		// It is also the first row of the table, which says the same as the tile.
		const first = `document.querySelector("#buckets tbody tr:has([aria-current]):first-child .waiting")?.textContent`
		const calm = `document.querySelector("#reports").childElementCount === 0` // A busy machine may keep the list.
		await(p, "a line that drains", `(tile => `+calm+` && `+first+` === String(tile) ? tile : -1)(`+figure("waiting")+`)`, func(n float64) bool { return n > 40 && n < 90 })
		picture := p.picture()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "inspect-"+scheme+".png"), picture, 0o644))
		require.Less(t, len(picture), maxPicture)
	}
}

// picture returns the top of the page and the beginning of its table. What stands between is hidden.
func (p *tab) picture() []byte {
	height := eval[int64](p, `(list => {
		for (let e = document.querySelector("#now").nextElementSibling; e !== list; e = e.nextElementSibling) e.style.display = "none";
		return Math.floor(list.getBoundingClientRect().top + scrollY) + 460;
	})(document.querySelector("#list"))`)
	p.do(chromedp.EmulateViewport(1200, height))
	shot, err := run(p, chromedp.CaptureScreenshot())
	require.NoError(p.t, err)
	page, err := png.Decode(bytes.NewReader(shot))
	require.NoError(p.t, err)
	whole := image.NewRGBA(page.Bounds())
	draw.Draw(whole, whole.Rect, page, image.Point{}, draw.Src)
	var encoded bytes.Buffer
	require.NoError(p.t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&encoded, inFewColors(whole)))
	return encoded.Bytes()
}

// inFewColors returns the picture in the 256 colors that are most frequent in it, which
// takes a third of the bytes: the others are shades at the edges of letters and lines.
func inFewColors(whole *image.RGBA) *image.Paletted {
	frequency := map[color.RGBA]int{}
	for i := 0; i < len(whole.Pix); i += 4 {
		frequency[color.RGBA{whole.Pix[i], whole.Pix[i+1], whole.Pix[i+2], whole.Pix[i+3]}]++
	}
	colors := slices.SortedFunc(maps.Keys(frequency), func(a, b color.RGBA) int { return frequency[b] - frequency[a] })
	palette := color.Palette{}
	for _, c := range colors[:min(256, len(colors))] {
		palette = append(palette, c)
	}
	few, nearest := image.NewPaletted(whole.Rect, palette), map[color.RGBA]uint8{}
	for i := range few.Pix {
		c := color.RGBA{whole.Pix[4*i], whole.Pix[4*i+1], whole.Pix[4*i+2], whole.Pix[4*i+3]}
		index, known := nearest[c]
		if !known {
			index = uint8(palette.Index(c))
			nearest[c] = index
		}
		few.Pix[i] = index
	}
	return few
}
