package browsertest_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
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
		if i%4 == 3 {
			s.queue(g, key, i%9)
			for range i % 7 { // predicted to leave long after its deadline
				require.Error(s.t, g.Wait(late, key))
			}
		}
		if waiting := statsOf(g)[key].Waiting; waiting > 1 {
			abandoned, cancel := context.WithCancel(s.ctx)
			s.requests.Go(func() { _ = g.Wait(abandoned, key) })
			realtime.Until(s.t, func() bool { return statsOf(g)[key].Waiting > waiting || statsOf(g)[key].Refused > 0 }, "it waits or is refused")
			cancel()
			realtime.Until(s.t, func() bool { return statsOf(g)[key].Waiting == waiting }, "the line is as long as before")
		}
	}
	return g
}

// fill is the share of a bucket and its line that is taken.
func fill(st shaper.Stats) float64 {
	return (st.Level + float64(st.Waiting)) / float64(max(st.Limits.Burst, 1)+st.Limits.Depth)
}

// columns are the ways in which the table can be sorted.
var columns = map[string]func(a, b shaper.Stats) int{
	"key":         func(a, b shaper.Stats) int { return 0 },
	"waiting":     func(a, b shaper.Stats) int { return cmp.Compare(a.Waiting, b.Waiting) },
	"level":       func(a, b shaper.Stats) int { return beyond(0.01, a.Level-b.Level) },
	"fill":        func(a, b shaper.Stats) int { return beyond(0.01, fill(a)-fill(b)) },
	"idle":        func(a, b shaper.Stats) int { return beyond(1e-6, b.LastCall.Sub(a.LastCall).Seconds()) },
	"last_call":   func(a, b shaper.Stats) int { return beyond(1e-6, a.LastCall.Sub(b.LastCall).Seconds()) },
	"refused":     func(a, b shaper.Stats) int { return cmp.Compare(a.Refused, b.Refused) },
	"departed":    func(a, b shaper.Stats) int { return cmp.Compare(a.Departed, b.Departed) },
	"abandoned":   func(a, b shaper.Stats) int { return cmp.Compare(a.Abandoned, b.Abandoned) },
	"oldest_wait": func(a, b shaper.Stats) int { return beyond(0.02, (a.OldestWait - b.OldestWait).Seconds()) },
}

// inexact are those whose values change while they are read, or are rounded before they
// are compared. Buckets that are close to each other may be in either order.
var inexact = []string{"level", "fill", "idle", "last_call", "oldest_wait"}

// beyond compares two values by their difference, which counts from a tolerance on.
func beyond(tolerance, difference float64) int {
	if math.Abs(difference) < tolerance {
		return 0
	}
	return cmp.Compare(difference, 0)
}

// sorted returns the keys of those that match, in the order of a column.
func sorted(all map[string]shaper.Stats, column string, matches func(key string, st shaper.Stats) bool) []string {
	name, descending := strings.CutPrefix(column, "-")
	keys := []string{}
	for key, st := range all {
		if matches(key, st) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b string) int {
		by := columns[name](all[a], all[b])
		if name == "key" {
			by = cmp.Compare(a, b)
		}
		if descending {
			by = -by
		}
		return cmp.Or(by, cmp.Compare(a, b)) // the same are in the order of their keys, whatever the direction
	})
	return keys
}

func everything(string, shaper.Stats) bool { return true }

