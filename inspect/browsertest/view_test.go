package browsertest_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

func TestALinkRestoresTheView(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.shaper("upstream", "50/s depth 100")
	g := crowd(s, 20)
	want := sorted(statsOf(g), "-key", func(key string, st shaper.Stats) bool {
		return strings.HasPrefix(key, "message_send") && st.Waiting > 0
	})
	require.NotEmpty(t, want)
	p := s.openPage(t, linkTo("source", "clients", "key", "message_send:07", "prefix", "message_send", "filter", "waiting", "sort", "-key"))
	p.awaitRows("the list of the link", want)
	require.Contains(t, eval[string](p, text("#selected")), "message_send:07")
	require.Equal(t, "message_send", eval[string](p, `document.querySelector("#prefix").value`))
	require.Equal(t, []string{"waiting"}, eval[[]string](p, `[...document.querySelectorAll("#filters [data-filter][aria-pressed=true]")].map(b => b.dataset.filter)`))
	require.Equal(t, "descending", eval[string](p, `document.querySelector("#buckets [data-sort=key]").closest("th").ariaSort`))
}

func TestBackAndForwardGoThroughWhatWasLookedAt(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	g := crowd(s, 20)
	all := sorted(statsOf(g), "key", everything)
	waiting := sorted(statsOf(g), "key", func(_ string, st shaper.Stats) bool { return st.Waiting > 0 })
	p := s.openPage(t, linkTo("sort", "key"))
	p.awaitRows("at first", all)
	p.click("#filters button[data-filter=waiting]")
	p.awaitRows("filtered", waiting)
	p.click(linkOf(waiting[0]))
	selected := func(what, key string) {
		await(p, what, text("#selected"), func(name string) bool { return strings.Contains(name, key) })
	}
	selected("a bucket is opened", waiting[0])
	eval[any](p, "history.back()")
	await(p, "back leaves the bucket", text("#selected"), func(name string) bool { return !strings.Contains(name, waiting[0]) })
	p.awaitRows("and keeps the filter", waiting)
	eval[any](p, "history.back()")
	p.awaitRows("back again drops the filter", all)
	eval[any](p, "history.go(2)")
	selected("forward opens the bucket again", waiting[0])
	p.awaitRows("and filters again", waiting)
}

func TestAPausedPageAsksForNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	u := s.shaper("upstream", "20/s depth 100")
	p := s.openPage(t, "")
	lists := func() int { return p.sent("/api/buckets\\?") }
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
	g := crowd(s, 20)
	p := s.openPage(t, linkTo("sort", "key"))
	first := sorted(statsOf(g), "key", everything)[0]
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
	for _, want := range []string{"prefix", "waiting", "half", "refusing", "dry_run", "pause", "key", "row"} {
		require.True(t, slices.Contains(reached, want), "%s is not among %q", want, reached)
	}
	p.do(chromedp.KeyEvent(kb.Enter))
	await(p, "Enter opens it", text("#selected"), func(name string) bool { return strings.Contains(name, first) })
}
