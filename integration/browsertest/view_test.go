package browsertest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

func TestALinkRestoresTheView(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.shaper("upstream", "50/s depth 100")
	crowd(s, 20)
	p := s.openPage(t, linkTo("source", "clients", "key", "message_send:07", "contains", "message_send", "filter", "waiting", "sort", "-key"))
	require.NotEmpty(t, s.awaitRows(p, "sort=-key&contains=message_send&waiting_gt=0"))
	require.Contains(t, eval[string](p, text("#selected")), "message_send:07")
	require.Equal(t, "message_send", eval[string](p, `document.querySelector("#contains").value`))
	require.Equal(t, []string{"waiting"}, eval[[]string](p, `[...document.querySelectorAll("#filters [data-filter][aria-pressed=true]")].map(b => b.dataset.filter)`))
	require.Equal(t, "descending", eval[string](p, `document.querySelector("#buckets [data-sort=key]").closest("th").ariaSort`))
}

func TestBackAndForwardGoThroughWhatWasLookedAt(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	crowd(s, 20)
	const all, filtered = "sort=key", "sort=key&waiting_gt=0"
	p := s.openPage(t, linkTo("sort", "key"))
	s.awaitRows(p, all)
	p.click("#filters button[data-filter=waiting]")
	waiting := s.awaitRows(p, filtered)
	p.click(linkOf(waiting[0]))
	selected := func(what, key string) {
		p.shows(what, "#selected", key)
	}
	selected("a bucket is opened", waiting[0])
	eval[any](p, "history.back()")
	await(p, "back leaves the bucket", text("#selected"), func(name string) bool { return !strings.Contains(name, waiting[0]) })
	s.awaitRows(p, filtered)
	eval[any](p, "history.back()")
	s.awaitRows(p, all)
	eval[any](p, "history.go(2)")
	selected("forward opens the bucket again", waiting[0])
	s.awaitRows(p, filtered)
}

// A link to a moment shows the charts as they were then, to whoever opens it within the hour.
func TestALinkToAMomentShowsIt(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.shaper("upstream", "1/h depth 1000")
	now := time.Now().Truncate(time.Second)
	point := func(before time.Duration, waiting float64) any { return pointAt(now.Add(-before), waiting) }
	s.tell(func() string {
		return greeting() + historyOf([]any{point(time.Second, 11), point(0, 22)}, point(50*time.Minute, 33), point(20*time.Minute, 44), point(10*time.Minute, 55)) +
			event("detail", map[string]any{"bucket": nil, "histograms": map[string]any{}})
	}, nil)
	p := s.openPage(t, "")
	await(p, "now", figure("waiting"), func(n float64) bool { return n == 22 })
	await(p, "the tile tells the bursts that the mean of a second hides", text("#tiles [data-tile=arrivals] .note"), func(note string) bool {
		return strings.HasPrefix(note, "bursts of 220/s")
	})
	p.described("of the last minute", "#chart-rate", `last 60 seconds. Arrivals: up to ([\d.,]+)/s`, func(n []float64) bool { return n[0] == 220 })
	p.click("[data-span=hour]")
	p.described("of the last hour", "#chart-rate", `last hour. Arrivals: up to ([\d.,]+)/s`, func(n []float64) bool { return n[0] == 550 })
	p.click("#pause")
	p.awaitTrue("the address has the instant", `new URLSearchParams(location.search).get("at") === `+js(now.UTC().Format("2006-01-02T15:04:05.000Z")))

	p.open(s.address(linkTo("span", "hour", "paused", "1", "at", now.Add(-15*time.Minute).UTC().Format(time.RFC3339))))
	await(p, "a quarter of an hour ago", figure("waiting"), func(n float64) bool { return n == 44 })
	p.described("the hour before", "#chart-line", `last hour: up to ([\d.,]+), now ([\d.,]+)`, func(n []float64) bool { return n[0] == 44 && n[1] == 44 })
	p.click("#pause")
	await(p, "now again", figure("waiting"), func(n float64) bool { return n == 22 })

	p.open(s.address(linkTo("at", now.Add(-2*time.Hour).UTC().Format(time.RFC3339))))
	p.shows("too long ago", "#story", "is not known here")
}

