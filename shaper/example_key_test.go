package shaper_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/shaper"
)

// Each client may try to log in seldom, and do other things often. A client that
// writes another address into its header is not believed: only the proxies are.
func ExampleBy() {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /login", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /orders/{id}", func(http.ResponseWriter, *http.Request) {})

	proxies := netip.MustParsePrefix("10.1.0.0/24")
	key := shaper.By(shaper.ByRoute(mux), shaper.ByClientIP(proxies))

	rules := map[string]shaper.Limits{
		shaper.Join("POST /login"): {Rate: 0.1, Burst: 3}, // and nobody waits
	}
	limits := func(key string) (shaper.Limits, error) {
		action, _, _ := strings.Cut(key, "/")
		if l, ok := rules[action]; ok {
			return l, nil
		}
		return shaper.Limits{Rate: 10, Burst: 20}, nil // also for what is no route
	}

	for _, request := range []struct{ method, path, forwardedFor string }{
		{"POST", "/login", "192.0.2.1"},
		{"POST", "/login", "198.51.100.7, 192.0.2.1"}, // The first is invented.
		{"POST", "/login", "2001:db8::17"},
		{"GET", "/orders/17", "192.0.2.1"},
		{"GET", "/orders/POST%20%2Flogin", "192.0.2.1"},
		{"GET", "/wp-admin", "192.0.2.1"},
	} {
		r := httptest.NewRequest(request.method, request.path, nil)
		r.RemoteAddr = "10.1.0.5:40312"
		r.Header.Set("X-Forwarded-For", request.forwardedFor)
		k, err := key(r)
		if err != nil {
			panic(err)
		}
		l, _ := limits(k)
		fmt.Printf("%-33s %v\n", k, l)
	}
	// Output:
	// POST %2Flogin/192.0.2.1           6/min burst 3 depth 0
	// POST %2Flogin/192.0.2.1           6/min burst 3 depth 0
	// POST %2Flogin/2001:db8::%2F64     6/min burst 3 depth 0
	// GET %2Forders%2F{id}/192.0.2.1    10/s burst 20 depth 0
	// GET %2Forders%2F{id}/192.0.2.1    10/s burst 20 depth 0
	// -/192.0.2.1                       10/s burst 20 depth 0
}

// What a client chooses stays within its part, and empty is not the same as "-".
func ExampleJoin() {
	fmt.Println(shaper.Join("login", "192.0.2.1"))
	fmt.Println(shaper.Join("guest", "x/../premium"))
	fmt.Println(shaper.Join("guest", ""))
	fmt.Println(shaper.Join("guest", "-"))
	// Output:
	// login/192.0.2.1
	// guest/x%2F..%2Fpremium
	// guest/-
	// guest/%2D
}

// Providers hand out whole networks: here a customer's /56 has one bucket.
func ExampleClientIP() {
	ip := shaper.ClientIP{IPv6Bits: 56}
	for _, peer := range []string{"[2001:db8:0:1200::1]:40312", "[2001:db8:0:12ff:1:2:3:4]:40313", "[::ffff:192.0.2.1]:40314"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = peer
		key, err := ip.Key(r)
		fmt.Println(key, err)
	}
	// Output:
	// 2001:db8:0:1200::/56 <nil>
	// 2001:db8:0:1200::/56 <nil>
	// 192.0.2.1 <nil>
}

func ExampleWithFairQueue() {
	s, err := shaper.New(shaper.Limits{Rate: 1000, Depth: 100}, shaper.WithFairQueue(nil))
	if err != nil {
		panic(err)
	}
	site := shaper.Middleware(s, shaper.WithKey(shaper.ByHeader("X-Team")))
	handler := site(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Println(r.Header.Get("X-Team")) }))

	s.Hold(time.Hour) // So that both teams wait.
	var all sync.WaitGroup
	for waiting, team := range []string{"a", "a", "a", "b"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-Team", team)
		all.Go(func() { handler.ServeHTTP(httptest.NewRecorder(), r) })
		for s.Stats().Waiting <= waiting {
			time.Sleep(time.Millisecond)
		}
	}
	for _, w := range s.Line(4) {
		fmt.Print(w.Key, " ")
	}
	fmt.Println()
	s.Close()
	all.Wait()

	// Output: a b a a
}

// The preflights of all browsers have the empty key, as they have no API key.
func ExampleWithCost_preflight() {
	g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 1}, nil })
	if err != nil {
		panic(err)
	}
	free := shaper.WithCost(func(r *http.Request) int {
		if r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != "" {
			return 0 // a preflight
		}
		return 1
	})
	site := g.Middleware(shaper.ByHeader("X-Api-Key"), free)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	}))
	ask := func(method string, fields ...string) {
		w, r := httptest.NewRecorder(), httptest.NewRequest(method, "/", nil)
		for _, name := range fields {
			r.Header.Set(name, "PUT")
		}
		site.ServeHTTP(w, r)
		fmt.Print(w.Code, " ")
	}
	for range 3 {
		ask(http.MethodOptions, "Origin", "Access-Control-Request-Method")
	}
	ask(http.MethodOptions, "Origin")                              // It may be for all that a page asks for,
	ask(http.MethodOptions, "Access-Control-Request-Method")       // and this comes from no page,
	ask(http.MethodPut, "Origin", "Access-Control-Request-Method") // and this asks for nothing.
	// Output: 204 204 204 204 429 429
}
