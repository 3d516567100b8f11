package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// slotsOf returns when requests of these costs may leave a level that is empty at 0, by the one
// rule of bucket: when the level is at most max(0, Burst − cost).
func slotsOf(l shaper.Limits, costs []int) (slots []*big.Rat) {
	interval, empty := intervalOf(l.Rate), new(big.Rat)
	if l.Rate == 10.0/3 {
		interval = big.NewRat(300_000_000, 1) // What the rate is read as.
	}
	latest := new(big.Rat)
	for _, n := range costs {
		room := big.NewRat(max(0, max(1, int64(l.Burst))-int64(n)), 1)
		due := new(big.Rat).Sub(empty, room.Mul(room, interval))
		if due.Cmp(latest) < 0 {
			due = latest
		}
		slots, latest = append(slots, due), due
		if empty.Cmp(due) < 0 {
			empty = due
		}
		empty = new(big.Rat).Add(empty, new(big.Rat).Mul(interval, big.NewRat(int64(n), 1)))
	}
	return slots
}

// requireSlots asserts that departures happened at their slots. The Bucket reads its clock in
// whole microseconds, rounded down, so from an answer a process knows that clock to a microsecond;
// and from then on the two clocks may move apart by 200 ppm. So nobody leaves before the
// slot, and nobody later than the microsecond and the drift since the latest answer.
func requireSlots(t *testing.T, slots []*big.Rat, at []time.Duration, sinceAnswer time.Duration, why string) {
	t.Helper()
	require.Len(t, at, len(slots), why)
	late := big.NewRat(int64(us+sinceAnswer/4999+2), 1)
	for i, slot := range slots {
		got := big.NewRat(int64(at[i]), 1)
		require.GreaterOrEqual(t, got.Cmp(slot), 0, "%s: departure %d at %v is before its slot, %s ns", why, i, at[i], slot.FloatString(1))
		require.LessOrEqual(t, new(big.Rat).Sub(got, slot).Cmp(late), 0, "%s: departure %d at %v is more than %s ns after its slot, %s ns", why, i, at[i], late.FloatString(0), slot.FloatString(1))
	}
}

// Each request leaves where the one rule of bucket puts it, whichever lease its units come from.
func TestLeasedSlotsAreThoseOfTheRule(t *testing.T) {
	costs := map[string][]int{"of 1": {1}, "mixed": {1, 3, 2, 1, 7, 1, 1, 5, 2, 2, 12, 1}, "great": {40, 1, 40}}
	for _, limits := range []string{"3/s depth 9999", "3/s burst 4 depth 9999", "1000/s burst 5 depth 9999", "30000/s depth 9999", "30000/s burst 100 depth 9999", "7/s burst 2 depth 9999"} {
		for name, pattern := range costs {
			why := fmt.Sprintf("%s, costs %s", limits, name)
			share(t, 1, limits, 0, func(p *processes) {
				var all []int
				for len(all) < 200 {
					all = append(all, pattern...)
				}
				p.arrive(0, all...)
				p.at(time.Hour)
				longest := time.Duration(40 / float64(p.limits.Rate) * float64(time.Second))
				requireSlots(t, slotsOf(p.limits, all), p.instants(), min(2*time.Second, longest)+60*ms, why)
				p.check()
				require.Zero(t, p.all[0].Stats().Bucket.Dropped, why)
			})
		}
	}
}

