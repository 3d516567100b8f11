package shaper_test

import (
	"bufio"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

var routes = []string{
	"POST /login",
	"GET /orders/{id}",
	"/orders/{id}/{$}",
	"/static/",
	"/old/{$}",
	"/any/{name}/",
	"admin.example.com/",
	"admin.example.com/static/",
	"CONNECT /tunnel/{to}",
	"/tunnel/{to}/",
	"/a%2Fb/",
}

// A routed is a mux that notes which route's handler has run; "" if none has.
type routed struct {
	*http.ServeMux
	ran string
}

func newRouted() *routed {
	s := &routed{ServeMux: http.NewServeMux()}
	for _, route := range routes {
		s.HandleFunc(route, func(http.ResponseWriter, *http.Request) { s.ran = route })
	}
	return s
}

// run serves r and returns the route whose handler has run.
func (s *routed) run(r *http.Request) string {
	s.ran = ""
	s.ServeHTTP(httptest.NewRecorder(), r)
	return s.ran
}

// readRequest parses the text of a request, as a server does.
func readRequest(text string) (*http.Request, error) {
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(strings.ReplaceAll(text, "\n", "\r\n") + "\r\n\r\n")))
	if err == nil {
		r.RemoteAddr = somebody
	}
	return r, err
}

func TestByRoute(t *testing.T) {
	s := newRouted()
	for _, test := range []struct {
		line, host string
		want       string // the key
		runs       bool   // the handler of that route
	}{
		{"POST /login", "", "POST /login", true},
		{"POST /login?next=/orders/1", "", "POST /login", true},
		{"GET /orders/1", "", "GET /orders/{id}", true},
		{"GET /orders/POST%20%2Flogin", "", "GET /orders/{id}", true},
		{"HEAD /orders/2", "", "GET /orders/{id}", true},
		{"GET http://elsewhere.example/orders/3", "", "GET /orders/{id}", true},
		{"GET /static/a/b/c", "", "/static/", true},
		{"DELETE /static/", "", "/static/", true},
		{"GET /static/a", "admin.example.com", "admin.example.com/static/", true},
		{"GET /static/a", "admin.example.com:8080", "admin.example.com/static/", true},
		{"GET /nothing", "admin.example.com", "admin.example.com/", true},
		{"GET /a%2Fb/c", "", "/a%2Fb/", true},

		// The mux itself answers.
		{"GET /nothing", "", "", false},
		{"GET /login", "", "", false},
		{"GET /POST%20/login", "", "", false},
		{"GET /-", "", "", false},

		// The mux redirects to a route.
		{"GET /static", "", "/static/", false},
		{"GET /old", "", "/old/{$}", false},
		{"GET /any/login", "", "/any/{name}/", false},
		{"POST //login", "", "POST /login", false},
		{"POST /static/../login", "", "POST /login", false},
		{"POST /x/../login?a=b", "", "POST /login", false},

		// The mux redirects CONNECT neither to a clean path nor to another host, but
		// does redirect it to a path with a slash, which it then returns in place of a
		// pattern.
		{"CONNECT /tunnel/x", "", "CONNECT /tunnel/{to}", true},
		{"CONNECT /tunnel/x/", "", "/tunnel/{to}/", true},
		{"CONNECT /static/../login", "", "/static/", true},
		{"CONNECT /any/login", "", "", false},
		{"CONNECT /static", "", "", false},
		{"CONNECT /login", "", "", false},
		{"CONNECT example.com:443", "example.com:443", "", false},
		{"CONNECT other.example:443/static/x", "other.example", "/static/", true},
		{"CONNECT other.example:443/any/login", "other.example", "", false},
	} {
		r, err := readRequest(test.line + " HTTP/1.1\nHost: " + test.host)
		require.NoError(t, err)
		require.Equal(t, test.want, keyOf(t, shaper.ByRoute(s.ServeMux), r), "%q", test.line)
		ran := ""
		if test.runs {
			ran = test.want
		}
		require.Equal(t, ran, s.run(r), "%q", test.line)
	}
}

// A route whose own handler redirects is a route like any other.
func TestByRouteKnowsItsOwnRedirects(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/moved", http.RedirectHandler("/here", http.StatusMovedPermanently))
	require.Equal(t, "/moved", keyOf(t, shaper.ByRoute(mux), httptest.NewRequest("GET", "/moved", nil)))
}

func TestByRouteSeesRoutesThatComeLater(t *testing.T) {
	mux := http.NewServeMux()
	key := shaper.ByRoute(mux)
	require.Equal(t, "", keyOf(t, key, httptest.NewRequest("GET", "/", nil)))
	mux.Handle("/", http.NotFoundHandler())
	require.Equal(t, "/", keyOf(t, key, httptest.NewRequest("GET", "/", nil)))
}

func TestByRouteNeedsAMux(t *testing.T) {
	key, err := shaper.ByRoute(nil)(httptest.NewRequest("GET", "/", nil))
	require.EqualError(t, err, "shaper: ByRoute: mux is nil, must be the ServeMux whose routes are meant")
	require.Empty(t, key)
}

// A program looks up a rule under the first part of the key. Whatever a client sends,
// this must be the rule of the route whose handler runs. If no handler runs, it may be
// the rule of any route or of none.
func FuzzNothingThatAClientSendsPicksAnotherRule(f *testing.F) {
	for _, line := range []string{
		"POST /login", "GET /orders/POST%20%2Flogin", "GET /static/../login", "GET /any/login",
		"CONNECT /any/login", "CONNECT /-", "CONNECT /any/x/../y", "CONNECT a/any/login", "GET *", "OPTIONS *",
		"CONNECT /orders/%7Bid%7D", "CONNECT /any/{name}", "CONNECT /a%2Fb", "CONNECT //any//x",
	} {
		f.Add(line, "example.com", "eve", "192.0.2.1")
		f.Add(line, "admin.example.com", "../POST %2Flogin/", "login/, 10.0.0.1")
	}
	f.Add("GET /", "", "", "")
	f.Add("POST /login", "-", "-\nX-User: -", "-")
	s := newRouted()
	key := shaper.By(shaper.ByRoute(s.ServeMux), shaper.ByHeader("X-User"), shaper.ByHeader("Host"), shaper.ByClientIP(prefixes("203.0.113.0/24")...))
	rules := map[string]string{"-": ""} // routes, by the names of their rules
	for _, route := range routes {
		rules[shaper.Join(route)] = route
	}
	require.Len(f, rules, len(routes)+1, "each route has a rule of its own")
	require.NotContains(f, slices.Collect(maps.Keys(rules)), "")
	f.Fuzz(func(t *testing.T, line, host, user, forwarded string) {
		r, err := readRequest(line + " HTTP/1.1\nHost: " + host + "\nX-User: " + user + "\nX-Forwarded-For: " + forwarded)
		if err != nil {
			return // A server would not accept this request.
		}
		k := keyOf(t, key, r)
		require.Equal(t, 3, strings.Count(k, "/"), "%q", k)
		name, _, _ := strings.Cut(k, "/")
		require.Contains(t, rules, name)
		if ran := s.run(r); ran != "" {
			require.Equal(t, ran, rules[name])
		}
	})
}
