package shaper_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// held returns the greatest that a process has had leased, L.
func (p *processes) mostHeld() int64 {
	most := int64(0)
	for _, e := range p.Log() {
		most = max(most, 2*e.Take.Cost)
	}
	return most
}

// A bucketFault is something that goes wrong with a Bucket, and its price.
type bucketFault struct {
	name   string
	guard  time.Duration
	breaks func(p *processes)
	extra  func(p *processes) int64         // cost beyond the pace
	gap    func(p *processes) time.Duration // in which nobody leaves, at most
}

// heldByOthers returns the units that all processes but one hold, and that the new state does not
// know.
func heldByOthers(p *processes) int64 { return int64(len(p.all)-1) * p.mostHeld() }

// timeOfHeld returns for how long nobody leaves if new slots begin behind all leased ones.
func timeOfHeld(p *processes) time.Duration {
	held := 4 * float64(p.mostHeld()) / float64(p.limits.Rate)
	return time.Duration(p.limits.Burst)*ms + time.Duration(held*float64(time.Second))
}

// clockIsSet is a step of the Bucket's clock: forward, each of the other processes may use its
// slots beside the new ones; back, none may. A process learns of the step at its next answer,
// so until then its slots and the others' may be due apart by the step. Nobody
// stalls for longer than the step, or two horizons.
func clockIsSet(step time.Duration) bucketFault {
	f := bucketFault{name: "the clock is set by " + step.String(), breaks: func(p *processes) { p.Step(step) }, extra: heldByOthers}
	f.gap = func(*processes) time.Duration { return min(step.Abs(), 2*shared.MaxAhead) + 100*ms }
	if step < 0 {
		f.extra = func(p *processes) int64 { return p.pace().Slots(min(-step, 50*ms)) }
	}
	return f
}

// levelIs is damage to the state, of numbers that make no sense.
func levelIs(name string, damage func(l *shared.BucketLevel, now int64)) bucketFault {
	return bucketFault{name: "the state is " + name, extra: heldByOthers, gap: timeOfHeld, breaks: func(p *processes) {
		l := p.Level("k")
		damage(&l, p.Now())
		p.Set("k", l)
	}}
}

// The state is lost, damaged or of another time, while all are busy. Between faults the pace is
// kept, and afterwards the whole rate leaves again.
func TestFaultsOfABucketAreNoLicence(t *testing.T) {
	t.Parallel()
	faults := []bucketFault{
		{name: "the state is lost", breaks: func(p *processes) { p.Wipe() }, extra: heldByOthers, gap: timeOfHeld},
		{
			name: "the state is lost, with a guard", guard: 500 * ms, breaks: func(p *processes) { p.Wipe() },
			extra: func(*processes) int64 { return 0 }, gap: func(p *processes) time.Duration { return 500*ms + timeOfHeld(p) },
		},
		levelIs("of 1969", func(l *shared.BucketLevel, _ int64) { l.Empty.Micros = -l.Empty.Micros }),
		levelIs("of the next year", func(l *shared.BucketLevel, _ int64) {
			const year = 365 * 24 * 3600e6
			l.Empty.Micros, l.At = l.Empty.Micros+year, l.At+year
		}),
		levelIs("of 1970", func(l *shared.BucketLevel, _ int64) { l.Empty.Micros, l.At = 1, 1 }),
		levelIs("of half a minute ago", func(l *shared.BucketLevel, now int64) { l.Empty.Micros = now - 30e6 }),
	}
	for _, step := range []time.Duration{5 * time.Second, -5 * time.Second, 20 * ms, -20 * ms, -100 * ms, 100 * ms} {
		faults = append(faults, clockIsSet(step))
	}
	for i, f := range faults {
		for j, rtt := range []time.Duration{200 * us, 20 * ms} {
			for k, limits := range []string{"100/s depth 999", "400/s depth 999", "100/s burst 20 depth 999"} {
				if (i+j+k)%2 > 0 && !long {
					continue // Each fault meets each rate, and either distance.
				}
				why := fmt.Sprintf("%s at %v, %s", f.name, rtt, limits)
				share(t, 4, limits, rtt, func(p *processes) {
					stop := p.saturate(60)
					defer stop()
					p.at(2 * time.Second)
					f.breaks(p)
					p.at(10 * time.Second)
					stop()
					gap := model.LongestGap(p.departures(), 2*time.Second, 10*time.Second)
					require.LessOrEqual(t, gap, f.gap(p), why)
					_, all := p.between(5*time.Second, 10*time.Second)
					require.InDelta(t, 5*float64(p.limits.Rate), all, 0.01*5*float64(p.limits.Rate)+2, why)
					p.check(model.Extra{From: 2 * time.Second, To: 2*time.Second + 2*shared.MaxAhead, Cost: f.extra(p), Why: why})
				}, shared.Options{ColdGuard: f.guard})
			}
		}
	}
}

// A process that has the bucket for itself knows all that has left. So it keeps the pace, however
// often the Bucket's clock is set, though the level may have forgotten what was used of a burst. It
// does not wait either.
func TestClockThatIsSetGivesALoneProcessNoSecondBurst(t *testing.T) {
	for _, limits := range []string{"200/s depth 999", "200/s burst 20 depth 999", "200/s burst 200 depth 999"} {
		for _, rtt := range []time.Duration{200 * us, 20 * ms} {
			for _, step := range []time.Duration{5 * time.Second, -5 * time.Second, 300 * ms, -300 * ms} {
				why := fmt.Sprintf("%s, %v, %v", limits, rtt, step)
				share(t, 1, limits, rtt, func(p *processes) {
					stop := p.saturate(30)
					defer stop()
					for i := range 4 {
						p.at(time.Duration(2+i) * time.Second)
						p.Step(step)
						// The process learns of this step before any request has left since the first one.
						p.at(time.Since(p.start) + rtt)
						p.Step(50 * ms)
					}
					p.at(8 * time.Second)
					stop()
					require.LessOrEqual(t, model.LongestGap(p.departures(), time.Second, 8*time.Second), 100*ms, why)
					p.check()
				})
			}
		}
	}
}