// Whoever is on call sees which source needs a look, also without seeing colors.
func TestEachSourceHasAMark(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.shaper("resting", "1/h depth 9")
	s.burst(s.shaper("busy", "1/h depth 9"), 5)
	full := s.shaper("full", "1/h depth 3")
	server := buckettest.NewMemory()
	server.Fail(func(int, string) buckettest.Fault { return buckettest.FailBefore })
	alone := s.shaper("alone", "1/s depth 3", shaper.WithBucket(server, "k", shared.Options{}))
	s.every(time.Second, func() {
		s.burst(full, 5)
		s.burst(alone, 1)
	})
	p := s.openPage(t, "")
	await(p, "the marks", text("#sources"), func(shown string) bool {
		return strings.Join(strings.Fields(shown), " ") == "resting at rest busy in line full refusing alone unavailable"
	})
	shapes := eval[[]string](p, `[...document.querySelectorAll("#sources .mark")].map(mark => (s => s.clipPath + s.borderRadius + (s.backgroundColor === "rgba(0, 0, 0, 0)"))(getComputedStyle(mark)))`)
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(shapes))), 4, "they differ by more than their color")
	require.Empty(t, p.violations())
	p.shoot("marks")
}

func TestAPausedPageAsksForNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	u := s.shaper("upstream", "20/s depth 100")
	p := s.openPage(t, "")
	lists := func() int { return p.sent("/api/v1/buckets\\?") }
	realtime.Until(t, func() bool { return lists() > 0 }, "the page asks for a list")
	// The first interval is looked at from its middle, so the next one counts too: with too
	// short a pace a page that is not paused would not ask below, either.
	var pace time.Duration
	before := 0
	for range 2 {
		start := time.Now()
		before = lists()
		realtime.Until(t, func() bool { return lists() > before }, "the page asks for another list")
		pace = max(pace, time.Since(start))
	}

	p.click("#pause")
	p.awaitTrue("it says that it is paused", `document.querySelector("#pause").ariaPressed === "true"`)
	require.Equal(t, "1", eval[string](p, `new URLSearchParams(location.search).get("paused")`))
	realtime.Until(t, func() bool { return s.openStreams() == 0 }, "a paused page needs no events")
	s.burst(u, 50)
	for last := false; ; last = true { // A request of before may be noted late.
		before = p.sent("")
		time.Sleep(2 * pace)
		if p.sent("") == before {
			break
		}
		require.False(t, last, "two lists would have been asked for")
	}

	p.click("#pause")
	p.live()
	realtime.Until(t, func() bool { return p.sent("") > before }, "the page asks again")
}

func TestTheKeyboardReachesABucket(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	crowd(s, 20)
	p := s.openPage(t, linkTo("sort", "key"))
	first := s.awaitRows(p, "sort=key")[0]
	var reached []string
	for range 60 {
		p.do(chromedp.KeyEvent(kb.Tab))
		now := eval[string](p, `(e => e.matches("#buckets td a, #buckets th a") ? "row" : e.id || e.dataset.sort || e.dataset.filter || e.tagName)(document.activeElement)`)
		require.NotEqual(t, "0px", eval[string](p, `(s => s.outlineStyle === "none" && s.boxShadow === "none" ? "0px" : "shown")(getComputedStyle(document.activeElement))`), "the focus on %s is seen", now)
		reached = append(reached, now)
		if now == "row" {
			break
		}
	}
	for _, want := range []string{"contains", "waiting", "half", "refusing", "dry_run", "pause", "key", "row"} {
		require.True(t, slices.Contains(reached, want), "%s is not among %q", want, reached)
	}
	p.do(chromedp.KeyEvent(kb.Enter))
	p.shows("Enter opens it", "#selected", first)
}

