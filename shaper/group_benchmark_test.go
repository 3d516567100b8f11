package shaper_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// BenchmarkGroupRefusal is a call of a Group that is refused: by the key's own bucket,
// by one that it shares, and because all shared buckets are taken. Whoever can
// influence the Limits of keys can bring about the last, so it must cost what the
// first does.
func BenchmarkGroupRefusal(b *testing.B) {
	// The Limits of a key are those of its rule. Each rule has 100,000 keys.
	const keysOfARule = 100_000
	group := func(b *testing.B, rules int) *shaper.Group[int] {
		g, err := shaper.NewGroup(func(key int) (shaper.Limits, error) {
			return shaper.Limits{Rate: 1. / 600, Burst: 1 + key/keysOfARule}, nil
		}, shaper.WithMaxKeys(1))
		require.NoError(b, err)
		b.Cleanup(func() { _ = g.Close() })
		require.True(b, g.Allow(0))
		for i := 1; i < 20_000; i++ {
			rule := i % rules
			for g.Allow(rule*keysOfARule + i) {
			}
		}
		return g
	}
	for _, row := range []struct {
		name  string
		rules int
		key   func(i int) int
	}{
		{"bucket=own", 1, func(int) int { return 0 }},
		{"bucket=shared/rules=1", 1, func(i int) int { return 1 + i%19_000 }},
		{"bucket=shared/rules=960", 960, func(i int) int { return i % 960 * keysOfARule }},
		{"bucket=none/limits=one", 2000, func(int) int { return 1999 * keysOfARule }},
		{"bucket=none/limits=many", 2000, func(i int) int { return (1100 + i%900) * keysOfARule }},
		{"bucket=none/limits=new", 2000, func(i int) int { return (3000 + i%40_000) * keysOfARule }},
	} {
		b.Run(row.name, func(b *testing.B) {
			g := group(b, row.rules)
			for i := range 2000 {
				g.Allow(row.key(i))
			}
			b.ReportAllocs()
			i, allowed := 0, 0
			for b.Loop() {
				if g.Allow(row.key(i)) {
					allowed++
				}
				i++
			}
			require.LessOrEqual(b, allowed, i/10)
		})
	}
}

// BenchmarkGroupManyKeys is a call of a Group in which 100,000 keys have a bucket, with the
// keys in random order, from one goroutine and from 64.
func BenchmarkGroupManyKeys(b *testing.B) {
	keys := make([]string, 100_000)
	for i := range keys {
		keys[i] = "client-" + strconv.Itoa(i)
	}
	rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, goroutines := range []int{1, 64} {
		b.Run("goroutines="+strconv.Itoa(goroutines), func(b *testing.B) {
			g, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
				return shaper.Limits{Rate: 1. / 60, Burst: 500_000}, nil
			})
			require.NoError(b, err)
			defer g.Close()
			for _, key := range keys {
				require.NoError(b, g.Wait(context.Background(), key))
			}
			b.ResetTimer()
			var callers sync.WaitGroup
			for i := range goroutines {
				callers.Go(func() {
					at := i * len(keys) / goroutines
					for range b.N / goroutines {
						if at++; at == len(keys) {
							at = 0
						}
						if g.Wait(context.Background(), keys[at]) != nil {
							b.Error("refused")
							return
						}
					}
				})
			}
			callers.Wait()
		})
	}
}
