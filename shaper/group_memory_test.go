package shaper_test

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// heapInUse returns how many bytes are in use after a garbage collection.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // The first one may have left finalizers to run.
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A Group whose buckets have all been deleted keeps next to no memory, whether they
// all had the same Limits or each had its own.
func TestIdleKeysKeepNoMemory(t *testing.T) {
	const keys = 100_000
	for name, limits := range map[string]func(int) shaper.Limits{
		"one rule":           func(int) shaper.Limits { return shaper.Limits{Rate: 1} },
		"each has its own":   func(key int) shaper.Limits { return shaper.Limits{Rate: 1, Burst: 1 + key} },
		"each of two in one": func(key int) shaper.Limits { return shaper.Limits{Rate: 1, Burst: 1 + key/2} },
		"unlimited":          func(int) shaper.Limits { return shaper.Limits{Rate: rate.Inf} },
		"each unlimited":     func(key int) shaper.Limits { return shaper.Limits{Rate: rate.Inf, Depth: key} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, err := shaper.NewGroup(func(key int) (shaper.Limits, error) { return limits(key), nil })
				require.NoError(t, err)
				time.Sleep(time.Millisecond) // What is made at the instant of a sweep may go with it.
				before := heapInUse()
				for key := range keys {
					require.True(t, g.Allow(key))
				}
				if limits(0).Rate != rate.Inf {
					require.Equal(t, keys, g.Stats().Keys)
				}
				require.Greater(t, heapInUse()-before, int64(1<<20), "bytes")
				time.Sleep(2 * time.Second)
				require.Zero(t, g.Stats().Keys)
				// Each of up to 33 shards keeps the plan of the last key, and maps for a few.
				require.Less(t, heapInUse()-before, int64(128<<10), "bytes")
				runtime.KeepAlive(g)
			})
		})
	}
}
