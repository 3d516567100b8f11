package shaper_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// This file holds what is told of a wait while seats of Limits.InFlight are taken: that it is
// an estimate, and that nobody is refused by one.

// A caller that sleeps for as long as it is told, and comes again, must not spin
// while the cap is all that keeps it: not before any request has ended, nor when
// those that have were short.
func TestWhoIsToldToWaitForASeatDoesNotSpin(t *testing.T) {
	for _, depth := range []int{0, 2} {
		playLimits(t, shaper.Limits{Rate: rate.Inf, Depth: depth, InFlight: 1}, func(g *stage) {
			tries := func(wants int) {
				t.Helper()
				release, err := g.Acquire(context.Background(), 1)
				require.NoError(t, err)
				time.AfterFunc(time.Second, release)
				var waiters sync.WaitGroup
				for range depth {
					waiters.Go(func() {
						if release, err := g.Acquire(context.Background(), 1); err == nil {
							release()
						}
					})
					synctest.Wait()
				}
				for came := 1; ; came++ {
					release, err := g.Acquire(context.Background(), 1)
					var refusal *shaper.RejectError
					if !errors.As(err, &refusal) {
						require.NoError(t, err)
						release()
						require.Equal(t, wants, came)
						break
					}
					require.ErrorIs(t, err, shaper.ErrQueueFull)
					time.Sleep(refusal.RetryAfter)
					synctest.Wait()
				}
				waiters.Wait()
			}
			tries(1001) // Every millisecond: nothing is known yet.
			if depth == 0 {
				tries(3) // The mean of a second and of none, 875 ms, twice.
			}
		})
	}
}

// While all seats are taken, what is told is what the seats before allow to expect:
// the moving average of the time for which each was taken, divided by how many there
// are, for each that has to end first.
func TestTheWaitForASeatIsEstimatedFromThoseBefore(t *testing.T) {
	play(t, "inf depth 2 inflight 2", func(g *stage) {
		told := func(name string, want time.Duration) {
			t.Helper()
			wait, err := g.Forecast(1)
			if refusal, ok := errors.AsType[*shaper.RejectError](err); ok {
				wait = refusal.RetryAfter
			}
			require.Equal(t, want, wait, name)
		}
		g.acquireAll("a")
		told("a seat is free", 0)
		g.acquireAll("b")
		told("no seat has been given back yet", ms)
		g.at(80 * ms)
		g.release("a")
		g.acquireAll("c")
		told("80 ms, two at once", 40*ms)
		g.acquireAll("d")
		told("two have to end", 80*ms)
		g.acquireAll("e")
		told("refused until one has ended", 40*ms)
		g.at(160 * ms)
		g.release("b", "c") // After 160 ms and 80 ms: an eighth of 80 ms more, of 10 ms less.
		g.acquireAll("f")
		g.saw("0s a left", "0s b left", "80ms c left", "160ms d left", "160ms e left")
		told("a longer one weighs an eighth", 2*(90*ms-1250*time.Microsecond)/2)
		g.release("d")
		require.NoError(t, g.SetLimits(shaper.Limits{Rate: rate.Inf, Depth: 2, InFlight: 1}))
		told("one more is upstream than may be", 2*(88750*time.Microsecond-88750*time.Microsecond/8))
	})
}

// That a seat is free says nothing of those who stand further back in the line: the
// requests ahead of them take it.
func TestAFreeSeatIsNotCountedForAWholeLine(t *testing.T) {
	play(t, "1/s depth 2 inflight 2", func(g *stage) {
		g.acquireAll("a")
		g.at(10 * time.Second)
		g.release("a")
		g.acquireAll("b", "c")
		forecast := func() time.Duration {
			wait, err := g.Forecast(1)
			require.NoError(t, err)
			return wait
		}
		require.Equal(t, 5*time.Second, forecast(), "c takes the second seat, and one of two ends within 10 s")
		g.acquireAll("d", "e")
		require.NoError(t, g.SetLimits(limitsOf(t, "1/s depth 3 inflight 2")))
		require.Equal(t, 10*time.Second, forecast(), "two have to end")
		go g.shutDown()
		synctest.Wait()
		g.acquireAll("f")
		g.release("b")
		g.at(11 * time.Second)
		g.release("c")
		g.at(time.Minute)
		g.saw("0s a left", "10s b left", "10s e full, retry 1s", "10s f closed, retry 5s", "11s c left", "12s d left", "12s shut down: <nil>")
		g.release("d")
	})
}

// A few requests that end at once say nothing of those to come, and are timed
// rarely; those that last are all timed.
func TestSeatsThatLastAreTimedAfterManyThatDidNot(t *testing.T) {
	play(t, "inf inflight 1", func(g *stage) {
		stays := func(times int, long time.Duration) {
			for range times {
				release, err := g.Acquire(context.Background(), 1)
				require.NoError(t, err)
				time.Sleep(long)
				release()
			}
		}
		stays(1000, 0)
		stays(64+40, 100*ms)
		release, err := g.Acquire(context.Background(), 1)
		require.NoError(t, err)
		defer release()
		_, err = g.Acquire(context.Background(), 1)
		refusal, ok := errors.AsType[*shaper.RejectError](err)
		require.True(t, ok)
		require.Equal(t, 100*ms, refusal.RetryAfter)
	})
}

