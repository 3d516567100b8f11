package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// Each refusal is remembered with its instant, its reason and what its caller was told; only
// the latest 64 are.
func TestRefusalsAreTheLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustMake(t, shaper.Limits{Rate: 100, Depth: 1, MaxWait: 15 * msec})
		require.Empty(t, s.Refusals())
		t0 := time.Now()
		enters(s.WaitN, 1, 1)
		soon, cancel := context.WithTimeout(t.Context(), 5*msec)
		defer cancel()
		var want []shaper.Refusal
		refused := func(n int, err error) {
			t.Helper()
			var rejected *shaper.RejectError
			require.ErrorAs(t, err, &rejected)
			want = append(want, shaper.Refusal{At: time.Now(), Reason: rejected.Reason, RetryAfter: rejected.RetryAfter, Cost: n})
			require.Equal(t, want, s.Refusals())
		}
		refused(2, s.WaitN(t.Context(), 2))
		time.Sleep(msec)
		refused(7, s.WaitN(soon, 7))
		require.False(t, s.Allow())
		want = append(want, shaper.Refusal{At: t0.Add(msec), Reason: shaper.ErrQueueFull, RetryAfter: 19 * msec, Cost: 1})
		require.Equal(t, want, s.Refusals())
		refused(math.MaxInt, s.WaitN(t.Context(), math.MaxInt))
		require.NoError(t, s.Close())
		synctest.Wait()
		want = append(want, shaper.Refusal{At: time.Now(), Reason: shaper.ErrClosed, Cost: 1})
		require.Equal(t, want, s.Refusals(), "Close has refused the one that waited")
		for n := range 100 {
			refused(1+n, s.WaitN(t.Context(), 1+n))
			if len(want) == 64 {
				want = want[1:]
			}
		}
		require.Equal(t, uint64(105), s.Stats().Refused)
	})
}

// A Group tells the key of each refusal, also of those that Close refuses in line and of
// those for which there was no bucket. A dry run tells what would have been refused.
func TestRefusalsOfAGroupTellTheKey(t *testing.T) {
	for _, dry := range []bool{false, true} {
		t.Run(fmt.Sprintf("dry=%v", dry), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				failure := errors.New("no limits")
				opts := []shaper.GroupOption{}
				if dry {
					opts = append(opts, shaper.WithDryRun())
				}
				g, err := shaper.NewGroup(func(key string) (shaper.Limits, error) {
					if key == "broken" {
						return shaper.Limits{}, failure
					}
					return shaper.Limits{Rate: 1, Depth: 1}, nil
				}, opts...)
				require.NoError(t, err)
				require.Empty(t, g.Refusals())
				_ = g.Wait(t.Context(), "broken")
				require.Empty(t, g.Refusals(), "an error of the limits function is no refusal")
				enters(g.Limiter("a").WaitN, 1, 1)
				enters(g.Limiter("b").WaitN, 1, 1, 5)
				now := time.Now()
				require.Equal(t, dry, g.Allow("a"))
				want := []shaper.Refusal{
					{At: now, Reason: shaper.ErrQueueFull, RetryAfter: time.Second, Cost: 5, Key: "b"},
					{At: now, Reason: shaper.ErrQueueFull, RetryAfter: 2 * time.Second, Cost: 1, Key: "a"},
				}
				if dry {
					want[1].RetryAfter = time.Second // A caller of Wait would be told that, too.
				}
				require.Equal(t, want[0], g.Refusals()[0])
				require.Equal(t, "a", g.Refusals()[1].Key)
				require.NoError(t, g.Close())
				synctest.Wait()
				keys := map[any]int{}
				for _, r := range g.Refusals()[2:] {
					require.Equal(t, shaper.ErrClosed, r.Reason)
					keys[r.Key]++
				}
				if dry {
					require.Empty(t, keys, "those in the shadow have left long ago")
				} else {
					require.Equal(t, map[any]int{"a": 1, "b": 1}, keys)
				}
				for n := range 64 {
					_ = g.WaitN(t.Context(), fmt.Sprint("key ", n), 1+n)
				}
				for n, r := range g.Refusals() {
					require.Equal(t, shaper.Refusal{At: now, Reason: shaper.ErrClosed, Cost: 1 + n, Key: fmt.Sprint("key ", n)}, r)
				}
			})
		})
	}
}

// A refusal in line is told with its own instant, not with that at which a hook has let its call go.
func TestARefusalInLineIsRememberedAtItsInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := shaper.Limits{Rate: 1, Depth: 1}
		slow := shaper.WithTrace(&shaper.Trace{Refused: func(context.Context, shaper.Event) { time.Sleep(time.Minute) }})
		s, err := shaper.New(limits, slow)
		require.NoError(t, err)
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return limits, nil }, slow)
		require.NoError(t, err)
		for range 2 {
			go s.Wait(context.Background())
			go g.Wait(context.Background(), "key")
			synctest.Wait()
		}
		time.Sleep(ms)
		closed := time.Now()
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
		time.Sleep(time.Hour)
		for _, found := range [][]shaper.Refusal{s.Refusals(), g.Refusals()} {
			require.Len(t, found, 1)
			require.Equal(t, shaper.ErrClosed, found[0].Reason)
			require.Equal(t, closed, found[0].At)
		}
	})
}
