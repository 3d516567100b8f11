package shaper_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"

	"example.com/leakybucket/shaper"
)

// fragileAPI serves at most so many requests at once, and so many a second: the
// n-th must not come sooner than n-1 intervals after the API was opened. It counts
// its refusals.
func fragileAPI(perSecond, atOnce int64, refused *atomic.Int64) http.Handler {
	opened, interval := time.Now(), time.Second/time.Duration(perSecond)
	var came, busy atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		early := time.Since(opened) < time.Duration(came.Add(1)-1)*interval
		defer busy.Add(-1)
		if busy.Add(1) > atOnce || early {
			refused.Add(1)
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		time.Sleep(100 * time.Millisecond)
		fmt.Fprintln(w, "served")
	})
}

// Many goroutines call an API that bears 20 requests a second, and 4 at once.
func ExampleTransport() {
	var refused atomic.Int64
	api := httptest.NewServer(fragileAPI(20, 4, &refused))
	defer api.Close()

	s, err := shaper.New(shaper.Limits{Rate: 20, Depth: 100, InFlight: 4})
	if err != nil {
		panic(err)
	}
	client := &http.Client{Transport: &shaper.Transport{Limiter: s}}

	var served atomic.Int64
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			answer, err := client.Get(api.URL)
			if err != nil {
				return // Refused by the shaper (*shaper.RejectError), or the network failed.
			}
			defer answer.Body.Close() // This gives the seat back.
			if _, err := io.Copy(io.Discard, answer.Body); err == nil && answer.StatusCode == http.StatusOK {
				served.Add(1)
			}
		})
	}
	all.Wait()
	fmt.Println("served", served.Load(), "refused", refused.Load())
	client.CloseIdleConnections()
	// Output: served 20 refused 0
}

// A pool of workers that calls something fragile, which need not be HTTP: however
// many there are, the calls begin one by one, and 4 at most are under way.
func ExampleShaper_Do() {
	s, err := shaper.New(shaper.Limits{Rate: 500, Depth: 10, InFlight: 4})
	if err != nil {
		panic(err)
	}
	numbers := make(chan int)
	var sum atomic.Int64

	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for n := range numbers {
				err := s.Do(context.Background(), 1, func(context.Context) error {
					sum.Add(int64(n)) // Here the upstream is called.
					return nil
				})
				if err != nil {
					fmt.Println(err) // Refused, given up, or what the call returned.
				}
			}
		})
	}
	for n := range 20 {
		numbers <- n
	}
	close(numbers)
	workers.Wait()
	fmt.Println("sum", sum.Load(), "in flight", s.Stats().InFlight)
	// Output: sum 190 in flight 0
}

// A client of many hosts has a line for each, and none that is slow or refuses holds up another.
func ExampleGroup_Transport() {
	api := httptest.NewServer(http.NotFoundHandler())
	defer api.Close()

	g, err := shaper.NewGroup(func(host string) (shaper.Limits, error) {
		return shaper.Limits{Rate: 5, Depth: 100}, nil // for each host
	})
	if err != nil {
		panic(err)
	}
	client := &http.Client{Transport: g.Transport(shaper.ByHost(), shaper.Transport{Retry: true})}

	answer, err := client.Get(api.URL)
	if err != nil {
		panic(err)
	}
	defer answer.Body.Close()
	fmt.Println(answer.StatusCode, "from one of", g.Stats().Keys)
	// Output: 404 from one of 1
}

// Acquire is for calls whose end is elsewhere than their beginning. Release as
// often as you like: a seat is given back once.
func ExampleShaper_Acquire() {
	s, err := shaper.New(shaper.Limits{Rate: 500, InFlight: 1})
	if err != nil {
		panic(err)
	}
	release, err := s.Acquire(context.Background(), 1)
	if err != nil {
		panic(err)
	}
	defer release()
	fmt.Println("in flight", s.Stats().InFlight)
	release()
	fmt.Println("in flight", s.Stats().InFlight)
	// Output:
	// in flight 1
	// in flight 0
}
