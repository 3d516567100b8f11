package browsertest_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
)

// What the tests rely on to notice that something goes wrong must notice it.
func TestATabNoticesWhatGoesWrong(t *testing.T) {
	t.Parallel()
	const html = `<!doctype html><link rel="icon" href="data:,">
		<img src="/missing.png" alt="">
		<img src="http://127.0.0.1:1/" alt="">
		<script>fetch("http://elsewhere.example/").catch(() => {})</script>
		<script>console.error("oh", {a: 1})</script>
		<script>alert("gotcha")</script>
		<script>nobody()</script>
		<script>Promise.reject(new Error("broken"))</script>
		<meta http-equiv="Content-Security-Policy" content="script-src 'none'">
		<script>forbidden()</script>`
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, html)
	}))
	p := newTab(t, server)
	p.open(server)
	for _, problem := range []string{
		`status 404: .*missing\.png`,
		`request to another host: GET http://127\.0\.0\.1:1/`,
		`request to another host: GET http://elsewhere\.example/`,
		`failed: net::ERR_NAME_NOT_RESOLVED: http://elsewhere\.example/`,
		`console\.error: .*oh`,
		`dialog: gotcha`,
		`exception: .*nobody is not defined`,
		`exception: .*broken`,
		`log error: security: .*Content Security Policy`,
	} {
		found := func() bool { return slices.ContainsFunc(p.unexpected(), regexp.MustCompile("^"+problem).MatchString) }
		realtime.Until(t, found, "what went wrong is "+problem)
	}
	p.expect("")
}

func TestAxeFindsWhatShutsPeopleOut(t *testing.T) {
	t.Parallel()
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; img-src data:; style-src 'unsafe-inline'")
		io.WriteString(w, `<!doctype html><html lang="en"><title>x</title><link rel="icon" href="data:,"><main><h1>x</h1>
			<button></button><p style="color: #ccc; background: #fff">faint</p></main>`)
	}))
	p := newTab(t, server)
	p.open(server)
	found := p.violations()
	require.Len(t, found, 2)
	require.Regexp(t, "^button-name: ", found[0])
	require.Regexp(t, "^color-contrast: ", found[1])
}

// serve runs the handler at an address of this machine until the test ends.
func serve(t testing.TB, h http.Handler) (address string) {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}
