package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// faultOf is what becomes of calls while a Memory can't be asked.
func faultOf(f buckettest.Fault) func(int, string) buckettest.Fault {
	return func(int, string) buckettest.Fault { return f }
}

// Closed: those in line wait on, newcomers are refused with ErrUnavailable, and when the Bucket
// answers again those in line leave at its rate, without a burst.
func TestOutageKeepsTheLineAndRefusesNewcomers(t *testing.T) {
	for _, fault := range []buckettest.Fault{buckettest.FailBefore, buckettest.LoseRequest, buckettest.LoseReply, buckettest.FailAfter} {
		share(t, 2, "100/s depth 99", 2*ms, func(p *processes) {
			stop := p.saturate(10)
			defer stop()
			p.at(time.Second)
			p.Fail(faultOf(fault))
			p.at(3 * time.Second)
			st := p.all[0].Stats()
			require.Equal(t, shared.StateDown, st.Bucket.State)
			require.Error(t, st.Bucket.Err)
			require.Positive(t, st.Waiting)
			err := p.all[0].Wait(context.Background())
			require.ErrorIs(t, err, shaper.ErrUnavailable)
			require.Positive(t, refusal(t, err).RetryAfter)
			require.LessOrEqual(t, refusal(t, err).RetryAfter, 3*time.Second)
			require.Equal(t, shaper.ErrUnavailable, p.all[0].Refusals()[0].Reason)
			require.False(t, p.all[0].AllowN(1))
			_, during := p.between(1500*ms, 3*time.Second)
			require.Zero(t, during)
			p.Fail(nil)
			p.at(3*time.Second + 3*time.Second) // The longest backoff is 2 s, and a quarter more.
			require.Equal(t, shared.StateShared, p.all[0].Stats().Bucket.State)
			p.at(7 * time.Second)
			_, after := p.between(6*time.Second, 7*time.Second)
			require.Equal(t, 100, after)
			stop()
			p.check()
		})
	}
}

// Three failures in a row make the Bucket count as unavailable; two do not.
func TestThreeFailuresInARowBeginTheOutage(t *testing.T) {
	share(t, 1, "100/s", 2*ms, func(p *processes) {
		p.Fail(faultOf(buckettest.FailBefore))
		s := p.all[0]
		for range 2 {
			require.ErrorIs(t, s.Wait(p.t.Context()), shaper.ErrUnavailable)
			require.Equal(t, shared.StateShared, s.Stats().Bucket.State)
		}
		p.Fail(nil)
		require.NoError(t, s.Wait(p.t.Context()))
		p.Fail(faultOf(buckettest.FailBefore))
		for range 3 {
			require.Equal(t, shared.StateShared, s.Stats().Bucket.State)
			require.ErrorIs(t, s.Wait(p.t.Context()), shaper.ErrUnavailable)
		}
		require.Equal(t, shared.StateDown, s.Stats().Bucket.State)
		require.Equal(t, uint64(5), s.Stats().Unavailable)
		require.Equal(t, uint64(5), s.Stats().Refused)
		require.Equal(t, time.Now(), s.Stats().LastRefusal)
		calls := len(p.Log())
		err := s.Wait(p.t.Context())
		require.Len(t, p.Log(), calls, "it is not asked")
		time.Sleep(refusal(t, err).RetryAfter)
		p.Fail(nil)
		time.Sleep(10 * ms)
		require.NoError(t, s.Wait(p.t.Context()), "RetryAfter is when it is asked again")
	})
}

// While an outage lasts there is one probe at a time, ever more rarely, and processes do not
// probe together.
func TestProbesAreFewAndJittered(t *testing.T) {
	share(t, 4, "100/s depth 99", 2*ms, func(p *processes) {
		stop := p.saturate(10)
		defer stop()
		p.at(100 * ms)
		p.Fail(faultOf(buckettest.FailBefore))
		p.at(200 * ms)
		p.ClearLog()
		p.at(10200 * ms)
		takes, _ := p.takes()
		require.Less(t, len(takes), 4*12, "in 10 s, with a backoff of up to 2 s")
		require.Greater(t, len(takes), 4*4)
		var instants []time.Duration
		for _, e := range takes {
			instants = append(instants, e.Sent.Sub(p.start))
		}
		slices.Sort(instants)
		require.Len(t, slices.Compact(instants), len(takes), "no two at one instant")
		stop()
	})
}

