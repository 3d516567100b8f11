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

func TestThePageSaysWhatIsWrongWithItsAddress(t *testing.T) {
	i := show(t, "one", inspect.Of(made.Shaper(t, "1/s")), inspect.WithTitle("A & B"))
	for target, says := range map[string]string{
		"/?sort=-key&paused=1": `<div id="reports" role="alert"></div>`,
		"/?colour=<b>":         `<p class="report">colour is &#34;&lt;b&gt;&#34;, which is not a parameter here</p>`,
		"/?in=a&in=b":          `<p class="report">in is &#34;b&#34;, but it is given more than once</p>`,
	} {
		w := ask(i, target)
		require.Equal(t, strings.Contains(says, "report\""), w.Code == http.StatusBadRequest, target)
		require.Equal(t, "text/html; charset=utf-8", w.Header().Get("Content-Type"))
		require.Contains(t, w.Body.String(), "<title>A &amp; B</title>")
		require.Contains(t, w.Body.String(), says)
	}
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
