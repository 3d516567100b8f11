package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
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
)

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
	} {
		for name, opts := range map[string][]shaper.Option{"own": nil, "shared": {shaper.WithBucket(buckettest.NewMemory(), "k")}} {
			t.Run(fmt.Sprintf("%s, costs of %d, %s", c.limits, c.cost, name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l, err := shaper.ParseLimits(c.limits)
					require.NoError(t, err)
					if opts != nil {
						m := buckettest.NewMemory()
						m.SetDelay(10*ms, 10*ms)
						opts = []shaper.Option{shaper.WithBucket(m, "k")}
					}
					s, err := shaper.New(l, opts...)
					require.NoError(t, err)
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

// A burst leaves as one: what the bucket has room for is leased in the second round trip.
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
	during(t, "1/min burst 5 depth 1", func(o *outage) {
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
		o.until(100 * ms)
		require.Equal(t, 1, o.Stats().Waiting)
		o.SetDelay(100*ms, 100*ms) // The retry asks a moment before the hold ends.
		o.until(1010 * ms)
		require.Zero(t, o.Stats().HeldUntil)
		o.enter(context.Background(), 3)
		require.Equal(t, 4, o.Stats().Waiting)
		o.until(1210 * ms)
		require.Equal(t, 2, sent)
		require.Equal(t, 3, o.Stats().Waiting, "the room of the level covers them")
		o.enter(context.Background(), 1)
		require.Equal(t, 4, o.Stats().Waiting)
		require.Equal(t, shaper.ErrQueueFull, refusal(t, o.Wait(context.Background())).Reason)
		o.until(time.Hour)
	})
}

// While a deployment rolls, processes with two rates share a bucket. The newest is in force for
// all, and together they are never above the greater of the two.
func TestRollingDeployIsNeverAboveTheGreaterRate(t *testing.T) {
	for _, rates := range [][2]rate.Limit{{100, 400}, {400, 100}, {1000, 100}, {100, 1000}} {
		for _, burst := range []int{1, 10} {
			share(t, 0, "100/s depth 999", 0, func(p *processes) {
				p.SetDelay(ms, ms)
				p.limits.Burst = burst
				p.limits.Rate = rates[0]
				for range 3 {
					p.add(p.Memory, shaper.WithRateVersion(1))
				}
				stop := p.saturate(40)
				defer stop()
				p.at(time.Second)
				p.limits.Rate = rates[1]
				p.add(p.Memory, shaper.WithRateVersion(2))
				stopNew := p.saturate(40, 3)
				defer stopNew()
				p.at(3 * time.Second)
				for i, s := range p.all {
					require.Equal(t, rates[1], s.Stats().Limits.Rate, "process %d", i)
					require.Equal(t, max(1, burst), max(1, s.Stats().Limits.Burst))
					require.Equal(t, 999, s.Limits().Depth, "its own")
				}
				_, all := p.between(2*time.Second, 3*time.Second)
				require.InDelta(t, float64(rates[1]), all, 3)
				// One that is restarted with the old rate changes nothing.
				p.limits.Rate = rates[0]
				p.add(p.Memory, shaper.WithRateVersion(1))
				p.arrive(4, 1, 1)
				p.at(4 * time.Second)
				require.Equal(t, rates[1], p.all[4].Stats().Limits.Rate)
				stop()
				stopNew()
				p.limits.Rate = max(rates[0], rates[1])
				p.lateness = 10 * ms // That of the slower rate, which those have that use its slots.
				for _, r := range rates {
					p.lateness = max(p.lateness, time.Duration(float64(time.Second)/float64(r)))
				}
				p.check()
			})
		}
	}
}

// Without WithRateVersion the rate that was set last is in force, for all; also if the call of
// SetLimits comes while the Bucket answers with a rate that another has set before.
func TestLatestSetLimitsWins(t *testing.T) {
	share(t, 3, "100/s depth 999", 20*ms, func(p *processes) {
		stop := p.saturate(40)
		defer stop()
		p.at(500 * ms)
		require.NoError(t, p.all[1].SetLimits(shaper.Limits{Rate: 200, Depth: 999}))
		p.at(512 * ms) // The answers of the others have the new rate, and are on their way.
		require.NoError(t, p.all[0].SetLimits(shaper.Limits{Rate: 300, Depth: 500}))
		p.at(2 * time.Second)
		for _, s := range p.all {
			require.Equal(t, rate.Limit(300), s.Stats().Limits.Rate)
		}
		_, all := p.between(time.Second, 2*time.Second)
		require.InDelta(t, 300, all, 3)
		stop()
		p.limits.Rate = 300
		p.check()
	})
}

// A Depth, a cap or a MaxWait is each process's own: to change one changes no rate, and loses no
// slot.
func TestOwnLimitsAreNobodyElses(t *testing.T) {
	share(t, 2, "1000/s depth 999", 2*ms, func(p *processes) {
		stop := p.saturate(40)
		defer stop()
		for i := range 50 {
			p.at(time.Duration(i) * 10 * ms)
			require.NoError(t, p.all[0].SetLimits(shaper.Limits{Rate: 1000, Depth: 500 + i, MaxWait: time.Minute}))
		}
		p.at(time.Second)
		require.Zero(t, p.all[0].Stats().Bucket.Dropped)
		require.Equal(t, 999, p.all[1].Stats().Limits.Depth)
		_, all := p.between(0, time.Second)
		require.InDelta(t, 1000, all, 5)
		stop()
		p.check()
	})
}

// rate.Inf, which only a limits function can give, asks nobody; and from it back to a rate that is
// shared.
func TestUnlimitedAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(2*ms, 0)
		g, change := groupAtRate(t, m, shaper.Limits{Rate: 10, Depth: 99})
		left := make(chan error, 5)
		for range 5 {
			go func() { left <- g.Wait(t.Context(), "key") }()
		}
		time.Sleep(150 * ms)
		require.Equal(t, 3, 5-len(left))
		change(shaper.Limits{Rate: rate.Inf, Depth: 99})
		synctest.Wait()
		require.Len(t, left, 5, "all leave")
		time.Sleep(50 * ms)
		m.ClearLog()
		for range 10 {
			require.NoError(t, g.Wait(t.Context(), "key"))
			require.True(t, g.Allow("key"))
		}
		require.Empty(t, m.Log())
		change(shaper.Limits{Rate: 10, Depth: 99})
		began := time.Now()
		for range 3 {
			require.NoError(t, g.Wait(t.Context(), "key"))
		}
		require.GreaterOrEqual(t, time.Since(began), 200*ms)
	})
}

