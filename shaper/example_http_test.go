package shaper_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// Health checks pass whatever the load: their cost is 0.
func ExampleMiddleware() {
	// One request an hour and nobody waits, so that this example shows a
	// refusal. A real site would say {Rate: 50, Depth: 100}, with which a burst
	// of 100 is delayed, by up to two seconds, and not refused.
	s, err := shaper.New(shaper.Limits{Rate: rate.Every(time.Hour)})
	if err != nil {
		panic(err)
	}
	shape := shaper.Middleware(s, shaper.WithCost(func(r *http.Request) int {
		if r.URL.Path == "/healthz" {
			return 0
		}
		return 1
	}))
	site := shape(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "Hello.")
	}))

	for _, path := range []string{"/", "/", "/healthz"} {
		answer := httptest.NewRecorder()
		site.ServeHTTP(answer, httptest.NewRequest("GET", path, nil))
		fmt.Println(path, answer.Code, answer.Header().Get("Retry-After") != "")
		fmt.Print(answer.Body)
	}
	// Output:
	// / 200 false
	// Hello.
	// / 429 true
	// {"title":"Too Many Requests","status":429,"detail":"More requests have come than the limit allows."}
	// /healthz 200 false
	// Hello.
}

// An error handler can answer in its own way and leave the rest to WriteError.
func ExampleWithErrorHandler() {
	s, err := shaper.New(shaper.Limits{Rate: rate.Every(time.Hour)})
	if err != nil {
		panic(err)
	}
	shape := shaper.Middleware(s, shaper.WithErrorHandler(
		func(w http.ResponseWriter, r *http.Request, err error) {
			if errors.Is(err, shaper.ErrQueueFull) {
				http.Redirect(w, r, "/busy.html", http.StatusSeeOther)
				return
			}
			shaper.WriteError(w, r, err)
		}))
	site := shape(http.NotFoundHandler())

	for range 2 {
		answer := httptest.NewRecorder()
		site.ServeHTTP(answer, httptest.NewRequest("GET", "/", nil))
		fmt.Println(answer.Code, answer.Header()["Location"])
	}
	// Output:
	// 404 []
	// 303 [/busy.html]
}

// The cost of a request is known when its handler has done its work.
func ExampleSettle() {
	s, err := shaper.New(shaper.Limits{Rate: 1000, Burst: 500, Depth: 100}) // rows per second
	if err != nil {
		panic(err)
	}
	reserve := shaper.WithCost(func(*http.Request) int { return 200 }) // an estimate
	handler := shaper.Middleware(s, reserve, shaper.WithReserve())(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rows := 30 // that a query has returned
		shaper.Settle(r, rows)
		fmt.Fprintln(w, rows, "rows")
	}))
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	fmt.Print(w.Body)
	fmt.Println("given back:", s.Stats().GivenBack > 0)
	// Output:
	// 30 rows
	// given back: true
}
