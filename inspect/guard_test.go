package inspect_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
)

func TestOnlyLoopbackNamesAreServed(t *testing.T) {
	i := inspect.New()
	defer i.Close()
	for host, status := range map[string]int{
		"localhost":                 200,
		"localhost:6060":            200,
		"LOCALHOST:1":               200,
		"127.0.0.1":                 200,
		"127.0.0.1:6060":            200,
		"127.255.3.4:80":            200,
		"[::1]":                     200,
		"[::1]:6060":                200,
		"[::ffff:127.0.0.1]:6060":   200,
		"":                          421,
		"evil.example":              421, // as a page has it whose name was made to stand for 127.0.0.1
		"evil.example:6060":         421,
		"localhost.evil.example":    421,
		"127.0.0.1.evil.example":    421,
		"192.0.2.1:6060":            421,
		"[2001:db8::1]:6060":        421,
		"localhost:6060:evil":       421,
		"xlocalhost":                421,
		"2130706433":                421,
		strings.Repeat("x", 10_000): 421,
	} {
		for _, target := range []string{"/", "/api/buckets", "/api/nothing", "/web/nothing"} {
			r := request(http.MethodGet, target)
			r.Host = host
			w := recorded(i, r)
			if status == 200 {
				require.NotEqual(t, http.StatusMisdirectedRequest, w.Code, host)
				continue
			}
			require.Equal(t, status, w.Code, host)
			require.Contains(t, w.Body.String(), `"parameter":"Host"`)
		}
	}
}

func TestOnlyThisMachineIsAnswered(t *testing.T) {
	i := inspect.New()
	defer i.Close()
	unix := func(r *http.Request) *http.Request {
		return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.UnixAddr{Net: "unix"}))
	}
	plain := func(r *http.Request) *http.Request { return r }
	for _, test := range []struct {
		peer   string
		socket func(*http.Request) *http.Request
		status int
	}{
		{"127.0.0.1:5", plain, 200},
		{"[::1]:5", plain, 200},
		{"[::ffff:127.0.0.1]:5", plain, 200},
		{"@", unix, 200},
		{"", unix, 200},
		{"@", plain, 403},
		{"", plain, 403},
		{"192.0.2.1:5", plain, 403},
		{"10.0.0.1:5", plain, 403},
		{"192.0.2.1:5", unix, 403},
		{"[fe80::1%eth0]:5", plain, 403},
		{"localhost:5", plain, 403}, // net/http has addresses there, no names
	} {
		r := test.socket(request(http.MethodGet, "/api/buckets"))
		r.RemoteAddr = test.peer
		require.Equal(t, test.status, recorded(i, r).Code, test.peer)
	}
}

func TestHostsThatAreGivenAreServedToOthers(t *testing.T) {
	i := inspect.New(inspect.WithHosts("Shapers.Internal", "10.1.2.3:6060"))
	defer i.Close()
	for host, status := range map[string]int{
		"shapers.internal":      200,
		"shapers.internal:8080": 200,
		"SHAPERS.internal":      200,
		"10.1.2.3:6060":         200,
		"127.0.0.1":             200,
		"10.1.2.3":              421,
		"10.1.2.3:80":           421,
		"evil.example":          421,
	} {
		r := request(http.MethodGet, "/api/buckets")
		r.Host, r.RemoteAddr = host, "10.9.9.9:5"
		require.Equal(t, status, recorded(i, r).Code, host)
	}
}

// The name may come from a variable that is not set. Then everybody who reaches the
// listener would be answered.
func TestAnEmptyHostLetsNobodyElseIn(t *testing.T) {
	i := inspect.New(inspect.WithHosts("", " "))
	defer i.Close()
	for _, host := range []string{"localhost", "", " "} {
		r := request(http.MethodGet, "/api/buckets")
		r.Host, r.RemoteAddr = host, "203.0.113.9:5"
		require.GreaterOrEqual(t, recorded(i, r).Code, 400, host)
	}
	require.Equal(t, http.StatusOK, ask(i, "/api/buckets").Code)
}

func TestAHostOfIPv6IsKnownWithAndWithoutBracketsAndPort(t *testing.T) {
	for _, given := range []string{"2001:DB8::1", "[2001:db8::1]"} {
		i := inspect.New(inspect.WithHosts(given))
		defer i.Close()
		for host, status := range map[string]int{
			"[2001:db8::1]":      200,
			"[2001:db8::1]:6060": 200,
			"[2001:db8::2]:6060": 421,
		} {
			r := request(http.MethodGet, "/api/buckets")
			r.Host, r.RemoteAddr = host, "[2001:db8::9]:5"
			require.Equal(t, status, recorded(i, r).Code, "%s %s", given, host)
		}
	}
	i := inspect.New(inspect.WithHosts("[2001:db8::1]:6060"))
	defer i.Close()
	for host, status := range map[string]int{"[2001:db8::1]:6060": 200, "[2001:db8::1]:6061": 421} {
		r := request(http.MethodGet, "/api/buckets")
		r.Host, r.RemoteAddr = host, "[2001:db8::9]:5"
		require.Equal(t, status, recorded(i, r).Code, host)
	}
}

// A page of another origin can send requests whose answers it can't read, such as enough
// for /api/events to take all streams.
func TestAForeignPageIsToldNothingByTheAPI(t *testing.T) {
	i := inspect.New()
	defer i.Close()
	i.Add("one", inspect.Of(shaperOf(t, "1/s")))
	paths := []string{"/api/events", "/api/buckets", "/api/buckets/one/", "/api/line/one/", "/api/top", "/api/what-if?source=one&limits=1/s", "/api/openapi.json"}
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
	i := inspect.New()
	defer i.Close()
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
	i := inspect.New()
	defer i.Close()
	h := i.Guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("served") }))
	r := request(http.MethodPost, "/demo/burst")
	r.Host = "evil.example"
	require.Equal(t, http.StatusMisdirectedRequest, recorded(h, r).Code)
	r = request(http.MethodPost, "/demo/burst")
	r.RemoteAddr = "192.0.2.1:5"
	require.Equal(t, http.StatusForbidden, recorded(h, r).Code)
}
