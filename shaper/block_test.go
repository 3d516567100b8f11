package shaper_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// This file tests WithBlock on one bucket, and then on the keys of a Group.

func TestARefusedBucketStaysRefused(t *testing.T) {
	play(t, "1/s burst 2", func(g *stage) {
		g.arriveAll("a", "b", "c") // c finds the bucket full.
		require.Equal(t, g.start.Add(time.Minute), g.Stats().BlockedUntil)
		g.at(30 * time.Second) // The bucket has long been empty,
		g.arriveAll("d")       // but d is refused, and extends nothing.
		require.False(t, g.Allow())
		g.at(time.Minute - ns)
		g.arriveAll("e")
		g.at(time.Minute)
		require.Zero(t, g.Stats().BlockedUntil)
		g.arriveAll("f", "g", "h")
		g.saw("0s a left", "0s b left", "0s c full, retry 1m0s", "30s d full, retry 30s",
			"59.999999999s e full, retry 1ns", "1m0s f left", "1m0s g left", "1m0s h full, retry 1m0s")
		require.EqualValues(t, 5, g.Stats().QueueFull)
	}, shaper.WithBlock(time.Minute))
}

// Close is no full line, so it begins no block; and a block hides neither that a Shaper is closed
// nor that a request can never fit.
func TestABlockHidesNoOtherReason(t *testing.T) {
	play(t, "1/s depth 1", func(g *stage) {
		g.arriveAll("a", "b")
		require.NoError(t, g.Close())
		g.arriveAll("c")
		require.Zero(t, g.Stats().BlockedUntil)
		g.saw("0s a left", "0s b closed, retry 0s", "0s c closed, retry 0s")
	}, shaper.WithBlock(time.Hour))
	play(t, "1/s burst 2 wait 1s", func(g *stage) {
		g.arriveAll("a", "b", "c")
		g.arrive("costly", 3)
		require.NoError(t, g.Close())
		g.arriveAll("closed")
		g.saw("0s a left", "0s b left", "0s c full, retry 1m0s", "0s costly costly, retry 0s", "0s closed closed, retry 0s")
	}, shaper.WithBlock(time.Minute))
}

// Who has to wait for the bucket for longer than the block lasts is told so.
func TestABlockShortensNoRetryAfter(t *testing.T) {
	play(t, "1 per 10s", func(g *stage) {
		g.arriveAll("a", "b")
		g.at(time.Second)
		g.arriveAll("c")
		g.saw("0s a left", "0s b full, retry 10s", "1s c full, retry 9s")
	}, shaper.WithBlock(3*time.Second))
}

// AllowN is judged as with Depth 0, so its refusal is the refusal of a full bucket.
func TestARefusedAllowBlocks(t *testing.T) {
	play(t, "1/s depth 5", func(g *stage) {
		require.True(t, g.Allow())
		require.False(t, g.Allow())
		g.arriveAll("a")
		g.at(10 * time.Second)
		require.True(t, g.Allow())
		g.saw("0s a full, retry 10s")
	}, shaper.WithBlock(10*time.Second))
}

// Forecast tells what WaitN would meet, and blocks nothing.
func TestForecastKnowsTheBlock(t *testing.T) {
	play(t, "1/s", func(g *stage) {
		forecast := func() string {
			wait, err := g.Forecast(1)
			if err != nil {
				return outcome(err)
			}
			return wait.String()
		}
		require.Equal(t, "0s", forecast())
		g.arriveAll("a")
		require.Equal(t, "full, retry 10s", forecast())
		g.at(time.Second)
		require.Equal(t, "0s", forecast(), "it has blocked nothing")
		g.arriveAll("b", "c")
		g.at(3 * time.Second)
		require.Equal(t, "full, retry 8s", forecast())
		g.at(11 * time.Second)
		require.Equal(t, "0s", forecast())
		g.saw("0s a left", "1s b left", "1s c full, retry 10s")
	}, shaper.WithBlock(10*time.Second))
}

// A retry was admitted before.
func TestABlockAdmitsReentries(t *testing.T) {
	play(t, "1/s depth 1", func(g *stage) {
		g.arriveAll("a", "b", "c")
		go func() {
			_, err := shaper.EnterAsReentry(g.Shaper, context.Background(), 1)
			g.note("retry " + outcome(err))
		}()
		g.at(time.Minute - ns)
		g.arriveAll("d")
		g.saw("0s a left", "0s c full, retry 1m0s", "1s retry left", "2s b left", "59.999999999s d full, retry 1ns")
	}, shaper.WithBlock(time.Minute))
}

