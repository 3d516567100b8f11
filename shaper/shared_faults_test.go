package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// held returns the greatest that a process has had leased, L.
func (p *processes) mostHeld() int64 {
	most := int64(0)
	for _, e := range p.Log() {
		most = max(most, 2*e.Take.Cost)
	}
	return most
}

// The Bucket's clock is set: forward, each of the other processes may use what it has leased
// beside the new slots; back, nobody may. Nobody stalls for longer than the step, or two
// horizons. Between the two, the pace is kept.
func TestClockThatIsSetIsNoLicence(t *testing.T) {
	t.Parallel()
	for _, rtt := range []time.Duration{200 * us, 20 * ms} {
		for _, step := range []time.Duration{5 * time.Second, -5 * time.Second, 20 * ms, -20 * ms, -100 * ms, 100 * ms} {
			for _, limits := range []string{"100/s depth 999", "1000/s depth 999", "100/s burst 20 depth 999"} {
				why := fmt.Sprintf("%v at %v, %s", step, rtt, limits)
				share(t, 4, limits, rtt, func(p *processes) {
					stop := p.saturate(60)
					defer stop()
					p.at(2 * time.Second)
					p.Step(step)
					p.at(10 * time.Second)
					extra := model.Extra{From: 2 * time.Second, To: 2*time.Second + 2*shaper.MaxAhead, Cost: 3 * p.mostHeld(), Why: why}
					if step < 0 {
						// A process learns of the step at its next answer, so by then its units
						// and those of the others may be due apart by the step.
						extra.Cost = p.pace().Slots(min(-step, 50*ms))
					}
					stop()
					gap := model.LongestGap(p.departures(), 2*time.Second, 10*time.Second)
					require.LessOrEqual(t, gap, min(step.Abs(), 2*shaper.MaxAhead)+100*ms, why)
					_, all := p.between(5*time.Second, 10*time.Second)
					require.InDelta(t, 5*float64(p.limits.Rate), all, 0.01*5*float64(p.limits.Rate)+2, why)
					p.check(extra)
				})
			}
		}
	}
}

// Clocks that drift apart by what real ones do cost nothing: neither slots nor the pace.
func TestClocksThatDriftKeepThePace(t *testing.T) {
	for _, ppm := range []float64{150, -150} {
		for _, limits := range []string{"1000/s depth 999", "1/s depth 99", "1/min depth 9"} {
			share(t, 2, limits, 2*ms, func(p *processes) {
				p.Drift(ppm)
				stop := p.saturate(9)
				defer stop()
				span := time.Duration(float64(2000*time.Second) / float64(p.limits.Rate) / 4)
				p.at(span)
				require.Zero(t, p.all[0].Stats().Bucket.Dropped, "%s at %v ppm", limits, ppm)
				_, all := p.between(0, span)
				require.InDelta(t, span.Seconds()*float64(p.limits.Rate)*(1+ppm/1e6), all, 2)
				stop()
				// On the processes' clocks the rate is that of the Bucket's.
				pace := p.pace()
				p.lateness += time.Duration(float64(span) * 150e-6)
				pace.Lateness = p.lateness
				require.NoError(t, pace.Check(numbered(p.departures())))
			})
		}
	}
}

