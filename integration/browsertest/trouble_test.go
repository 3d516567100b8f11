package browsertest_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
)

func TestALostConnectionIsShownAndComesBack(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	u := s.shaper("upstream", "1/h depth 100") // The line stays until the page is back.
	p := s.openPage(t, "")
	p.expect("net::ERR_")
	s.stop()
	await(p, "the page says so", text("#status"), func(status string) bool {
		return status != "" && !strings.Contains(strings.ToLower(status), "live")
	})
	s.burst(u, 50)
	s.start()
	p.live()
	await(p, "what comes after it is shown", text("#tiles [data-tile=waiting]"), func(tile string) bool { return strings.ContainsAny(tile, "123456789") })
}

// A list may fail while the stream goes on: over a stale table "live" alone would be a lie.
func TestAListThatFailsBelowHTTPIsToldAndReadAgain(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	g := s.group("clients", "1/h depth 5")
	g.Allow("before")
	p := s.openPage(t, "")
	p.shows("the list is read", "#buckets", "before")
	p.expect("net::ERR_")
	s.answerInstead("/api/v1/buckets", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	p.shows("the page says so", "#reports", "The table could not be read: no answer. Its rows are as they were at ")
	require.Contains(t, eval[string](p, text("#status")), "live")
	p.shoot("no list")
	require.Empty(t, p.violations())
	g.Allow("after")
	s.answerInstead("/api/v1/buckets", nil)
	p.shows("it is read again", "#buckets", "after")
	await(p, "the report is taken back", text("#reports"), func(shown string) bool { return shown == "" })
}

// What stands between may answer in place of the Inspector.
func TestAListThatIsNoListIsTold(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.shaper("upstream", "50/s depth 100")
	s.answerInstead("/api/v1/buckets", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<p>Sign in</p>") })
	p := s.openPage(t, "")
	p.shows("the page says so", "#reports", "the answer is not JSON")
}

// A browser has six connections to a server for all its windows, and a stream takes one.
func TestEachOfManyWindowsIsLive(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	u := s.shaper("upstream", "1/h depth 1000")
	g := s.group("clients", "1/h depth 1000")
	u.Allow()
	first := s.openPage(t, linkTo("source", "upstream"))
	windows := []*tab{first}
	for i := range 6 {
		p := first.beside()
		view := linkTo("source", "upstream")
		if i%2 == 1 {
			view = linkTo("source", "clients", "key", fmt.Sprint(i))
			g.Allow(fmt.Sprint(i))
		}
		p.open(s.address(view))
		p.live()
		windows = append(windows, p)
	}
	for waiting := 20; waiting <= 40; waiting += 20 { // not only once
		s.burst(u, 20)
		for i := 1; i < 6; i += 2 {
			s.burst(g.Limiter(fmt.Sprint(i)), 20)
		}
		for i, p := range windows {
			require.Equal(t, "visible", eval[string](p, "document.visibilityState"))
			await(p, fmt.Sprintf("window %d shows who waits", i), figure("waiting"), func(n float64) bool { return n == float64(waiting) })
			p.awaitTrue("and is live", `document.querySelector("#status").dataset.state === "live"`)
			await(p, "and so is its table", text("#matched"), func(shown string) bool { return strings.HasPrefix(shown, "4 buckets") })
		}
	}
	const status = `document.querySelector("#status").textContent.trim()`
	of := func(windows []*tab) map[string]int {
		all := map[string]int{}
		for _, p := range windows {
			all[eval[string](p, status)]++
		}
		return all
	}
	require.Equal(t, map[string]int{"live": 4, "live, once a second": 3}, of(windows), "two connections are left for everything else")
	windows[6].shoot("seventh")

	var streams, left []*tab
	for _, p := range windows {
		if eval[string](p, status) == "live" {
			streams = append(streams, p)
		} else {
			left = append(left, p)
		}
	}
	for _, p := range streams {
		p.open("about:blank")
	}
	realtime.Until(t, func() bool { return of(left)["live"] == 3 }, "windows that looked get the streams of those that have gone")
}

func TestAReportIsShownUntilItIsTakenBack(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.shaper("upstream", "50/s depth 100")
	p := s.openPage(t, "")
	const message = `limits.yaml:12:3: rate "fast<b>er</b>" is not a rate`
	s.inspector.Report(errors.New(message))
	p.shows("it is shown", "#reports", message)
	later := s.openPage(t, "")
	later.shows("and to those who come later", "#reports", message)
	s.inspector.Report(nil)
	await(p, "and no longer", text("#reports"), func(shown string) bool { return !strings.Contains(shown, "limits.yaml") })
}

func TestAClosedSourceIsShown(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	u := s.shaper("upstream", "50/s depth 100")
	other := s.shaper("other", "50/s depth 100")
	p := s.openPage(t, linkTo("source", "upstream"))
	body := text("body")
	require.NotContains(t, strings.ToLower(eval[string](p, body)), "closed")
	require.NoError(t, u.Close())
	await(p, "the page says so", body, func(shown string) bool { return strings.Contains(strings.ToLower(shown), "closed") })

	require.NoError(t, other.Close())
	p.shows("of another source too", "#reports", "“other”")
	s.inspector.Remove("other")
	await(p, "and no longer when that has gone", text("#reports"), func(shown string) bool { return !strings.Contains(shown, "other") })
	p.shows("but of the one that is there", "#reports", "“upstream”")

	// Whoever looks at a source that is taken away is not told that all has ended.
	p.expect("404")
	eval[chromedp.Void](p, `globalThis.told = ""; new MutationObserver(() => { told += document.querySelector("#reports").innerText }).observe(document.querySelector("#reports"), {subtree: true, childList: true})`)
	s.inspector.Remove("upstream")
	p.shows("at last the reason is told", "#reports", "which is not the name of a source")
	require.Contains(t, eval[string](p, "told"), "or shows this source no longer")
}

// A link to the buckets of a source may be opened before the program has added it. The source may come after the
// table was read, before the stream is open, whose beginning then has it, or while the page waits for the answer
// that there is none.
func TestTheTableComesWhenItsSourceIsAdded(t *testing.T) {
	t.Parallel()
	const told = "could not be read"
	for name, held := range map[string]string{"later": "", "before the stream opens": "/api/v1/events", "before the answer": "/api/v1/buckets"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.shaper("upstream", "50/s depth 100")
			goesOn := make(chan struct{})
			if held != "" {
				s.answerInstead(held, func(w http.ResponseWriter, r *http.Request) {
					if held == "/api/v1/events" {
						<-goesOn
						s.inspector.ServeHTTP(w, r)
						return
					}
					answer := s.asked(r)
					if answer.Code == http.StatusNotFound {
						<-goesOn
					}
					send(w, answer, answer.Body.String())
				})
			}
			p := newTab(t, s.address(""))
			p.expect("404") // the table, before the source is there
			p.open(s.address(linkTo("in", "late")))
			if held == "/api/v1/buckets" {
				realtime.Until(t, func() bool { return p.sent("api/v1/buckets") > 0 }, "the page asks for the buckets")
				p.awaitTrue("the stream is open", `document.querySelector("#story").textContent !== ""`)
			} else {
				p.shows("the table can't be read", "#reports", told)
			}
			s.group("late", "1/h").Allow("late-key")
			if held == "/api/v1/buckets" {
				p.shows("it has heard of the other source", "#sources", "late")
			}
			close(goesOn)
			p.shows("its bucket is shown", "#buckets", "late-key")
			await(p, "the report is taken back", text("#reports"), func(shown string) bool { return !strings.Contains(shown, told) })
		})
	}
}

func TestWithoutScriptThePageSaysWhereElseToLook(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.shaper("upstream", "50/s depth 100")
	p := newTab(t, s.address(""))
	p.withoutScript()
	p.open(s.address(""))
	require.Contains(t, eval[string](p, text("noscript")), "needs JavaScript")
	require.Contains(t, eval[string](p, `fetch(document.querySelector("noscript a").href).then(answer => answer.text())`), "upstream")
	p.awaitTrue("what needs script is not shown", `!document.querySelector("#tiles").checkVisibility() && !document.querySelector("#pause").checkVisibility()`)
}
