package shaper_test

import (
	"context"
	"fmt"
	"net/http"

	"example.com/leakybucket/shaper"
)

// The four ways in, as README.md shows them: Do, Middleware, Transport and Group.
func Example_fourWaysIn() {
	ctx := context.Background()
	callUpstream := func(context.Context) error { return nil }
	site := http.NotFoundHandler()
	s, err := shaper.New(shaper.Limits{Rate: 50, Depth: 100})
	if err != nil {
		panic(err)
	}
	limits := func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 10, Depth: 20}, nil }

	err = s.Do(ctx, 1, callUpstream) // refused: *shaper.RejectError; given up: ctx.Err()
	fmt.Println(err)

	server := &http.Server{Handler: shaper.Middleware(s)(site), ConnContext: shaper.ConnContext}
	client := &http.Client{Transport: &shaper.Transport{Limiter: s}}
	perClient, err := shaper.NewGroup(limits) // limits says what each key may do
	if err != nil {
		panic(err)
	}
	server.Handler = perClient.Middleware(shaper.ByClientIP())(server.Handler)
	fmt.Println(client.Transport != nil)
	// Output:
	// <nil>
	// true
}