// A Shaper that is alone with a Bucket next door behaves as one without a Bucket: with the same
// arrivals each request gets the same answer, and leaves at the same instant, but for the
// microsecond and the drift of requireSlots.
func TestLoneSharedShaperIsLikeAPlainOne(t *testing.T) {
	type outcomes struct {
		at  []time.Duration
		err []error
	}
	script := func(t *testing.T, l shaper.Limits, opts func() []shaper.Option) (o outcomes) {
		synctest.Test(t, func(t *testing.T) {
			s, err := shaper.New(l, opts()...)
			require.NoError(t, err)
			start := time.Now()
			const n = 300
			o.at, o.err = make([]time.Duration, n), make([]error, n)
			done := make(chan struct{}, n)
			state := uint64(1)
			for i := range n {
				state = state*6364136223846793005 + 1442695040888963407
				gap := time.Duration(state>>33%uint64(2*time.Second/time.Duration(float64(l.Rate)))) / 2 * 3
				if state>>20%16 == 0 {
					gap *= 20 // An idle time now and then.
				}
				time.Sleep(gap.Round(us))
				cost := 1 + int(state>>40%3)
				ctx, cancel := context.WithCancel(t.Context())
				if state>>50%10 == 0 {
					ctx, cancel = context.WithTimeout(ctx, gap+gap/3+7*us+123*ns)
				}
				go func() {
					defer cancel()
					o.err[i] = s.WaitN(ctx, cost)
					o.at[i] = time.Since(start)
					done <- struct{}{}
				}()
				synctest.Wait()
			}
			for range n {
				<-done
			}
			require.NoError(t, s.Close())
		})
		return o
	}
	for _, limits := range []string{"100/s depth 20", "100/s burst 6 depth 20", "7/s burst 3 depth 50", "3/s burst 2 depth 5"} {
		l, err := shaper.ParseLimits(limits)
		require.NoError(t, err)
		plain := script(t, l, func() []shaper.Option { return nil })
		shared := script(t, l, func() []shaper.Option {
			return []shaper.Option{shaper.WithBucket(buckettest.NewMemory(), "k", shared.Options{})}
		})
		differ := 0
		for i := range plain.at {
			late := shared.at[i] - plain.at[i]
			sameError := errors.Is(shared.err[i], reasonOf(plain.err[i]))
			if !sameError || late < 0 || late > 600*us {
				differ++
				t.Logf("%s: request %d: %v, %v plain; %v, %v shared", limits, i, plain.at[i], plain.err[i], shared.at[i], shared.err[i])
			}
		}
		require.Zero(t, differ, limits)
	}
}

// reasonOf returns the Reason of a refusal, or the error itself.
func reasonOf(err error) error {
	if rejected, ok := errors.AsType[*shaper.RejectError](err); ok {
		return rejected.Reason
	}
	return err
}

// A request that finds an idle bucket pays one round trip, to the nanosecond, and the guard if
// there is one.
func TestIdleBucketCostsOneRoundTrip(t *testing.T) {
	for _, limits := range []string{"1000/s depth 9", "3/s depth 9", "1/min depth 9", "1/h depth 9 slack 5ms"} {
		for _, guard := range []time.Duration{0, 64 * ms} {
			share(t, 2, limits, 2*ms, func(p *processes) {
				p.arrive(0, 1)
				p.at(3 * time.Hour)
				p.arrive(1, 1)
				p.at(6 * time.Hour)
				first, second := p.instants()[0], p.instants()[1]-3*time.Hour
				if guard == 0 {
					require.Equal(t, []time.Duration{2 * ms, 2 * ms}, []time.Duration{first, second}, limits)
				}
				require.InDelta(t, max(2*ms, guard+ms), first, float64(ms+20*us), limits)
				require.InDelta(t, max(2*ms, guard+ms), second, float64(ms+20*us), limits)
				require.Len(t, p.instants(), 2)
				takes, givenBack := p.takes()
				require.Len(t, takes, 2, limits)
				require.Empty(t, givenBack, limits)
			}, shared.Options{ColdGuard: guard})
		}
	}
}

// With a lateness of less than what clocks may drift apart within an interval, slots must not
// be dropped before they come: then nobody would ever leave.
func TestSlowRateWithALittleSlackIsNotStuck(t *testing.T) {
	share(t, 1, "1/min depth 9 slack 10ms", 2*ms, func(p *processes) {
		p.arrive(0, 1, 1, 1)
		p.at(3 * time.Minute)
		for i, at := range p.instants() {
			want := time.Duration(i) * time.Minute
			require.GreaterOrEqual(t, at, want)
			require.LessOrEqual(t, at, want+2*ms+1*ms)
		}
		require.Len(t, p.instants(), 3)
		require.Zero(t, p.all[0].Stats().Bucket.Dropped)
	})
}

// A Slack for which no instant of the clock has room must not drop slots before they come.
func TestTheLongestSlackKeepsTheRateOfASharedBucket(t *testing.T) {
	share(t, 1, "10/s depth 99 slack 9223372036854775807ns", 2*ms, func(p *processes) {
		stop := p.saturate(20)
		defer stop()
		p.at(2 * time.Second)
		require.InDelta(t, 20, len(p.instants()), 1)
		require.Zero(t, p.all[0].Stats().Bucket.Dropped)
	})
}