// A call that fails is never repeated: what it may have taken is lost, which is at most its
// batch, and the others go on.
func TestCallsThatFailAreNotRepeated(t *testing.T) {
	for _, fault := range []buckettest.Fault{buckettest.LoseRequest, buckettest.LoseReply, buckettest.FailBefore, buckettest.FailAfter} {
		share(t, 4, "1000/s depth 999", 2*ms, func(p *processes) {
			stop := p.saturate(100)
			defer stop()
			p.at(time.Second)
			n := 0
			p.Fail(func(call int, op string) buckettest.Fault {
				if call%40 == 0 && op == "Take" {
					n++
					return fault
				}
				return buckettest.NoFault
			})
			p.at(9 * time.Second)
			p.Fail(nil)
			p.at(10 * time.Second)
			stop()
			p.at(11 * time.Second) // What was under way has come back.
			taken, lost, answered := uint64(0), uint64(0), uint64(0)
			for _, e := range p.Log() {
				if e.Op == "Take" && e.Done && e.Taken.OK {
					taken += uint64(e.Take.Cost)
					if e.Err != nil {
						lost += uint64(e.Take.Cost)
					}
				}
			}
			var leased, departed uint64
			for _, s := range p.all {
				st := s.Stats()
				leased += st.Bucket.Leased
				departed += st.Departed
				answered += st.Bucket.RoundTrips
			}
			require.Equal(t, taken-lost, leased)
			_, all := p.between(time.Second, 10*time.Second)
			require.Greater(t, float64(all), 9000-float64(lost)-float64(n)*250, "%v", fault)
			if fault == buckettest.FailBefore {
				require.InDelta(t, 9000, all, 10)
			}
			p.check()
		})
	}
}

// Answers that take 200 ms are of use, as slots are leased ahead.
func TestSlowAnswersAreOfUse(t *testing.T) {
	share(t, 2, "100/s depth 999", 2*ms, func(p *processes) {
		stop := p.saturate(50)
		defer stop()
		p.at(time.Second)
		p.SetDelay(100*ms, 100*ms)
		p.at(10 * time.Second)
		_, all := p.between(4*time.Second, 10*time.Second)
		require.InDelta(t, 600, all, 6)
		stop()
		p.check()
	})
}

// The state is lost while all are busy. What each has leased overlaps with the new slots, for all but
// the first that asks, whose High is in it; with a cold guard nothing does.
func TestStateThatIsLostIsNoLicence(t *testing.T) {
	for _, guard := range []time.Duration{0, 500 * ms} {
		for _, limits := range []string{"100/s depth 999", "1000/s depth 999", "1000/s burst 30 depth 999"} {
			share(t, 4, limits, 2*ms, func(p *processes) {
				stop := p.saturate(100)
				defer stop()
				p.at(2 * time.Second)
				p.Wipe()
				p.at(4 * time.Second)
				stop()
				extra := model.Extra{From: 2 * time.Second, To: 3 * time.Second, Cost: 3 * p.mostHeld()}
				if guard > 0 {
					extra.Cost = 0
				}
				p.check(extra)
				gap := model.LongestGap(p.departures(), 2*time.Second, 4*time.Second)
				require.LessOrEqual(t, gap, guard+time.Duration(p.limits.Burst)*ms+time.Duration(4*float64(time.Second)/float64(p.limits.Rate)*float64(p.mostHeld())))
				_, all := p.between(3*time.Second, 4*time.Second)
				require.InDelta(t, float64(p.limits.Rate), all, 2)
			}, shaper.WithColdGuard(guard))
		}
	}
}

// A Slack that is not above the round trip is told as it is, and nobody spins. When the way
// becomes shorter again, those in line leave.
func TestSlackBelowTheRoundTripIsToldClearly(t *testing.T) {
	share(t, 1, "100/s depth 99 slack 5ms", 20*ms, func(p *processes) {
		s := p.all[0]
		done := make(chan error, 1)
		go func() { done <- p.wait(context.Background(), 0, 1) }()
		p.at(time.Second)
		err := s.Wait(context.Background())
		require.Equal(t, shaper.ErrUnavailable, refusal(t, err).Reason, "so that a switch finds it")
		require.ErrorContains(t, err, "Limits.Slack is 5ms, which is not above the round trip of 20ms to the shared bucket")
		require.ErrorContains(t, s.Stats().Bucket.Err, "Limits.Slack is 5ms")
		require.Less(t, len(p.Log()), 12)
		p.SetDelay(ms, ms)
		p.at(6 * time.Second)
		require.NoError(t, <-done)
		require.NoError(t, s.Wait(context.Background()))
		require.NoError(t, s.Stats().Bucket.Err)
		require.Equal(t, shaper.BucketShared, s.Stats().Bucket.State)
	})
}

