package keys_test

import (
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
	"example.com/leakybucket/cmd/shapereplay/internal/keys"
	"example.com/leakybucket/shaper"
)

// A rule that is right for the server must be right for the replay, so a key of a log
// must be the key that the functions of package shaper make of the request. A mux compares hosts
// as they are sent, so a replay must not find a route that the server does not find.
func TestKeysAreThoseOfTheRequests(t *testing.T) {
	mux := http.NewServeMux()
	for _, pattern := range []string{"POST /login", "/orders/{id}", "/", "shop.example/cart", "Blog.Example/"} {
		mux.Handle(pattern, http.NotFoundHandler())
	}
	maker, err := keys.New([]string{"route", "client_ip", "header:X-Api-Key", "header:host"}, mux, 64)
	require.NoError(t, err)
	require.Equal(t, []string{"X-Api-Key", "host"}, maker.Header())
	byClient := shaper.ByClientIP()
	for _, test := range []struct{ method, host, path, client, header string }{
		{"POST", "shop.example", "/login", "192.0.2.1", "a"},
		{"GET", "shop.example", "/login", "192.0.2.1", "a/b"},
		{"PUT", "shop.example", "/login", "2001:db8::1:2:3:4", ""},
		{"GET", "", "/orders/42", "2001:db8::1", "-"},
		{"DELETE", "other.example", "/orders/a%2Fb", "::1", strings.Repeat("x", 300)},
		{"DELETE", "shop.example", "/cart", "198.51.100.7", "%"},
		{"GET", "shop.example", "//orders//1", "198.51.100.7", ""},
		{"GET", "Shop.Example", "/cart", "198.51.100.7", ""},
		{"GET", "shop.example.", "/cart", "198.51.100.7", ""},
		{"GET", "shop.example:8080", "/cart", "198.51.100.7", ""},
		{"GET", "blog.example", "/cart", "198.51.100.7", ""},
		{"GET", "Blog.Example", "/cart", "198.51.100.7", ""},
		{"GET", "[::1]:80", "/cart", "198.51.100.7", ""},
	} {
		request, err := http.NewRequestWithContext(t.Context(), test.method, "http://h"+test.path, nil)
		require.NoError(t, err)
		request.Host, request.RemoteAddr = test.host, "["+test.client+"]:1234"
		if !strings.Contains(test.client, ":") {
			request.RemoteAddr = test.client + ":1234"
		}
		request.Header.Set("X-Api-Key", test.header)
		route, err := shaper.ByRoute(mux)(request)
		require.NoError(t, err)
		client, err := byClient(request)
		require.NoError(t, err)
		header, err := shaper.ByHeader("X-Api-Key")(request)
		require.NoError(t, err)
		host, err := shaper.ByHeader("host")(request)
		require.NoError(t, err)

		for range 2 { // also when it is remembered
			key, address := maker.Of(&accesslog.Record{Method: test.method, Host: test.host, Path: test.path, Client: test.client, Header: []string{test.header, ""}})
			require.Equal(t, shaper.Join(route, client, header, host), key)
			require.Equal(t, client, address)
		}
	}
}

// Whoever sends names and paths of a mebibyte would otherwise fill the memory of whoever replays the log.
func TestLongNamesAndPathsAreNotHeld(t *testing.T) {
	maker, err := keys.New([]string{"route", "client_ip"}, http.NewServeMux(), 64)
	require.NoError(t, err)
	inUse := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := inUse()
	for i := range 32 {
		long := strconv.Itoa(i) + strings.Repeat("x", 1<<20)
		maker.Of(&accesslog.Record{Method: "GET", Path: "/" + long, Client: long})
	}
	require.Less(t, inUse(), before+16<<20, "bytes in use")
	runtime.KeepAlive(maker)
}
