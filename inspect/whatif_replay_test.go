package inspect_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/shaper"
)

// A load is what comes to a bucket.
type load []struct {
	after    time.Duration // the one before
	cost     int
	allow    bool
	deadline time.Duration // after it has come; 0: none
	patience time.Duration // its caller gives up; 0: it does not
}

func randomLoad(chance *rand.Rand, impatient bool) (l load) {
	l = make(load, 150)
	for i := range l {
		r := &l[i]
		r.cost = 1
		if chance.IntN(3) == 0 {
			r.after = time.Duration(chance.Int64N(int64(80 * time.Millisecond)))
		}
		switch chance.IntN(8) {
		case 0:
			r.cost += chance.IntN(6)
		case 1:
			r.allow = true
		case 2:
			r.deadline = time.Duration(1 + chance.Int64N(int64(time.Second)))
		case 3, 4:
			if impatient {
				r.patience = time.Duration(1 + chance.Int64N(int64(time.Second)))
			}
		}
	}
	return l
}

// play lets the load come to a bucket. It returns while some of it may wait.
func (l load) play(ctx context.Context, s *shaper.Shaper, calls *sync.WaitGroup) {
	for _, r := range l {
		time.Sleep(r.after)
		if r.allow {
			s.AllowN(r.cost)
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		if r.deadline > 0 {
			ctx, cancel = context.WithTimeout(ctx, r.deadline)
		}
		if r.patience > 0 {
			time.AfterFunc(r.patience, cancel)
		}
		calls.Go(func() {
			defer cancel()
			_ = s.WaitN(ctx, r.cost)
		})
		synctest.Wait()
	}
}

// playAndAsk plays a load in a bubble, and asks what it would have met under limits. If
// seed is above 0, that many requests wait before anybody asks.
func playAndAsk(t *testing.T, under, limits string, l load, seed int) (answer whatIf) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newShaper(t, under)
		c := newConsole(inspect.Of(s))
		defer c.Close()
		var calls sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		defer calls.Wait()
		defer cancel()
		for range seed {
			calls.Go(func() { _ = s.Wait(ctx) })
		}
		time.Sleep(time.Duration(seed) * time.Millisecond)
		synctest.Wait()
		c.whatIf(t, "", limits)
		l.play(ctx, s, &calls)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		answer = c.whatIf(t, "", limits)
		require.Equal(t, len(l), answer.Arrivals)
	})
	return answer
}

// A replay under the limits that are in force must tell what has really happened, also
// when the recording began while requests waited.
func TestTheReplayOfTheSameLimitsIsWhatHasHappened(t *testing.T) {
	chance := rand.New(rand.NewPCG(14, 4))
	var met outcome
	for n := range 60 {
		limits := []string{"30/s depth 5", "7/s burst 3 depth 20", "20/s burst 4", "3/s depth 40 wait 2s", "100 per 3s depth 200"}[n%5]
		got := playAndAsk(t, limits, limits, randomLoad(chance, true), n%4*7)
		require.Equal(t, got.Now, got.Then, "%s, load %d", limits, n)
		met.Departed += got.Now.Departed
		met.QueueFull += got.Now.QueueFull
		met.TooLate += got.Now.TooLate
		met.TooCostly += got.Now.TooCostly
		met.Abandoned += got.Now.Abandoned
		met.Waiting += got.Now.Waiting
	}
	for _, n := range []int{met.Departed, met.QueueFull, met.TooLate, met.TooCostly, met.Abandoned, met.Waiting} {
		require.Greater(t, n, 50, "%+v", met)
	}
}

// What a replay under other limits tells must be what a shaper with those limits does.
func TestTheReplayOfOtherLimitsIsWhatTheyDo(t *testing.T) {
	chance := rand.New(rand.NewPCG(14, 5))
	all := []string{"30/s depth 5", "7/s burst 3 depth 20", "20/s burst 4", "3/s depth 40 wait 2s", "1000/s", "inf"}
	for n := range 60 {
		under, limits := all[chance.IntN(len(all))], all[chance.IntN(len(all))]
		l := randomLoad(chance, false)
		told := playAndAsk(t, under, limits, l, 0)
		done := playAndAsk(t, limits, under, l, 0)
		require.Equal(t, done.Now, told.Then, "%s under %s, load %d", limits, under, n)
		require.Equal(t, told.Now, done.Then, "%s under %s, load %d", under, limits, n)
	}
}
