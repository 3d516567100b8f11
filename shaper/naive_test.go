package shaper_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/naive"
	"example.com/leakybucket/shaper"
)

// These tests show what the shaper that one writes first gets wrong (package naive).

// A paceline is calls of one Wait in a bubble, each let in after the one before
// it has come to rest, so that their order in the line is that of their making.
type paceline struct {
	wait  func(context.Context) error
	since time.Time

	calls   sync.WaitGroup
	mu      sync.Mutex
	left    []time.Duration // since the start, in the order of departure
	refused int
}

func newPaceline(wait func(context.Context) error) *paceline {
	return &paceline{wait: wait, since: time.Now()}
}

// enter makes one call and returns what makes its caller give up.
func (p *paceline) enter() (giveUp context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	p.calls.Go(func() {
		err := p.wait(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case err == nil:
			p.left = append(p.left, time.Since(p.since))
		case ctx.Err() == nil:
			p.refused++
		}
	})
	synctest.Wait()
	return cancel
}

// inBothNaives runs f in a bubble for the bare queue and for the mended one.
func inBothNaives(t *testing.T, f func(t *testing.T, mended bool)) {
	t.Run("naive", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, false) })
	})
	t.Run("mended", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, true) })
	})
}

// Of 1,000 requests that wait at 1,000/s nine in ten give up at once. The hundred that
// are left need a second with the naive queue, 100 ms with the mended one and 99 ms
// with the shaper, where the first need not wait for a tick.
func TestNaiveSpendsTicksOnThoseWhoHaveLeft(t *testing.T) {
	const calls, survives = 1000, 10 // every tenth
	nineInTenGiveUp := func(p *paceline) {
		for i := range calls {
			giveUp := p.enter()
			if i%survives != 0 {
				defer giveUp()
			}
		}
	}
	evenly := func(first, gap time.Duration) (instants []time.Duration) {
		for i := range calls / survives {
			instants = append(instants, first+time.Duration(i)*gap)
		}
		return instants
	}

	inBothNaives(t, func(t *testing.T, mended bool) {
		q := naive.New(1000, calls)
		q.Mended = mended
		q.Start()
		defer q.Stop()
		p := newPaceline(q.Wait)
		nineInTenGiveUp(p)
		p.calls.Wait()
		if mended {
			require.Equal(t, evenly(time.Millisecond, time.Millisecond), p.left)
		} else {
			require.Equal(t, evenly(time.Millisecond, survives*time.Millisecond), p.left)
			require.Equal(t, 991*time.Millisecond, time.Since(p.since))
		}
	})
	t.Run("shaper", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, err := shaper.New(shaper.Limits{Rate: 1000, Depth: calls})
			require.NoError(t, err)
			p := newPaceline(s.Wait)
			nineInTenGiveUp(p)
			p.calls.Wait()
			require.Equal(t, evenly(0, time.Millisecond), p.left)
			require.Equal(t, 99*time.Millisecond, time.Since(p.since))
		})
	})
}

// A ticker that is not read keeps one tick. After idle time it lets a request go at
// once and the next at the next beat, here 5 ms later instead of 100. A ticker that is
// read all the time keeps none, but then a request that comes alone waits for the
// beat, here for 95 ms.
func TestNaiveKeepsATickFromIdleTime(t *testing.T) {
	twoCome := func(p *paceline, after time.Duration) {
		time.Sleep(after)
		p.enter()
		p.enter()
		p.calls.Wait()
	}

	inBothNaives(t, func(t *testing.T, mended bool) {
		q := naive.New(10, 2)
		q.Mended = mended
		q.Start()
		defer q.Stop()
		p := newPaceline(q.Wait)
		if mended {
			twoCome(p, 305*time.Millisecond)
			require.Equal(t, []time.Duration{400 * time.Millisecond, 500 * time.Millisecond}, p.left)
		} else {
			twoCome(p, 295*time.Millisecond)
			require.Equal(t, []time.Duration{295 * time.Millisecond, 300 * time.Millisecond}, p.left)
		}
	})
	t.Run("shaper", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, err := shaper.New(shaper.Limits{Rate: 10, Depth: 2})
			require.NoError(t, err)
			p := newPaceline(s.Wait)
			twoCome(p, 305*time.Millisecond)
			require.Equal(t, []time.Duration{305 * time.Millisecond, 405 * time.Millisecond}, p.left)
		})
	})
}

// At 10,000/s each wake-up is nearly a millisecond late, as Go's timers on Linux are.
// Of ten ticks the ticker keeps one and drops the others for good, so a tenth of the
// rate is left. TestLatenessIsMadeUpOrCounted holds the shaper to its account of
// lateness on real threads, because nothing is late in virtual time.
func TestNaiveLosesTheTicksOfLateWakeUps(t *testing.T) {
	inBothNaives(t, func(t *testing.T, mended bool) {
		q := naive.New(10_000, 100)
		q.Mended = mended
		q.Stall = func() { time.Sleep(950 * time.Microsecond) }
		q.Start()
		defer q.Stop()
		p := newPaceline(q.Wait)
		for range 100 {
			p.enter()
		}
		p.calls.Wait()
		require.Equal(t, 95_100*time.Microsecond, p.left[99], "instead of 10 ms")
	})
}
