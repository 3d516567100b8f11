package redisbucket_test

import (
	"context"
	"fmt"
	"log"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper"
)

// Two processes ask for one unit each at one per hour. The first leaves; the second learns
// when it could. Programs do not call Take: they give the Bucket to shaper.WithBucket.
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
		bucket := redisbucket.New(client)
		answer, err := bucket.Take(context.Background(), shaper.Take{
			Key: "payments-api", Cost: 1, First: 1,
			Rate: shaper.BucketRate{Version: 1, Micros: 3_600_000_000, Parts: 1, Burst: 1},
		})
		if err != nil {
			log.Fatal(err)
		}
		wait := float64(answer.Empty.Micros-answer.Now) / 60e6
		fmt.Printf("the %s may leave now: %v; the level reaches 0 in %.0f minutes\n", process, answer.OK, wait)
	}
	// Output:
	// the first may leave now: true; the level reaches 0 in 0 minutes
	// the second may leave now: false; the level reaches 0 in 60 minutes
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