// A bucket that is not there has no line of a group.
func TestAMissingBucketIsToldOnceAndAsOneBucket(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.group("clients", "1/h depth 5").Allow("somebody")
	p := s.openPage(t, linkTo("source", "clients", "key", "nobody"))
	const times = `document.body.innerText.split("does not exist").length - 1`
	await(p, "it is told", times, func(n int) bool { return n > 0 })
	await(p, "the detail is told, too", text("#gone"), func(shown string) bool { return shown != "" })
	require.Equal(t, 1, eval[int](p, times))
	require.NotRegexp(t, "in all lines|each has its own|where there is a cap", eval[string](p, text("#tiles")))
	require.NotContains(t, eval[string](p, text("#pace")), "no drain rate", "there is one as soon as the bucket is there")
	p.shoot("missing")
}

// The drain rate is one of costs. Where requests cost more than 1, it says neither how many may leave nor when.
func TestTheRateIsNotTakenForOneOfRequests(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	u := s.shaper("upstream", "10/min depth 50")
	u.Allow()
	for range 4 {
		s.requests.Go(func() { _ = u.WaitN(s.ctx, 30) })
	}
	p := s.openPage(t, linkTo("source", "upstream"))
	await(p, "the story is of costs", text("#story"), func(story string) bool {
		return strings.Contains(story, "for what they cost") && !strings.Contains(story, "the last leaves")
	})
	require.NotContains(t, eval[string](p, text("#tiles")), "drain rate")
}

// What is left out is told.
func TestALongLineSaysHowManyMoreWait(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	g := s.group("clients", "1/h depth 20")
	g.Allow("busy")
	s.queue(g, "busy", 8)
	p := s.openPage(t, linkTo("source", "clients", "key", "busy"))
	p.shows("eight wait", "#line-summary", "8 wait")
	require.Equal(t, 7, eval[int](p, `document.querySelectorAll("#waiters tbody tr").length`))
	require.Equal(t, "and 2 more", eval[string](p, `document.querySelector("#waiters tbody tr:last-child").innerText`))
}

// The stream refuses such a key for good: to ask again and again is in vain, and the rest of
// the page need not stand still for it.
func TestAKeyThatIsTooLongToFollowIsAskedForOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	key := strings.Repeat("long", 3000)
	g := s.group("clients", "1/h depth 5")
	g.Allow(key)
	p := newTab(t, s.address(""))
	p.expect("400")
	p.open(s.address(linkTo("source", "clients", "key", key)))
	p.shows("the page says so", "#reports", "must be at most 8192 bytes")
	p.shows("its detail is there", "#detail", "limits.yaml")
	asked, lists := p.sent("/api/v1/events"), p.sent("/api/v1/buckets\\?")
	g.Allow("another")
	p.shows("the table goes on", "#buckets", "another")
	realtime.Until(t, func() bool { return p.sent("/api/v1/buckets\\?") >= lists+3 }, "several lists are read")
	require.Equal(t, asked, p.sent("/api/v1/events"))
	require.NotContains(t, eval[string](p, text("#reports")), "Next try")
	p.shoot("too long")
	p.click(linkOf("another"))
	p.live()
}

// The row of the open bucket stands below its tiles: both are of one instant.
func TestTheRowOfTheOpenBucketSaysWhatItsTilesSay(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.shaper("upstream", "1/h depth 99")
	_, answer := s.get("api/buckets/upstream/")
	var of map[string]any
	require.NoError(t, json.Unmarshal(answer, &of))
	point := pointAt(time.Now(), 49)
	point["level"] = 1
	s.tell(func() string {
		return greeting() + historyOf([]any{point}) +
			event("detail", map[string]any{"bucket": of["bucket"], "histograms": map[string]any{}})
	}, nil)
	p := s.openPage(t, "")
	await(p, "the tile", figure("waiting"), func(n float64) bool { return n == 49 })
	realtime.Until(t, func() bool { return p.sent("/api/v1/buckets\\?") >= 3 }, "several lists have said that nobody waits")
	p.shows("the row", "#buckets tbody tr", "50 %\t49")
}

