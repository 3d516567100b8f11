package shaper_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// This file holds that a bucket is deleted within a second of being drained, and
// not before: when it is empty, nobody waits, none of its requests is in flight, and
// it is not held.

// isThereUntil asserts that the bucket of a is not drained a nanosecond before an
// instant, is drained then, and has gone a second later with all else of the Group.
func (g *groupStage) isThereUntil(drained time.Duration) {
	g.t.Helper()
	g.at(drained - ns)
	require.Contains(g.t, g.levels(), "a", "at %v", drained-ns)
	require.Equal(g.t, 1, g.Group.Stats().Keys)
	g.at(drained)
	g.gone()
	g.alone()
}

func TestADrainedBucketIsDeleted(t *testing.T) {
	t.Parallel()
	for drains, limits := range map[time.Duration]string{
		ns:                      "1000000000/s",
		100 * ms:                "10/s",
		499 * ms:                "1 per 499ms",
		500 * ms:                "2/s",
		500001 * us:             "1 per 500001us",
		time.Second:             "1/s",
		31500 * ms:              "1 per 31500ms",
		32 * time.Second:        "1 per 32s",
		time.Hour + 7*ms:        "1 per 3600007ms",
		24 * time.Hour:          "1/d",
		7*24*time.Hour + 333*ms: "1 per 604800333ms",
	} {
		for _, begin := range []time.Duration{0, ns, 499 * ms, 500 * ms, 1234567 * us} {
			t.Run(fmt.Sprint(limits, " from ", begin), func(t *testing.T) {
				playKeys(t, limits, func(g *groupStage) {
					g.at(begin)
					require.True(t, g.Allow("a"))
					g.isThereUntil(begin + drains)
					// And so it is the second time, and if it is used on and on.
					begin = time.Since(g.start)
					require.True(t, g.Allow("a"))
					g.isThereUntil(begin + drains)
				})
			})
		}
	}
}

func TestABucketInUseIsNotDeleted(t *testing.T) {
	playKeys(t, "1 per 2s burst 3", func(g *groupStage) {
		for i := range 100 {
			g.at(time.Duration(i) * 1999 * ms)
			require.True(t, g.Allow("a"))
		}
		require.Len(t, g.wasAsked(), 1)
		// 100 have left, one each 1,999 ms, of which the first 99 leak 999.5 in 2 s.
		g.isThereUntil(200 * time.Second)
	})
}

func TestABucketWithALineIsNotDeleted(t *testing.T) {
	playKeys(t, "1 per 10s depth 99", func(g *groupStage) {
		for range 12 {
			g.arriveAll("a")
		}
		g.isThereUntil(120 * time.Second)
		require.EqualValues(t, 12, g.Group.Stats().Departed)
	})
}

// The level of what was given back drains no more.
func TestABucketWhoseWaitersGaveUpIsDeletedSooner(t *testing.T) {
	playKeys(t, "1/h depth 9", func(g *groupStage) {
		g.arriveAll("a1")
		g.arrive("dear", "a", 24)
		g.arriveAll("a2")
		g.at(time.Minute)
		g.cancel("dear", "a2")
		g.isThereUntil(time.Hour)
	})
	playKeys(t, "1/h depth 9", func(g *groupStage) {
		g.arriveAll("a1")
		late := newLateCancel()
		g.arriveWith(late, "dear", "a", 24)
		late.end()
		g.at(time.Hour) // It leaves, is seen to have gone, and gives 24 hours back.
		g.saw("0s a1 left", "1h0m0s dear cancelled")
		g.gone()
		g.alone()
	})
}

func TestAHeldBucketIsDeletedAfterTheHold(t *testing.T) {
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.Hold("a", time.Hour) // Nobody has used it before.
		g.isThereUntil(time.Hour)
		g.Hold("a", time.Hour)
		g.at(2 * time.Hour)
		g.Hold("a", 0)
		g.gone()
		g.alone()
	})
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.Hold("a", time.Hour)
		g.arriveAll("a1", "a2")
		g.isThereUntil(time.Hour + 2*time.Second)
	})
}

