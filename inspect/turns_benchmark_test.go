package inspect_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// BenchmarkTurns asks whose turn it is, of Shapers with few and with many keys in line.
func BenchmarkTurns(b *testing.B) {
	for _, keys := range []int{10, 1000, 20_000} {
		b.Run(fmt.Sprintf("%d_keys", keys), func(b *testing.B) {
			s, err := shaper.New(shaper.Limits{Rate: 0.01, Depth: 2 * keys}, shaper.WithFairQueue(nil))
			require.NoError(b, err)
			i := inspect.New()
			b.Cleanup(func() {
				_ = i.Close()
				_ = s.Close()
			})
			i.Add("one", inspect.Of(s))
			require.True(b, s.Allow())
			for n := range 2 * keys {
				go func() { _ = s.For(fmt.Sprint("key ", n%keys)).Wait(context.Background()) }()
			}
			realtime.Until(b, func() bool { return s.Stats().Waiting == 2*keys }, "all wait")
			b.ReportAllocs()
			for b.Loop() {
				require.Equal(b, http.StatusOK, ask(i, "/api/v1/keys/one/").Code)
			}
		})
	}
}
