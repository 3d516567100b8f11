package inspect_test

import (
	"context"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
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

// Who is answered depends on the name by which a client calls, and on where it is. "unix" before an
// address stands for a socket without one.
func TestWhoIsAnswered(t *testing.T) {
	const local, far = "127.0.0.1:5", "10.9.9.9:5"
	for _, test := range []struct {
		named  []string // by WithHosts
		peer   string
		status int
		hosts  []string
	}{
		{nil, local, 200, []string{"localhost", "localhost:6060", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:6060", "127.255.3.4:80",
			"[::1]", "[::1]:6060", "[::ffff:127.0.0.1]:6060"}},
		{nil, local, 421, []string{"", "evil.example", // as a page has it whose name was made to stand for 127.0.0.1
			"evil.example:6060", "localhost.evil.example", "127.0.0.1.evil.example", "192.0.2.1:6060", "[2001:db8::1]:6060",
			"localhost:6060:evil", "xlocalhost", "2130706433", strings.Repeat("x", 10_000)}},

		{nil, "[::1]:5", 200, []string{"localhost"}},
		{nil, "[::ffff:127.0.0.1]:5", 200, []string{"localhost"}},
		{nil, "unix @", 200, []string{"localhost"}},
		{nil, "unix ", 200, []string{"localhost"}},
		{nil, "@", 403, []string{"localhost"}},
		{nil, "", 403, []string{"localhost"}},
		{nil, "192.0.2.1:5", 403, []string{"localhost"}},
		{nil, far, 403, []string{"localhost"}},
		{nil, "unix 192.0.2.1:5", 403, []string{"localhost"}},
		{nil, "[fe80::1%eth0]:5", 403, []string{"localhost"}},
		{nil, "localhost:5", 403, []string{"localhost"}}, // net/http has addresses there, no names

		{[]string{"Shapers.Internal", "10.1.2.3:6060"}, far, 200, []string{"shapers.internal", "shapers.internal:8080", "SHAPERS.internal",
			"10.1.2.3:6060", "127.0.0.1"}},
		{[]string{"Shapers.Internal", "10.1.2.3:6060"}, far, 421, []string{"10.1.2.3", "10.1.2.3:80", "evil.example"}},
		{[]string{"2001:DB8::1"}, far, 200, []string{"[2001:db8::1]", "[2001:db8::1]:6060"}},
		{[]string{"2001:DB8::1"}, far, 421, []string{"[2001:db8::2]:6060"}},
		{[]string{"[2001:db8::1]"}, far, 200, []string{"[2001:db8::1]", "[2001:db8::1]:6060"}},
		{[]string{"[2001:db8::1]"}, far, 421, []string{"[2001:db8::2]:6060"}},
		{[]string{"[2001:db8::1]:6060"}, far, 200, []string{"[2001:db8::1]:6060"}},
		{[]string{"[2001:db8::1]:6060"}, far, 421, []string{"[2001:db8::1]:6061"}},

		// The name may come from a variable that is not set. Then everybody who reaches the
		// listener would be answered.
		{[]string{"", " "}, local, 200, []string{"localhost"}},
		{[]string{"", " "}, far, 403, []string{"localhost"}},
		{[]string{"", " "}, far, 421, []string{"", " "}},
	} {
		i := blank(t, inspect.WithHosts(test.named...))
		peer, socket := strings.CutPrefix(test.peer, "unix ")
		for _, host := range test.hosts {
			for _, target := range []string{"/", "/api/buckets", "/api/nothing", "/web/nothing"} {
				w := ask(i, target, func(r *http.Request) {
					r.Host, r.RemoteAddr = host, peer
					if socket {
						*r = *r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.UnixAddr{Net: "unix"}))
					}
				})
				if test.status == http.StatusOK && strings.Contains(target, "nothing") {
					require.Equal(t, http.StatusNotFound, w.Code, "%v %s %s", test.named, test.peer, host)
					continue
				}
				require.Equal(t, test.status, w.Code, "%v %s %s", test.named, test.peer, host)
				require.Equal(t, test.status == http.StatusMisdirectedRequest, strings.Contains(w.Body.String(), `"parameter":"Host"`), host)
			}
		}
	}
}

// A page of another origin can send requests whose answers it can't read, such as enough
// for /api/events to take all streams.
func TestAForeignPageIsToldNothingByTheAPI(t *testing.T) {
	i := show(t, "one", inspect.Of(made.Shaper(t, "1/s")))
	paths := []string{"/api/events", "/api/buckets", "/api/buckets/one/", "/api/line/one/", "/api/top", "/api/openapi.json"}
	for site, status := range map[string]int{"cross-site": 403, "same-site": 403, "same-origin": 200, "none": 200, "": 200} {
		for _, path := range append(paths, "/", "/web/app.js") {
			r := request(http.MethodGet, path)
			if path == "/api/events" {
				r = request(http.MethodHead, path)
			}
			if site != "" {
				r.Header.Set("Sec-Fetch-Site", site)
			}
			want := status
			if path == "/" || path == "/web/app.js" { // A link may lead to the page.
				want = http.StatusOK
			}
			require.Equal(t, want, recorded(i, r).Code, "%s %s", site, path)
		}
	}
}

func TestEveryAnswerIsGuarded(t *testing.T) {
	i := blank(t)
	refused := request(http.MethodGet, "/")
	refused.Host = "evil.example"
	beside := httptest.NewRecorder()
	i.Guard(http.NotFoundHandler()).ServeHTTP(beside, request(http.MethodGet, "/demo"))
	for name, w := range map[string]*httptest.ResponseRecorder{
		"page":    ask(i, "/"),
		"list":    ask(i, "/api/buckets"),
		"wrong":   ask(i, "/api/buckets?x=y"),
		"refused": recorded(i, refused),
		"guarded": beside,
	} {
		h := w.Header()
		require.Equal(t, "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "+
			"img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'", h.Get("Content-Security-Policy"), name)
		require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"), name)
		require.Equal(t, "no-store", h.Get("Cache-Control"), name)
		require.Equal(t, "no-referrer", h.Get("Referrer-Policy"), name)
		require.Equal(t, "same-origin", h.Get("Cross-Origin-Resource-Policy"), name)
		require.Equal(t, "DENY", h.Get("X-Frame-Options"), name)
	}
	require.Equal(t, http.StatusNotFound, beside.Code)
}

func TestGuardKeepsStrangersFromAHandlerBeside(t *testing.T) {
	i := blank(t)
	h := i.Guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("served") }))
	r := request(http.MethodPost, "/demo/burst")
	r.Host = "evil.example"
	require.Equal(t, http.StatusMisdirectedRequest, recorded(h, r).Code)
	r = request(http.MethodPost, "/demo/burst")
	r.RemoteAddr = "192.0.2.1:5"
	require.Equal(t, http.StatusForbidden, recorded(h, r).Code)
}
