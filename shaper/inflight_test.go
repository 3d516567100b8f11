package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// This file tests the promises of Limits.InFlight: about requests that leave and the seats that they
// take, about predictions while no seat is free, about requests that wait, and about the end of a
// seat by Do or a panic. Promises that the model computes too (TestModel) are not here again.

func TestARequestLeavesWhenBucketAndCapAllow(t *testing.T) {
	play(t, "10/s depth 9 inflight 2", func(g *stage) {
		g.acquireAll("a", "b", "c", "d")
		g.saw("0s a left")
		g.at(250 * ms)
		g.saw("100ms b left") // The bucket is empty, and two are upstream.
		require.Equal(t, 2, g.Stats().InFlight)
		g.release("a")
		g.saw("250ms c left")
		g.at(300 * ms)
		g.release("b") // There is room, but c has just left.
		g.saw()
		require.Equal(t, 1, g.Stats().InFlight)
		g.at(time.Second)
		g.saw("350ms d left")
	})
}

// The line keeps its order while it waits for a seat, and nobody slips past
// it in the moment in which one becomes free.
func TestNobodyOvertakesALineThatWaitsForASeat(t *testing.T) {
	play(t, "10/s burst 5 depth 9 inflight 1", func(g *stage) {
		g.acquireAll("a")
		g.acquire("dear", 5)
		g.acquireAll("cheap")
		g.at(time.Second) // The bucket has room for all.
		g.acquireAll("new")
		g.release("a")
		g.saw("0s a left", "1s dear left")
		g.release("dear") // There is a seat, but the bucket is full.
		g.acquireAll("newest")
		g.at(1100 * ms)
		g.saw("1.1s cheap left")
		g.release("cheap")
		g.at(1200 * ms)
		g.saw("1.2s new left")
		require.NoError(t, g.Close())
	})
}

// Who comes while the line is empty, but all seats are taken, waits for one.
func TestASeatIsOneRequestWhateverItsCost(t *testing.T) {
	play(t, "10/s burst 9 depth 9 inflight 2", func(g *stage) {
		g.acquire("five", 5)
		g.acquire("nothing", 0)
		g.acquire("one", 1)
		require.Equal(t, 2, g.Stats().InFlight)
		g.acquire("three", 3)
		g.saw("0s five left", "0s nothing left", "0s one left")
		g.release("nothing")
		require.Equal(t, 2, g.Stats().InFlight, "a cost of 0 takes no seat")
		g.release("five")
		g.saw("0s three left")
	})
}

func TestReleaseTwiceFreesOneSeat(t *testing.T) {
	play(t, "inf depth 9 inflight 2", func(g *stage) {
		g.acquireAll("a", "b", "c", "d")
		g.release("a", "a")
		g.saw("0s a left", "0s b left", "0s c left")
		require.Equal(t, 2, g.Stats().InFlight)
		// c has the seat that a had. It is c's to give back.
		g.release("a")
		g.saw()
		g.release("c")
		g.saw("0s d left")
		for range 3 {
			g.release("a", "b", "c", "d")
		}
		require.Zero(t, g.Stats().InFlight)
		g.acquireAll("e", "f", "g")
		g.saw("0s e left", "0s f left")
		require.NoError(t, g.Close())
	})
}

// Every call of Acquire returns a release that can be deferred unseen, and the
// errors of WaitN.
func TestAcquireThatFailsTakesNoSeat(t *testing.T) {
	play(t, "10/s depth 1 inflight 2", func(g *stage) {
		g.acquireAll("a", "b", "full")
		g.acquire("negative", -1)
		g.acquire("nothing", 0)
		g.acquireWith(closedContext(), "done", 1)
		g.cancel("b")
		g.saw("0s a left", "0s full full, retry 100ms", "0s negative shaper: cost is negative",
			"0s nothing left", "0s done cancelled", "0s b cancelled")
		g.release("full", "negative", "nothing", "done", "b")
		require.Equal(t, 1, g.Stats().InFlight)
		require.NoError(t, g.Close())
		g.acquireAll("late")
		g.saw("0s late closed, retry 0s")
		g.release("late")
		require.Equal(t, 1, g.Stats().InFlight)
		g.release("a")
		require.Zero(t, g.Stats().InFlight, "seats come back after Close too")
	})
}

// A caller who would not say when it ends must not pass for one upstream, so
// its call says what to use, before it looks at anything else.
func TestWithACapOnlyAcquireWaits(t *testing.T) {
	play(t, "10/s burst 9 depth 9 inflight 3", func(g *stage) {
		before := g.Stats()
		for _, n := range []int{-1, 0, 1, 99} {
			require.ErrorContains(t, g.WaitN(context.Background(), n), "Acquire")
			var refusal *shaper.RejectError
			require.False(t, errors.As(g.WaitN(context.Background(), n), &refusal), "it is a mistake, no refusal")
		}
		require.ErrorContains(t, g.Wait(closedContext()), "Acquire")
		require.False(t, g.Allow())
		require.False(t, g.AllowN(2))
		require.Equal(t, before, g.Stats(), "nothing is taken or counted")
	})
}

