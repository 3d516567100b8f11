package browsertest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

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

// hostileScene has a bucket for each hostile key. Two of the keys wait, so that a what-if and a
// line have something to show.
func hostileScene(t *testing.T) *scene {
	s := newScene(t)
	g := s.group("<b>clients</b>", "1/h depth 4")
	for _, key := range hostile {
		require.True(t, g.Allow(key))
		s.queue(g, key, 2)
	}
	return s
}

func TestHostileKeysAreTextInEachView(t *testing.T) {
	t.Parallel()
	s := hostileScene(t)
	p := s.openPage(t, linkTo("sort", "key"))
	ids := await(p, "all are in the table", rows, func(ids []string) bool { return len(ids) == len(hostile) })
	want := slices.Sorted(slices.Values(hostile))
	require.Equal(t, want, keysOf(p, ids))
	p.harmless()

	for n, id := range ids {
		link := fmt.Sprintf(`document.querySelector('#buckets tr[data-id="' + CSS.escape(%s) + '"] a')`, js(id))
		shown := eval[string](p, link+".textContent")
		require.Equal(t, visible(want[n]), shown)
		eval[any](p, link+".click()")
		await(p, fmt.Sprintf("%q is shown above", want[n]), text("#selected"), func(name string) bool {
			return strings.Contains(squeeze(name), squeeze(shown))
		})
		await(p, fmt.Sprintf("%q is explained", want[n]), text("#detail"), func(detail string) bool { return strings.Contains(detail, "limits.yaml") })
		p.harmless()
	}
}

// squeeze leaves out blanks, which a browser joins where it lays text out.
func squeeze(s string) string { return strings.Join(strings.Fields(s), "") }

// The server writes the first view, so it must take keys for text as well as the script does.
func TestHostileKeysAreTextInTheFirstPaint(t *testing.T) {
	t.Parallel()
	s := hostileScene(t)
	p := newTab(t, s.address(""))
	p.withoutScript()
	p.open(s.address(linkTo("sort", "key")))
	ids := eval[[]string](p, rows)
	want := slices.Sorted(slices.Values(hostile))
	require.Equal(t, want, keysOf(p, ids))
	p.harmless()
	const links = `[...document.querySelectorAll("#buckets tbody tr[data-id] a")]`
	for n, shown := range eval[[]string](p, links+".map(link => link.textContent)") {
		require.Equal(t, visible(want[n]), shown)
	}
	for n, link := range eval[[]string](p, links+".map(link => link.href)") {
		if strings.ContainsAny(want[n], "<\"'{\x00") {
			p.open(link)
			p.harmless()
		}
	}
}

// visible is a key as it is shown: with signs for characters that cannot be seen, or would change
// the text around them, and with the codes of bytes that are no text.
func visible(key string) string {
	if key == "" {
		return "(empty key)"
	}
	var shown strings.Builder
	for i, c := range key {
		switch {
		case c == utf8.RuneError && !strings.HasPrefix(key[i:], "\uFFFD"):
			fmt.Fprintf(&shown, `\x%x`, key[i])
		case unicode.In(c, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp):
			fmt.Fprintf(&shown, `\u{%x}`, c)
		default:
			shown.WriteRune(c)
		}
	}
	text := strings.TrimLeft(shown.String(), " ")
	text = strings.Repeat("␣", shown.Len()-len(text)) + text
	inner := strings.TrimRight(text, " ")
	whole := inner + strings.Repeat("␣", len(text)-len(inner))
	if letters := []rune(whole); len(letters) > 400 {
		return string(letters[:400]) + "…"
	}
	return whole
}
