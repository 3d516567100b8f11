package rivals

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// Otherwise what is compared would not limit each key, but all together or none.
func TestEachKeyHasABucketOfItsOwn(t *testing.T) {
	for _, c := range AllKeyed {
		if c.Name == OursDrained || c.Name == BareMap {
			continue
		}
		for i, call := range c.Calls {
			if call == "Wait" {
				continue // It would wait.
			}
			k := c.Open(t.Context(), 10, Bucket{Every: time.Hour, Burst: 2})
			may := k.Each[i]()
			for _, key := range []string{"a", "b"} {
				require.True(t, may(key), "%s: the first of %s", c.Name, key)
				require.True(t, may(key), "%s: the second of %s", c.Name, key)
				require.False(t, may(key), "%s: the third of %s", c.Name, key)
			}
			k.Stop()
		}
	}
}

// Otherwise a refusal would stand in the table as one that tells when to come back.
func TestOnlyARefusalTellsWhenToComeBack(t *testing.T) {
	tell := 0
	for _, c := range AllKeyed {
		k := c.Open(t.Context(), 10, Bucket{Every: time.Hour, Burst: 2})
		if k.TellsWhen != nil {
			tell++
			require.False(t, k.TellsWhen("a"), "%s: the first leaves", c.Name)
			require.False(t, k.TellsWhen("a"), "%s: the second leaves", c.Name)
			require.True(t, k.TellsWhen("a"), "%s: the third is refused", c.Name)
		}
		k.Stop()
	}
	require.Equal(t, 4, tell)
}

func TestThoseThatWaitKeepTheIntervalOfEachKey(t *testing.T) {
	for _, name := range []string{Ours, "x-time"} {
		synctest.Test(t, func(t *testing.T) {
			k := KeyedNamed(name).Open(t.Context(), 10, Bucket{Every: 5 * time.Second, Burst: 1})
			wait, began := k.Each[0](), time.Now()
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

// A drained bucket is not among the live ones.
func TestTheDrainedBucketIsDrainedWhenItsKeyComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return DrainedBucket.Limits(), nil })
		require.NoError(t, err)
		require.True(t, g.Allow("a"))
		time.Sleep(2 * time.Nanosecond)
		for key := range g.All() {
			require.Fail(t, "it is live", key)
		}
		require.NoError(t, g.Close())
	})
}

func TestKeyedRivalsHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range AllKeyed {
		require.False(t, seen[c.Name], c.Name)
		seen[c.Name] = true
	}
	require.Panics(t, func() { KeyedNamed("nobody") })
}
