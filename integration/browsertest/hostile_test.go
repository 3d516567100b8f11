package browsertest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hostile are keys that some program would take for more than text.
var hostile = []string{
	`<script>window.owned = 1</script>`,
	`<img src=x onerror="window.owned = 2">`,
	`"><svg onload=window.owned=3>`,
	`' onmouseover='window.owned = 4`,
	`javascript:window.owned=5`,
	`</td></table></textarea></title></script><script>window.owned=6</script>`,
	`{{7*7}}${window.owned=7}`,
	"`;window.owned = 8//\\",
	"\u202eright to left\u2066",
	"nul\x00byte",
	"line\nfeed\ttab\x1b[31m",
	"not\xff\xfetext", "not\xfe\xfftext", "\xe2\x82", "\xed\xa0\x80", "is \uFFFD",
	"../../etc/passwd", "..", ".", "a/b//c", "%2e%2e%2f%00", "a?b#c&d=e+f g",
	"", " ", "__proto__", "constructor",
	"ünï\u0301cödé 😀 ﷽",
	strings.Repeat("long ", 500),
}

// foreign is an expression for what hostile keys would have made of the document if they
// were more than text: elements and attributes that the page has none of.
const foreign = `[...document.querySelectorAll("*")].filter(e =>
	e.matches("script:not([src]), img, iframe, object, embed, base, form[action^='javascript']") ||
	[...e.attributes].some(a => a.name.startsWith("on") || /^\s*javascript:/i.test(a.value) && ["href", "src", "action", "formaction"].includes(a.name))
).map(e => e.outerHTML.slice(0, 200))`

// harmless requires that no key was more than text so far.
func (p *tab) harmless() {
	p.t.Helper()
	require.Empty(p.t, eval[[]string](p, foreign))
	require.False(p.t, eval[bool](p, "'owned' in window"))
	require.Empty(p.t, p.unexpected())
}

// hostileScene has a bucket for each hostile key. Two requests of each wait, so that a line has something to
// show.
func hostileScene(t *testing.T) *scene {
	s := newScene(t)
	g := s.group("<b>clients</b>", "1/h depth 4")
	for _, key := range hostile {
		require.True(t, g.Allow(key))
		s.queue(g, key, 2)
	}
	return s
}

// The page must take keys for text, and show what can't be seen in them.
func TestHostileKeysAreTextInEachView(t *testing.T) {
	t.Parallel()
	s := hostileScene(t)
	want := slices.Sorted(slices.Values(hostile))
	const links = `[...document.querySelectorAll("#buckets tbody tr[data-id] a")]`
	const names = links + `.map(link => link.textContent)`
	p := s.openPage(t, linkTo("sort", "key"))
	ids := await(p, "all are in the table", rows, func(ids []string) bool { return len(ids) == len(hostile) })
	require.Equal(t, want, keysOf(p, ids))
	p.harmless()
	written := eval[[]string](p, names)
	require.Subset(t, written, []string{"(empty key)", "␣", `\u{202e}right to left\u{2066}`, `nul\u{0}byte`, `not\xff\xfetext`, `not\xfe\xfftext`, "is \uFFFD", strings.Repeat("long ", 80) + "…"})
	for n := range hostile {
		eval[any](p, fmt.Sprintf("%s[%d].click()", links, n))
		await(p, fmt.Sprintf("%q is shown above", want[n]), text("#selected"), func(name string) bool {
			return strings.Contains(squeeze(name), squeeze(written[n]))
		})
		p.shows(fmt.Sprintf("%q is explained", want[n]), "#detail", "limits.yaml")
		p.harmless()
	}
}

// squeeze leaves out blanks, which a browser joins where it lays text out.
func squeeze(s string) string { return strings.Join(strings.Fields(s), "") }