// What goes wrong, one after the other and at random instants, with processes that are busy all the
// while. The merged log keeps the pace, but for what each fault is said to cost, and each process
// lets its requests leave in order.
func TestProcessesWithOneBucketKeepThePromises(t *testing.T) {
	t.Parallel()
	for seed := range uint64(rounds(10, 100, 1000)) {
		chance := rand.New(rand.NewPCG(seed, 15))
		limits := []string{"50/s depth 999", "200/s depth 999", "200/s burst 20 depth 999", "20/s burst 4 depth 99"}[chance.IntN(4)]
		rtt := []time.Duration{200 * us, 2 * ms, 20 * ms}[chance.IntN(3)]
		share(t, 1+chance.IntN(5), limits, rtt, func(p *processes) {
			stop := p.saturate(30)
			defer stop()
			var faults []processFault
			for range 4 {
				p.at(time.Since(p.start) + 2*shaper.MaxAhead + time.Duration(chance.Int64N(int64(time.Second))))
				faults = append(faults, p.randomFault(chance))
			}
			p.at(time.Since(p.start) + 2*time.Second)
			stop()
			p.at(time.Since(p.start) + time.Second)
			var extras []model.Extra
			for _, f := range faults {
				extra := model.Extra{From: f.at, To: f.at + 2*shaper.MaxAhead, Why: f.what}
				switch {
				case f.epochs: // What each of the others has leased may be used beside the new slots.
					extra.Cost = int64(len(p.all)-1) * p.mostHeld()
				case f.back > 0:
					extra.Cost = p.pace().Slots(f.back)
				}
				extras = append(extras, extra)
			}
			p.check(extras...)
		})
	}
}

// A processFault is something that has gone wrong, and what it may cost.
type processFault struct {
	at     time.Duration
	what   string
	epochs bool          // nobody knows any more when the units are due that were leased
	back   time.Duration // units of the others are due so much apart
}

// randomFault makes something go wrong.
func (p *processes) randomFault(chance *rand.Rand) (f processFault) {
	f.at = time.Since(p.start)
	switch chance.IntN(6) {
	case 0:
		p.Wipe()
		f.what, f.epochs = "the state is lost", true
	case 1:
		step := time.Duration(chance.Int64N(int64(5 * time.Second)))
		p.Step(step)
		f.what, f.epochs = fmt.Sprintf("the clock is set forward by %v", step), true
	case 2:
		step := time.Duration(chance.Int64N(int64(200 * ms)))
		p.Step(-step)
		f.what, f.back = fmt.Sprintf("the clock is set back by %v", step), min(step, 50*ms)
	case 3:
		fault := []buckettest.Fault{buckettest.LoseRequest, buckettest.LoseReply, buckettest.FailBefore, buckettest.FailAfter}[chance.IntN(4)]
		every := 2 + chance.IntN(30)
		p.Fail(func(call int, _ string) buckettest.Fault {
			if call%every == 0 {
				return fault
			}
			return buckettest.NoFault
		})
		f.what = fmt.Sprintf("one of %d calls fails: %v", every, fault)
	case 4:
		delay := time.Duration(chance.Int64N(int64(100 * ms)))
		p.SetDelay(delay, delay)
		f.what = fmt.Sprintf("a way takes %v", delay)
	default:
		_ = p.all[chance.IntN(len(p.all))].Close()
		p.add(p.Memory)
		f.what = "a process ends, and another begins"
	}
	return f
}