// Twenty changes must not push the table out of reach.
func TestManyChangesLeaveTheTableWhereItIs(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.shaper("upstream", "1/h depth 99")
	var changes []any
	s.tell(func() string { return greeting(changes...) }, nil)
	p := newTab(t, s.address(""))
	top := func() float64 {
		p.open(s.address(""))
		p.live()
		p.shoot(fmt.Sprint(len(changes), " changes"))
		return eval[float64](p, `document.querySelector("#list").getBoundingClientRect().top + scrollY`)
	}
	change := map[string]any{"at": time.Now(), "who": "127.0.0.1", "what": "limits set to 7/s", "source": "upstream", "key": "", "id": "", "until": nil}
	without := top()
	for range 20 {
		changes = append(changes, change)
	}
	require.Less(t, top()-without, 220.0)
	require.Empty(t, p.violations())
}

// crowd makes a group of n keys that differ in everything by which a table is sorted. At
// one per hour it stays as it is while the test looks.
func crowd(s *scene, n int) *shaper.Group[string] {
	g := s.group("clients", "1/h burst 4 depth 8")
	late, cancel := context.WithDeadline(s.ctx, time.Now().Add(time.Minute))
	s.t.Cleanup(cancel)
	for i := range n {
		key := fmt.Sprintf("message_send:%02d", i)
		if i%5 == 3 {
			key = fmt.Sprintf("login:%02d", i)
		}
		for range 1 + i%4 {
			require.True(s.t, g.Allow(key))
		}
		if i%4 != 3 {
			continue
		}
		s.queue(g, key, i%9)
		for range i % 7 { // predicted to leave long after its deadline
			require.Error(s.t, g.Wait(late, key))
		}
		if i%9 > 1 {
			abandoned, giveUp := context.WithCancel(s.ctx)
			time.AfterFunc(10*time.Millisecond, giveUp)
			require.Error(s.t, g.Wait(abandoned, key))
		}
	}
	return g
}

// keysOf returns the keys of ids, which are percent-encoded, with a "=" before a key that a browser
// would take for a relative path.
func keysOf(p *tab, ids []string) []string {
	p.t.Helper()
	keys := []string{}
	for _, id := range ids {
		key, err := url.PathUnescape(strings.TrimPrefix(id, "="))
		require.NoError(p.t, err)
		keys = append(keys, key)
	}
	return keys
}

// linkOf is a selector for the link in the row of a key that needs no encoding.
func linkOf(key string) string { return fmt.Sprintf("#buckets tr[data-id=%q] a", key) }

func TestEachColumnSorts(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	crowd(s, 20)
	p := s.openPage(t, linkTo("sort", "key"))
	s.awaitRows(p, "sort=key")
	buttons := eval[[]string](p, `[...document.querySelectorAll("#buckets th button[data-sort]")].map(b => b.dataset.sort)`)
	require.GreaterOrEqual(t, len(buttons), 5)
	require.Contains(t, buttons, "waiting")
	for _, column := range buttons {
		button := fmt.Sprintf(`#buckets th button[data-sort=%s]`, column)
		direction := fmt.Sprintf(`document.querySelector(%s).closest("th").ariaSort ?? "none"`, js(button))
		sorted := map[string][]string{}
		for range 2 {
			before := eval[string](p, direction)
			p.click(button)
			now := await(p, "a click on "+column+" sorts by it", direction, func(now string) bool { return now != before && now != "none" })
			sorted[now] = s.awaitRows(p, "sort="+map[string]string{"ascending": column, "descending": "-" + column}[now])
		}
		require.NotEqual(t, sorted["ascending"], sorted["descending"], column)
	}
}

