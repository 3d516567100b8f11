package browsertest_test

import (
	"encoding/json"
	"fmt"
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
