package simulate_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/cmd/shapereplay/internal/simulate"
	"example.com/leakybucket/config"
	"example.com/leakybucket/shaper"
)

// An operator puts the rules of a replay in front of a server. So what a simulation counts
// for each key is what happens at a Group with the same rules.
func TestASimulationCountsWhatHappensAtAGroup(t *testing.T) {
	parsed, err := config.Parse("test.yaml", []byte(`
default: 10/s burst 3 depth 5
limits:
  api: 2/s depth 20 wait 1s
  api/3: 100/min burst 2
  login: 5/min burst 3 depth 1
`))
	require.NoError(t, err)
	chance := rand.New(rand.NewPCG(16, 9))
	for range 10 {
		simulation, happened := simulate.New(parsed, simulate.Options{}), map[string]*simulate.Count{}
		synctest.Test(t, func(t *testing.T) {
			group, err := shaper.NewGroup(parsed.Limits)
			require.NoError(t, err)
			defer group.Close()
			var calls sync.WaitGroup
			var mu sync.Mutex // of happened
			for range 400 {
				if chance.IntN(3) == 0 {
					time.Sleep(time.Duration(chance.Int64N(int64(60 * ms))))
				}
				key := fmt.Sprintf("%s/%d", []string{"api", "login", "other"}[chance.IntN(3)], chance.IntN(5))
				simulation.Arrive(time.Now(), key, "")
				calls.Go(func() {
					arrived := time.Now()
					err := group.Wait(t.Context(), key)
					mu.Lock()
					defer mu.Unlock()
					if happened[key] == nil {
						happened[key] = &simulate.Count{}
					}
					note(happened[key], err, time.Since(arrived))
				})
				synctest.Wait()
			}
			calls.Wait()
		})
		result := simulation.Result()
		for _, k := range append(result.RefusedMost(1000), result.WaitedLongest(1000)...) {
			require.Equal(t, *happened[k.Key], k.Count, k.Key)
		}
		var all simulate.Count
		for _, c := range happened {
			all = simulate.Count{
				all.Requests + c.Requests, all.AtOnce + c.AtOnce, all.Waited + c.Waited, all.QueueFull + c.QueueFull, all.TooLate + c.TooLate,
				all.TotalWait + c.TotalWait, max(all.Longest, c.Longest),
			}
		}
		require.Equal(t, all, result.All)
		require.Greater(t, all.QueueFull, 20)
		require.Greater(t, all.TooLate, 20)
		require.Greater(t, all.Waited, 30)
	}
}

// note counts what became of a call.
func note(c *simulate.Count, err error, waited time.Duration) {
	c.Requests++
	switch {
	case errors.Is(err, shaper.ErrQueueFull):
		c.QueueFull++
	case errors.Is(err, shaper.ErrTooLate):
		c.TooLate++
	case waited > 0:
		c.Waited++
		c.TotalWait += waited
		c.Longest = max(c.Longest, waited)
	default:
		c.AtOnce++
	}
}
