package browsertest_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

const token = "correct-horse-battery-staple"

func TestWithTheTokenLimitsChangeAndComeBack(t *testing.T) {
	t.Parallel()
	s := newScene(t, inspect.WithControl(token))
	u := s.shaper("upstream", "20/s depth 40")
	before := u.Limits()
	p := s.openPage(t, linkTo("source", "upstream"))
	result := func(what, said string) {
		t.Helper()
		p.shows(what, "#control-result", said)
	}
	p.set("#limits [name=limits]", "7/s depth 70")
	p.set("#limits [name=duration]", "10m")
	p.click("#limits button:not([type=button])")
	result("without a token", "missing")
	require.Empty(t, s.postsSoFar())

	p.expect("status 401|401 \\(Unauthorized\\)")
	p.set("#token", "guessed")
	p.click("#limits button:not([type=button])")
	result("with a wrong one", "wrong")
	require.Equal(t, before, u.Limits())
	require.Equal(t, []post{{"/api/v1/limits", s.origin(), s.listen, http.StatusUnauthorized}}, s.postsSoFar())

	p.set("#token", token)
	p.click("#limits button:not([type=button])")
	result("with the right one", "7/s depth 70 until")
	require.Equal(t, "7/s depth 70", u.Limits().String())
	p.shows("everybody is told", "#changes", "upstream")
	p.set("#limits [name=duration]", "1s")
	p.click("#limits button:not([type=button])")
	realtime.Until(t, func() bool { return u.Limits() == before }, "they come back by themselves")

	p.set("#hold [name=duration]", "10m")
	p.click("#hold button:not([type=button])")
	result("hold", "Held until")
	require.False(t, u.Stats().HeldUntil.IsZero())
	p.click("#release")
	result("release", "Released: no hold is in force.")
	require.Zero(t, u.Stats().HeldUntil)
	require.NotContains(t, eval[string](p, `document.documentElement.outerHTML + location + JSON.stringify({...localStorage, ...sessionStorage}) + document.cookie`), token)

	s.shaper("shared", "20/s depth 40", shaper.WithBucket(buckettest.NewMemory(), "k", shared.Options{}))
	p = s.openPage(t, linkTo("source", "shared"))
	p.set("#token", token)
	p.set("#hold [name=duration]", "10m")
	p.click("#hold button:not([type=button])")
	result("a hold of all processes", "Held until")
	p.click("#release")
	result("is not released", "Released in this process alone: a hold that the processes with this bucket have together ends by itself.")
}

// origin is the origin of the scene's own page.
func (s *scene) origin() string { return strings.TrimSuffix(s.address(""), "/") }

func TestWithoutControlThereAreNoFormsForIt(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.shaper("upstream", "20/s depth 40")
	p := s.openPage(t, linkTo("source", "upstream"))
	p.awaitTrue("there are none", `!document.querySelector("#control")?.checkVisibility()`)
}