// Many keys whose questions are under way when the server fails are one failure, not many: else
// the first probe would be seconds away.
func TestManyKeysThatFailTogetherDoNotPutOffTheProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(ms, ms)
		m.Fail(faultOf(buckettest.LoseRequest))
		g := sharedGroup(t, m, shaper.Limits{Rate: 10, Depth: 9})
		var wg sync.WaitGroup
		for k := range 26 {
			wg.Go(func() {
				if err := g.Wait(t.Context(), fmt.Sprint(k)); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(260 * ms) // All have timed out.
		m.Fail(nil)
		start := time.Now()
		wg.Wait()
		require.Less(t, time.Since(start), 300*ms, "250 ms, if it was asked just before the others failed")
	})
}

// Local: each process leaves at its part of the rate, after its last slot and the lateness; and
// the slots of the Bucket are used again only after those. Together they never exceed the rate.
func TestLocalFallbackStaysWithinTheRate(t *testing.T) {
	for _, limits := range []string{"100/s depth 99", "100/s burst 8 depth 99", "1000/s depth 999"} {
		share(t, 4, limits, 2*ms, func(p *processes) {
			stop := p.saturate(40)
			defer stop()
			p.at(time.Second)
			p.Fail(faultOf(buckettest.FailBefore))
			p.at(3 * time.Second)
			require.Equal(t, shared.StateLocal, p.all[0].Stats().Bucket.State, limits)
			p.at(6 * time.Second)
			each, all := p.between(4*time.Second, 6*time.Second)
			whole := 2 * float64(p.limits.Rate)
			require.InDelta(t, whole, all, 8, limits)
			for _, n := range each {
				require.InDelta(t, whole/4, n, 2, limits)
			}
			p.Fail(nil)
			p.at(9 * time.Second)
			require.Equal(t, shared.StateShared, p.all[0].Stats().Bucket.State)
			_, all = p.between(9*time.Second-500*ms, 9*time.Second)
			require.InDelta(t, float64(p.limits.Rate)/2, all, 2, limits)
			stop()
			// Each process has a lateness of its own in its part of the rate: it may begin
			// its burst at the same time as others.
			p.lateness = 3 * max(10*ms, time.Duration(float64(time.Second)/float64(p.limits.Rate)))
			// Those that are cut off for longer have their part beside the whole rate of the others.
			apart := model.Extra{From: 6 * time.Second, To: 8500 * ms, Cost: int64(float64(p.limits.Rate) * 2.5 * 3 / 4)}
			p.check(apart)
		}, shared.Options{Fallback: shared.FallbackLocal(4)})
	}
}

// However small the part of a process is, it is a limit, and one that lets a request leave some day.
func TestTheSmallestPartOfALocalFallbackIsALimit(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, c := range []struct {
		instances int
		limits    shaper.Limits
		at        time.Duration // between two departures
	}{
		{1, shaper.Limits{Rate: 1, Burst: 8}, time.Second}, // FallbackOpen
		{300, shaper.Limits{Rate: 1, Burst: 8}, 300*time.Second + 1},
		{4, shaper.Limits{Rate: rate.Every(year)}, year},
		{300, shaper.Limits{Rate: rate.Every(year)}, year},
		{math.MaxInt, shaper.Limits{Rate: 1, Burst: 8}, year},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := buckettest.NewMemory()
			m.Fail(faultOf(buckettest.FailBefore))
			s := sharedShaper(t, m, c.limits, shared.Options{Fallback: shared.FallbackLocal(c.instances)})
			for s.Stats().Bucket.State == shared.StateShared {
				require.False(t, s.Allow())
			}
			time.Sleep(2 * year)
			for range max(1, c.limits.Burst/c.instances) {
				require.True(t, s.Allow())
			}
			require.InDelta(t, max(1, c.limits.Burst/c.instances), s.Stats().Level, 1e-6)
			reject, ok := errors.AsType[*shaper.RejectError](s.Wait(t.Context()))
			require.True(t, ok)
			require.Equal(t, shaper.ErrQueueFull, reject.Reason)
			require.Equal(t, c.at, reject.RetryAfter)
		})
	}
}

