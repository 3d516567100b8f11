package shaper_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// This file holds guarantee 7 (change) for Reload.

func TestReloadReTimesThoseWhoWait(t *testing.T) {
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.arriveAll("a1", "a2", "a3", "b1", "b2", "c1")
		g.limit("a", "2/s depth 1")
		g.limit("c", "1/s burst 3")
		g.at(500 * ms) // Levels of a half.
		g.Reload()
		require.Equal(t, map[string]float64{"a": 0.5, "b": 0.5, "c": 0.5}, g.levels())
		g.arriveAll("a4", "c2", "c3", "c4")
		g.saw("0s a1 left", "0s b1 left", "0s c1 left",
			"500ms a4 full, retry 750ms", "500ms c2 left", "500ms c3 left", "500ms c4 full, retry 500ms")
		g.at(time.Minute)
		g.saw("750ms a2 left", "1s b2 left", "1.25s a3 left")
		require.ElementsMatch(t, []string{"a", "b", "c", "a", "b", "c"}, g.wasAsked())
	})
}

// What a slower rate takes from a line and a faster one gives it is as it would be
// for a Shaper: the level is kept, and at no rate at all it is 0.
func TestReloadKeepsLevels(t *testing.T) {
	playKeys(t, "1/s burst 8", func(g *groupStage) {
		require.True(t, g.AllowN("a", 8))
		require.True(t, g.AllowN("b", 8))
		g.limit("a", "1/h burst 8")
		g.limit("b", "inf")
		g.at(2 * time.Second)
		g.Reload()
		require.Equal(t, map[string]float64{"a": 6}, g.levels(), "b is drained")
		g.at(10 * time.Second)
		require.Equal(t, 1, g.Group.Stats().Keys)
		g.limit("a", "1000/s burst 8")
		g.Reload()
		require.InDelta(t, 6-8.0/3600, g.levels()["a"], 1e-9)
		g.at(10*time.Second + 6*ms)
		g.gone() // Though it was to be looked at much later.
		g.alone()
	})
}

func TestReloadKeepsTheLastGoodLimits(t *testing.T) {
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.limit("p", "1/s depth 9 inflight 1")
		g.arriveAll("e1", "e2", "i1", "i2", "n1", "n2", "g1", "g2")
		g.acquireAll("p1", "p2")
		g.at(500 * ms)
		broken := func() {
			g.says("e", func() (shaper.Limits, error) { return shaper.Limits{Rate: 9}, errors.New("no answer") })
			g.says("i", func() (shaper.Limits, error) { return shaper.Limits{Rate: -1}, nil })
			g.limit("n", "9/s depth 9 inflight 3")
			g.limit("p", "9/s depth 9")
			g.limit("g", "4/s depth 9")
			g.Reload()
		}
		broken()
		require.EqualValues(t, 4, g.Group.Stats().LimitErrors)
		for key, l := range map[string]string{
			"e": "1/s depth 9", "i": "1/s depth 9", "n": "1/s depth 9", "p": "1/s depth 9 inflight 1", "g": "4/s depth 9",
		} {
			st, ok := g.of(key)
			require.True(t, ok)
			require.Equal(t, limitsOf(t, l), st.Limits, key)
		}
		g.release("p1")
		g.at(10 * time.Second)
		g.saw("0s e1 left", "0s i1 left", "0s n1 left", "0s g1 left", "0s p1 left",
			"625ms g2 left", "1s e2 left", "1s i2 left", "1s n2 left", "1s p2 left")
		g.release("p2")
		g.at(12 * time.Second)
		require.Zero(t, g.Group.Stats().Keys)
		broken()
		require.EqualValues(t, 4, g.Group.Stats().LimitErrors, "of keys that have no bucket nobody asks")
		// The next use of a key that has drained may bring a cap, or take one away.
		g.acquireAll("n3", "n4", "n5", "n6", "p3")
		g.at(20 * time.Second)
		require.Equal(t, 3, inFlightOf(g, "n"))
		g.release("n3", "p3")
		g.at(30 * time.Second)
		g.release("n4", "n5", "n6")
		g.arriveAll("p4")
	})
}

