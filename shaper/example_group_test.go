package shaper_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"example.com/leakybucket/shaper"
)

// Each client has a bucket of its own: two requests at once, then one per 10 seconds,
// and nobody waits. Those who pay get more.
func ExampleGroup() {
	paying := map[string]bool{"192.0.2.7": true}
	clients, err := shaper.NewGroup(func(address string) (shaper.Limits, error) {
		if paying[address] {
			return shaper.ParseLimits("100, 10/sec")
		}
		return shaper.ParseLimits("2, 6/min")
	})
	if err != nil {
		panic(err)
	}
	defer clients.Close()

	handler := clients.Middleware(shaper.ByClientIP())(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))

	for _, address := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.7", "192.0.2.7", "192.0.2.7"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = address + ":40312"
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, r)
		fmt.Println(address, answer.Code)
	}
	fmt.Println("refused most:", clients.Top(1)[0].Key)
	// Output:
	// 192.0.2.1 200
	// 192.0.2.1 200
	// 192.0.2.1 429
	// 192.0.2.2 200
	// 192.0.2.7 200
	// 192.0.2.7 200
	// 192.0.2.7 200
	// refused most: 192.0.2.1
}

// A request costs its tenant and the site. The tenant's bucket comes first, as it refuses most: a
// request that it refuses takes nothing off the site's.
func ExampleChain() {
	tenants, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.ParseLimits("2, 1/hour") })
	if err != nil {
		panic(err)
	}
	defer tenants.Close()
	site, err := shaper.New(shaper.Limits{Rate: 1000, Burst: 100, Depth: 1000})
	if err != nil {
		panic(err)
	}
	for _, tenant := range []string{"ann", "ann", "ann", "bob"} {
		err := shaper.Chain(tenants.Limiter(tenant), site).WaitN(context.Background(), 1)
		fmt.Println(tenant, err == nil)
	}
	fmt.Println("let go by the site:", site.Stats().Departed)
	// Output:
	// ann true
	// ann true
	// ann false
	// bob true
	// let go by the site: 3
}

// An API allows 500 requests and 200,000 tokens a minute. A request costs as many tokens as it has,
// and one request.
func ExamplePriced() {
	tell := shaper.WithTrace(&shaper.Trace{Departed: func(_ context.Context, e shaper.Event) { fmt.Println(e.Name, e.Cost) }})
	requests, err := shaper.New(shaper.Limits{Rate: 500. / 60, Depth: 1000}, shaper.WithName("requests"), tell)
	if err != nil {
		panic(err)
	}
	tokens, err := shaper.New(shaper.Limits{Rate: 200_000. / 60, Burst: 10_000, Depth: 1000}, shaper.WithName("tokens"), tell)
	if err != nil {
		panic(err)
	}
	perRequest := func(int) int { return 1 }
	api := shaper.Chain(shaper.Priced(requests, perRequest), tokens)
	fmt.Println(api.WaitN(context.Background(), 1000))
	// Output:
	// requests 1
	// tokens 1000
	// <nil>
}

// A new number is tried beside the limit that holds: everybody whom that lets go
// passes, and the header field, the handler, and Stats tell whom the new one would
// have hit.
func ExampleWithDryRun() {
	live, err := shaper.New(shaper.Limits{Rate: 100, Burst: 50, Depth: 100})
	if err != nil {
		panic(err)
	}
	candidate, err := shaper.New(shaper.Limits{Rate: 1. / 60, Burst: 2}, shaper.WithDryRun())
	if err != nil {
		panic(err)
	}
	handler := shaper.Middleware(shaper.Chain(live, candidate), shaper.WithVerdictHeader("X-New-Limit"))(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if v, ok := shaper.VerdictOf(r.Context()); ok && v.Err != nil {
				fmt.Println("mark this user")
			}
		}))
	for range 3 {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest("GET", "/", nil))
		fmt.Println(answer.Code, answer.Header().Get("X-New-Limit"))
	}
	fmt.Println("would have been refused:", candidate.Stats().Refused)
	// Output:
	// 200 leave
	// 200 leave
	// mark this user
	// 200 refuse;reason=queue-full
	// would have been refused: 1
}