// A fallback begins D after the last slot, with no room for a burst. What it waits for is no level that
// the process has made: otherwise each short outage would hold up all processes for D.
func TestAShortOutageRaisesNoLevel(t *testing.T) {
	for _, f := range []shared.Fallback{shared.FallbackOpen, shared.FallbackLocal(2)} {
		share(t, 2, "100/s burst 20 depth 99 slack 3s", 2*ms, func(p *processes) {
			stop := p.saturate(40)
			defer stop()
			p.at(time.Second)
			p.Fail(faultOf(buckettest.FailBefore))
			p.at(2 * time.Second)
			require.NotEqual(t, shared.StateShared, p.all[0].Stats().Bucket.State)
			require.NoError(t, p.all[0].UpdateLimits(func(l shaper.Limits) shaper.Limits {
				l.Rate = 50
				return l
			}))
			p.Fail(nil)
			p.at(6 * time.Second)
			_, all := p.between(4*time.Second, 6*time.Second)
			require.InDelta(t, 100, all, 4)
			stop()
			p.lateness = 3 * time.Second
			p.check()
		}, shared.Options{Fallback: f})
	}
}

// However soon a Bucket that is away is asked again, nobody is told to come back at once: who sleeps for as long as it
// is told would spin.
func TestARefusalInAnOutageNamesAtLeastAMillisecond(t *testing.T) {
	share(t, 1, "100/s", 2*ms, func(p *processes) {
		s := p.all[0]
		p.Fail(faultOf(buckettest.FailBefore))
		for s.Stats().Bucket.State == shared.StateShared {
			require.Error(t, s.Wait(p.t.Context()))
		}
		time.Sleep(refusal(t, s.Wait(p.t.Context())).RetryAfter - 100*time.Microsecond)
		require.Equal(t, ms, refusal(t, s.Wait(p.t.Context())).RetryAfter)
	})
}

// A guard is told in whole microseconds, as a Bucket's clock has them.
func TestAGuardIsToldInWholeMicroseconds(t *testing.T) {
	share(t, 1, "100/s", 2*ms, func(p *processes) {
		p.arrive(0, 1)
		p.at(time.Second)
		takes, _ := p.takes()
		require.Equal(t, 8*time.Microsecond, takes[0].Take.Guard, "and one more for the room of a burst, rounded up")
	}, shared.Options{ColdGuard: 7*time.Microsecond + 999})
}

// Whoever leaves in a fallback while the Bucket is asked again is told to it as well: else the next would have the
// same burst once more.
func TestABurstDuringAProbeIsNoSecondBurst(t *testing.T) {
	share(t, 1, "10/s burst 20 depth 99", 200*ms, func(p *processes) {
		s := p.all[0]
		p.Fail(faultOf(buckettest.FailBefore))
		for s.Stats().Bucket.State == shared.StateShared {
			_ = s.Wait(p.t.Context())
		}
		p.at(10 * time.Second)
		before := s.Stats().Departed
		p.Fail(nil)
		probes := len(p.Log())
		require.NoError(t, s.Wait(p.t.Context()))
		synctest.Wait()
		time.Sleep(50 * ms)
		for range 19 {
			require.NoError(t, s.Wait(p.t.Context()))
		}
		require.Equal(t, shared.StateOpen, s.Stats().Bucket.State, "the probe is under way")
		p.at(10*time.Second + 300*ms)
		require.Greater(t, len(p.Log()), probes)
		require.Equal(t, shared.StateShared, s.Stats().Bucket.State)
		p.arrive(0, slices.Repeat([]int{1}, 40)...)
		p.at(20 * time.Second)
		require.Equal(t, before+60, s.Stats().Departed)
		p.check()
	}, shared.Options{Fallback: shared.FallbackOpen})
}