// A Group gives each key a lease, with the rate that SetLimits, ResetLimits and Reload put in
// force, and forgets the lease when the key's bucket has drained.
func TestGroupLeasesEachKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(ms, ms)
		perSecond := rate.Limit(100)
		group := func() *shaper.Group[string] {
			g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: perSecond, Depth: 99}, nil },
				shaper.WithBuckets(m, func(k string) string { return "user:" + k }))
			require.NoError(t, err)
			return g
		}
		a, b := group(), group()
		logs := map[string][]model.Departure{}
		start := time.Now()
		both := func(key string, n int) {
			t.Helper()
			times := [2][]time.Duration{}
			done := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
			for i, g := range []*shaper.Group[string]{a, b} {
				go func() {
					defer close(done[i])
					for range n {
						if err := g.Wait(t.Context(), key); err != nil {
							t.Error(err)
							return
						}
						times[i] = append(times[i], time.Since(start))
					}
				}()
			}
			<-done[0]
			<-done[1]
			for i := range times {
				for _, at := range times[i] {
					logs[key] = append(logs[key], model.Departure{At: at, Process: i, Number: int(at), Cost: 1})
				}
			}
		}
		began := time.Now()
		both("u", 50)
		require.InDelta(t, 990*ms, time.Since(began), float64(15*ms))
		both("v", 50)
		require.NoError(t, a.SetLimits("u", shaper.Limits{Rate: 50, Depth: 9}))
		began = time.Now()
		both("u", 50)
		require.InDelta(t, 1980*ms, time.Since(began), float64(60*ms))
		require.NoError(t, a.ResetLimits("u"))
		perSecond = 200
		a.Reload()
		began = time.Now()
		both("u", 100)
		require.InDelta(t, 1000*ms, time.Since(began), float64(60*ms))
		for key, log := range logs {
			pace := model.SharedPace{Interval: big.NewRat(int64(5*ms), 1), Burst: 1, Lateness: 20 * ms}
			worst := pace.Worst(log)
			require.LessOrEqual(t, worst.Excess(), int64(0), "%s: %v", key, worst)
		}
		st := a.Stats()
		require.Equal(t, shaper.BucketShared, st.Bucket.State)
		require.Equal(t, st.Departed, st.Bucket.Leased-st.Bucket.Dropped-st.Bucket.GivenBack)
		time.Sleep(time.Minute)
		require.Zero(t, a.Stats().Keys)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

