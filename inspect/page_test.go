package inspect_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/shaper"
)

// get returns the answer to a GET request, and its body.
func get(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	r, err := http.Get(url)
	require.NoError(t, err)
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r, string(body)
}

// The script says the same of them, in a browser.
func TestThePageShowsWhatCannotBeSeenInAKey(t *testing.T) {
	g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 0.001}, nil })
	require.NoError(t, err)
	u, err := shaper.New(shaper.Limits{Rate: 1})
	require.NoError(t, err)
	i := inspect.New()
	i.Add("group", inspect.OfGroup(g))
	i.Add("shaper", inspect.Of(u))
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
	_, body := get(t, serve(t, i)+"/?sort=key")
	for _, name := range names {
		require.Contains(t, body, ">"+name+"</a>")
	}
	require.Contains(t, body, ">shaper</a>")
}

func TestThePageHasItsTableWithoutAScript(t *testing.T) {
	g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 0.001}, nil })
	require.NoError(t, err)
	for range 2 {
		g.Allow("<i>/..")
		g.Allow("elsewhere")
	}
	i := inspect.New(inspect.WithTitle("A & B"))
	i.Add("one", inspect.OfGroup(g))
	url := serve(t, i)
	r, body := get(t, url+"/?prefix=%3C")
	require.Equal(t, http.StatusOK, r.StatusCode)
	require.Equal(t, "text/html; charset=utf-8", r.Header.Get("Content-Type"))
	require.Contains(t, body, "<title>A &amp; B</title>")
	require.Contains(t, body, `<a href="./?key=%3Ci%3E%2F..&amp;source=one">&lt;i&gt;/..</a>`)
	require.NotContains(t, body, "elsewhere")

	r, body = get(t, url+"/?sort=colour")
	require.Equal(t, http.StatusBadRequest, r.StatusCode)
	require.Contains(t, body, "sort is &#34;colour&#34;, must be one of")
}
