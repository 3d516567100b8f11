package config_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/config"
	"example.com/leakybucket/shaper"
)

// routeOf returns the pattern that a request fits.
func routeOf(t *testing.T, mux *http.ServeMux, method, path string) string {
	t.Helper()
	pattern, err := shaper.ByRoute(mux)(httptest.NewRequestWithContext(t.Context(), method, "http://shop.example"+path, nil))
	require.NoError(t, err)
	return pattern
}

// A rule for a route must meet its requests, without the pattern being written down twice.
func TestRoutesStandInTheKeysOfRules(t *testing.T) {
	rules := parse(t, `
default: 1/s
limits:
  "POST %2Flogin": 1/s
  "%2Forders%2F{id}": 1/s
  "%2Forders%2F{id}/192.0.2.1": 1/s
  "shop.example%2Fcart/-": 1/s
  "-/%2Fsecond": 1/s
  "%2F100%25": 1/s
  api: 1/s
`)
	mux, err := rules.Routes(0, "/given", "POST /login", "/given")
	require.NoError(t, err)
	for _, test := range []struct{ method, path, want string }{
		{"POST", "/login", "POST /login"},
		{"GET", "/login", ""},
		{"GET", "/orders/42", "/orders/{id}"},
		{"GET", "/cart", "shop.example/cart"},
		{"GET", "/given", "/given"},
		{"GET", "/100%25", "/100%"},
		{"GET", "/second", ""}, // It is another part.
		{"GET", "/api", ""},    // It is no pattern.
		{"GET", "/", ""},
	} {
		require.Equal(t, test.want, routeOf(t, mux, test.method, test.path), test.path)
	}

	mux, err = rules.Routes(1)
	require.NoError(t, err)
	require.Equal(t, "/second", routeOf(t, mux, "GET", "/second"))
	require.Empty(t, routeOf(t, mux, "POST", "/login"))

	for _, index := range []int{-1, 2} {
		mux, err = rules.Routes(index, "/given")
		require.NoError(t, err)
		require.Equal(t, "/given", routeOf(t, mux, "GET", "/given"))
		require.Empty(t, routeOf(t, mux, "GET", "/second"))
	}
}

// Keys have the beginning of such a pattern and a hash, which no request's path has.
func TestLongPatternsAreGiven(t *testing.T) {
	long := "/" + strings.Repeat("x", 300)
	rules := parse(t, fmt.Sprintf("limits:\n  %q: 1/s\n", shaper.Join(long)))
	mux, err := rules.Routes(0)
	require.NoError(t, err)
	shortened, err := url.PathUnescape(shaper.Join(long))
	require.NoError(t, err)
	require.Empty(t, routeOf(t, mux, "GET", shortened))
	mux, err = rules.Routes(0, long)
	require.NoError(t, err)
	require.Equal(t, long, routeOf(t, mux, "GET", long))
}

func TestRoutesNeedNoRules(t *testing.T) {
	mux, err := new(config.Rules).Routes(0, "/given")
	require.NoError(t, err)
	require.Equal(t, "/given", routeOf(t, mux, "GET", "/given"))
}

// Whoever writes a wrong pattern must learn where it stands.
func TestAPatternThatCannotBeARouteIsNamed(t *testing.T) {
	rules := parse(t, "limits:\n  \"%2F{a}%2Fb\": 1/s\n  \"%2Fb%2F{a}\": 1/s\n")
	_, err := rules.Routes(0)
	require.EqualError(t, err, `shaper.yaml:2: "%2F{a}%2Fb": "/{a}/b" cannot be a route: pattern "/{a}/b" conflicts with pattern "/b/{a}": `+
		`/{a}/b and /b/{a} both match some paths, like "/b/b". But neither is more specific than the other. `+
		`/{a}/b matches "/a/b", but /b/{a} doesn't. /b/{a} matches "/b/a", but /{a}/b doesn't.`)
	_, err = rules.Routes(1, "api")
	require.EqualError(t, err, `"api" cannot be a route: parsing "api": at offset 0: host/path missing /`)
	_, err = parse(t, "limits:\n  api: 1/s\n  \"%2F{\": 1/s\n").Routes(0)
	require.EqualError(t, err, `shaper.yaml:3: "%2F{": "/{" cannot be a route: parsing "/{": at offset 1: bad wildcard segment (must end with '}')`)
}