// A pool is a Bucket with a few connections: a call waits until one is free, and has failed if
// its context ends before.
type pool struct {
	*buckettest.Memory
	free chan struct{}
}

func poolOf(m *buckettest.Memory, connections int) pool {
	return pool{m, make(chan struct{}, connections)}
}

func (p pool) Take(ctx context.Context, t shaper.Take) (shaper.Taken, error) {
	select {
	case p.free <- struct{}{}:
	case <-ctx.Done():
		return shaper.Taken{}, ctx.Err()
	}
	defer func() { <-p.free }()
	return p.Memory.Take(ctx, t)
}

// A spike of a meter must not wait for connections one by one: all of it is asked for in a few
// round trips, and nobody is told that the Bucket can't be asked.
func TestASpikeOfAMeterIsNoOutage(t *testing.T) {
	for _, c := range []struct {
		limits string
		cost   int
		leave  int
	}{{"1/min burst 150", 1, 150}, {"1/min burst 150", 7, 21}, {"1/min", 1, 1}, {"1/min burst 5000", 1, 1000}, {"1/min burst 150 depth 9", 1, 150}} {
		share(t, 0, c.limits, 0, func(p *processes) {
			p.SetDelay(20*ms, 20*ms)
			s := p.add(poolOf(p.Memory, 4))
			var left atomic.Int32
			var calls sync.WaitGroup
			for range 1000 {
				calls.Go(func() {
					if s.AllowN(c.cost) {
						left.Add(1)
					}
				})
			}
			calls.Wait()
			require.EqualValues(t, c.leave, left.Load(), c.limits)
			st := s.Stats()
			require.EqualValues(t, 1000-c.leave, st.Refused, c.limits)
			require.Zero(t, st.Unavailable, c.limits)
			require.Zero(t, st.Bucket.Failures, c.limits)
			require.Equal(t, shaper.BucketShared, st.Bucket.State)
			require.LessOrEqual(t, time.Since(p.start), 160*ms, "four round trips")
			require.EqualValues(t, c.leave*c.cost, st.Bucket.Leased)
			p.check()
		})
	}
}

// Several processes that take the room from each other at once leave no room unused, and none is
// used twice.
func TestASpikeOfMetersInSeveralProcesses(t *testing.T) {
	share(t, 4, "1/min burst 100", 40*ms, func(p *processes) {
		var left atomic.Int32
		var calls sync.WaitGroup
		for i := range 400 {
			calls.Go(func() {
				if p.all[i%4].Allow() {
					left.Add(1)
				}
			})
		}
		calls.Wait()
		require.EqualValues(t, 100, left.Load())
		p.check()
	})
}

