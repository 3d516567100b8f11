package browsertest_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

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