// checkApply compares one step of [shaper.Take.Apply] with its comment, which it follows
// word by word, in fractions. It returns the state after the step.
func checkApply(t *testing.T, take shaper.Take, l shaper.BucketLevel, now int64) shaper.BucketLevel {
	t.Helper()
	next, taken := take.Apply(l, now)
	at, longest := new(big.Rat).SetInt64(now), new(big.Rat).SetInt64(1<<51)
	units := func(n int64) *big.Rat {
		return earlier(new(big.Rat).Mul(new(big.Rat).SetInt64(n), unitOf(take.Rate)), longest)
	}

	var empty *big.Rat
	cold, write, rate := damaged(l), false, take.Rate
	switch {
	case cold: // step 1
		empty, write = new(big.Rat).SetInt64(now+take.Guard.Microseconds()), true
	default:
		empty = in(l.Rate, l.Empty)
		if l.At > now { // step 2
			empty, write = empty.Sub(empty, new(big.Rat).SetInt64(l.At-now)), true
		}
		own := l.Rate
		own.Version = take.Rate.Version
		if own == take.Rate { // step 3
			rate.Version = max(l.Rate.Version, take.Rate.Version)
			write = write || rate.Version > l.Rate.Version
		} else {
			if l.Rate.Version >= take.Rate.Version {
				require.Equal(t, l, next)
				require.Equal(t, &l.Rate, taken.Other)
				require.Equal(t, []any{false, false, now}, []any{taken.OK, taken.Cold, taken.Now})
				require.Zero(t, later(empty, at).Cmp(in(l.Rate, taken.Empty)), "%+v", taken)
				return next
			}
			empty, write = roundedUp(rescaled(take.Rate, l.Rate, empty, now, longest)), true
		}
	}
	if now >= take.Seen { // step 4
		empty = later(empty, in(take.Rate, take.High))
	}
	empty = later(empty, at)                                                    // step 5
	first := new(big.Rat).Sub(empty, units(max(0, take.Rate.Burst-take.First))) // step 6
	ok := first.Cmp(new(big.Rat).Add(at, new(big.Rat).SetInt64(take.Ahead.Microseconds()))) <= 0
	require.Equalf(t, []any{ok, cold, now}, []any{taken.OK, taken.Cold, taken.Now}, "%+v of %+v", take, l)
	require.Nil(t, taken.Other)
	require.Zerof(t, empty.Cmp(in(take.Rate, taken.Empty)), "%+v of %+v at %d: %+v", take, l, now, taken)
	require.True(t, taken.Empty.Part >= 0 && taken.Empty.Part < take.Rate.Parts, "%+v", taken)
	require.GreaterOrEqual(t, taken.Empty.Micros, now)
	if !ok && !write {
		require.Equal(t, l, next)
		return next
	}
	if ok {
		empty = new(big.Rat).Add(empty, units(take.Cost))
	}
	require.Zerof(t, empty.Cmp(in(take.Rate, next.Empty)), "%+v of %+v at %d: %+v", take, l, now, next)
	require.Equal(t, []any{rate, now}, []any{next.Rate, next.At})
	return next
}

// damaged reports whether a state counts as none.
func damaged(l shaper.BucketLevel) bool {
	r := l.Rate
	within := func(n, least, most int64) bool { return least <= n && n <= most }
	return !within(r.Version, 0, 1<<53) || !within(r.Parts, 1, 1e12) || !within(r.Part, 0, r.Parts-1) ||
		!within(r.Micros, 0, 1<<51) || r.Micros == 0 && r.Part == 0 || r.Burst < 1 ||
		!within(l.Empty.Micros, 0, 1<<53) || !within(l.Empty.Part, 0, r.Parts-1) || !within(l.At, 1, 1<<53)
}

func roundedUp(x *big.Rat) *big.Rat {
	quotient, rest := new(big.Int).QuoRem(x.Num(), x.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		quotient.Add(quotient, big.NewInt(1))
	}
	return new(big.Rat).SetInt(quotient)
}