// Where nobody waits the Bucket must be asked all the same, or the fallback would never end.
func TestFallbackWithoutALineEnds(t *testing.T) {
	for _, limits := range []string{"100/s", "100/s depth 9"} {
		for _, f := range []shared.Fallback{shared.FallbackOpen, shared.FallbackLocal(2)} {
			share(t, 1, limits, 2*ms, func(p *processes) {
				s := p.all[0]
				p.Fail(faultOf(buckettest.FailBefore))
				for range 40 {
					time.Sleep(50 * ms)
					_ = p.wait(p.t.Context(), 0, 1)
				}
				require.Contains(t, []shared.State{shared.StateOpen, shared.StateLocal}, s.Stats().Bucket.State)
				require.Greater(t, s.Stats().Departed, uint64(30))
				p.Fail(nil)
				for range 60 {
					time.Sleep(50 * ms)
					_ = p.wait(p.t.Context(), 0, 1)
				}
				require.Equal(t, shared.StateShared, s.Stats().Bucket.State, limits)
				synctest.Wait()
				require.Zero(t, s.Stats().Bucket.Held, "what the probe has taken is given back")
				p.check()
			}, shared.Options{Fallback: f})
		}
	}
}

// sharded is a Bucket on two servers: keys that begin with "down" are on one that can't be asked.
type sharded struct{ *buckettest.Memory }

func (b sharded) Shard(key string) string { return key[:4] }

func (b sharded) Take(ctx context.Context, t shared.Take) (shared.Taken, error) {
	if strings.HasPrefix(t.Key, "down") {
		return shared.Taken{}, errors.New("connection refused")
	}
	return b.Memory.Take(ctx, t)
}

func TestShardThatIsDownLeavesTheOthersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := sharded{buckettest.NewMemory()}
		m.SetDelay(ms, ms)
		var mu sync.Mutex
		var events []shared.Event
		g := sharedGroup(t, m, shaper.Limits{Rate: 100, Depth: 9},
			shaper.WithTrace(&shaper.Trace{Bucket: func(_ context.Context, e shared.Event) {
				mu.Lock()
				defer mu.Unlock()
				events = append(events, e)
			}}))
		ctx, cancel := context.WithTimeout(t.Context(), 100*ms)
		defer cancel()
		require.Error(t, g.Wait(ctx, "down1"))
		require.ErrorIs(t, g.Wait(t.Context(), "down2"), shaper.ErrUnavailable)
		for range 20 {
			require.NoError(t, g.Wait(t.Context(), "up 1"))
		}
		st := g.Stats()
		require.Equal(t, shared.StateDown, st.Bucket.State)
		require.EqualError(t, st.Bucket.Err, "connection refused")
		require.Equal(t, uint64(1), st.Unavailable)
		require.Equal(t, uint64(1), st.Refused)
		synctest.Wait()
		require.Len(t, events, 1)
		require.Equal(t, "down", events[0].Shard)
	})
}

// lockedRow is a Bucket in which each call for one key waits for a lock until its context ends.
type lockedRow struct {
	*buckettest.Memory
	key    string
	locked atomic.Bool
	calls  atomic.Int32 // of that key
}

func (b *lockedRow) Take(ctx context.Context, t shared.Take) (shared.Taken, error) {
	if t.Key != b.key {
		return b.Memory.Take(ctx, t)
	}
	if b.calls.Add(1); !b.locked.Load() {
		return b.Memory.Take(ctx, t)
	}
	<-ctx.Done()
	return shared.Taken{}, ctx.Err()
}

