package redisbucket_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

// Two processes, which are two Shapers here, share a rate of one per hour. The first lets a
// request leave; the second refuses, as it has no line of its own (Depth is 0).
func ExampleNew() {
	server, err := miniredis.Run() // stands for a server of Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()

	for _, process := range []string{"first", "second"} {
		client := redis.NewUniversalClient(&redis.UniversalOptions{
			Addrs:                 []string{server.Addr()},
			ContextTimeoutEnabled: true, // a call that gets no answer gives up its connection too
		})
		defer client.Close()
		limits := shaper.Limits{Rate: rate.Every(time.Hour)}
		s, err := shaper.New(limits, shaper.WithBucket(redisbucket.New(client), "payments-api",
			shared.Options{Timeout: 10 * time.Second})) // for a machine that is as busy as those of tests
		if err != nil {
			log.Fatal(err)
		}
		defer s.Close()
		err = s.Wait(context.Background())
		var refused *shaper.RejectError
		if errors.As(err, &refused) {
			fmt.Printf("%s: refused, retry after %v\n", process, refused.RetryAfter.Round(time.Minute))
		} else {
			fmt.Printf("%s: %v\n", process, err)
		}
	}
	// Output:
	// first: <nil>
	// second: refused, retry after 1h0m0s
}

// A Ring has a name for each server, which must be the same in all processes.
func ExampleNewRing() {
	red := redis.NewClient(&redis.Options{Addr: "10.0.0.1:6379"})
	defer red.Close()
	blue := redis.NewClient(&redis.Options{Addr: "10.0.0.2:6379"})
	defer blue.Close()
	ring := redisbucket.NewRing(map[string]redis.UniversalClient{"red": red, "blue": blue})
	for _, key := range []string{"user:0", "user:1", "user:8"} {
		fmt.Println(key, ring.Shard(key))
	}
	// Output:
	// user:0 blue
	// user:1 red
	// user:8 blue
}