// Random calls of several processes for one level, with clocks that step, states that are
// lost, and rates that change.
func TestApplyIsWhatItsCommentSays(t *testing.T) {
	t.Parallel()
	for seed := range uint64(rounds(300, 2_000, 20_000)) {
		random := rand.New(rand.NewPCG(seed, 8))
		now, l, version := int64(t0), shaper.BucketLevel{}, int64(1)
		rates := []shaper.BucketRate{bucketRates[random.IntN(len(bucketRates))]}
		var high shaper.Instant
		for range 100 {
			now += random.Int64N(1<<30) >> random.IntN(31)
			if random.IntN(10) == 0 {
				now -= random.Int64N(1<<30) >> random.IntN(31)
			}
			if random.IntN(20) == 0 {
				version += random.Int64N(3) - 1
				r := bucketRates[random.IntN(len(bucketRates))]
				r.Burst = 1 + random.Int64N(1<<20)>>random.IntN(21)
				if random.IntN(2) == 0 {
					r = rates[len(rates)-1] // of a process that was started at another time
				}
				r.Version = max(0, version)
				rates = append(rates, r)
			}
			take := shaper.Take{
				Key: "k", Cost: 1 + random.Int64N(1<<20)>>random.IntN(21), First: 1 + random.Int64N(1<<10)>>random.IntN(11),
				Ahead: time.Duration(random.Int64N(2_000_001)>>random.IntN(21)) * time.Microsecond,
				Rate:  rates[max(0, len(rates)-1-random.IntN(3))],
				Guard: time.Duration(random.Int64N(1<<26)>>random.IntN(27)) * time.Microsecond,
			}
			if random.IntN(3) == 0 && high.Part < take.Rate.Parts {
				take.High, take.Seen = high, now+random.Int64N(3)-1
			}
			l = checkApply(t, take, l, now)
			switch random.IntN(30) {
			case 0:
				l = shaper.BucketLevel{}
			case 1:
				l = take.ApplyGiveBack(l, l.Empty)
			case 2:
				high = l.Empty
			}
		}
	}
}

func FuzzTakeApply(f *testing.F) {
	f.Add(int64(t0), int64(0), int64(1), int64(100), int64(0), int64(1), int64(1), int64(t0),
		int64(1), int64(1), int64(0), int64(1), int64(100), int64(0), int64(1), int64(1), int64(0), int64(0), int64(0), int64(0), int64(t0))
	f.Add(int64(t0+500), int64(1), int64(1), int64(33), int64(1), int64(3), int64(7), int64(t0+9),
		int64(9), int64(2), int64(2_000_000), int64(2), int64(0), int64(1), int64(1e12), int64(1<<60), int64(t0+900), int64(5), int64(t0), int64(1e6), int64(t0))
	f.Add(int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(0), int64(0), int64(-1),
		int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1))
	f.Fuzz(func(t *testing.T, empty, emptyPart, version, micros, part, parts, burst, at,
		cost, first, ahead, takeVersion, takeMicros, takePart, takeParts, takeBurst, high, highPart, seen, guard, now int64) {
		// The state may be anything; a Take is what the comments of its fields allow.
		l := shaper.BucketLevel{
			Empty: shaper.Instant{Micros: empty, Part: emptyPart}, At: at,
			Rate: shaper.BucketRate{Version: version, Micros: micros, Part: part, Parts: parts, Burst: burst},
		}
		from := func(least, most, n int64) int64 { return least + int64(uint64(n)%uint64(most-least+1)) }
		r := shaper.BucketRate{
			Version: from(0, 1<<53, takeVersion), Micros: from(0, 365*24*60*60*1_000_000, takeMicros),
			Parts: from(1, 1e12, takeParts), Burst: max(1, from(0, 1<<62, takeBurst)),
		}
		r.Part = from(0, r.Parts-1, takePart)
		if r.Micros == 0 && r.Part == 0 {
			r.Micros = 1
		}
		take := shaper.Take{
			Key: "k", Cost: from(1, 1<<62, cost), First: from(1, 1<<62, first), Rate: r,
			Ahead: time.Duration(from(0, 2_000_000, ahead)) * time.Microsecond,
			High:  shaper.Instant{Micros: from(0, 1<<52, high), Part: from(0, r.Parts-1, highPart)}, Seen: from(0, 1<<53, seen),
			Guard: time.Duration(from(0, 60_000_000, guard)) * time.Microsecond,
		}
		checkApply(t, take, l, from(1, 1<<52, now))
	})
}

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