// A cap on requests in flight works as without WithBlock.
func TestABlockAndACap(t *testing.T) {
	play(t, "inf depth 1 inflight 1", func(g *stage) {
		g.acquireAll("a", "b", "c") // c finds the line full.
		require.ErrorContains(t, g.Wait(context.Background()), "use Acquire or Do")
		require.False(t, g.Allow())
		g.at(time.Second)
		g.release("a")
		g.acquireAll("d")
		g.at(10 * time.Second)
		g.acquireAll("e")
		g.release("b", "e")
		g.saw("0s a left", "0s c full, retry 10s", "1s b left", "1s d full, retry 9s", "10s e left")
		require.EqualValues(t, 2, g.Stats().QueueFull, "an Allow with a cap is not counted")
	}, shaper.WithBlock(10*time.Second))
}

func TestOnlyAChangeToInfEndsABlock(t *testing.T) {
	play(t, "1/s", func(g *stage) {
		g.arriveAll("a", "b")
		g.set("1000/s burst 100 depth 9")
		g.arriveAll("c")
		g.set("inf")
		require.Zero(t, g.Stats().BlockedUntil)
		g.arriveAll("d")
		g.set("1/s")
		g.arriveAll("e", "f")
		g.saw("0s a left", "0s b full, retry 1m0s", "0s c full, retry 1m0s", "0s d left", "0s e left", "0s f full, retry 1m0s")
	}, shaper.WithBlock(time.Minute))
}

// In a dry run the verdict tells of the block, and everything passes.
func TestADryRunBlocksNobody(t *testing.T) {
	play(t, "1/s", func(g *stage) {
		call := func(ctx context.Context) error { return g.Wait(ctx) }
		require.Equal(t, "waits 0s", judged(t, call))
		require.Equal(t, "full, retry 1m0s", judged(t, call))
		require.Equal(t, g.start.Add(time.Minute), g.Stats().BlockedUntil)
		g.at(59 * time.Second)
		require.Equal(t, "full, retry 1s", judged(t, call))
		require.True(t, g.Allow())
		g.at(time.Minute)
		require.Equal(t, "waits 0s", judged(t, call))
		require.EqualValues(t, 3, g.Stats().QueueFull)
	}, shaper.WithDryRun(), shaper.WithBlock(time.Minute))
}

func TestABlockIsFrom0To365Days(t *testing.T) {
	limits := func(int) (shaper.Limits, error) { return shaper.Limits{Rate: 1}, nil }
	for _, d := range []time.Duration{-1, 365*24*time.Hour + 1} {
		_, err := shaper.New(shaper.Limits{Rate: 1}, shaper.WithBlock(d))
		require.EqualError(t, err, fmt.Sprintf("shaper: New: WithBlock is %v, must be from 0 to 365 days", d))
		_, err = shaper.NewGroup(limits, shaper.WithBlock(d))
		require.EqualError(t, err, fmt.Sprintf("shaper: NewGroup: WithBlock is %v, must be from 0 to 365 days", d))
	}
	play(t, "1/s", func(g *stage) {
		g.arriveAll("a", "b")
		require.Equal(t, g.start.Add(365*24*time.Hour), g.Stats().BlockedUntil)
	}, shaper.WithBlock(365*24*time.Hour))
	play(t, "1/s", func(g *stage) { // The last of several counts.
		g.arriveAll("a", "b")
		require.Zero(t, g.Stats().BlockedUntil)
		g.saw("0s a left", "0s b full, retry 1s")
	}, shaper.WithBlock(-1), shaper.WithBlock(time.Hour), shaper.WithBlock(0))
}

// WithBlock on the keys of a Group.

