package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

func ExampleNew() {
	s, err := shaper.New(shaper.Limits{Rate: 50, Depth: 100}, shaper.WithName("billing"))
	fmt.Println(s.Stats().Name, s.Limits(), err)

	_, err = shaper.New(shaper.Limits{Rate: 0})
	fmt.Println(err)
	// Output:
	// billing 50/s depth 100 <nil>
	// shaper: Limits.Rate is 0, must be above 0
}

func ExampleParseLimits() {
	l, err := shaper.ParseLimits("10/min burst 5 depth 20 wait 90s")
	fmt.Println(l.Rate == rate.Limit(10.0/60), l.Burst, l.Depth, l.MaxWait, err)
	// Output: true 5 20 1m30s <nil>
}

// The upstream refuses the 101st request of any minute.
func ExampleWindow() {
	l, err := shaper.Window(100, time.Minute, 20)
	l.Depth = 50
	fmt.Println(l, err)
	fmt.Println(shaper.ParseLimits("100 in 1min burst 20 depth 50"))
	// Output:
	// 1 per 750250us burst 20 depth 50 slack 20ms <nil>
	// 1 per 750250us burst 20 depth 50 slack 20ms <nil>
}

func ExampleShaper_Wait() {
	s, err := shaper.New(shaper.Limits{Rate: 1000, Depth: 100})
	if err != nil {
		panic(err)
	}
	for i := range 3 {
		if err := s.Wait(context.Background()); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("request", i) // At least a millisecond apart.
	}
	// Output:
	// request 0
	// request 1
	// request 2
}

// A request that can't be admitted is told why, and when to come back.
func ExampleShaper_WaitN() {
	s, err := shaper.New(shaper.Limits{Rate: 1. / 60, Burst: 5, Depth: 0})
	if err != nil {
		panic(err)
	}
	fmt.Println(s.WaitN(context.Background(), 5))
	err = s.WaitN(context.Background(), 1)
	var rejected *shaper.RejectError
	fmt.Println(errors.As(err, &rejected), errors.Is(err, shaper.ErrQueueFull), rejected.RetryAfter > 0)
	fmt.Println(s.WaitN(context.Background(), 6))
	// Output:
	// <nil>
	// true true true
	// shaper: costs more than can ever fit
}

func ExampleShaper_Allow() {
	s, err := shaper.New(shaper.Limits{Rate: 1. / 60, Burst: 3})
	if err != nil {
		panic(err)
	}
	for range 5 {
		fmt.Print(s.Allow(), " ")
	}
	// Output: true true true false false
}

// New limits take effect at once on those who wait.
func ExampleShaper_SetLimits() {
	waiting := make(chan struct{})
	trace := &shaper.Trace{Enqueued: func(context.Context, shaper.Event) { close(waiting) }}
	s, err := shaper.New(shaper.Limits{Rate: rate.Limit(1.0 / 3600), Depth: 10}, shaper.WithTrace(trace))
	if err != nil {
		panic(err)
	}
	s.Allow() // The next has to wait for an hour.

	left := make(chan error)
	go func() { left <- s.Wait(context.Background()) }()
	<-waiting
	fmt.Println(s.SetLimits(shaper.Limits{Rate: 1e6, Depth: 10}))
	fmt.Println(<-left)
	// Output:
	// <nil>
	// <nil>
}
