package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
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

// At 3/s and 30000/s a microsecond is no whole number of intervals, or the reverse; still no
// departure drifts away from the rate.
func TestManyLeasedSlotsDoNotDrift(t *testing.T) {
	t.Parallel()
	for _, limits := range []string{"3/s depth 9", "30000/s depth 999"} {
		share(t, 1, limits, 200*us, func(p *processes) {
			stop := p.saturate(min(p.limits.Depth, 600))
			defer stop()
			n := rounds(20_000, 200_000, 1_000_000)
			span := time.Duration(float64(n) / float64(p.limits.Rate) * float64(time.Second))
			p.at(span + 10*ms)
			at := p.instants()[:n]
			stop()
			first := at[0]
			for i := range at {
				at[i] -= first
			}
			costs := make([]int, n)
			for i := range costs {
				costs[i] = 1
			}
			slots := slotsOf(p.limits, costs)
			for i, slot := range slots {
				got := big.NewRat(int64(at[i]), 1)
				off, _ := got.Sub(got, slot).Float64()
				require.InDelta(t, 0, off, 250e3, "%s: departure %d", limits, i) // The round trip, and the drift within a batch.
			}
			p.check()
		})
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
			return []shaper.Option{shaper.WithBucket(buckettest.NewMemory(), "k")}
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