func TestFiltersShowWhatMatchesAndNothingElse(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	g := crowd(s, 20)
	shadow := s.group("shadow", "1/h depth 1", shaper.WithDryRun())
	for range 3 {
		require.True(t, shadow.Allow("would:be"))
	}
	s.every(100*time.Millisecond, func() { g.Allow("message_send:07") }) // It goes on refusing, however long the test takes.
	p := s.openPage(t, linkTo("sort", "key"))
	all := s.awaitRows(p, "sort=key")
	for name, query := range map[string]string{"waiting": "waiting_gt=0", "half": "fill_gt=0.5", "refusing": "refusing=true", "dry_run": "dry_run=true&refused_gt=0"} {
		button := fmt.Sprintf("#filters button[data-filter=%s]", name)
		pressed := fmt.Sprintf("document.querySelector(%s).ariaPressed", js(button))
		require.Equal(t, "false", eval[string](p, pressed))
		p.click(button)
		shown := s.awaitRows(p, "sort=key&"+query)
		require.NotEmpty(t, shown, name)
		require.NotEqual(t, all, shown, name)
		require.Equal(t, "true", eval[string](p, pressed))
		p.click(button)
		s.awaitRows(p, "sort=key")
	}

	p.do(chromedp.SendKeys(chromedp.CSS("#contains"), "message_send:0"))
	s.awaitRows(p, "sort=key&contains=message_send:0")
	p.click("#filters button[data-filter=waiting]")
	s.awaitRows(p, "sort=key&contains=message_send:0&waiting_gt=0")
	p.set("#contains", "end:1")
	shown := s.awaitRows(p, "sort=key&contains=end:1&waiting_gt=0")
	require.NotEmpty(t, shown)
	for _, kind := range []string{"csv", "json"} {
		file := eval[string](p, `fetch(document.querySelector("#`+kind+`").href).then(answer => answer.text())`)
		for _, key := range all {
			require.Equal(t, slices.Contains(shown, key), strings.Contains(file, key), "%s: %s", kind, file)
		}
	}
	p.do(chromedp.SendKeys(chromedp.CSS("#contains"), "nobody"))
	require.Empty(t, s.awaitRows(p, "contains=nobody"))
}

func TestPagesShowEveryKeyOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	g := s.group("clients", "1/h depth 1")
	for i := range 130 {
		require.True(t, g.Allow(fmt.Sprintf("key:%03d", i)))
	}
	p := s.openPage(t, linkTo("sort", "key"))
	var seen []string
	for want := s.listed("sort=key&limit=1000"); len(seen) < len(want); {
		page := keysOf(p, await(p, "the page after "+fmt.Sprint(len(seen)), rows, func(ids []string) bool {
			return len(ids) > 0 && keysOf(p, ids[:1])[0] == want[len(seen)]
		}))
		require.Equal(t, want[len(seen):len(seen)+len(page)], page)
		seen = append(seen, page...)
		if len(seen) < len(want) {
			p.click("#more")
		}
	}
	p.awaitTrue("nothing comes after the last page", `!document.querySelector("#more")?.checkVisibility()`)
	eval[any](p, "history.back()")
	await(p, "back leads to the page before", rows, func(ids []string) bool { return len(ids) > 0 && keysOf(p, ids[:1])[0] != "key:100" })
}

func TestARowOpensItsBucket(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	g := crowd(s, 20)
	p := s.openPage(t, linkTo("sort", "key", "contains", "message_send"))
	const key = "message_send:07"
	p.awaitTrue("its row is there", `document.querySelector(`+js(linkOf(key))+`)`)
	p.click(linkOf(key))
	p.shows("its name is shown", "#selected", key)
	st, _ := g.StatsOf(key)
	p.shows("its line is shown", "#tiles [data-tile=waiting]", fmt.Sprint(st.Waiting))
	p.shows("its rule is shown", "#detail", "rule of message_send", "limits.yaml:7")
	require.Equal(t, key, eval[string](p, `new URLSearchParams(location.search).get("key")`))
	require.Equal(t, "message_send", eval[string](p, `new URLSearchParams(location.search).get("contains")`), "the list stays as it is")
}

