package shaper_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// AllowN on what is closed is counted in one way, whatever is known of the Limits: a
// closed Group does not know whether a key has a cap. Otherwise the totals of a Shaper
// and of a Group would tell different things of the same calls.
func TestAllowOfAClosedShaperAndGroupIsCountedAlike(t *testing.T) {
	type ending interface {
		Shutdown(context.Context) error
		Close() error
	}
	for _, limits := range []string{"1/s depth 9", "1/s depth 9 inflight 1"} {
		for name, end := range map[string]func(ending){
			"Close":    func(e ending) { _ = e.Close() },
			"Shutdown": func(e ending) { _ = e.Shutdown(closedContext()) },
		} {
			t.Run(limits+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var told []error
					trace := shaper.WithTrace(&shaper.Trace{Refused: func(_ context.Context, e shaper.Event) { told = append(told, e.Err) }})
					l := limitsOf(t, limits)
					s, err := shaper.New(l, trace)
					require.NoError(t, err)
					g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return l, nil }, trace)
					require.NoError(t, err)
					wait := func(acquire func(context.Context, int) (func(), error)) {
						release, err := acquire(context.Background(), 1)
						require.NoError(t, err)
						time.Sleep(500 * time.Millisecond) // Until it is closed, if by Shutdown, with one in line.
						release()
					}
					inGroup := g.Limiter("a")
					for range 2 {
						go wait(s.Acquire)
						go wait(inGroup.Acquire)
						synctest.Wait()
					}
					if name == "Close" {
						time.Sleep(10 * time.Second)
					}
					end(s)
					end(g)
					told = nil
					for _, key := range []string{"a", "new"} {
						require.False(t, s.AllowN(2))
						require.False(t, g.AllowN(key, 2))
						require.True(t, s.AllowN(0))
						require.True(t, g.AllowN(key, 0))
						require.False(t, s.AllowN(-1))
						require.False(t, g.AllowN(key, -1))
					}
					require.EqualValues(t, 2, s.Stats().Closed)
					require.EqualValues(t, 2, g.Stats().Closed)
					require.Len(t, told, 4)
					for _, err := range told {
						require.ErrorIs(t, err, shaper.ErrClosed)
					}
					time.Sleep(10 * time.Second)
				})
			})
		}
	}
}
