package browsertest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

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
