package browsertest_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/shaper"
)

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

// enlarged is JSON of the Inspector's with the figures that a source of 100,000/s has after some hours.
func enlarged(text string) string {
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
	at := time.Now()
	for _, width := range []int64{320, 390, 719, 721, 768, 1024, 1198, 1200, 1280, 1920} {
		p.do(chromedp.EmulateViewport(width, 900))
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
