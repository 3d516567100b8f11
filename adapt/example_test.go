package adapt_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/shaper"
)

// An upstream refuses the third call. The rate, which would have doubled otherwise, becomes a tenth lower.
func Example() {
	calls := 0
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls++; calls == 3 {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer upstream.Close()

	// Nobody knows what the upstream bears. It is not more than 200 per second, and 5 it always bears.
	line, err := shaper.New(shaper.Limits{Rate: 200, Depth: 1000, MaxWait: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	finder, err := adapt.New(line, adapt.Config{Min: 5, Start: 50, Slow: 300 * time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}
	defer finder.Close()
	client := &http.Client{Transport: &shaper.Transport{Limiter: line, Base: finder.RoundTripper(nil)}}
	defer client.CloseIdleConnections()

	for range 3 {
		response, err := client.Get(upstream.URL)
		if err != nil {
			log.Fatal(err)
		}
		response.Body.Close()
	}
	st := finder.Stats()
	fmt.Printf("%g/s after %d decrease (%s), between %g/s and %g/s\n", st.Rate, st.Decreases, st.Reason, st.Min, st.Max)
	// Output: 45/s after 1 decrease (refused), between 5/s and 200/s
}