func TestSetLimitsTakesNoCapAwayAndBringsNone(t *testing.T) {
	play(t, "10/s depth 9 inflight 2", func(g *stage) {
		g.acquireAll("a", "b")
		capped := g.Limits()
		err := g.SetLimits(shaper.Limits{Rate: 99, Depth: 9})
		require.ErrorContains(t, err, "Limits.InFlight is 2 and can't become 0")
		require.Equal(t, capped, g.Limits())
		require.ErrorContains(t, g.SetLimits(shaper.Limits{Rate: 99, InFlight: -1}), "Limits.InFlight is -1,")
		g.at(time.Second)
		g.saw("0s a left", "100ms b left") // By the rate that it was.
	})
	play(t, "10/s depth 9", func(g *stage) {
		g.arriveAll("a", "b")
		err := g.SetLimits(shaper.Limits{Rate: 99, Depth: 9, InFlight: 7})
		require.ErrorContains(t, err, "Limits.InFlight is 0 and can't become 7")
		g.at(time.Second)
		g.saw("0s a left", "100ms b left")
	})
}

// An upstream that serves four requests at once, in 200 ms each, bears 20 a second.
// When it becomes slow, as upstreams do under load, a rate alone still sends it 20 a
// second, and it turns away requests that it can't take; with a cap it gets no more
// than it bears.
func TestACapHoldsWhatARateAloneDoesNot(t *testing.T) {
	for _, row := range []struct {
		limits  string
		service time.Duration
		refused int64
		took    time.Duration // until the last of 20 calls has ended
	}{
		{"20/s depth 100", 190 * ms, 0, 1140 * ms},
		{"20/s depth 100 inflight 4", 190 * ms, 0, 1140 * ms},
		{"20/s depth 100", 390 * ms, 8, 1340 * ms},
		{"20/s depth 100 inflight 4", 390 * ms, 0, 2100 * ms},
	} {
		t.Run(row.limits+" "+row.service.String(), func(t *testing.T) {
			play(t, row.limits, func(g *stage) {
				var busy, refused atomic.Int64
				call := func(context.Context) error {
					defer busy.Add(-1)
					if busy.Add(1) > 4 {
						refused.Add(1)
						return nil
					}
					time.Sleep(row.service)
					return nil
				}
				var all sync.WaitGroup
				for range 20 {
					all.Go(func() {
						if err := g.Do(context.Background(), 1, call); err != nil {
							g.note(err.Error())
						}
					})
				}
				all.Wait()
				g.saw() // No errors.
				require.Equal(t, row.refused, refused.Load())
				require.Equal(t, row.took, time.Since(g.start))
			})
		})
	}
}

// What is told of a wait while seats of Limits.InFlight are taken: that it is
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

// While all seats are taken, the prediction is an estimate from the seats before:
// the moving average of the time for which each was taken, divided by the number of
// seats, for each that has to end first.
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

// What Limits.InFlight means for those who wait: guarantees 1, 4, 5 and 9
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

// How a seat ends that no caller gives back by hand: Do, and panics.

func TestDoHoldsASeatWhileItsFunctionRuns(t *testing.T) {
	play(t, "10/s depth 9 inflight 1", func(g *stage) {
		type key struct{}
		ctx := context.WithValue(context.Background(), key{}, "its value")
		failed := errors.New("upstream is down")
		go func() {
			g.note("a " + outcome(g.Do(ctx, 1, func(inside context.Context) error {
				g.note(fmt.Sprint("a runs with ", inside.Value(key{}), ", in flight ", g.Stats().InFlight))
				time.Sleep(time.Second)
				return failed
			})))
		}()
		synctest.Wait()
		g.acquireAll("b")
		g.at(2 * time.Second)
		g.saw("0s a runs with its value, in flight 1", "1s a upstream is down", "1s b left")
	})
}

func TestDoThatIsRefusedRunsNothing(t *testing.T) {
	run := func(context.Context) error { panic("it ran") }
	for _, limits := range []string{"10/s inflight 1", "10/s"} {
		play(t, limits, func(g *stage) {
			g.acquireAll("a")
			require.ErrorIs(t, g.Do(context.Background(), 1, run), shaper.ErrQueueFull)
			require.True(t, g.Do(closedContext(), 1, run) == context.Canceled)
			require.True(t, g.Do(context.Background(), -1, run) == shaper.ErrNegativeCost)
			g.release("a")
			require.Zero(t, g.Stats().InFlight)
		})
	}
}

func TestDoWorksWithoutACap(t *testing.T) {
	play(t, "10/s depth 9", func(g *stage) {
		var left []time.Duration
		for range 3 {
			require.NoError(t, g.Do(context.Background(), 1, func(context.Context) error {
				left = append(left, time.Since(g.start))
				return nil
			}))
		}
		require.Equal(t, []time.Duration{0, 100 * ms, 200 * ms}, left)
	})
}

