package sharedfaults_test

import (
	"context"
	"fmt"
	"math/big"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// The millionth slot at 3/s and at 30,000/s is where the rate puts it: a server that counts in
// floating point, or loses the last digits of a text, is far off by then.
func TestAMillionSlotsDoNotDrift(t *testing.T) {
	t.Parallel()
	for _, e := range []engine{redisEngine, postgresEngine} {
		addr := startEngine(t, e)
		for _, third := range []shaper.BucketRate{
			{Version: 1, Micros: 333_333, Part: 1000, Parts: 3000, Burst: 2_000_000}, // 3/s
			{Version: 1, Micros: 33, Part: 1000, Parts: 3000, Burst: 2_000_000},      // 30,000/s
		} {
			t.Run(fmt.Sprintf("%v %dµs", e, third.Micros), func(t *testing.T) {
				b := open(t, plan{Engine: e, Addrs: []string{addr}})
				unit := new(big.Rat).SetFrac64(third.Micros*third.Parts+third.Part, third.Parts)
				var first *big.Rat
				taken := int64(0)
				// The first is so much, half a minute, that the level does not fall to 0 between two calls.
				for cost := int64(900_000); taken < 1_700_000; cost = 997 {
					answer, err := b.Take(t.Context(), shaper.Take{Key: t.Name(), Cost: cost, First: 1, Rate: third})
					require.NoError(t, err)
					require.True(t, answer.OK)
					at := new(big.Rat).SetFrac64(answer.Empty.Part, third.Parts)
					at.Add(at, new(big.Rat).SetInt64(answer.Empty.Micros))
					if first == nil {
						first = at
					}
					want := new(big.Rat).Mul(unit, new(big.Rat).SetInt64(taken))
					require.Zero(t, want.Add(want, first).Cmp(at), "after %d slots the level reaches 0 at %v, must be %v", taken, at.FloatString(6), want.FloatString(6))
					taken += cost
				}
			})
		}
	}
}

// The same through Shapers: two that share a bucket leave a million times, or twenty
// thousand, each at its slot. The clocks may drift by 200 ppm from when a slot is leased
// until it is used, so each leaves up to that much later.
func TestManyDeparturesDoNotDrift(t *testing.T) {
	for _, perSecond := range []rate.Limit{3, 30_000} {
		t.Run(fmt.Sprint(perSecond), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := buckettest.NewMemory()
				var mu sync.Mutex
				var left []time.Time
				trace := &shaper.Trace{Departed: func(_ context.Context, e shaper.Event) {
					mu.Lock()
					defer mu.Unlock()
					left = append(left, e.At)
				}}
				limits := shaper.Limits{Rate: perSecond, Depth: 100}
				waits := 20_000
				if long {
					waits = 1_000_000
				}
				done := make(chan struct{})
				const waiters = 20
				for range 2 {
					s := newShared(t, m, limits, shaper.WithTrace(trace))
					for range waiters {
						go func() {
							defer func() { done <- struct{}{} }()
							for range waits / 2 / waiters {
								if err := s.Wait(t.Context()); err != nil {
									t.Error(err)
									return
								}
							}
						}()
					}
				}
				for range 2 * waiters {
					<-done
				}
				require.Len(t, left, waits)
				slices.SortFunc(left, time.Time.Compare)
				allowed := 20*time.Microsecond + time.Duration(200e-6*float64(4*time.Duration(float64(time.Second)/float64(perSecond))+2*longestBatch))
				for i, at := range left {
					slot := time.Duration(float64(i) * float64(time.Second) / float64(perSecond))
					late := at.Sub(left[0]) - slot
					require.InDelta(t, 0, late, float64(allowed), "departure %d", i)
				}
			})
		})
	}
}