// A page of another site tries all that a browser lets it: it may send requests there,
// but they change nothing, and it can read no answer.
func TestAnotherOriginChangesAndReadsNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t, inspect.WithControl(token))
	u := s.shaper("upstream", "20/s depth 40")
	s.group("clients", "1/h").Allow("secret-key")
	before := u.Limits()
	foreign := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, `<!doctype html><link rel="icon" href="data:,"><title>elsewhere</title>
			<form method="post" enctype="text/plain"><input name='{"source":"upstream","key":"","for":"10m","ignored":"' value='"}'></form>`)
	}))
	p := newTab(t, foreign)
	p.expect("") // the browser complains of each attempt
	p.open(foreign)

	const hold = `{"source":"upstream","key":"","for":"10m"}`
	for _, attempt := range []string{
		`fetch(at + "api/hold", {method: "POST", mode: "no-cors", body})`,
		`fetch(at + "api/hold", {method: "POST", mode: "no-cors", body, headers: {"Content-Type": "text/plain"}, credentials: "include"})`,
		`fetch(at + "api/hold", {method: "POST", body, headers: {"Content-Type": "application/json", Authorization: "Bearer " + token}})`,
		`fetch(at + "api/buckets").then(r => r.text())`,
		`fetch(at + "api/buckets", {mode: "no-cors"}).then(r => r.text())`,
		`new Promise((resolve, reject) => { const s = new EventSource(at + "api/events"); s.onopen = resolve; s.onerror = () => { s.close(); reject() } })`,
		`new Promise((resolve, reject) => { const f = document.createElement("iframe"); f.src = at; f.onload = () => f.contentDocument ? resolve("seen") : reject(); document.body.append(f) })`,
	} {
		outcome := eval[string](p, fmt.Sprintf(`((at, body, token) => Promise.race([%s, new Promise((_, late) => setTimeout(late, 5000))]).then(x => "read: " + x, () => "refused"))(%s, %s, %s)`,
			attempt, js(s.address("")), js(hold), js(token)))
		if strings.HasPrefix(outcome, "read: [object Response]") {
			outcome = eval[string](p, fmt.Sprintf(`((at, body, token) => %s.then(r => r.type + " " + r.status))(%s, %s, %s)`, attempt, js(s.address("")), js(hold), js(token)))
			require.Equal(t, "opaque 0", outcome, attempt)
			continue
		}
		require.Equal(t, "refused", outcome, attempt)
	}
	require.NotZero(t, p.sent("GET "+s.address("")+"$"), "the frame was asked for")
	require.Zero(t, p.sent("/web/"), "but not shown, or it would load its scripts")
	eval[any](p, fmt.Sprintf(`(f => { f.action = %s; f.submit() })(document.forms[0])`, js(s.address("api/hold"))))
	await(p, "the form arrives", `location.href`, func(at string) bool { return at == s.address("api/hold") })

	posts := s.postsSoFar()
	require.GreaterOrEqual(t, len(posts), 2, "the attempts have come to the server")
	for _, attempt := range posts {
		require.Equal(t, foreign, attempt.origin)
		require.Equal(t, http.StatusForbidden, attempt.status, "it is refused for its origin, before anybody asks for a token")
	}
	require.Equal(t, before, u.Limits())
	require.Zero(t, u.Stats().HeldUntil)
}

