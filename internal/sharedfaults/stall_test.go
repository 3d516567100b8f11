package sharedfaults_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// prompt is how long a fleet may take to come so far as it can. That is twice what the shaper
// lets pass at most until it asks a server again that was away. What a busy machine costs is
// measured and comes on top, but for the long form, which wants a quiet machine.
const prompt = 5 * time.Second

// slow is from when on a call counts as a stall.
const slow = 100 * time.Millisecond

// slowCalls adds up for how long calls of a Bucket had no answer, as the server or this process
// was stopped: from the beginning of a slow call until the end of the last slow one that
// follows. How long the shaper lets pass before it asks again counts only up to longestPause, and
// not at all if it then has an answer.
type slowCalls struct {
	mu      sync.Mutex
	stalled time.Duration
	until   time.Time // the end of the latest call if that was slow
}

// note notes a call that ends now. An error at once says nothing of how fast a server is.
func (c *slowCalls) note(began time.Time, err error) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch took := now.Sub(began); {
	case took < slow && err == nil:
		c.until = time.Time{}
	case took >= slow && c.until.IsZero():
		c.stalled, c.until = c.stalled+took, now
	case took >= slow:
		c.stalled, c.until = c.stalled+min(began.Sub(c.until), longestPause)+took, now
	}
}

// longestPause is how long the shaper lets pass at most, up to 2.5 s, and a little more.
const longestPause = 2600 * time.Millisecond

func (c *slowCalls) total() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stalled
}

// promptly begins to measure how long the given workers, or all, take to recover, and returns a
// function that requires that they have done so since an instant without delay.
func (f *fleet) promptly(of ...int) (recovered func(since time.Time)) {
	f.t.Helper()
	before, own := f.stalls(of), f.watch.Total()
	return func(since time.Time) {
		f.t.Helper()
		took := time.Since(since)
		if took <= prompt {
			return
		}
		stalled := f.watch.Total() - own
		for i, s := range f.stalls(of) {
			stalled = max(stalled, s-before[i])
		}
		// The shaper waits before it asks again for up to as long as it has had no answer.
		allowed := prompt + 2*stalled
		if unloaded {
			allowed = prompt
		}
		require.LessOrEqual(f.t, took, allowed, "it recovers too slowly; the machine stood still for %v", stalled)
	}
}

// stalls returns for how long each worker has stood still or has had no answer. Workers that
// are dead, or are not asked for, have 0.
func (f *fleet) stalls(of []int) []time.Duration {
	f.t.Helper()
	all := make([]time.Duration, len(f.workers))
	for i, m := range f.workers {
		if !m.dead && (len(of) == 0 || slices.Contains(of, i)) {
			all[i] = m.does(order{Do: tell}).Stalled
		}
	}
	return all
}

// What counts as a stall excuses a slow recovery, so the time between calls that a server
// answers at once must not count.
func TestOnlyCallsWithoutAnAnswerCountAsAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		o := &observed{Bucket: m, errors: map[string]int{}}
		take := shaper.Take{Key: "key", Cost: 1, First: 1, Rate: shaper.BucketRate{Version: 1, Micros: 1000, Parts: 1000, Burst: 1}}
		for _, step := range []struct{ takes, pause, stalled time.Duration }{
			{2 * time.Millisecond, time.Minute, 0},
			{400 * time.Millisecond, 2 * time.Second, 400 * time.Millisecond},
			{400 * time.Millisecond, time.Minute, 2800 * time.Millisecond}, // and the pause between two of them
			{400 * time.Millisecond, time.Minute, 5800 * time.Millisecond}, // but not one that is too long
			{2 * time.Millisecond, time.Minute, 5800 * time.Millisecond},
			{400 * time.Millisecond, 0, 6200 * time.Millisecond},
		} {
			m.SetDelay(step.takes/2, step.takes/2)
			_, err := o.Take(t.Context(), take)
			require.NoError(t, err)
			require.Equal(t, step.stalled, o.calls.total())
			time.Sleep(step.pause)
		}
	})
}