func inFlightOf(g *groupStage, key string) int {
	st, _ := g.of(key)
	return st.InFlight
}

// A bucket that has drained and not gone yet is really new if it gets a cap, or loses
// it: a call that has left it before, and has not returned, has no seat to give back.
func TestADrainedBucketThatGetsACapIsANewOne(t *testing.T) {
	for _, ends := range []bool{false, true} {
		playKeys(t, "1000/s depth 9", func(g *groupStage) {
			g.arriveAll("a1")
			returns := make(chan struct{})
			ctx := &meddling{Context: context.Background(), meddle: func() { <-returns }}
			var late context.Context = ctx
			if !ends {
				late = patient{ctx}
			}
			go func() {
				release, err := g.Acquire(late, "a", 1)
				release()
				g.note("a2 " + outcome(err))
			}()
			g.at(10 * ms) // It has its slot, and the bucket is drained.
			g.limit("a", "1000/s depth 9 inflight 1")
			g.Reload()
			g.acquireAll("a3", "a4")
			require.Equal(t, 1, inFlightOf(g, "a"))
			close(returns)
			synctest.Wait()
			require.Equal(t, 1, inFlightOf(g, "a"))
			g.release("a3")
			g.at(time.Second)
			g.release("a4")
			became := map[bool]string{false: "left", true: "cancelled"}[ends]
			g.saw("0s a1 left", "10ms a3 left", "10ms a2 "+became, "11ms a4 left")
			require.Equal(t, 1, g.Group.Stats().Keys)
			g.gone()
		})
	}
}

// patient is a context that does not end by what it does when it is asked.
type patient struct{ *meddling }

func (c patient) Err() error {
	_ = c.meddling.Err()
	return nil
}

// A key that is new while Reload runs gets no limits from before.
func TestWhatWasAskedBeforeAReloadIsAskedAgain(t *testing.T) {
	playKeys(t, "1/s burst 2", func(g *groupStage) {
		old, fresh := limitsOf(t, "1/h"), limitsOf(t, "7/s burst 7")
		inForce := old
		g.says("a", func() (shaper.Limits, error) {
			l := inForce
			time.Sleep(time.Second)
			return l, nil
		})
		g.arriveAll("a1", "a2")
		g.at(500 * ms)
		g.Reload()
		require.Equal(t, 500*ms, time.Since(g.start), "it waits for no question of others")
		g.at(1500 * ms) // They ask again.
		g.Reload()
		inForce = fresh
		g.Reload()
		g.at(time.Minute)
		g.saw("3s a1 left", "3s a2 left")
		require.Len(t, g.wasAsked(), 3)
	})
}

// One at a time, and each with limits that were asked for after it was called.
func TestReloadsAtOnce(t *testing.T) {
	playKeys(t, "1/h burst 9", func(g *groupStage) {
		g.arriveAll("a1", "b1")
		n := 0
		slow := func() (shaper.Limits, error) {
			n++
			l := shaper.Limits{Rate: 1.0 / 3600, Burst: 10 + n}
			time.Sleep(time.Second)
			return l, nil
		}
		g.says("a", slow)
		g.says("b", slow)
		for range 3 {
			go g.Reload()
		}
		g.at(1500 * ms)
		g.arriveAll("a2", "b2") // Nobody waits for a Reload.
		g.at(6 * time.Second)
		require.Equal(t, 6, n)
		a, _ := g.of("a")
		b, _ := g.of("b")
		require.ElementsMatch(t, []int{15, 16}, []int{a.Limits.Burst, b.Limits.Burst})
		g.saw("0s a1 left", "0s b1 left", "1.5s a2 left", "1.5s b2 left")
	})
}

func TestReloadOfAClosedGroupAsksNobody(t *testing.T) {
	playKeys(t, "1/h", func(g *groupStage) {
		g.arriveAll("a1")
		require.NoError(t, g.Close())
		g.wasAsked()
		g.Reload()
		require.Empty(t, g.wasAsked())
	})
}
