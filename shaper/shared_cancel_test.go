package shaper_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// Those that give up hand their slots on to those behind them: none is lost while anybody waits.
func TestSlotsOfThoseWhoGiveUpAreHandedOn(t *testing.T) {
	share(t, 1, "1000/s depth 999", 2*ms, func(p *processes) {
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(p.t.Context())
		for i := range 200 {
			wg.Go(func() {
				if i%2 == 0 {
					_ = p.wait(ctx, 0, 1)
					return
				}
				_ = p.wait(context.Background(), 0, 1)
			})
		}
		p.at(12*ms + 300*us)
		cancel() // Slots are leased for some of them.
		wg.Wait()
		at := p.instants()
		for i := 2; i < len(at); i++ { // The first may have come before the others, and alone.
			require.InDelta(t, ms, at[i]-at[i-1], float64(50*us), "departure %d at %v", i, at[i])
		}
		st := p.all[0].Stats()
		require.Zero(t, st.Bucket.Dropped+st.Bucket.GivenBack)
		require.Equal(t, uint64(len(at)), st.Bucket.Leased)
		p.check()
	})
}

// If all give up, what is leased is given back once, and another process gets it.
func TestWhatAllHaveLeftIsGivenBackOnce(t *testing.T) {
	share(t, 2, "100/s depth 99", 2*ms, func(p *processes) {
		ctx, cancel := context.WithCancel(p.t.Context())
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() { _ = p.wait(ctx, 0, 1) })
		}
		p.at(15 * ms) // At 2 ms and at 12 ms have left, and 2 of 16 are leased at least.
		cancel()
		wg.Wait()
		p.at(20 * ms)
		_, givenBack := p.takes()
		require.Len(t, givenBack, 1)
		st := p.all[0].Stats().Bucket
		require.Positive(t, st.GivenBack)
		require.Equal(t, uint64(givenBack[0].Take.Cost), st.GivenBack)
		require.Equal(t, st.Leased, uint64(2)+st.GivenBack)
		require.Zero(t, st.Held+int64(st.Dropped))
		p.arrive(1, 1)
		p.at(time.Second)
		require.Equal(t, 3, len(p.instants()))
		require.InDelta(t, 23*ms, p.instants()[2], float64(ms), "the slot after the second one's")
		p.check()
	})
}

// A caller that goes at the very instant of its slot gives the slot to the next, and if there is
// none, back to the Bucket: not beside what another lease has brought since.
func TestCallerThatGoesAtItsSlotHandsItOn(t *testing.T) {
	share(t, 1, "100/s depth 9", 0, func(p *processes) {
		s := p.all[0]
		for i := range 20 {
			require.NoError(t, p.wait(p.t.Context(), 0, 1))
			gone := newLateCancel()
			left, next := make(chan error, 1), make(chan error, 1)
			go func() { left <- p.wait(gone, 0, 1) }()
			synctest.Wait()
			if i%2 == 0 {
				go func() { next <- p.wait(context.Background(), 0, 1) }()
				synctest.Wait()
			}
			gone.end()
			require.Equal(t, context.Canceled, <-left)
			if i%2 == 0 {
				require.NoError(t, <-next)
			}
			synctest.Wait()
		}
		st := s.Stats()
		require.Equal(t, uint64(20), st.Abandoned)
		require.Equal(t, uint64(30), st.Departed)
		require.Zero(t, st.Bucket.Held+int64(st.Bucket.Dropped))
		require.Equal(t, st.Bucket.Leased, 30+st.Bucket.GivenBack)
		worst := p.pace().Worst(p.departures())
		require.LessOrEqual(t, worst.Excess(), int64(0))
	})
}

// Shutdown lets the line leave at the rate, and what is left of a batch is given back.
func TestShutdownOfASharedShaperDrainsAtTheRate(t *testing.T) {
	share(t, 2, "100/s depth 99", 2*ms, func(p *processes) {
		ctx, cancel := context.WithCancel(context.Background())
		for range 10 {
			go func() { _ = p.wait(ctx, 0, 1) }()
		}
		for range 10 {
			p.arrive(0, 1)
		}
		p.at(5 * ms)
		done := make(chan error)
		go func() { done <- p.all[0].Shutdown(context.Background()) }()
		p.at(60 * ms)
		require.ErrorIs(t, p.all[0].Wait(context.Background()), shaper.ErrClosed)
		require.False(t, p.all[0].AllowN(1))
		cancel()
		require.NoError(t, <-done)
		at := p.instants()
		require.Greater(t, len(at), 10)
		for i := 1; i < len(at); i++ {
			require.InDelta(t, 10*ms, at[i]-at[i-1], float64(50*us))
		}
		p.check()
		level := p.Level("k").Empty.Micros - p.Now()
		require.LessOrEqual(t, level, int64(10_000), "nothing is left that another process would have to wait for")
	})
}

// Close gives back what is leased. It waits for the call that is under way, whose units are given
// back too.
func TestCloseGivesBackWhatIsLeased(t *testing.T) {
	for _, closeAt := range []time.Duration{ms, 10 * ms, 15 * ms, 25 * ms, 45 * ms} {
		share(t, 2, "100/s depth 99", 20*ms, func(p *processes) {
			for range 20 {
				p.arrive(0, 1)
			}
			p.at(closeAt)
			require.NoError(t, p.all[0].Close())
			require.NoError(t, p.all[0].Close())
			st := p.all[0].Stats()
			require.Zero(t, st.Bucket.Held)
			require.Zero(t, st.Bucket.Dropped)
			require.Equal(t, st.Bucket.Leased, st.Departed+st.Bucket.GivenBack)
			require.Equal(t, uint64(20), st.Departed+st.Closed)
			require.LessOrEqual(t, p.Level("k").Empty.Micros-p.Now(), int64(10_000))
			p.check()
		})
	}
}

// Whatever a hook is told of, it may close the Shaper.
func TestCloseFromAnyHookOfASharedShaper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for i := range 5 {
			m := buckettest.NewMemory()
			m.SetDelay(ms, ms)
			var s *shaper.Shaper
			closes := func(context.Context, shaper.Event) { require.NoError(t, s.Close()) }
			trace := &shaper.Trace{}
			switch i {
			case 0:
				trace.Enqueued = closes
			case 1:
				trace.Departed = closes
			case 2:
				trace.Refused = closes
			case 3:
				trace.Abandoned = closes
			case 4:
				trace.Bucket = func(context.Context, shaper.BucketEvent) { require.NoError(t, s.Close()) }
				m.Fail(faultOf(buckettest.FailBefore))
			}
			var err error
			s, err = shaper.New(shaper.Limits{Rate: 100, Depth: 3}, shaper.WithBucket(m, "k"), shaper.WithTrace(trace))
			require.NoError(t, err)
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 15*ms)
					defer cancel()
					_ = s.Wait(ctx)
				})
			}
			wg.Wait()
			if i == 4 { // With no line there is no question.
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				_ = s.Wait(ctx)
				cancel()
			}
			require.NoError(t, s.Close())
		}
	})
}