// hostile are keys that some program would take for more than text.
var hostile = []string{
	`<script>window.owned = 1</script>`,
	`<img src=x onerror="window.owned = 2">`,
	`"><svg onload=window.owned=3>`,
	`' onmouseover='window.owned = 4`,
	`javascript:window.owned=5`,
	`</td></table></textarea></title></script><script>window.owned=6</script>`,
	`{{7*7}}${window.owned=7}`,
	"`;window.owned = 8//\\",
	"\u202eright to left\u2066",
	"nul\x00byte",
	"line\nfeed\ttab\x1b[31m",
	"not\xff\xfetext", "not\xfe\xfftext", "\xe2\x82", "\xed\xa0\x80", "is \uFFFD",
	"../../etc/passwd", "..", ".", "a/b//c", "%2e%2e%2f%00", "a?b#c&d=e+f g",
	"", " ", "__proto__", "constructor",
	"ünï\u0301cödé 😀 ﷽",
	strings.Repeat("long ", 500),
}

// foreign is an expression for what hostile keys would have made of the document if they
// were more than text: elements and attributes that the page has none of.
const foreign = `[...document.querySelectorAll("*")].filter(e =>
	e.matches("script:not([src]), img, iframe, object, embed, base, form[action^='javascript']") ||
	[...e.attributes].some(a => a.name.startsWith("on") || /^\s*javascript:/i.test(a.value) && ["href", "src", "action", "formaction"].includes(a.name))
).map(e => e.outerHTML.slice(0, 200))`

// harmless requires that no key was more than text so far.
func (p *tab) harmless() {
	p.t.Helper()
	require.Empty(p.t, eval[[]string](p, foreign))
	require.False(p.t, eval[bool](p, "'owned' in window"))
	require.Empty(p.t, p.unexpected())
}

// hostileScene has a bucket for each hostile key. Two requests of each wait, so that a line has something to
// show.
func hostileScene(t *testing.T) *scene {
	s := newScene(t)
	g := s.group("<b>clients</b>", "1/h depth 4")
	for _, key := range hostile {
		require.True(t, g.Allow(key))
		s.queue(g, key, 2)
	}
	return s
}

// The page must take keys for text, and show what can't be seen in them.
func TestHostileKeysAreTextInEachView(t *testing.T) {
	t.Parallel()
	s := hostileScene(t)
	want := slices.Sorted(slices.Values(hostile))
	const links = `[...document.querySelectorAll("#buckets tbody tr[data-id] a")]`
	const names = links + `.map(link => link.textContent)`
	p := s.openPage(t, linkTo("sort", "key"))
	ids := await(p, "all are in the table", rows, func(ids []string) bool { return len(ids) == len(hostile) })
	require.Equal(t, want, keysOf(p, ids))
	p.harmless()
	written := eval[[]string](p, names)
	require.Subset(t, written, []string{"(empty key)", "␣", `\u{202e}right to left\u{2066}`, `nul\u{0}byte`, `not\xff\xfetext`, `not\xfe\xfftext`, "is \uFFFD", strings.Repeat("long ", 80) + "…"})
	for n := range hostile {
		eval[any](p, fmt.Sprintf("%s[%d].click()", links, n))
		await(p, fmt.Sprintf("%q is shown above", want[n]), text("#selected"), func(name string) bool {
			return strings.Contains(squeeze(name), squeeze(written[n]))
		})
		p.shows(fmt.Sprintf("%q is explained", want[n]), "#detail", "limits.yaml")
		p.harmless()
	}
}

// squeeze leaves out blanks, which a browser joins where it lays text out.
func squeeze(s string) string { return strings.Join(strings.Fields(s), "") }