// awaitRows waits until the table has these keys in this order.
func (p *tab) awaitRows(what string, want []string) {
	p.t.Helper()
	await(p, fmt.Sprintf("%s: the rows are %q", what, want), rows, func(ids []string) bool {
		return slices.Equal(keysOf(p, ids), want)
	})
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

func TestEachColumnSortsAsTheGroupSays(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	g := crowd(s, 20)
	p := s.openPage(t, linkTo("sort", "key"))
	p.awaitRows("at first", sorted(statsOf(g), "key", everything))

	buttons := eval[[]string](p, `[...document.querySelectorAll("#buckets th button[data-sort]")].map(b => b.dataset.sort)`)
	require.GreaterOrEqual(t, len(buttons), 5)
	require.Contains(t, buttons, "waiting")
	for _, column := range buttons {
		require.Contains(t, columns, column)
		button := fmt.Sprintf(`#buckets th button[data-sort=%s]`, column)
		direction := fmt.Sprintf(`document.querySelector(%s).closest("th").ariaSort`, js(button))
		seen := map[string]bool{}
		for range 2 {
			before := eval[string](p, direction+` ?? "none"`)
			p.click(button)
			now := await(p, "a click on "+column+" sorts by it", direction+` ?? "none"`, func(now string) bool { return now != before && now != "none" })
			seen[now] = true
			order := map[string]string{"ascending": column, "descending": "-" + column}[now]
			if !slices.Contains(inexact, column) {
				p.awaitRows(column+" "+now, sorted(statsOf(g), order, everything))
				continue
			}
			all := statsOf(g)
			await(p, column+" "+now, rows, func(ids []string) bool {
				keys := keysOf(p, ids)
				if now == "descending" {
					slices.Reverse(keys)
				}
				return len(keys) == len(all) && slices.IsSortedFunc(keys, func(a, b string) int { return columns[column](all[a], all[b]) })
			})
		}
		require.Len(t, seen, 2, column)
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
	of := func(matches func(string, shaper.Stats) bool) []string { return sorted(statsOf(g), "key", matches) }
	all := func(more ...string) []string { return append(of(everything), more...) }
	refusing := of(func(_ string, st shaper.Stats) bool { return st.Refused > 0 })
	s.requests.Go(func() { // they go on refusing, however long the test takes
		for beat := time.NewTicker(100 * time.Millisecond); s.ctx.Err() == nil; <-beat.C {
			for _, key := range refusing {
				g.Allow(key)
			}
		}
	})
	filters := map[string]func() []string{
		"waiting":  func() []string { return of(func(_ string, st shaper.Stats) bool { return st.Waiting > 0 }) },
		"half":     func() []string { return of(func(_ string, st shaper.Stats) bool { return fill(st) > 0.5 }) },
		"refusing": func() []string { return refusing },
		"dry_run":  func() []string { return []string{"would:be"} },
	}
	p := s.openPage(t, linkTo("sort", "key"))
	p.awaitRows("at first", all("would:be"))
	for _, name := range []string{"waiting", "half", "refusing", "dry_run"} {
		button := fmt.Sprintf("#filters button[data-filter=%s]", name)
		pressed := fmt.Sprintf("document.querySelector(%s).ariaPressed", js(button))
		require.Equal(t, "false", eval[string](p, pressed))
		p.click(button)
		p.awaitRows(name, filters[name]())
		require.Equal(t, "true", eval[string](p, pressed))
		p.click(button)
		p.awaitRows("without "+name, all("would:be"))
	}

	p.do(chromedp.SendKeys(chromedp.CSS("#contains"), "message_send:0"))
	starts := func(key string, _ shaper.Stats) bool { return strings.HasPrefix(key, "message_send:0") }
	p.awaitRows("search", of(starts))
	p.click("#filters button[data-filter=waiting]")
	p.awaitRows("search and line", of(func(key string, st shaper.Stats) bool { return starts(key, st) && st.Waiting > 0 }))
	p.set("#contains", "end:1")
	inside := func(key string, _ shaper.Stats) bool { return strings.Contains(key, "end:1") }
	p.awaitRows("inside of keys", of(func(key string, st shaper.Stats) bool { return inside(key, st) && st.Waiting > 0 }))
	for _, kind := range []string{"csv", "json"} {
		file := eval[string](p, `fetch(document.querySelector("#`+kind+`").href).then(answer => answer.text())`)
		for key, st := range statsOf(g) {
			require.Equal(t, inside(key, st) && st.Waiting > 0, strings.Contains(file, key), "%s: %s", kind, file)
		}
	}
	p.do(chromedp.SendKeys(chromedp.CSS("#contains"), "nobody"))
	p.awaitRows("a text that no key has", nil)
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
	for want := sorted(statsOf(g), "key", everything); len(seen) < len(want); {
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
	await(p, "its name is shown", text("#selected"), func(name string) bool { return strings.Contains(name, key) })
	waiting := statsOf(g)[key].Waiting
	await(p, "its line is shown", text("#tiles [data-tile=waiting]"), func(tile string) bool { return strings.Contains(tile, fmt.Sprint(waiting)) })
	await(p, "its rule is shown", text("#detail"), func(detail string) bool {
		return strings.Contains(detail, "rule of message_send") && strings.Contains(detail, "limits.yaml:7")
	})
	require.Equal(t, key, eval[string](p, `new URLSearchParams(location.search).get("key")`))
	require.Equal(t, "message_send", eval[string](p, `new URLSearchParams(location.search).get("contains")`), "the list stays as it is")
}
