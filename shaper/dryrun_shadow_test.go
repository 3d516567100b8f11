package shaper_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// This file holds the shadow of a dry run to a real line, to the nanosecond. Whatever comes
// to a real Group comes to a dry run at the same instant, and the dry run's verdict on each
// request must be what becomes of it in the real one. Each key has the line of a Shaper.

// A fate is what became of one request, or would have.
type fate struct {
	Wait time.Duration
	Err  error
}

// A comparison is of a real limiter and a dry run with the same limits.
type comparison struct {
	t      *testing.T
	random *rand.Rand

	mu   sync.Mutex
	real []fate
	dry  []fate
}

// comes sends one request to both limiters.
func (c *comparison) comes(real, dry shaper.Limiter, n int, patience time.Duration) {
	i := len(c.dry)
	c.real = append(c.real, fate{})
	go func() {
		ctx, cancel := inTime(context.Background(), patience)
		defer cancel()
		begin := time.Now()
		err := real.WaitN(ctx, n)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.real[i] = fate{time.Since(begin), err}
	}()
	synctest.Wait()
	ctx, cancel := inTime(shaper.ContextWithVerdict(context.Background()), patience)
	defer cancel()
	require.NoError(c.t, dry.WaitN(ctx, n))
	v, ok := shaper.VerdictOf(ctx)
	require.True(c.t, ok)
	c.dry = append(c.dry, fate(v))
}

// inTime returns a context with a deadline, or without one if it is 0.
func inTime(ctx context.Context, patience time.Duration) (context.Context, context.CancelFunc) {
	if patience == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, patience)
}

// limits returns random limits with which many requests are refused, for each reason.
func (c *comparison) limits() shaper.Limits {
	rates := []rate.Limit{7, 1, 0.3, 20. / 60, rate.Every(3 * time.Second), rate.Inf}
	return shaper.Limits{
		Rate:    rates[c.random.IntN(len(rates))],
		Burst:   c.random.IntN(4),
		Depth:   c.random.IntN(6),
		MaxWait: time.Duration(c.random.IntN(2)) * time.Duration(c.random.Int64N(int64(20*time.Second))),
	}
}

// cost returns a random cost, which is sometimes too high for any limits.
func (c *comparison) cost() int {
	if c.random.IntN(20) == 0 {
		return 1e9
	}
	return 1 + c.random.IntN(5)
}

// passes lets a random time pass, which is often 0.
func (c *comparison) passes() {
	time.Sleep(time.Duration(c.random.IntN(2)) * time.Duration(c.random.Int64N(int64(2*time.Second))))
	synctest.Wait()
}

// After a verdict the line may be held or its limits may change. The verdict then remains
// the prediction at entry, as a prediction does without a dry run, and the counts and the
// state of the shadow must still be exact.
func TestTheShadowsOfAGroupAreExact(t *testing.T) {
	t.Parallel()
	words := map[string]int{}
	for seed := range rounds(64, 600, 600) {
		synctest.Test(t, func(t *testing.T) {
			c := &comparison{t: t, random: rand.New(rand.NewPCG(uint64(seed), 7))}
			defer func() {
				if t.Failed() {
					t.Log("seed", seed)
				}
			}()
			c.compare(seed%2 == 0)
			for _, f := range c.dry {
				word, _, _ := strings.Cut(outcome(f.Err), ",")
				if f.Err == nil && f.Wait > 0 {
					word = "waited"
				}
				words[word]++
			}
		})
	}
	for _, word := range []string{"left", "waited", "full", "late", "costly"} {
		require.Greater(t, words[word], 100, "%s of %v", word, words)
	}
}

// compare lets the same calls come to both Groups, and changes their lines if it may.
func (c *comparison) compare(reTimed bool) {
	byKey := map[string]shaper.Limits{}
	limits := func(key string) (shaper.Limits, error) { return byKey[key], nil }
	keys := []string{"a", "b", "c", "d"}
	for _, key := range keys {
		byKey[key] = c.limits()
	}
	real, err := shaper.NewGroup(limits)
	require.NoError(c.t, err)
	defer real.Close()
	dry, err := shaper.NewGroup(limits, shaper.WithDryRun())
	require.NoError(c.t, err)
	defer dry.Close()
	shaper.HashAlike(dry, real) // When a drained bucket is deleted depends on the others in its shard.
	same := func() {
		c.t.Helper()
		synctest.Wait()
		want, got := real.Stats(), dry.Stats()
		require.InDelta(c.t, want.RefusedKeys, got.RefusedKeys, 1, "an estimate, by a hash of its own")
		got.DryRun, got.RefusedKeys = false, want.RefusedKeys
		require.Equal(c.t, want, got)
		shadows := map[string]shaper.Stats{}
		for key, st := range dry.All() {
			st.DryRun = false
			shadows[key] = st
		}
		require.Equal(c.t, maps.Collect(real.All()), shadows)
	}
	for range 40 {
		c.passes()
		same()
		key, n := keys[c.random.IntN(len(keys))], c.cost()
		switch kind := c.random.IntN(10); {
		case kind == 0:
			real.AllowN(key, n)
			require.True(c.t, dry.AllowN(key, n))
		case kind == 1:
			wait, err := real.Limiter(key).Forecast(n)
			dryWait, dryErr := dry.Limiter(key).Forecast(n)
			require.Equal(c.t, fate{wait, err}, fate{dryWait, dryErr})
		case kind == 2 && reTimed:
			byKey[key] = c.limits()
			real.Reload()
			dry.Reload()
		case kind == 3 && reTimed:
			d := time.Duration(c.random.IntN(3)) * time.Second // 0 ends the hold
			real.Limiter(key).Hold(d)
			dry.Limiter(key).Hold(d)
		case kind == 3:
			c.comes(real.Limiter(key), dry.Limiter(key), n, time.Duration(1+c.random.Int64N(int64(9*time.Second))))
		default:
			c.comes(real.Limiter(key), dry.Limiter(key), n, 0)
		}
		same()
	}
	require.Equal(c.t, real.Top(9), dry.Top(9))
	if reTimed {
		require.NoError(c.t, real.Close())
		require.NoError(c.t, dry.Close())
		same()
		return
	}
	time.Sleep(time.Hour) // until all have left
	synctest.Wait()
	require.Equal(c.t, c.real, c.dry)
}