// Requests of a meter are asked for together, but each has its own caller: one that goes gets its
// context's error at once, and what was taken for it is dropped. The others get their answers.
func TestOneCallerThatGoesDoesNotEndTheQuestionOfOthers(t *testing.T) {
	share(t, 1, "1/min burst 100", 40*ms, func(p *processes) {
		results := make(chan error, 10)
		var gone [2]context.CancelFunc
		for i := range 10 {
			ctx := p.t.Context()
			if i == 3 || i == 7 {
				ctx, gone[i/5] = context.WithCancel(ctx)
			}
			go func() { results <- p.wait(ctx, 0, 1) }()
			synctest.Wait()
		}
		p.at(20 * ms)
		gone[0]() // before it is asked for
		synctest.Wait()
		require.Equal(t, context.Canceled, <-results)
		p.at(60 * ms)
		require.NoError(t, <-results)
		gone[1]() // meanwhile
		synctest.Wait()
		require.Equal(t, context.Canceled, <-results)
		p.at(80 * ms)
		for range 7 {
			require.NoError(t, <-results)
		}
		st := p.all[0].Stats()
		require.EqualValues(t, 8, st.Departed)
		require.EqualValues(t, 2, st.Abandoned)
		require.EqualValues(t, 1, st.Bucket.Dropped)
		require.EqualValues(t, 2, st.Bucket.RoundTrips)
		require.Zero(t, st.Bucket.Failures)
	})
}

// If all have gone the call ends, too, and says nothing about the Bucket.
func TestAQuestionForNobodyEnds(t *testing.T) {
	share(t, 1, "1/min burst 100", 40*ms, func(p *processes) {
		require.NoError(t, p.wait(p.t.Context(), 0, 1))
		ctx, cancel := context.WithCancel(p.t.Context())
		results := make(chan error, 5)
		for range 5 {
			go func() { results <- p.wait(ctx, 0, 1) }()
			synctest.Wait()
		}
		cancel()
		for range 5 {
			require.Equal(t, context.Canceled, <-results)
		}
		require.Zero(t, p.all[0].Stats().Bucket.Failures)
		require.Zero(t, p.all[0].Stats().Unavailable)
		require.NoError(t, p.wait(p.t.Context(), 0, 1))
	})
}

// While the Bucket can't be asked, whoever waits for an answer gets that of the fallback. A seat
// is taken by those alone that have left.
func TestASpikeOfAMeterInAnOutage(t *testing.T) {
	for _, fallback := range []shaper.Fallback{shaper.FallbackClosed, shaper.FallbackOpen} {
		synctest.Test(t, func(t *testing.T) {
			m := buckettest.NewMemory()
			m.Fail(faultOf(buckettest.LoseRequest))
			s, err := shaper.New(shaper.Limits{Rate: 10, Burst: 5, InFlight: 50}, shaper.WithBucket(m, "k"), shaper.WithFallback(fallback))
			require.NoError(t, err)
			defer s.Close()
			var calls sync.WaitGroup
			for range 5 {
				for range 40 {
					calls.Go(func() {
						release, err := s.Acquire(t.Context(), 1)
						if err != nil {
							if !errors.Is(err, shaper.ErrUnavailable) && fallback == shaper.FallbackClosed {
								t.Error(err)
							}
							return
						}
						time.Sleep(ms)
						release()
					})
				}
				calls.Wait()
			}
			st := s.Stats()
			require.Zero(t, st.InFlight)
			require.EqualValues(t, 200, st.Departed+st.Refused)
			require.Equal(t, fallback == shaper.FallbackClosed, st.Bucket.State == shaper.BucketDown)
		})
	}
}

// A Bucket that panics is told to callers, each of them, and none waits for ever.
func TestABucketThatPanicsIsToldToEachCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.Fail(func(int, string) buckettest.Fault {
			time.Sleep(ms)
			panic("the client")
		})
		s, err := shaper.New(shaper.Limits{Rate: 10, Burst: 5, InFlight: 50}, shaper.WithBucket(m, "k"))
		require.NoError(t, err)
		defer s.Close()
		told := make(chan any, 10)
		for range 10 {
			go func() {
				defer func() { told <- recover() }()
				_, _ = s.Acquire(t.Context(), 1)
			}()
		}
		for range 10 {
			require.Equal(t, "the client", <-told)
		}
		require.Zero(t, s.Stats().InFlight)
	})
}