// What a request is refused by goes as if a seat became free at once, which shows
// in a Forecast that another obstacle makes longer than the estimate.
func TestForecastWithACapIsAnEstimate(t *testing.T) {
	play(t, "10/s burst 2 depth 2 wait 150ms inflight 1", func(g *stage) {
		forecast := func() time.Duration {
			t.Helper()
			wait, err := g.Forecast(1)
			require.NoError(t, err)
			return wait
		}
		g.acquireAll("a")
		require.Equal(t, ms, forecast(), "not at once, as there is no seat")
		g.acquireAll("b")
		require.Equal(t, 100*ms, forecast(), "the third, if b left at once")
		g.at(time.Second)
		require.Equal(t, ms, forecast(), "the bucket is empty, and has room for two")
		g.acquireAll("c", "d")
		g.saw("0s a left", "1s d full, retry 1ms")
		g.release("a")
		g.at(1050 * ms)
		g.saw("1s b left")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		g.acquireWith(ctx, "e", 1) // It would have left at 1.1 s, if others ended.
		g.at(3 * time.Second)
		g.saw("2.05s e expired")
		require.NoError(t, g.Close())
	})
}

// With whatever traffic, nobody is refused for a deadline before which it would have
// left: the same request without one, in the same line, waits at least as long.
func TestNobodyIsRefusedByAnEstimate(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 1))
	var refused, expectedLonger atomic.Int64
	for range 200 {
		l := shaper.Limits{
			Rate: []rate.Limit{7, 50, 1e6, rate.Inf}[r.IntN(4)], Burst: r.IntN(4), Depth: 9, InFlight: 1 + r.IntN(3),
		}
		playLimits(t, l, func(g *stage) {
			var callers sync.WaitGroup
			for range 12 {
				n, lasts, patience := 1+r.IntN(4), time.Duration(r.Int64N(int64(300*ms))), time.Duration(r.Int64N(int64(600*ms)))
				wait, _ := g.Forecast(n)
				began := time.Now()
				callers.Go(func() {
					release, err := g.Acquire(announced{context.Background(), began.Add(patience)}, n)
					if errors.Is(err, shaper.ErrTooLate) {
						refused.Add(1)
						release, err = g.Acquire(context.Background(), n)
						if waited := time.Since(began); err == nil && waited < patience {
							t.Errorf("%v: refused with %v left, and left after %v", l, patience, waited)
						}
					} else if err == nil && wait > time.Since(began) {
						expectedLonger.Add(1)
					}
					if err == nil {
						time.Sleep(lasts)
						release()
					}
				})
				g.at(time.Since(g.start) + time.Duration(r.Int64N(int64(50*ms))))
			}
			callers.Wait()
		})
	}
	require.Greater(t, refused.Load(), int64(100), "hardly any deadline was too near")
	require.Greater(t, expectedLonger.Load(), int64(50), "hardly anybody left sooner than the estimate")
}

// announced is a context with a deadline at which it does not end, so that whoever was
// admitted stays.
type announced struct {
	context.Context
	at time.Time
}

func (a announced) Deadline() (time.Time, bool) { return a.at, true }

// This file holds what Limits.InFlight means for those who wait: guarantees 1, 4, 5 and 9
// (pace, abandonment, one outcome, end) hold with it.

func TestARequestThatGivesUpWhileAllSeatsAreTakenLeavesTheLine(t *testing.T) {
	play(t, "10/s depth 3 inflight 1", func(g *stage) {
		g.acquireAll("a", "b", "c", "d")
		g.at(time.Second)
		g.cancel("b", "c")
		require.Equal(t, 1, g.Stats().Waiting)
		require.Equal(t, 1, g.Stats().InFlight)
		g.acquireAll("e")
		g.release("a")
		g.at(2 * time.Second)
		g.saw("0s a left", "1s b cancelled", "1s c cancelled", "1s d left")
		g.release("d")
		g.saw("2s e left")
	})
}

// A departure that is abandoned gives its slot and its seat on, to one who may
// then leave, and to no more than one.
func TestAnAbandonedDepartureGivesItsSeatOn(t *testing.T) {
	play(t, "10/s burst 9 depth 9 inflight 1", func(g *stage) {
		late := newLateCancel()
		g.acquireAll("a")
		g.acquireWith(late, "gone", 1)
		g.acquireAll("c", "d")
		late.end()
		g.at(time.Second)
		g.release("a")
		g.saw("0s a left", "1s gone cancelled", "1s c left")
		require.Equal(t, 1, g.Stats().InFlight)
		require.InDelta(t, 1, g.Stats().Level, 1e-9, "gone is off the bucket")
		g.release("gone")
		g.saw()
		g.release("c")
		g.saw("1s d left")
	})
	play(t, "10/s depth 9 inflight 1", func(g *stage) {
		late := newLateCancel()
		g.acquireAll("a")
		g.acquireWith(late, "gone", 1)
		late.end()
		g.at(time.Second)
		g.release("a")
		g.saw("0s a left", "1s gone cancelled")
		require.Zero(t, g.Stats().InFlight)
		g.acquireAll("c")
		g.saw("1s c left") // Slot and seat have gone back to where they came from.
	})
}

// One that gives up as its slot comes has its seat until it is asked, and that
// may take long: the head behind it could not leave meanwhile, and is not late.
func TestARequestThatWaitedForAnAbandonedSeatIsNotLate(t *testing.T) {
	play(t, "10/s depth 9 inflight 1", func(g *stage) {
		g.acquireAll("a")
		g.acquireWith(&meddling{Context: context.Background(), meddle: func() { time.Sleep(time.Second) }}, "gone", 1)
		g.acquireAll("c", "d", "e")
		g.at(time.Second)
		g.release("a") // gone has its slot now, and says after a second that it has left.
		g.at(1500 * ms)
		require.Equal(t, 1, g.Stats().InFlight)
		g.at(2 * time.Second)
		g.saw("0s a left", "2s gone cancelled", "2s c left")
		g.release("c")
		g.at(2100 * ms)
		g.release("d")
		g.at(3 * time.Second)
		g.saw("2.1s d left", "2.2s e left") // Nothing is made up,
		require.Zero(t, g.Stats().Missed)   // and nothing missed.
	})
}
