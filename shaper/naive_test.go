package shaper_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/naive"
)

// These tests show the faults of the shaper that one writes first (package naive): the bare queue,
// and the mended one. Other tests hold how the shaper behaves in these cases.

// A paceline is calls of a naive queue in a bubble, each let in after the one before
// it has come to rest, so that they stand in line in the order of their making.
type paceline struct {
	*naive.Queue
	since time.Time

	calls sync.WaitGroup
	mu    sync.Mutex
	left  []time.Duration // since the start, in the order of departure
}

// enter makes one call and returns what makes its caller give up.
func (p *paceline) enter() (giveUp context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	p.calls.Go(func() {
		if p.Wait(ctx) == nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.left = append(p.left, time.Since(p.since))
		}
	})
	synctest.Wait()
	return cancel
}

// inBothNaives runs a timeline in a bubble for the bare queue and for the mended one. Each wake-up is
// late by stall.
func inBothNaives(t *testing.T, perSecond float64, depth int, stall time.Duration, timeline func(t *testing.T, p *paceline)) {
	for name, mended := range map[string]bool{"naive": false, "mended": true} {
		bubble(t, name, func(t *testing.T) {
			p := &paceline{Queue: naive.New(perSecond, depth), since: time.Now()}
			p.Mended, p.Stall = mended, func() { time.Sleep(stall) }
			p.Start()
			defer p.Stop()
			timeline(t, p)
		})
	}
}

// Of 1,000 requests that wait at 1,000/s nine in ten give up at once. The hundred that
// are left need a second with the naive queue, and 100 ms with the mended one.
func TestNaiveSpendsTicksOnThoseWhoHaveLeft(t *testing.T) {
	const calls, survives = 1000, 10 // every tenth
	inBothNaives(t, 1000, calls, 0, func(t *testing.T, p *paceline) {
		gap := survives * time.Millisecond
		if p.Mended {
			gap = time.Millisecond
		}
		var giveUps []context.CancelFunc
		var want []time.Duration
		for i := range calls {
			giveUp := p.enter()
			if i%survives == 0 {
				want = append(want, time.Millisecond+time.Duration(len(want))*gap)
				continue
			}
			giveUps = append(giveUps, giveUp)
		}
		for _, giveUp := range giveUps {
			giveUp()
		}
		p.calls.Wait()
		require.Equal(t, want, p.left)
	})
}

// A ticker that is not read keeps one tick. After idle time it lets a request go at
// once and the next at the next beat, here 5 ms later instead of 100. A ticker that is
// read all the time keeps none, but then a request that comes alone waits for the
// beat, here for 95 ms.
func TestNaiveKeepsATickFromIdleTime(t *testing.T) {
	inBothNaives(t, 10, 2, 0, func(t *testing.T, p *paceline) {
		after, want := 295*time.Millisecond, []time.Duration{295 * time.Millisecond, 300 * time.Millisecond}
		if p.Mended {
			after, want = 305*time.Millisecond, []time.Duration{400 * time.Millisecond, 500 * time.Millisecond}
		}
		time.Sleep(after)
		p.enter()
		p.enter()
		p.calls.Wait()
		require.Equal(t, want, p.left)
	})
}

// At 10,000/s each wake-up is nearly a millisecond late, as Go's timers on Linux are.
// Of ten ticks the ticker keeps one and drops the others for good, so a tenth of the
// rate is left. TestLatenessIsMadeUpOrCounted holds the shaper to its account of
// lateness on real threads, because nothing is late in virtual time.
func TestNaiveLosesTheTicksOfLateWakeUps(t *testing.T) {
	inBothNaives(t, 10_000, 100, 950*time.Microsecond, func(t *testing.T, p *paceline) {
		for range 100 {
			p.enter()
		}
		p.calls.Wait()
		require.Equal(t, 95_100*time.Microsecond, p.left[99], "instead of 10 ms")
	})
}
