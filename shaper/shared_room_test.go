package shaper_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

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
