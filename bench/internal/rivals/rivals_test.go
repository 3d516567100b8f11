package rivals

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// In virtual time each rival keeps 100/s to the nanosecond. The naive one waits for its first tick.
func TestRivalsLetOneLeaveEachInterval(t *testing.T) {
	for name, open := range Openers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var left []time.Duration
				line := open(100, 3)
				defer line.Stop()
				for range 4 {
					require.NoError(t, line.Wait(t.Context()))
					left = append(left, time.Since(began))
				}
				const ms = time.Millisecond
				if name == "naive" {
					require.Equal(t, []time.Duration{10 * ms, 20 * ms, 30 * ms, 40 * ms}, left)
				} else {
					require.Equal(t, []time.Duration{0, 10 * ms, 20 * ms, 30 * ms}, left)
				}
			})
		})
	}
}

func TestRivalsReleaseCallersThatGiveUp(t *testing.T) {
	for name, open := range Openers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				line := open(1, 3)
				defer line.Stop()
				ctx, giveUp := context.WithCancel(t.Context())
				began := time.Now()
				var waiting sync.WaitGroup
				errs := make([]error, 3)
				for i := range errs {
					waiting.Go(func() { errs[i] = line.Wait(ctx) })
				}
				synctest.Wait()
				time.Sleep(500 * time.Millisecond)
				giveUp()
				waiting.Wait()
				failed := 0
				for _, err := range errs {
					if err != nil {
						require.ErrorIs(t, err, context.Canceled)
						failed++
					}
				}
				switch name {
				case "uber", "uber-noslack":
					require.Equal(t, 2*time.Second, time.Since(began), "they know no context")
					require.Equal(t, 2, failed)
				case "naive":
					require.Equal(t, 500*time.Millisecond, time.Since(began))
					require.Equal(t, 3, failed)
				default:
					require.Equal(t, 500*time.Millisecond, time.Since(began))
					require.Equal(t, 2, failed)
				}
			})
		})
	}
}

// Otherwise a rival in the comparison might limit all keys together, or none.
func TestEachKeyHasABucketOfItsOwn(t *testing.T) {
	for name, c := range KeyedRivals {
		for i, call := range c.Calls {
			if call == "Wait" {
				continue // It would wait.
			}
			k := c.Open(t.Context(), 10, Bucket{Every: time.Hour, Burst: 2})
			may := k.Each[i]
			for _, key := range []string{"a", "b"} {
				require.True(t, may(key), "%s: the first of %s", name, key)
				require.True(t, may(key), "%s: the second of %s", name, key)
				require.False(t, may(key), "%s: the third of %s", name, key)
			}
			k.Stop()
		}
	}
}

func TestThoseThatWaitKeepTheIntervalOfEachKey(t *testing.T) {
	for _, name := range []string{Ours, "x-time"} {
		synctest.Test(t, func(t *testing.T) {
			k := KeyedRivals[name].Open(t.Context(), 10, Bucket{Every: 5 * time.Second, Burst: 1})
			wait, began := k.Each[0], time.Now()
			require.True(t, wait("a"))
			require.True(t, wait("b"))
			require.Zero(t, time.Since(began))
			require.True(t, wait("a"))
			require.True(t, wait("b"))
			require.Equal(t, 5*time.Second, time.Since(began))
			k.Stop()
		})
	}
}
