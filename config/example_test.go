package config_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"example.com/leakybucket/config"
	"example.com/leakybucket/shaper"
)

// Teams share the rate of one upstream, and gold has four times the share of another.
func ExampleOpenFair() {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })

	limits, err := config.OpenFair("testdata/teams.yaml")
	if err != nil {
		panic(err)
	}
	defer limits.Close()
	line, err := limits.NewShaper(shaper.WithName("teams")) // a Shaper WithFairQueue
	if err != nil {
		panic(err)
	}
	site := shaper.Middleware(line, shaper.WithKey(shaper.By(shaper.ByHeader("X-Team"))))(handler)

	r, w := httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder()
	r.Header.Set("X-Team", "gold")
	site.ServeHTTP(w, r)
	fmt.Println(w.Body, limits.Weight("gold"), limits.Weight("silver"))
	// Output: served 4 1
}