// What was used at a slow rate says nothing about the level at a faster one, so it does not keep
// requests in line when the clock is set after the rate was changed.
func TestClockThatIsSetAfterTheRateDelaysNobody(t *testing.T) {
	share(t, 1, "1/s burst 100 depth 999", 2*ms, func(p *processes) {
		stop := p.saturate(30)
		p.at(time.Second)
		stop()
		require.NoError(t, p.all[0].SetLimits(shaper.Limits{Rate: 1000, Depth: 999}))
		p.at(2 * time.Second)
		p.Step(5 * time.Second)
		began := time.Now()
		p.arrive(0, 1, 1, 1)
		p.at(3 * time.Second)
		// The level is below 100 units, for which 1000/s takes 100 ms. At 1/s they were 100 s.
		last := p.departures()[len(p.departures())-1]
		require.Less(t, last.At-began.Sub(p.start), 100*ms)
		require.Zero(t, p.all[0].Stats().Waiting)
	})
}

// Clocks that drift apart by what real ones do cost nothing: neither slots nor the pace.
func TestClocksThatDriftKeepThePace(t *testing.T) {
	for _, ppm := range []float64{150, -150} {
		for _, limits := range []string{"1000/s depth 999", "20/s depth 99", "1/s depth 99", "1/min depth 9"} {
			share(t, 2, limits, 2*ms, func(p *processes) {
				p.Drift(ppm)
				stop := p.saturate(9)
				defer stop()
				span := time.Duration(float64(2000*time.Second) / float64(p.limits.Rate) / 4)
				if p.limits.Rate == 20 { // The clocks are three times the lateness apart by then.
					span = 200 * time.Second
				}
				p.at(span)
				require.Zero(t, p.all[0].Stats().Bucket.Dropped, "%s at %v ppm", limits, ppm)
				_, all := p.between(0, span)
				require.InDelta(t, span.Seconds()*float64(p.limits.Rate)*(1+ppm/1e6), all, 2)
				stop()
				// The Bucket's clock keeps the rate. To the clocks of the processes its drift is
				// lateness.
				pace := p.pace()
				p.lateness += time.Duration(float64(span) * 150e-6)
				pace.Lateness = p.lateness
				require.NoError(t, pace.Check(numbered(p.departures())))
			})
		}
	}
}

// A call that fails is never repeated: units that it may have taken are lost, which are at most its
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
		require.Equal(t, shared.StateShared, s.Stats().Bucket.State)
	})
}

// What goes wrong, one after the other and at random instants, with processes that are busy all the
// while. The merged log keeps the pace, but for what each fault is said to cost, and each process
// lets its requests leave in order.
func TestProcessesWithOneBucketKeepThePromises(t *testing.T) {
	t.Parallel()
	for seed := range uint64(rounds(5, 100, 1000)) {
		chance := rand.New(rand.NewPCG(seed, 15))
		limits := []string{"50/s depth 999", "200/s depth 999", "200/s burst 20 depth 999", "20/s burst 4 depth 99"}[chance.IntN(4)]
		rtt := []time.Duration{200 * us, 2 * ms, 20 * ms}[chance.IntN(3)]
		share(t, 1+chance.IntN(5), limits, rtt, func(p *processes) {
			stop := p.saturate(30)
			defer stop()
			faults := map[time.Duration]bucketFault{}
			for range 4 {
				p.at(time.Since(p.start) + 2*shared.MaxAhead + time.Duration(chance.Int64N(int64(time.Second))))
				f := anyFault(chance)
				faults[time.Since(p.start)] = f
				f.breaks(p)
			}
			p.at(time.Since(p.start) + 2*time.Second)
			stop()
			p.at(time.Since(p.start) + time.Second)
			var extras []model.Extra
			for at, f := range faults {
				if f.extra != nil {
					extras = append(extras, model.Extra{From: at, To: at + 2*shared.MaxAhead, Cost: f.extra(p), Why: f.name})
				}
			}
			p.check(extras...)
		})
	}
}

// anyFault returns one of the faults that may come one after the other.
func anyFault(chance *rand.Rand) bucketFault {
	switch chance.IntN(6) {
	case 0:
		return bucketFault{name: "the state is lost", extra: heldByOthers, breaks: func(p *processes) { p.Wipe() }}
	case 1:
		return clockIsSet(time.Duration(chance.Int64N(int64(5 * time.Second))))
	case 2:
		return clockIsSet(-time.Duration(chance.Int64N(int64(200 * ms))))
	case 3:
		fault := []buckettest.Fault{buckettest.LoseRequest, buckettest.LoseReply, buckettest.FailBefore, buckettest.FailAfter}[chance.IntN(4)]
		every := 2 + chance.IntN(30)
		return bucketFault{name: "calls fail", breaks: func(p *processes) {
			p.Fail(func(call int, _ string) buckettest.Fault {
				if call%every == 0 {
					return fault
				}
				return buckettest.NoFault
			})
		}}
	case 4:
		way := time.Duration(chance.Int64N(int64(100 * ms)))
		return bucketFault{name: "answers are slow", breaks: func(p *processes) { p.SetDelay(way, way) }}
	}
	return bucketFault{name: "a process ends, and another begins", breaks: func(p *processes) {
		_ = p.all[chance.IntN(len(p.all))].Close()
		p.add(p.Memory)
	}}
}
