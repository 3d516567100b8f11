package shaper_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// Everything at once, for the race detector and for what must hold whatever happens: every call
// ends, and is counted once.
func TestStormOverASharedBucketWithFaults(t *testing.T) {
	for seed := range uint64(6) {
		fallback := []shaper.Fallback{shaper.FallbackClosed, shaper.FallbackLocal(3), shaper.FallbackOpen}[seed%3]
		synctest.Test(t, func(t *testing.T) {
			m := buckettest.NewMemory()
			m.SetDelay(ms, ms)
			var mu sync.Mutex
			random := rand.New(rand.NewPCG(seed, 1))
			chance := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return random.IntN(n)
			}
			m.Fail(func(int, string) buckettest.Fault {
				if chance(4) > 0 {
					return buckettest.NoFault
				}
				return buckettest.Fault(chance(5))
			})
			const goroutines, each = 12, 60 // of a Shaper, and calls of each
			var all []*shaper.Shaper
			var ledgers [3]ledger
			for i := range ledgers {
				hooks := ledgers[i].hooks()
				hooks.Bucket = func(context.Context, shaper.BucketEvent) {}
				s, err := shaper.New(shaper.Limits{Rate: 500, Burst: 5, Depth: 40}, shaper.WithBucket(m, "k"), shaper.WithFallback(fallback), shaper.WithPatience(time.Duration(seed)*40*ms),
					shaper.WithTrace(hooks))
				require.NoError(t, err)
				all = append(all, s)
			}
			var wg sync.WaitGroup
			for i, s := range all {
				l := &ledgers[i]
				for range goroutines {
					wg.Go(func() {
						for range each {
							time.Sleep(time.Duration(chance(30)) * ms)
							if chance(3) == 0 {
								l.noteAllow(s.AllowN(1 + chance(5)))
							} else {
								ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+chance(400))*ms)
								if chance(2) == 0 {
									ctx = context.WithoutCancel(ctx)
								}
								c := &call{Context: ctx, cancel: cancel, cost: 1 + chance(8)}
								l.note(c, s.WaitN(c, c.cost))
							}
							switch chance(200) {
							case 0:
								s.Hold(time.Duration(chance(20)) * ms)
							case 1:
								if err := s.SetLimits(shaper.Limits{Rate: 300, Burst: 1 + chance(9), Depth: 10 + chance(40)}); err != nil {
									t.Error(err)
								}
							case 2:
								m.Step(time.Duration(chance(2000)-1000) * ms)
							case 3:
								m.Wipe()
							}
							_ = s.Stats()
						}
					})
				}
			}
			wg.Wait()
			for i, s := range all {
				st := s.Stats()
				ledgers[i].requireAgreement(t, st)
				require.EqualValues(t, goroutines*each, st.Departed+st.Refused+st.Abandoned, "seed %d: %+v", seed, st)
				m.Fail(nil)
				require.NoError(t, s.Close())
				st = s.Stats()
				require.Zero(t, st.Bucket.Held)
				require.GreaterOrEqual(t, st.Bucket.Leased, st.Bucket.Dropped+st.Bucket.GivenBack)
			}
			synctest.Wait()
		})
	}
}