// Of four processes one is cut off from the Bucket. It leaves by its fallback, beside the whole rate of
// the others.
func TestAProcessThatIsCutOffHasNoMoreThanItsPart(t *testing.T) {
	for fallback, part := range map[shared.Fallback]int{shared.FallbackClosed: 0, shared.FallbackLocal(4): 100, shared.FallbackOpen: 400} {
		share(t, 0, "400/s depth 99", 2*ms, func(p *processes) {
			cut := &lockedRow{Memory: p.Memory, key: "k"}
			p.add(cut, shared.Options{Fallback: fallback})
			for range 3 {
				p.add(p.Memory, shared.Options{Fallback: fallback})
			}
			stop := p.saturate(16)
			defer stop()
			p.at(time.Second)
			cut.locked.Store(true)
			p.at(6 * time.Second)
			each, all := p.between(4*time.Second, 6*time.Second)
			require.InDelta(t, 2*part, each[0], 2, "%v", each)
			require.InDelta(t, 2*400, all-each[0], 4, "%v", each)
			cut.locked.Store(false)
			p.at(12 * time.Second)
			require.Equal(t, shared.StateShared, p.all[0].Stats().Bucket.State)
			each, all = p.between(10*time.Second, 12*time.Second)
			require.InDelta(t, 2*400, all, 4, "%v", each)
			require.InDelta(t, 2*100, each[0], 20, "%v", each)
			stop()
			// A call that began while it was cut off takes up to 250 ms. The pause before the next is 2 s at the
			// longest, give or take a quarter.
			back := 6*time.Second + 250*ms + 2500*ms + 2*ms
			p.check(model.Extra{From: time.Second, To: back, Cost: int64(part) * int64(back-time.Second) / int64(time.Second)})
		})
	}
}

// One key fails while the answers to others show that the Bucket can be asked. Its line must have
// an end all the same, and the Bucket must not be asked for it without a pause.
func TestAKeyThatFailsAloneHasAnOutageOfItsOwn(t *testing.T) {
	for _, answered := range []bool{true, false} {
		const began = 750 * ms
		synctest.Test(t, func(t *testing.T) {
			m := &lockedRow{Memory: buckettest.NewMemory(), key: "locked"}
			m.SetDelay(ms, ms)
			m.locked.Store(true)
			var mu sync.Mutex
			var events []shared.Event
			start := time.Now()
			g := sharedGroup(t, m, shaper.Limits{Rate: 100, Depth: 9}, shared.Options{Patience: 10 * time.Second},
				shaper.WithTrace(&shaper.Trace{Bucket: func(_ context.Context, e shared.Event) {
					mu.Lock()
					defer mu.Unlock()
					events = append(events, e)
				}}))
			stop := make(chan struct{})
			var others sync.WaitGroup
			others.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(20 * ms):
						if err := g.Wait(t.Context(), "free"); err != nil {
							t.Error(err)
						}
					}
				}
			})
			require.ErrorIs(t, g.Wait(context.Background(), "locked"), shaper.ErrUnavailable)
			require.Equal(t, began+10*time.Second, time.Since(start))
			require.LessOrEqual(t, m.calls.Load(), int32(3+14), "from 50 ms on the pauses double, up to 2 s")
			st, _ := g.StatsOf("locked")
			require.Equal(t, shared.StateDown, st.Bucket.State)
			require.Error(t, st.Bucket.Err)
			require.Equal(t, shared.StateShared, g.Stats().Bucket.State)
			err := g.Wait(t.Context(), "locked")
			require.ErrorIs(t, err, shaper.ErrUnavailable, "it is not asked for a newcomer before the next probe")
			require.Equal(t, began+10*time.Second, time.Since(start))

			if answered {
				m.locked.Store(false)
				time.Sleep(refusal(t, err).RetryAfter)
				require.NoError(t, g.Wait(t.Context(), "locked"))
				st, _ = g.StatsOf("locked")
				require.Equal(t, shared.StateShared, st.Bucket.State)
			} else { // The key is forgotten, and its outage with it.
				time.Sleep(time.Minute)
				_, ok := g.StatsOf("locked")
				require.False(t, ok)
			}
			close(stop)
			others.Wait()
			synctest.Wait()
			require.Equal(t, []shared.State{shared.StateDown, shared.StateShared}, []shared.State{events[0].State, events[1].State})
			require.Len(t, events, 2)
			require.Equal(t, start.Add(began), events[0].At)
		})
	}
}

