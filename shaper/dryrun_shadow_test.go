package shaper_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// These tests hold the shadow of a dry run to a real line, to the nanosecond. Whatever
// comes to a real Shaper or Group comes to a dry run at the same instant, and the dry
// run's verdict on each request must be what becomes of it in the real one.

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

// asReal returns the Stats that a dry run would have if it were none.
func asReal(st shaper.Stats) shaper.Stats {
	st.DryRun = false
	return st
}

func comparisons(t *testing.T, compare func(c *comparison)) {
	for seed := range rounds(64, 600, 600) {
		synctest.Test(t, func(t *testing.T) {
			c := &comparison{t: t, random: rand.New(rand.NewPCG(uint64(seed), 7))}
			defer func() {
				if t.Failed() {
					t.Log("seed", seed)
				}
			}()
			compare(c)
		})
	}
}

func TestTheShadowIsExact(t *testing.T) {
	t.Parallel()
	words := map[string]int{}
	comparisons(t, func(c *comparison) {
		l := c.limits()
		real, dry := mustMakeBoth(c.t, l)
		defer real.Close()
		for range 40 {
			c.passes()
			require.Equal(c.t, real.Stats(), asReal(dry.Stats()), "%v", l)
			n := c.cost()
			switch c.random.IntN(8) {
			case 0:
				real.AllowN(n)
				require.True(c.t, dry.AllowN(n))
			case 1:
				c.comes(real, dry, n, time.Duration(1+c.random.Int64N(int64(9*time.Second))))
			case 2:
				wait, err := real.Forecast(n)
				dryWait, dryErr := dry.Forecast(n)
				require.Equal(c.t, fate{wait, err}, fate{dryWait, dryErr})
			default:
				c.comes(real, dry, n, 0)
			}
			synctest.Wait()
			require.Equal(c.t, real.Stats(), asReal(dry.Stats()), "%v", l)
		}
		time.Sleep(time.Hour) // until all have left
		synctest.Wait()
		require.Equal(c.t, c.real, c.dry, "%v", l)
		require.Equal(c.t, real.Stats(), asReal(dry.Stats()))
		for _, f := range c.dry {
			word := outcome(f.Err)
			fmt.Sscanf(word, "%s", &word)
			if f.Err == nil && f.Wait > 0 {
				word = "waited"
			}
			words[word]++
		}
	})
	for _, word := range []string{"left", "waited", "full,", "late,", "costly,"} {
		require.Greater(t, words[word], 100, "%s of %v", word, words)
	}
}

// mustMakeBoth makes a real Shaper and a dry run with the same limits.
func mustMakeBoth(t *testing.T, l shaper.Limits) (real, dry *shaper.Shaper) {
	t.Helper()
	real, err := shaper.New(l)
	require.NoError(t, err)
	dry, err = shaper.New(l, shaper.WithDryRun())
	require.NoError(t, err)
	return real, dry
}

// After a verdict the line may be held or its limits may change. The verdict then remains
// the prediction at entry, as a prediction does without a dry run, and the counts and the
// state of the shadow must still be exact.
func TestTheShadowIsReTimed(t *testing.T) {
	t.Parallel()
	comparisons(t, func(c *comparison) {
		real, dry := mustMakeBoth(c.t, c.limits())
		for range 40 {
			c.passes()
			switch n := c.cost(); c.random.IntN(8) {
			case 0:
				l := c.limits()
				require.NoError(c.t, real.SetLimits(l))
				require.NoError(c.t, dry.SetLimits(l))
			case 1:
				d := time.Duration(c.random.IntN(3)) * time.Second // 0 ends the hold
				real.Hold(d)
				dry.Hold(d)
			default:
				c.comes(real, dry, n, 0)
			}
			synctest.Wait()
			require.Equal(c.t, real.Stats(), asReal(dry.Stats()))
		}
		c.passes()
		require.NoError(c.t, real.Close())
		require.NoError(c.t, dry.Close())
		synctest.Wait()
		require.Equal(c.t, real.Stats(), asReal(dry.Stats()))
		require.Zero(c.t, dry.Stats().Waiting)
	})
}

func TestTheShadowsOfAGroupAreExact(t *testing.T) {
	t.Parallel()
	comparisons(t, func(c *comparison) {
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
				shadows[key] = asReal(st)
			}
			require.Equal(c.t, maps.Collect(real.All()), shadows)
		}
		reloads := c.random.IntN(2) == 0
		for range 40 {
			c.passes()
			same()
			key, n := keys[c.random.IntN(len(keys))], c.cost()
			switch kind := c.random.IntN(9); {
			case kind == 0:
				real.AllowN(key, n)
				require.True(c.t, dry.AllowN(key, n))
			case kind == 1 && reloads:
				byKey[key] = c.limits()
				real.Reload()
				dry.Reload()
			case kind == 2 && reloads:
				d := time.Duration(c.random.IntN(3)) * time.Second // 0 ends the hold
				real.Hold(key, d)
				dry.Hold(key, d)
			default:
				c.comes(real.Limiter(key), dry.Limiter(key), n, 0)
			}
			same()
		}
		require.Equal(c.t, real.Top(9), dry.Top(9))
		if !reloads {
			time.Sleep(time.Hour)
			synctest.Wait()
			require.Equal(c.t, c.real, c.dry)
		}
	})
}