// "Put back" is offered for as long as the limits are changed: after many later changes, in a page
// that is opened then, and when the bucket has gone. Who has set them, and until when, stands there.
func TestPutBackIsOfferedHoweverManyChangesComeLater(t *testing.T) {
	t.Parallel()
	s := newScene(t, inspect.WithControl(token))
	u := s.shaper("upstream", "20/s depth 40")
	g := s.group("clients", "1/h")
	before := u.Limits()
	change := func(path, body string) {
		r, err := http.NewRequest(http.MethodPost, s.address("api/"+path), strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		answer.Body.Close()
		require.Equal(t, http.StatusOK, answer.StatusCode)
	}
	change("limits", `{"source":"upstream","limits":"7/s depth 70","for":"10m","who":"Ann"}`)
	change("limits", `{"source":"clients","key":"a/b","limits":"9/s","for":"10m"}`)
	for k := range 25 {
		require.True(t, g.Allow(fmt.Sprint(k)))
		change("limits", fmt.Sprintf(`{"source":"clients","key":"%d","limits":"2/h","for":"10m"}`, k))
	}
	p := s.openPage(t, linkTo("source", "upstream"))
	p.shows("who has set them", "#override", `by "Ann" at 127.0.0.1`, "before: 20/s depth 40.")
	p.awaitTrue("it can be put back", `document.querySelector("#put-back").checkVisibility()`)
	p.shows("the table tells it, too", "#buckets", "changed")
	for k := range 25 {
		change("hold", fmt.Sprintf(`{"source":"clients","key":"%d","for":"10m"}`, k))
	}
	p.shows("the latest change", "#changes", "24 held")
	p.awaitTrue("it can still be put back", `document.querySelector("#put-back").checkVisibility()`)
	p.set("#token", token)
	p.click("#put-back")
	p.shows("the answer", "#control-result", "back to 20/s depth 40")
	require.Equal(t, before, u.Limits())
	p.awaitTrue("there is nothing to put back any more", `!document.querySelector("#put-back").checkVisibility()`)

	gone := s.openPage(t, linkTo("source", "clients", "key", "a/b"))
	gone.shows("the bucket has gone", "#gone", "will be shown here")
	gone.awaitTrue("it can be put back all the same", `document.querySelector("#put-back").checkVisibility()`)
	gone.set("#token", token)
	gone.click("#put-back")
	gone.shows("the answer", "#control-result", "have ended")
}

// While the server of a shared bucket is down, the page says so, and not that the bucket is closed.
func TestTheOutageOfASharedBucketIsShown(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	server := buckettest.NewMemory()
	server.Fail(func(int, string) buckettest.Fault { return buckettest.FailBefore })
	u := s.shaper("upstream", "20/s", shaper.WithBucket(server, "k", shared.Options{}))
	for range 11 {
		require.ErrorIs(t, u.Wait(t.Context()), shaper.ErrUnavailable)
	}
	p := s.openPage(t, linkTo("source", "upstream"))
	p.shows("the state", "#shared", "can't be asked: nobody leaves", "The latest failure: ")
	p.shows("the story", "#story", "The shared bucket can't be asked")
	counts := p.shows("the count", "#counts", "shared bucket unavailable")
	require.NotContains(t, counts, "closed")
	p.shows("the reason", "#refusals", "shared bucket unavailable")
	p.shows("the table", "#buckets", "bucket unavailable")
	p.shows("that nobody knows of the spacing", "#spacing .words", "Not counted: the level is in a shared bucket")
}

// Two processes with a line each share a rate, so each line drains at half of it.
func TestTheLineOfASharedBucketDrainsAtItsShare(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	server := buckettest.NewMemory()
	u := s.shaper("upstream", "10/s depth 1000", shaper.WithBucket(server, "k", shared.Options{}))
	s.burst(u, 400)
	s.burst(made.Shaper(t, "10/s depth 1000", shaper.WithBucket(server, "k", shared.Options{})), 400)
	p := s.openPage(t, linkTo("source", "upstream"))
	await(p, "the pace is of the share", text("#story"), func(story string) bool {
		found := regexp.MustCompile(`one every (\d+) ms; the last leaves in (\d+(?:\.\d+)?) s`).FindStringSubmatch(story)
		if found == nil {
			return false
		}
		every, err := strconv.Atoi(found[1])
		require.NoError(t, err)
		last, err := strconv.ParseFloat(found[2], 64)
		require.NoError(t, err)
		return every > 150 && every < 250 && last > 50
	})
}

// Of a cap of all processes the page shows how many seats this process has: without, a line whose seats other processes have
// would seem to hang.
func TestSeatsOfAllProcessesAreShown(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	server, cap := buckettest.NewMemory(), shared.Options{InFlight: 2}
	other := made.Shaper(t, "1000/s depth 9", shaper.WithBucket(server, "k", cap))
	var releases []func()
	for range 2 {
		release, err := other.Acquire(t.Context(), 1)
		require.NoError(t, err)
		releases = append(releases, release)
	}
	u := s.shaper("upstream", "1000/s depth 9", shaper.WithBucket(server, "k", cap))
	for range 3 {
		s.requests.Go(func() {
			_ = u.Do(s.ctx, 1, func(ctx context.Context) error { <-ctx.Done(); return nil })
		})
	}
	p := s.openPage(t, linkTo("source", "upstream"))
	p.shows("the story", "#story", "This process has none of the 2 seats of all processes: the next request leaves when it gets one.")
	p.shows("the cap", "#tiles [data-tile=in_flight]", "of at most 2, of all")
	p.shows("the counts", "#counts", "in flight\n0 of 2, of all\n– seats of this process\n0\n")
	p.shows("the line", "#line-summary", "3 wait; the next leaves when this process gets a seat.")
	p.readableByAll("no seats")
	g := s.group("jobs", "inf depth 9", shaper.WithBuckets(server, func(string) string { return "k" }, cap)) // no rate, the same seats
	s.requests.Go(func() { _ = g.Do(s.ctx, "a", 1, func(context.Context) error { return nil }) })
	jobs := s.openPage(t, linkTo("source", "jobs", "key", "a"))
	jobs.shows("the story without a rate", "#story", "No drain rate, but at most 2 requests of all processes may be in flight: 1 waits for a place. This process has none of the 2 seats of all processes: the next request leaves when it gets one.")
	for _, release := range releases {
		release()
	}
	p.shows("the story", "#story", "All 2 seats of this process are taken, of 2 of all: the next request leaves when one in flight ends, or another process gives a seat back.")
	p.shows("the counts", "#counts", "in flight\n2 of 2, of all\n– seats of this process\n2\n")
	p.shows("the line", "#line-summary", "1 waits; the next leaves when one in flight ends.")
}

// While the excess of reservations drains before it is settled, the page says that the burst is too small;
// and not once that has ended.
func TestABurstThatIsTooSmallForWhatIsInFlightIsShown(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	u := s.shaper("tokens", "1000/s burst 20 depth 50")
	_, err := u.Reserve(s.ctx, 5)
	require.NoError(t, err)
	var reserving atomic.Bool
	reserving.Store(true)
	s.requests.Go(func() {
		for reserving.Load() && s.ctx.Err() == nil {
			_ = u.Spend(s.ctx, 10, func(context.Context) (int, error) {
				time.Sleep(50 * time.Millisecond)
				return 2, nil
			})
		}
	})
	p := s.openPage(t, linkTo("source", "tokens"))
	p.shows("the sentence", "#forfeits", "Burst is too small for what is in flight")
	p.shows("the gauge", "#counts", "reserved, not settled", "drained before it was settled")
	p.readableByAll("a burst that is too small")
	reserving.Store(false)
	await(p, "nothing is forfeited any more", text("#forfeits"), func(shown string) bool { return shown == "" })
	p.shows("the gauge", "#counts", "reserved, not settled")
}

// Whoever sees a low rate wants to know who has lowered it, and why: each reason has its words, and the latest counts.
func TestWhyTheRateWasLoweredIsShown(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	u := made.Shaper(t, "50/s depth 100")
	finder, err := adapt.New(u, adapt.Config{Min: 5, Start: 40, Slow: time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(finder.Close)
	s.inspector.Add("upstream", inspect.OfAdaptive(u, finder))
	p := s.openPage(t, linkTo("source", "upstream"))
	p.shows("the bounds", "#adapts", "The rate adapts between 5 and 50 a second, and is 40 now. It was never lowered.")
	for _, c := range []struct {
		outcome adapt.Outcome
		latency time.Duration
		words   string
	}{
		{adapt.Refused, 0, "the upstream refused"},
		{adapt.Failed, 0, "answers failed"},
		{adapt.OK, 2 * time.Millisecond, "answers were slow"},
	} {
		before := finder.Stats().Decreases
		realtime.Until(t, func() bool { // One refusal is enough; of the last ten answers half must be slow or failed.
			finder.Observe(c.outcome, c.latency)
			return finder.Stats().Decreases > before
		}, "the rate is lowered")
		p.shows("why", "#adapts", ", because "+c.words+".")
	}
	require.Contains(t, eval[string](p, text("#adapts")), "Lowered 3 times, last at ")
}