// Events are told in their order, though each is told outside of the lock; and a hook may close
// the Shaper.
func TestBucketEventsAreToldInOrder(t *testing.T) {
	share(t, 0, "1000/s", 0, func(p *processes) {
		var mu sync.Mutex
		var states []shared.State
		var s *shaper.Shaper
		s, err := shaper.New(p.limits, shaper.WithBucket(p.Memory, "k", shared.Options{}), shaper.WithTrace(&shaper.Trace{
			Bucket: func(_ context.Context, e shared.Event) {
				mu.Lock()
				states = append(states, e.State)
				n := len(states)
				mu.Unlock()
				time.Sleep(time.Duration(n%3) * 200 * ms) // Slower than the next event.
				if n == 20 {
					require.NoError(t, s.Close())
				}
			}}))
		require.NoError(t, err)
		for range 10 {
			p.Fail(faultOf(buckettest.FailBefore))
			for range 3 {
				require.Error(t, s.Wait(p.t.Context()))
			}
			time.Sleep(70 * ms)
			p.Fail(nil)
			require.NoError(t, s.Wait(p.t.Context()))
		}
		time.Sleep(10 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, states, 20)
		for i, state := range states {
			require.Equal(t, []shared.State{shared.StateDown, shared.StateShared}[i%2], state)
		}
		require.ErrorIs(t, s.Wait(p.t.Context()), shaper.ErrClosed)
	})
}

// While its bucket is down, a Shaper sleeps for up to 2 s between two probes. A program that ends,
// or closes one Shaper for each of its clients, must not wait for the next probe.
func TestCloseDoesNotWaitForTheNextProbe(t *testing.T) {
	for name, goes := range map[string]bool{"with a request in line": false, "with an empty line": true} {
		bubble(t, name, func(t *testing.T) {
			m := buckettest.NewMemory()
			m.Fail(func(int, string) buckettest.Fault { return buckettest.FailBefore })
			s := sharedShaper(t, m, shaper.Limits{Rate: 100, Depth: 10})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go s.Wait(ctx)
			time.Sleep(10 * time.Second)
			require.Equal(t, shared.StateDown, s.Stats().Bucket.State)
			if goes {
				cancel()
				synctest.Wait()
				require.Zero(t, s.Stats().Waiting)
			}
			start := time.Now()
			require.NoError(t, s.Close())
			require.Zero(t, time.Since(start))
		})
	}
}

// Three answers that were late, because a machine was busy for a moment, are no reason to
// refuse newcomers. A bucket that is always farther than slots may be late is one.
func TestAFewSlowAnswersDoNotCountAsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		s := sharedShaper(t, m, shaper.Limits{Rate: 1000, Depth: 10, Slack: 25 * time.Millisecond})
		m.SetDelay(time.Millisecond, time.Millisecond)
		require.NoError(t, s.Wait(t.Context()))
		m.SetDelay(28*time.Millisecond, 2*time.Millisecond)
		for range 5 {
			require.NoError(t, s.Wait(t.Context()))
		}
		require.Zero(t, s.Stats().Bucket.Failures)
		require.Equal(t, shared.StateShared, s.Stats().Bucket.State)

		m.SetDelay(30*time.Millisecond, 30*time.Millisecond)
		for range 2 { // The first is in line when that is found, the second comes after that.
			err := s.Wait(t.Context())
			require.ErrorIs(t, err, shaper.ErrUnavailable)
			require.ErrorContains(t, err, "Limits.Slack is 25ms")
		}
	})
}

