package browsertest_test

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWhatIfComparesTheSameArrivals(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	u := s.shaper("upstream", "200/s depth 100")
	before := u.Limits()
	p := s.openPage(t, linkTo("source", "upstream"))
	s.every(20*time.Millisecond, func() { s.burst(u, 1) })
	p.set("#what-if [name=limits]", "1/s depth 2")
	p.click("#what-if button")
	const cells = `Object.fromEntries([...document.querySelectorAll("#what-if-answer tbody tr")].map(row => [row.cells[0].innerText, [...row.cells].slice(1).map(cell => parseInt(cell.innerText))]))`
	await(p, "most of them would be refused", cells, func(answer map[string][]int) bool {
		refused := answer["refused"]
		return len(refused) == 2 && refused[0] == 0 && refused[1] > 20
	})
	require.Equal(t, before, u.Limits(), "nothing is changed")

	// An arrow down for more refusals, as they are worse, reads as fewer of them.
	const rows = `[...document.querySelectorAll("#what-if-answer tbody tr")].map(row => row.innerText.replace(/\s+/g, " ").trim())`
	for _, row := range []string{`^refused 0 [\d,]+ \+[\d,]+ worse$`, `^departed [\d,]+ [\d,]+ −[\d,]+ worse$`, `^still waiting 0 \d \+\d$`} {
		await(p, "a row reads "+row, rows, func(shown []string) bool {
			return slices.ContainsFunc(shown, regexp.MustCompile(row).MatchString)
		})
	}
	p.set("#what-if [name=limits]", "inf")
	p.click("#what-if button")
	await(p, "without limits nothing is worse", rows, func(shown []string) bool {
		all := strings.Join(shown, "\n")
		return strings.Contains(all, "refused 0 0") && !strings.Contains(all, "worse")
	})
	p.shoot("what-if")

	const nonsense = `<img src=x onerror="window.owned = 1">`
	p.expect("400")
	p.set("#what-if [name=limits]", nonsense)
	p.click("#what-if button")
	p.shows("a mistake is named", "#what-if-error", "column")
	p.awaitTrue("and marked", `document.querySelector("#what-if [name=limits]").ariaInvalid === "true"`)
	require.Empty(t, eval[[]string](p, foreign))
}

// What is asked of one bucket is not answered as of another, and not asked of it either.
func TestWhatIfEndsWithTheBucket(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	u := s.shaper("upstream", "200/s depth 100")
	s.shaper("other", "10/s")
	var limits []string // of each question
	s.answerInstead("/api/v1/what-if", func(w http.ResponseWriter, r *http.Request) {
		s.count(func() { limits = append(limits, r.FormValue("limits")) })
		s.inspector.ServeHTTP(w, r)
	})
	asked := func() (so []string) {
		s.count(func() { so = slices.Clone(limits) })
		return so
	}
	p := s.openPage(t, linkTo("source", "upstream"))
	s.every(20*time.Millisecond, func() { s.burst(u, 1) })
	p.set("#what-if [name=limits]", "1/s depth 2")
	p.click("#what-if button")
	p.awaitTrue("the answer comes", `!document.querySelector("#what-if-answer").hidden`)
	p.click(`#sources a[href*="other"]`)
	p.shows("another bucket is open", "#selected", "other")
	before := len(asked())
	time.Sleep(3 * time.Second) // It asks every two.
	require.Len(t, asked(), before)
	require.True(t, eval[bool](p, `document.querySelector("#what-if-answer").hidden`))
	require.Empty(t, eval[string](p, text("#what-if-error")))
}
