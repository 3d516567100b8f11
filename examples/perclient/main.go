// Command perclient is the program of docs/keys.md: a server with a limit for each
// route and client, and one client that tries too often to log in.
package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"example.com/leakybucket/shaper"
)

func main() {
	mux := http.NewServeMux()
	for _, route := range []string{"POST /login", "GET /search"} {
		mux.HandleFunc(route, func(http.ResponseWriter, *http.Request) {})
	}

	// Logins do not wait; ten searches of each client may.
	rules := map[string]shaper.Limits{
		shaper.Join("POST /login"): {Rate: 1. / 60, Burst: 3},
		shaper.Join("GET /search"): {Rate: 100, Burst: 5, Depth: 10},
	}
	key := shaper.By(shaper.ByRoute(mux), shaper.ByClientIP())
	limits := func(key string) (shaper.Limits, error) { // asked once for each new bucket
		route, _, _ := strings.Cut(key, "/")
		if l, ok := rules[route]; ok {
			return l, nil
		}
		return shaper.Limits{Rate: 10, Depth: 10}, nil
	}
	perClient, err := shaper.NewGroup(limits, shaper.WithName("per-client"))
	if err != nil {
		panic(err)
	}
	defer perClient.Close()
	server := perClient.Middleware(key)(mux)

	for _, from := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.1", "198.51.100.7"} {
		login := httptest.NewRequest(http.MethodPost, "/login", nil)
		login.RemoteAddr = from + ":1234"
		answer := httptest.NewRecorder()
		server.ServeHTTP(answer, login)
		fmt.Println(from, "login:", answer.Code)
	}
	for _, c := range perClient.Top(3) {
		fmt.Println("limited:", c.Key, c.Count, "time(s)")
	}
	fmt.Println(perClient.Stats().Keys, "buckets")
}