// A cold guard is computed from the number of units that a process says it leases ahead, so the
// process must never hold more, whatever requests cost and however long round trips get.
func TestNoProcessHoldsMoreThanItSaysItMay(t *testing.T) {
	for _, cost := range []int{1, 7, 400} {
		share(t, 3, "100/s burst 3 depth 9999", 2*ms, func(p *processes) {
			for range 600 / cost * 5 {
				for i := range p.all {
					go func() { _ = p.wait(context.Background(), i, cost) }()
				}
			}
			held := int64(0)
			for at := time.Duration(0); at < 4*time.Second; at += 3 * ms {
				if at == 2001*ms {
					p.SetDelay(60*ms, 60*ms)
				}
				p.at(at)
				for _, s := range p.all {
					st := s.Stats().Bucket
					require.LessOrEqual(t, st.Held, st.Ahead)
					held = max(held, st.Held)
				}
			}
			require.Positive(t, held)
		})
	}
}

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

// If all give up, the leased units are given back once, and another process gets them.
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

// A caller that learns after its slot that it has gone gives the slot to the next in line, wherever
// in a lease its unit was. After the next departure it gives nothing back: its unit is due before the
// latest one that was used, and so would let a request leave too early.
func TestASlotComesBackUntilTheNextDeparture(t *testing.T) {
	const all = 20
	for gone := range all - 1 {
		for _, late := range []time.Duration{5 * ms, 12 * ms} {
			share(t, 1, "100/s depth 99", 0, func(p *processes) {
				costs := slices.Repeat([]int{1}, all)
				p.arrive(0, costs[:gone]...)
				left := make(chan error, 1)
				go func() { left <- p.wait(&slowToEnd{Context: context.Background(), takes: late}, 0, 1) }()
				synctest.Wait()
				p.arrive(0, costs[gone+1:]...)
				require.Equal(t, context.Canceled, <-left)
				p.at(time.Second)

				slots, dropped := slotsOf(p.limits, costs), uint64(0)
				if late < 10*ms {
					slots[gone].Add(slots[gone], big.NewRat(int64(late), 1))
					slots = slots[:all-1]
				} else {
					slots, dropped = slices.Delete(slots, gone, gone+1), 1
				}
				why := fmt.Sprintf("request %d goes %v after its slot", gone, late)
				requireSlots(t, slots, p.instants(), 60*ms, why)
				require.Equal(t, dropped, p.all[0].Stats().Bucket.Dropped, why)
			})
		}
	}
}

// A caller that learns after its slot that it has gone gives nothing back if its process has gone on to
// another lease by then: the unit before the units of that one may be another process's.
func TestASlotDoesNotComeBackIntoALaterLease(t *testing.T) {
	share(t, 2, "100/s depth 99", 0, func(p *processes) {
		p.arrive(0, 1)
		late, gone := make(chan error, 1), make(chan error, 1)
		go func() { late <- p.wait(&slowToEnd{Context: context.Background(), takes: 5 * ms}, 0, 1) }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(context.Background())
		go func() { gone <- p.wait(ctx, 0, 1) }()
		synctest.Wait()
		p.arrive(0, 2, 1)
		p.at(11 * ms)
		p.arrive(1, 5) // Its units lie between the one that is leased for the third request and any to come.
		p.at(12 * ms)
		cancel() // So for the next one, of cost 2, units are leased anew.
		require.Equal(t, context.Canceled, <-gone)
		require.Equal(t, context.Canceled, <-late)
		p.at(time.Second)
		slots := slices.Delete(slotsOf(p.limits, []int{1, 1, 1, 5, 2, 1}), 1, 3)
		requireSlots(t, slots, p.instants(), 80*ms, "behind the other process's")
		require.Equal(t, uint64(2), p.all[0].Stats().Bucket.Dropped)
	})
}

// slowToEnd is a context that ends after its call was admitted, and takes a time to say so.
type slowToEnd struct {
	context.Context
	takes time.Duration
	asked bool
}