// The first calls of a process wait for connections, and each key of a Group has a first call.
func TestNewConnectionsDoNotCountAsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		g := sharedGroup(t, m, shaper.Limits{Rate: 1000, Depth: 10, Slack: 25 * time.Millisecond})
		for key := range 10 {
			m.SetDelay(58*time.Millisecond, 2*time.Millisecond)
			done := make(chan error, 1)
			go func() { done <- g.Wait(t.Context(), strconv.Itoa(key)) }()
			time.Sleep(30 * time.Millisecond)
			m.SetDelay(time.Millisecond, time.Millisecond)
			require.NoError(t, <-done)
			require.Zero(t, g.Stats().Bucket.Failures)
		}
		m.SetDelay(time.Millisecond, time.Millisecond)
		for key := range 10 {
			require.NoError(t, g.Wait(t.Context(), strconv.Itoa(key)))
		}
	})
}

// The lateness is promised, and it is two round trips if that is long. So one answer that takes
// a second must not make slots usable for much longer, but a way that has become longer must.
func TestOneSlowAnswerDoesNotLengthenTheLateness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		s := sharedShaper(t, m, shaper.Limits{Rate: 1000, Depth: 10})
		wait := func(times int, delay time.Duration) {
			m.SetDelay(delay/2, delay/2)
			for range times {
				require.NoError(t, s.Wait(t.Context()))
			}
		}
		wait(3, time.Millisecond)
		require.Equal(t, shaper.DefaultSlack, s.Stats().Bucket.Lateness)
		m.SetDelay(239*time.Millisecond, time.Millisecond)
		require.NoError(t, s.Wait(t.Context()))
		require.Equal(t, time.Millisecond, s.Stats().Bucket.RTT)
		require.Equal(t, shaper.DefaultSlack, s.Stats().Bucket.Lateness)

		wait(64, 30*time.Millisecond)
		require.Equal(t, 30*time.Millisecond, s.Stats().Bucket.RTT)
		require.Equal(t, 61*time.Millisecond, s.Stats().Bucket.Lateness)
	})
}

// A server that is so far away that no call ends within 250 ms must be of use, too, if the program
// says that it is.
func TestAFarServerIsReachedWithALongerBucketTimeout(t *testing.T) {
	for d, state := range map[time.Duration]shared.State{
		time.Second:            shared.StateShared,
		401 * time.Millisecond: shared.StateShared,
		399 * time.Millisecond: shared.StateDown,
		0:                      shared.StateDown, // as with 250 ms
	} {
		for _, depth := range []int{0, 20} {
			synctest.Test(t, func(t *testing.T) {
				m := buckettest.NewMemory()
				m.SetDelay(200*time.Millisecond, 200*time.Millisecond)
				s := sharedShaper(t, m, shaper.Limits{Rate: 10, Depth: depth}, shared.Options{Timeout: d})
				failed := 0
				for range 5 {
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
					if s.Wait(ctx) != nil {
						failed++
					}
					cancel()
				}
				require.Equal(t, state, s.Stats().Bucket.State, "%v", d)
				if state == shared.StateShared {
					require.Zero(t, failed, "%v", d)
				} else {
					require.Equal(t, 5, failed, "%v", d)
				}
			})
		}
	}
}

// Three calls that hang are an outage: it is noticed after three times the timeout.
func TestAnOutageIsNoticedAfterThreeBucketTimeouts(t *testing.T) {
	for _, d := range []time.Duration{time.Millisecond, 80 * time.Millisecond, 250 * time.Millisecond, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			m := buckettest.NewMemory()
			m.Fail(faultOf(buckettest.LoseRequest))
			s := sharedShaper(t, m, shaper.Limits{Rate: 10, Depth: 20}, shared.Options{Timeout: d, Patience: time.Second})
			start := time.Now()
			require.ErrorIs(t, s.Wait(t.Context()), shaper.ErrUnavailable)
			require.Equal(t, 3*d+time.Second, time.Since(start))
		})
	}
}
