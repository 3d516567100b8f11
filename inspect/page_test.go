package inspect_test

import (
	"io/fs"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
)

// The script says the same of them, in a browser.
func TestThePageShowsWhatCannotBeSeenInAKey(t *testing.T) {
	g := made.Group[string](t, "1 per 1000s")
	i := show(t, "group", inspect.OfGroup(g))
	i.Add("shaper", inspect.Of(made.Shaper(t, "1/s")))
	names := map[string]string{
		"":                       "(empty key)",
		" a  b ":                 "␣a  b␣",
		"\x00\u202ered\u2028end": `\u{0}\u{202e}red\u{2028}end`,
		"not\xfftext":            `not\xfftext`, // or these two would look alike
		"not\xfe\xc3text":        `not\xfe\xc3text`,
		"is \uFFFD":              "is \uFFFD",
		strings.Repeat("ä", 401): strings.Repeat("ä", 400) + "…",
	}
	for key := range names {
		require.True(t, g.Allow(key))
	}
	body := ask(i, "/?sort=key").Body.String()
	for _, name := range names {
		require.Contains(t, body, ">"+name+"</a>")
	}
	require.Contains(t, body, ">shaper</a>")
}

func TestThePageHasItsTableWithoutAScript(t *testing.T) {
	g := made.Group[string](t, "1 per 1000s")
	for range 2 {
		g.Allow("<i>/..")
		g.Allow("elsewhere")
	}
	i := show(t, "one", inspect.OfGroup(g), inspect.WithTitle("A & B"))
	w := ask(i, "/?prefix=%3C")
	body := w.Body.String()
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, "text/html; charset=utf-8", w.Header().Get("Content-Type"))
	require.Contains(t, body, "<title>A &amp; B</title>")
	require.Contains(t, body, `<a href="./?key=%3Ci%3E%2F..&amp;source=one">&lt;i&gt;/..</a>`)
	require.NotContains(t, body, "elsewhere")

	w = ask(i, "/?sort=colour")
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Contains(t, w.Body.String(), "sort is &#34;colour&#34;, must be one of")
}

// web is the folder of the page.
var web = os.DirFS("web")

// read returns a file of the page.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := fs.ReadFile(web, name)
	require.NoError(t, err)
	return string(text)
}

// own calls f with each file of the page that is not vendored.
func own(t *testing.T, f func(name, text string)) {
	t.Helper()
	seen := 0
	require.NoError(t, fs.WalkDir(web, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasPrefix(name, "uplot/") {
			return err
		}
		seen++
		f(name, read(t, name))
		return nil
	}))
	require.Greater(t, seen, 10)
}

// The page is refused by its own policy if it has a script or a style in it, and must
// not ask anybody else for anything.
func TestThePageNeedsNothingThatItsPolicyForbids(t *testing.T) {
	page := read(t, "index.html")
	require.NotRegexp(t, `(?i)<script(?:[^>]*)>[^<]`, page, "a script in the page")
	require.NotRegexp(t, `(?i)<style|\sstyle=`, page, "a style in the page")
	require.NotRegexp(t, `(?i)\son[a-z]+=`, page, "an event handler in the page")
	own(t, func(name, text string) {
		elsewhere := regexp.MustCompile(`(?i)(?:https?:)?//[a-z0-9-]+\.[^\s"']+`).FindString(strings.ReplaceAll(text, "http://www.w3.org/2000/svg", ""))
		require.Empty(t, elsewhere, "%s names another host", name)
		require.NotContains(t, text, "@import", name)
	})
}

// Keys come from clients. What is only ever text cannot run.
func TestNoScriptMakesMarkupOrCodeOfText(t *testing.T) {
	own(t, func(name, text string) {
		for _, forbidden := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "setHTMLUnsafe", "document.write", "createContextualFragment",
			"DOMParser", "eval(", "new Function", "srcdoc", "javascript:"} {
			require.False(t, strings.Contains(text, forbidden), "%s: %s", name, forbidden)
		}
	})
}

// Below a path of another server, a name from the root of the host is that server's.
func TestThePageAsksForNothingFromTheRoot(t *testing.T) {
	fromRoot := regexp.MustCompile("(?:[\"'`(]|=)/(?:api|web)/|(?:href|src|action)=\"/")
	own(t, func(name, text string) {
		require.Empty(t, fromRoot.FindString(text), name)
	})
}
