package main

import (
	"context"
	"fmt"
	"testing"
)

// BenchmarkKeys is a call that may leave at once, with a key of so many that have
// come before.
func BenchmarkKeys(b *testing.B) {
	for _, keys := range []int{1_000, manyKeys} {
		for _, c := range keyedContestants {
			for i, call := range c.calls {
				b.Run(fmt.Sprintf("keys=%d/call=%s/limiter=%s", keys, call, c.name), func(b *testing.B) {
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					k, err := c.open(ctx, keys, keptBucket(keys))
					if err != nil {
						b.Fatal(err)
					}
					defer k.stop()
					if err := keysCome(k, 0, keys); err != nil {
						b.Fatal(err)
					}
					next := goingRound(k.each[i](), shuffledKeys(keys))
					b.ReportAllocs()
					for b.Loop() {
						next()
					}
				})
			}
		}
	}
}