func TestABlockOutlivesItsDrainedBucket(t *testing.T) {
	playKeys(t, "1/s burst 3", func(g *groupStage) {
		g.arriveAll("a1", "a2", "a3", "a4", "b1")
		g.at(time.Minute) // Both buckets have been drained for long.
		require.Equal(t, 1, g.Group.Stats().Keys, "that of b is gone")
		require.Equal(t, map[string]float64{"a": 0}, g.levels(), "All shows a bucket that is blocked")
		st, _ := g.StatsOf("a")
		require.Equal(t, g.start.Add(15*time.Minute), st.BlockedUntil)
		g.arriveAll("a5", "b2")
		g.at(15*time.Minute - ns)
		g.arriveAll("a6")
		g.at(15 * time.Minute)
		g.arriveAll("a7")
		g.at(15*time.Minute + time.Second)
		g.gone()
		g.saw("0s a1 left", "0s a2 left", "0s a3 left", "0s a4 full, retry 15m0s", "0s b1 left",
			"1m0s a5 full, retry 14m0s", "1m0s b2 left", "14m59.999999999s a6 full, retry 1ns", "15m0s a7 left")
	}, shaper.WithBlock(15*time.Minute))
}

// A bucket that is blocked is deleted when the block ends, though nobody calls.
func TestNothingIsLeftOfABlockThatHasEnded(t *testing.T) {
	playKeys(t, "10/s", func(g *groupStage) {
		for key := range 3000 {
			require.True(t, g.Allow(fmt.Sprint(key)))
			require.False(t, g.Allow(fmt.Sprint(key)))
		}
		g.at(10*time.Second - ns)
		require.Equal(t, 3000, g.Group.Stats().Keys)
		g.at(25 * time.Second) // A sweep looks at 128 keys.
		require.Zero(t, g.Group.Stats().Keys)
	}, shaper.WithBlock(10*time.Second))
}

// Blocked keys count against WithMaxKeys, so nobody gets rid of his block by making up keys.
func TestAFullTableForgetsNoBlock(t *testing.T) {
	playKeys(t, "1/s", func(g *groupStage) {
		g.arriveAll("a1", "a2", "b1")
		g.at(10 * time.Second)
		for i := range 3000 {
			g.Allow(fmt.Sprint("spoofed ", i))
		}
		require.NotZero(t, g.Group.Stats().Overflowed)
		g.arriveAll("a3")
		g.at(time.Minute)
		g.arriveAll("a4")
		g.saw("0s a1 left", "0s a2 full, retry 1m0s", "0s b1 left", "10s a3 full, retry 50s", "1m0s a4 left")
	}, shaper.WithMaxKeys(2), shaper.WithBlock(time.Minute))
}

// Keys that share a bucket are refused for what others do. They have its rate together, but
// one of them must not be able to have all others blocked.
func TestAFloodOfKeysBlocksNoNewcomer(t *testing.T) {
	playKeys(t, "1/s", func(g *groupStage) {
		g.arriveAll("z1", "z2", "a1", "a2")
		_, err := g.Limiter("a").Forecast(1)
		require.Equal(t, "full, retry 1s", outcome(err))
		for i := range 3000 {
			g.Allow(fmt.Sprint("spoofed ", i))
		}
		g.at(time.Second)
		g.arriveAll("a3", "b1", "z3")
		g.at(time.Minute) // z is not blocked any more, and there is room in the table.
		g.arriveAll("a4", "a5", "b2")
		g.saw("0s z1 left", "0s z2 full, retry 1m0s", "0s a1 left", "0s a2 full, retry 1s", "1s a3 left", "1s b1 left",
			"1s z3 full, retry 59s", "1m0s a4 left", "1m0s a5 full, retry 1m0s", "1m0s b2 left")
	}, shaper.WithMaxKeys(1), shaper.WithBlock(time.Minute))
}

// The limits of a key may change while it is blocked; only rate.Inf ends the block.
func TestLimitsOfABlockedKey(t *testing.T) {
	playKeys(t, "1/s", func(g *groupStage) {
		g.arriveAll("a1", "a2", "b1", "b2")
		g.at(5 * time.Second) // Drained, and blocked.
		require.NoError(t, g.SetLimits("a", limitsOf(t, "100/s depth 9")))
		g.arriveAll("a3")
		require.NoError(t, g.SetLimits("a", limitsOf(t, "inf")))
		g.arriveAll("a4", "a5")
		require.NoError(t, g.ResetLimits("a"))
		g.arriveAll("a6", "a7")
		g.limit("b", "10/s depth 5")
		g.Reload()
		g.arriveAll("b3")
		g.saw("0s a1 left", "0s a2 full, retry 1m0s", "0s b1 left", "0s b2 full, retry 1m0s", "5s a3 full, retry 55s",
			"5s a4 left", "5s a5 left", "5s a6 left", "5s a7 full, retry 1m0s", "5s b3 full, retry 55s")
	}, shaper.WithBlock(time.Minute))
}