func TestABucketWithASeatTakenIsNotDeleted(t *testing.T) {
	playKeys(t, "inf depth 9 inflight 2", func(g *groupStage) {
		g.acquireAll("a1", "a2", "a3", "a4")
		g.at(time.Hour)
		g.cancel("a3")
		g.release("a1")
		g.at(2 * time.Hour)
		st, ok := g.of("a")
		require.True(t, ok)
		require.Equal(t, 2, st.InFlight)
		g.release("a2", "a2", "a4", "a3")
		g.gone()
		g.alone()
		g.release("a1", "a2", "a4") // What has been given back is nobody else's.
		g.acquireAll("a5", "a6", "a7")
		g.release("a1", "a2", "a4")
		g.saw("0s a1 left", "0s a2 left", "1h0m0s a3 cancelled", "1h0m0s a4 left", "2h0m1s a5 left", "2h0m1s a6 left")
		g.release("a5", "a6", "a7")
		g.gone()
	})
}

func TestAnUnlimitedKeyIsGoneAtOnce(t *testing.T) {
	playKeys(t, "inf", func(g *groupStage) {
		for range 9 {
			require.True(t, g.Allow("a"))
		}
		g.gone()
		g.alone()
	})
}

// A call that is refused or misused makes a bucket that nobody has used.
func TestABucketThatNobodyUsedIsDeleted(t *testing.T) {
	playKeys(t, "1/s inflight 1", func(g *groupStage) {
		require.ErrorContains(t, g.Wait(context.Background(), "a"), "Acquire")
		require.False(t, g.Allow("a"))
		_, err := g.Acquire(context.Background(), "a", 2)
		require.ErrorIs(t, err, shaper.ErrTooCostly)
		g.gone()
		g.alone()
	})
}

// However many there are, all are deleted in time, in many sweeps.
func TestManyBucketsAreDeletedAtOnce(t *testing.T) {
	playKeys(t, "1/s", func(g *groupStage) {
		const keys = 5000
		for i := range keys {
			require.True(t, g.Allow(fmt.Sprint(i)))
		}
		require.Equal(t, keys, g.Group.Stats().Keys)
		g.at(time.Second - ns)
		require.Len(t, g.levels(), keys)
		g.at(time.Second)
		g.gone()
		g.alone()
		require.EqualValues(t, keys, g.Group.Stats().Departed)
	})
}

// A ticker that serves lines deletes what is drained meanwhile, and one that only
// waits for buckets to drain lets a line leave that is formed after it has gone to
// sleep.
func TestTheTickerServesLinesAndDrains(t *testing.T) {
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.limit("h", "1/h depth 9")
		g.arriveAll("h1", "h2")
		g.at(10*time.Second + 250*ms)
		g.arriveAll("a1", "a2")
		g.at(20 * time.Second)
		require.Equal(t, 1, g.Group.Stats().Keys)
		g.arriveAll("b1", "b2", "b3")
		g.cancel("h2")
		g.at(time.Minute)
		g.saw("0s h1 left", "10.25s a1 left", "11.25s a2 left", "20s b1 left", "20s h2 cancelled", "21s b2 left", "22s b3 left")
		require.Equal(t, []string{"h"}, keysOf(g.levels()))
	})
}

// A second after the last has drained a Group is as new, so a bubble that waits for
// that ends without Close.
func TestAForgottenGroupLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := shaper.NewGroup(func(int) (shaper.Limits, error) { return shaper.Limits{Rate: 1, Depth: 9}, nil })
		require.NoError(t, err)
		for i := range 50 {
			for range 3 {
				go func() { _ = g.Wait(context.Background(), i) }()
			}
		}
		time.Sleep(4 * time.Second)
	})
}

func keysOf[V any](m map[string]V) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}
