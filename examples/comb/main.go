// Command comb is the program of the README's section "Install and use": five
// requests at the same moment: three of them wait in line and one is refused.
package main

import (
	"context"
	"fmt"
	"log"
	"sync"
	"time"

	"example.com/leakybucket/shaper"
)

func main() {
	ctx := context.Background()
	s, err := shaper.New(shaper.Limits{Rate: 50, Depth: 3}) // 50 requests per second; up to 3 wait in line
	if err != nil {
		log.Fatal(err)
	}
	call := func(name string) error {
		return s.Do(ctx, 1, func(ctx context.Context) error { return callUpstream(ctx, name) })
	}

	start := time.Now()
	show := func(name string, text any) {
		fmt.Printf("%3d ms  %s: %v\n", time.Since(start).Milliseconds(), name, text)
	}
	callUpstream = func(_ context.Context, name string) error {
		show(name, "called")
		return nil
	}
	var all sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		all.Go(func() {
			if err := call(name); err != nil {
				show(name, err)
			}
		})
		time.Sleep(100 * time.Microsecond) // so that the requests come in the order of their names
	}
	all.Wait()
}

// callUpstream stands for a call of the fragile upstream.
var callUpstream func(ctx context.Context, name string) error
