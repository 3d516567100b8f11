package browsertest_test

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

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
