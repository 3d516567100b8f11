package redisbucket_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

// The example of docs/shared.md: one rate for all processes, one for each user over
// all of them, and a meter.
func Example_sharedBuckets() {
	server, err := miniredis.Run() // stands for a server of Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	addr, ctx, site := server.Addr(), context.Background(), http.NotFoundHandler()
	callUpstream := func(context.Context) error { fmt.Println("called"); return nil }

	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	bucket := redisbucket.New(client)
	s, err := shaper.New(shaper.Limits{Rate: 50, Depth: 100}, shaper.WithBucket(bucket, "payments-api", shared.Options{}))
	if err != nil {
		log.Fatal(err)
	}
	err = s.Do(ctx, 1, callUpstream) // all processes together: 50 per second
	fmt.Println(err)

	perUser, err := shaper.NewGroup(func(user string) (shaper.Limits, error) {
		return shaper.Limits{Rate: 10, Burst: 5, Depth: 20}, nil
	}, shaper.WithBuckets(bucket, func(user string) string { return "user:" + user }, shared.Options{}))
	if err != nil {
		log.Fatal(err)
	}
	handler := perUser.Middleware(shaper.ByHeader("X-User"))(site)
	login := httptest.NewRequest(http.MethodGet, "/", nil)
	login.Header.Set("X-User", "ann")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, login)
	fmt.Println(w.Code, "from the site")

	logins, err := shaper.New(shaper.Limits{Rate: 1, Burst: 5}, shaper.WithBucket(bucket, "logins", shared.Options{}))
	if err != nil {
		log.Fatal(err)
	}
	_ = logins.AllowN(5) // one round trip; where that takes too long, the answer is no
	fmt.Println(logins.Stats().Bucket.State)
	fmt.Println(strings.Join(server.Keys(), " "))

	for _, end := range []func() error{s.Close, perUser.Close, logins.Close, client.Close} {
		if err := end(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// called
	// <nil>
	// 404 from the site
	// shared
	// shaper:logins shaper:payments-api shaper:user:ann
}

// The example of docs/shared.md for the time in which the server can't be asked.
func Example_withoutTheServer() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // Nobody listens there.
	defer client.Close()
	bucket, limits := redisbucket.New(client), shaper.Limits{Rate: 50, Depth: 100}

	s, err := shaper.New(limits, shaper.WithBucket(bucket, "payments-api", shared.Options{
		Fallback: shared.FallbackLocal(4), // of four processes each has a quarter of the rate
	}),
		shaper.WithTrace(&shaper.Trace{Bucket: func(ctx context.Context, e shared.Event) {
			slog.WarnContext(ctx, "shared bucket", "shaper", e.Name, "state", e.State, "err", e.Err)
		}}))
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	fmt.Println(s.Stats().Bucket.State)
	fmt.Println(s.Wait(context.Background())) // It leaves by the fallback.
	fmt.Println(s.Stats().Bucket.State)
	// Output:
	// shared
	// <nil>
	// local
}

// The example of docs/shared.md for a cap of all processes: two processes have 30 pages each, which twenty workers render.
func Example_workerPool() {
	server, err := miniredis.Run() // stands for a server of Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	var atWork, most, rendered atomic.Int32
	render := func(context.Context) error {
		now := atWork.Add(1)
		defer atWork.Add(-1)
		for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
		}
		time.Sleep(20 * time.Millisecond)
		rendered.Add(1)
		return nil
	}
	process := func() {
		client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
		defer client.Close()
		bucket := redisbucket.New(client)
		pool, err := shaper.New(shaper.Limits{Rate: 1000, Depth: 5000}, shaper.WithBucket(bucket, "render-workers", shared.Options{
			InFlight: 20, // at the upstream at a time, from all processes together
		}))
		if err != nil {
			log.Fatal(err)
		}
		defer pool.Close()
		var pages sync.WaitGroup
		for range 30 {
			pages.Go(func() {
				if err := pool.Do(context.Background(), 1, render); err != nil {
					log.Print(err)
				}
			})
		}
		pages.Wait()
	}
	var processes sync.WaitGroup
	for range 2 {
		processes.Go(process)
	}
	processes.Wait()
	fmt.Println(rendered.Load(), "pages, never more than 20 at a time:", most.Load() <= 20)
	// Output: 60 pages, never more than 20 at a time: true
}