func (c *slowToEnd) Err() error {
	if !c.asked {
		c.asked = true
		return nil
	}
	time.Sleep(c.takes)
	return context.Canceled
}

// Shutdown lets the line leave at the rate, and the rest of a batch is given back.
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

// Close gives back the leased units. It waits for the call that is under way, and gives back its
// units too.
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
				trace.Bucket = func(context.Context, shared.Event) { require.NoError(t, s.Close()) }
				m.Fail(faultOf(buckettest.FailBefore))
			}
			s = sharedShaper(t, m, shaper.Limits{Rate: 100, Depth: 3}, shaper.WithTrace(trace))
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

// Without a Bucket, Burst requests leave an idle Shaper at once, however few may wait. A shared
// level has the same room, so the requests that it covers need no place while the Bucket is asked.
func TestAnIdleSharedBucketLetsBurstLeaveWhateverTheDepth(t *testing.T) {
	for depth := 1; depth <= 300; depth = 10 * depth {
		share(t, 1, fmt.Sprintf("50/s burst 100 depth %d", depth), 20*ms, func(p *processes) {
			refused := make(chan error, 200)
			for range 2 { // The second time the bucket has been idle for long enough.
				for range 100 {
					go func() {
						if err := p.wait(context.Background(), 0, 1); err != nil {
							refused <- err
						}
					}()
				}
				time.Sleep(60 * ms)
				synctest.Wait()
				require.Empty(t, refused, "depth %d", depth)
				require.Zero(t, p.all[0].Stats().Waiting)
				time.Sleep(10 * time.Second)
			}
			require.Len(t, p.instants(), 200)
			p.check()
		})
	}
}

// Those that the room does not cover take places, as without a Bucket.
func TestOnlyDepthMayWaitBeyondTheRoomOfASharedBucket(t *testing.T) {
	for _, c := range []struct {
		limits string
		cost   int
		admits int
	}{
		{"50/s burst 100 depth 10", 1, 110},
		{"50/s burst 100 depth 10", 5, 30},
		{"50/s burst 100 depth 10", 30, 13},
		{"50/s depth 10", 1, 11},
		{"50/s burst 4 depth 10", 9, 11},
		{"50/s burst 100 depth " + strconv.Itoa(math.MaxInt), 1, 200},
	} {
		for name, opts := range map[string][]shaper.Option{"own": nil, "shared": {shaper.WithBucket(buckettest.NewMemory(), "k", shared.Options{})}} {
			bubble(t, fmt.Sprintf("%s, costs of %d, %s", c.limits, c.cost, name), func(t *testing.T) {
				l := must(shaper.ParseLimits(c.limits))
				if opts != nil {
					m := buckettest.NewMemory()
					m.SetDelay(10*ms, 10*ms)
					opts = []shaper.Option{shaper.WithBucket(m, "k", shared.Options{})}
				}
				s := must(shaper.New(l, opts...))
				defer s.Close()
				var full atomic.Int32
				for range 200 {
					go func() {
						if s.WaitN(context.Background(), c.cost) != nil {
							full.Add(1)
						}
					}()
					synctest.Wait()
				}
				require.EqualValues(t, 200-c.admits, full.Load())
			})
		}
	}
}

// The level may be higher than this process could know. What it has admitted stays, and until
// there is room again no more are admitted: the line exceeds Depth by the assumed room at most.
func TestAWrongAssumptionOfRoomIsBounded(t *testing.T) {
	share(t, 2, "50/s burst 100 depth 10", 20*ms, func(p *processes) {
		for range 100 {
			go func() { _ = p.wait(context.Background(), 1, 1) }()
		}
		p.at(60 * ms)
		require.Len(t, p.instants(), 100)
		s := p.all[0]
		var full atomic.Int32
		enter := func(n int) {
			for range n {
				go func() {
					if p.wait(context.Background(), 0, 1) != nil {
						full.Add(1)
					}
				}()
			}
			synctest.Wait()
		}
		enter(200)
		require.Equal(t, 110, s.Stats().Waiting)
		require.EqualValues(t, 90, full.Load())
		p.at(200 * ms) // By now the answers have shown that there is no room.
		waiting := s.Stats().Waiting
		require.Greater(t, waiting, 100)
		enter(10)
		require.EqualValues(t, 100, full.Load(), "they would take places, and those in line have all")
		require.Equal(t, waiting, s.Stats().Waiting)
		p.at(10 * time.Second)
		require.Len(t, p.instants(), 210, "whoever was admitted leaves")
		p.check()
	})
}