// However a function ends, its seat is free once.
func TestASeatIsFreeWhenTheFunctionHasPanicked(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("f") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			play(t, "inf depth 9 inflight 2", func(g *stage) {
				g.acquireAll("a")
				go func() {
					defer func() { _ = recover() }()
					_ = g.Do(context.Background(), 1, func(context.Context) error {
						time.Sleep(time.Second)
						end()
						return nil
					})
				}()
				synctest.Wait()
				g.acquireAll("b", "c")
				g.at(2 * time.Second)
				g.saw("0s a left", "1s b left")
				require.Equal(t, 2, g.Stats().InFlight)
				require.NoError(t, g.Close())
			})
		})
	}
}

// A caller whose hook panics, or ends its goroutine, gets no release. Nobody
// else could give the seat back.
func TestAPanicOfTheDepartedHookGivesTheSeatBack(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("hook") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			trace := &shaper.Trace{Departed: func(_ context.Context, e shaper.Event) {
				if e.Cost == 2 {
					end()
				}
			}}
			play(t, "inf depth 9 inflight 1", func(g *stage) {
				breaks := func() {
					defer func() { _ = recover() }()
					_, _ = g.Acquire(context.Background(), 2)
				}
				go breaks() // It leaves at once.
				synctest.Wait()
				require.Zero(t, g.Stats().InFlight)
				g.acquireAll("a")
				go breaks() // It leaves from the line.
				synctest.Wait()
				g.acquireAll("b", "c")
				g.at(time.Second)
				g.release("a")
				g.saw("0s a left", "1s b left")
				require.Equal(t, 1, g.Stats().InFlight)
				require.NoError(t, g.Close())
			}, shaper.WithTrace(trace))
		})
	}
}

// The question whether the context has ended is put to the caller's code too.
func TestAPanicOfTheContextGivesTheSeatBack(t *testing.T) {
	play(t, "inf depth 9 inflight 1", func(g *stage) {
		g.acquireAll("a")
		go func() {
			defer func() { _ = recover() }()
			ctx := &meddling{Context: context.Background(), meddle: func() { panic("context") }}
			_, _ = g.Acquire(ctx, 1)
		}()
		synctest.Wait()
		g.acquireAll("b", "c")
		g.release("a")
		g.saw("0s a left", "0s b left")
		require.Equal(t, 1, g.Stats().InFlight)
		require.NoError(t, g.Close())
	})
}

// A call of Acquire that may leave at once makes its release, and nothing else, and not even that
// if its caller keeps release to itself; without a cap, where release does nothing, it never
// does. Do makes none.
func TestAcquireAllocatesItsReleaseAtMost(t *testing.T) {
	kept := func(ctx context.Context, s *shaper.Shaper) error {
		release, err := s.Acquire(ctx, 1)
		keptRelease = release
		release()
		return err
	}
	acquire := func(ctx context.Context, s *shaper.Shaper) error {
		release, err := s.Acquire(ctx, 1)
		release()
		return err
	}
	do := func(ctx context.Context, s *shaper.Shaper) error {
		return s.Do(ctx, 1, func(context.Context) error { return nil })
	}
	for _, c := range []struct {
		name   string
		limits shaper.Limits
		call   func(context.Context, *shaper.Shaper) error
		want   float64
	}{
		{"Acquire", shaper.Limits{Rate: rate.Inf, Depth: 1}, acquire, 0},
		{"Acquire with a cap", shaper.Limits{Rate: rate.Inf, Depth: 1, InFlight: 1}, acquire, 0},
		{"Acquire, release is kept", shaper.Limits{Rate: rate.Inf, Depth: 1}, kept, 0},
		{"Acquire with a cap, release is kept", shaper.Limits{Rate: rate.Inf, Depth: 1, InFlight: 1}, kept, 1},
		{"Acquire that waits", shaper.Limits{Rate: 1000, Depth: 1}, acquire, 0},
		{"Acquire with a cap that waits", shaper.Limits{Rate: 1000, Depth: 1, InFlight: 1}, acquire, 0},
		{"Do", shaper.Limits{Rate: rate.Inf, Depth: 1}, do, 0},
		{"Do with a cap", shaper.Limits{Rate: rate.Inf, Depth: 1, InFlight: 1}, do, 0},
	} {
		bubble(t, c.name, func(t *testing.T) {
			s := mustMake(t, c.limits)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			failed := 0
			got := testing.AllocsPerRun(1000, func() {
				if c.call(ctx, s) != nil {
					failed++
				}
			})
			if testing.CoverMode() == "" {
				require.Equal(t, c.want, got)
			} else { // With the counters of that, Acquire is too large for the compiler to inline.
				require.LessOrEqual(t, got, 1.)
			}
			require.Zero(t, failed)
		})
	}
}

// keptRelease keeps the compiler from leaving the release on the stack.
var keptRelease func()
