// Comb sends a burst of five through a shaper and prints when each one leaves.
package main

import (
	"context"
	"fmt"
	"time"

	"example.com/leakybucket/shaper"
)

func main() {
	s, err := shaper.New(shaper.Limits{Rate: 50, Depth: 3}) // 50 a second, 3 may wait
	if err != nil {
		panic(err)
	}
	call := func(context.Context) error { return nil } // of the fragile upstream
	start, done := time.Now(), make(chan string)
	for i := range 5 {
		go func() {
			err := s.Do(context.Background(), 1, call)
			done <- fmt.Sprint(time.Since(start).Round(time.Millisecond), " request ", i, ": ", err)
		}()
		time.Sleep(time.Millisecond) // They come in the order of their numbers.
	}
	for range 5 {
		fmt.Println(<-done)
	}
}