// A burst leaves as one: as much as the bucket has room for is leased in the second round trip.
func TestABurstIsLeasedInThreeRoundTrips(t *testing.T) {
	for _, c := range []struct {
		rate  rate.Limit
		burst int
	}{{50, 100}, {5, 1000}, {1000, 1000}, {1.0 / 3600, 100}} {
		for _, rtt := range []time.Duration{200 * us, 20 * ms, 100 * ms} {
			share(t, 0, "1/s depth 9999", rtt, func(p *processes) {
				p.limits = shaper.Limits{Rate: c.rate, Burst: c.burst, Depth: 2 * c.burst}
				p.add(p.Memory)
				for range c.burst {
					go func() { _ = p.wait(context.Background(), 0, 1) }()
				}
				time.Sleep(3 * rtt)
				synctest.Wait()
				require.Len(t, p.instants(), c.burst, "%v, burst %d, %v", c.rate, c.burst, rtt)
				takes, _ := p.takes()
				require.LessOrEqual(t, len(takes), 3)
				p.check()
			})
		}
	}
}

// What is leased of a burst is what may leave now. Processes that ask for the same room at once
// get no more of the future than a batch each, so none waits behind the burst of another.
func TestABurstOfSeveralProcessesIsNoMoreThanTheRoom(t *testing.T) {
	share(t, 3, "50/s burst 100 depth 999", 20*ms, func(p *processes) {
		for range 300 {
			for i := range p.all {
				go func() { _ = p.wait(context.Background(), i, 1) }()
			}
		}
		p.at(100 * ms)
		// Which process comes first is chance, and with it how soon the last of the room is leased.
		require.LessOrEqual(t, len(p.instants()), 107)
		for _, s := range p.all {
			st := s.Stats().Bucket
			require.LessOrEqual(t, st.Held, int64(2*3), "two batches of 50 ms at 50/s")
			require.LessOrEqual(t, st.Held, st.Ahead)
		}
		p.at(4100 * ms)
		require.InDelta(t, 305, len(p.instants()), 4)
		each, _ := p.between(100*ms, 4100*ms)
		for _, n := range each {
			require.InDelta(t, 67, n, 47, "%v: a third each, or not yet, as chance has it", each)
		}
		p.check()
	})
}

// A retry that leaves has taken no place, so it gives none back: those behind it that need none
// still need none, and as many newcomers may wait as before.
func TestARetryThatLeavesCostsNobodyAPlace(t *testing.T) {
	share(t, 0, "1/min burst 5 depth 1", 2*ms, func(p *processes) {
		o := &outage{processes: p}
		o.Shaper = p.add(holdless{p.Memory}) // Else the hold would leave no room.
		sent := 0
		transport := shaper.Transport{Limiter: o.Shaper, Retry: true, Base: roundTripFunc(func(*http.Request) (*http.Response, error) {
			if sent++; sent == 1 {
				return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}}, nil
			}
			return &http.Response{StatusCode: http.StatusOK}, nil
		})}
		go func() {
			r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "http://upstream.invalid/", nil)
			r.RequestURI = ""
			_, err := transport.RoundTrip(r)
			if err != nil {
				t.Error(err)
			}
		}()
		o.at(100 * ms)
		require.Equal(t, 1, o.Stats().Waiting)
		o.SetDelay(100*ms, 100*ms) // The retry asks a moment before the hold ends.
		o.at(1010 * ms)
		require.Zero(t, o.Stats().HeldUntil)
		o.enter(context.Background(), 3)
		require.Equal(t, 4, o.Stats().Waiting)
		o.at(1210 * ms)
		require.Equal(t, 2, sent)
		require.Equal(t, 3, o.Stats().Waiting, "the room of the level covers them")
		o.enter(context.Background(), 1)
		require.Equal(t, 4, o.Stats().Waiting)
		require.Equal(t, shaper.ErrQueueFull, refusal(t, o.Wait(context.Background())).Reason)
		o.at(time.Hour)
	})
}
