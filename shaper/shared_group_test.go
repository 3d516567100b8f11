package shaper_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

func ownKey(key string) string { return key }

// What the last request in a line gives back goes to other processes, in a Group too.
func TestAGroupGivesBackWhatACancelledRequestHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		g := sharedGroup(t, m, shaper.Limits{Rate: 1, Depth: 9})
		require.NoError(t, g.Wait(t.Context(), "key"))
		late := newLateCancel()
		done := make(chan error, 1)
		go func() { done <- g.Wait(late, "key") }()
		synctest.Wait()
		late.end() // when its slot has come
		time.Sleep(2 * time.Second)
		require.ErrorIs(t, <-done, context.Canceled)
		synctest.Wait()
		st := g.Stats().Bucket
		require.EqualValues(t, 2, st.Leased)
		require.EqualValues(t, 1, st.GivenBack)
	})
}

// What a call with a new key meets is told before the key has a bucket: in an outage that it would
// be refused, or leave by the fallback.
func TestAForecastForANewKeyKnowsOfTheOutage(t *testing.T) {
	for fallback, state := range map[shared.Fallback]shared.State{
		shared.FallbackClosed: shared.StateDown, shared.FallbackOpen: shared.StateOpen, shared.FallbackLocal(2): shared.StateLocal,
	} {
		for _, limits := range []string{"10/s depth 9", "10/s burst 4", "10/s depth 9 inflight 2"} {
			synctest.Test(t, func(t *testing.T) {
				l := must(shaper.ParseLimits(limits))
				m := buckettest.NewMemory()
				m.SetDelay(ms, ms)
				g := sharedGroup(t, m, l, shared.Options{Fallback: fallback})
				stats := func(key string) shared.Stats { return g.Limiter(key).Stats().Bucket }
				require.Equal(t, shared.StateShared, stats("new").State)
				m.Fail(faultOf(buckettest.FailBefore))
				if l.Depth > 0 {
					go func() { // It is in line until its patience ends, or by the fallback.
						if release, err := g.Acquire(context.Background(), "old", 1); err == nil {
							release()
						}
					}()
				}
				for g.Stats().Bucket.State == shared.StateShared {
					_ = g.Allow("old")
					time.Sleep(ms)
				}
				for i := range 50 { // The circuit breaker lets a call try now and then.
					key := string(rune('A' + i))
					require.Equal(t, state, stats(key).State)
					require.Error(t, stats(key).Err)
					wait, forecast := g.Limiter(key).Forecast(1)
					began := time.Now()
					release, err := g.Acquire(t.Context(), key, 1)
					if err == nil {
						release()
					}
					switch {
					case forecast == nil && fallback == shared.FallbackClosed: // This one may try.
						require.ErrorIs(t, err, shaper.ErrUnavailable)
					case forecast == nil:
						require.NoError(t, err)
						require.Equal(t, time.Since(began), wait)
					default:
						require.Equal(t, forecast, err)
					}
					time.Sleep(7 * ms)
				}
				require.NoError(t, g.Close())
				require.NotEmpty(t, stats("new").State, "of a closed Group, too")
			})
		}
	}
}

// An overflow bucket and a key at rate.Inf have their state, too.
func TestAKeyThatSharesABucketHasItsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		limits := func(key string) (shaper.Limits, error) {
			if key == "inf" {
				return shaper.Limits{Rate: rate.Inf}, nil
			}
			return shaper.Limits{Rate: 1, Depth: 9}, nil
		}
		g := sharedGroupOf(t, m, limits, shaper.WithMaxKeys(1))
		require.NoError(t, g.Wait(t.Context(), "first"))
		for _, key := range []string{"inf", "second", "first"} {
			st := g.Limiter(key).Stats()
			require.Equal(t, shared.StateShared, st.Bucket.State, key)
			_, err := g.Limiter(key).Forecast(1)
			require.NoError(t, err)
		}
		_, err := g.Limiter("").Forecast(1)
		require.ErrorContains(t, err, "the key function of WithBuckets has returned an empty key")
		require.Equal(t, 1, g.Stats().Keys)
	})
}

// A server recovers the panics of its handlers, and goes on.
func TestABucketThatPanicsWhileItIsProbedCanBeAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := buckettest.NewMemory()
		s := sharedShaper(t, b, shaper.Limits{Rate: 10})
		b.Fail(faultOf(buckettest.FailBefore))
		for range 3 {
			require.False(t, s.Allow())
		}
		require.Equal(t, shared.StateDown, s.Stats().Bucket.State)
		time.Sleep(time.Second)
		b.Fail(func(int, string) buckettest.Fault { panic("the client") })
		require.Panics(t, func() { s.Allow() })
		b.Fail(nil)
		time.Sleep(4 * time.Second)
		require.True(t, s.Allow())
		require.Equal(t, shared.StateShared, s.Stats().Bucket.State)
	})
}

// nosy is a Bucket whose Shard calls the Group, which must not hold its lock then.
type nosy struct {
	*buckettest.Memory
	look func()
}

func (n *nosy) Shard(string) string {
	if n.look != nil {
		n.look()
	}
	return ""
}

func TestTheShardOfAKeyIsAskedForWithoutTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &nosy{Memory: buckettest.NewMemory()}
		g := sharedGroup(t, b, shaper.Limits{Rate: 10, Depth: 9})
		b.look = func() { g.Stats() }
		for range 20 {
			require.NoError(t, g.Wait(t.Context(), "key"))
		}
	})
}

// A key that is held at rate.Inf has a bucket, also after a restart; and its level is shared as
// soon as it has a rate.
func TestARestoredKeySharesItsLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		before := sharedGroup(t, m, shaper.Limits{Rate: rate.Inf, Depth: 9})
		before.Limiter("key").Hold(time.Minute)
		saved, err := before.Snapshot()
		require.NoError(t, err)
		require.NoError(t, before.Close())

		g := sharedGroup(t, m, shaper.Limits{Rate: rate.Inf, Depth: 9})
		require.NoError(t, g.Restore(saved))
		require.NoError(t, g.SetLimits("key", shaper.Limits{Rate: 20, Depth: 9}))
		for range 3 {
			require.NoError(t, g.Wait(t.Context(), "key"))
		}
		require.NotEmpty(t, m.Log(), "the Bucket has been asked")
	})
}

// The error for a mistake in an option names the option and quotes its argument.
func TestMistakesInSharedOptionsAreNamed(t *testing.T) {
	m := buckettest.NewMemory()
	limits := shaper.Limits{Rate: 1}
	longest := 365 * 24 * time.Hour
	for want, o := range map[string]shared.Options{
		"Fallback is FallbackLocal(0), must be":                                               {Fallback: shared.FallbackLocal(0)},
		"Fallback is FallbackLocal(-":                                                         {Fallback: shared.FallbackLocal(math.MinInt)},
		"Fallback is FallbackLocal(-7), must be":                                              {Fallback: shared.FallbackLocal(-7)},
		"RateVersion is -3, must be from 1 to 2⁵³, or 0 for the time":                         {RateVersion: -3},
		"RateVersion is 9007199254740993, must be":                                            {RateVersion: 1<<53 + 1},
		"Timeout is -1ns, must be from 1ms to 10s, or 0 for 250ms":                            {Timeout: -1},
		"Timeout is 999.999µs, must be":                                                       {Timeout: time.Millisecond - 1},
		"Timeout is 10.000000001s, must be":                                                   {Timeout: 10*time.Second + 1},
		"ColdGuard is -1s, must be":                                                           {ColdGuard: -time.Second},
		"ColdGuard is 1m0.000000001s, must be":                                                {ColdGuard: time.Minute + 1},
		"Patience is 8760h0m0.000000001s, must be at most 365 days, or negative for no bound": {Patience: longest + 1},
	} {
		_, err := shaper.New(limits, shaper.WithBucket(m, "k", o))
		require.ErrorContains(t, err, "shaper: New: Options."+want)
		_, err = shaper.NewGroup(func(string) (shaper.Limits, error) { return limits, nil }, shaper.WithBuckets(m, ownKey, o))
		require.ErrorContains(t, err, "shaper: NewGroup: Options."+want)
	}
	for want, opts := range map[string][]shaper.Option{
		"the Bucket is nil":                          {shaper.WithBucket(nil, "k", shared.Options{})},
		"the key of WithBucket is empty":             {shaper.WithBucket(m, "", shared.Options{})},
		"WithDryRun can't be combined with a Bucket": {shaper.WithBucket(m, "k", shared.Options{}), shaper.WithDryRun()},
	} {
		_, err := shaper.New(limits, opts...)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "shaper: New: ")
	}
	limitsOf := func(string) (shaper.Limits, error) { return limits, nil }
	_, err := shaper.NewGroup(limitsOf, shaper.WithBuckets(m, func(k int) string { return "" }, shared.Options{}))
	require.ErrorContains(t, err, "WithBuckets has a func(int) string, must have a func(string) string")
	_, err = shaper.NewGroup(limitsOf, shaper.WithBucket(m, "k", shared.Options{}))
	require.ErrorContains(t, err, "WithBucket is for a Shaper")
	_, err = shaper.NewGroup(limitsOf, shaper.WithBuckets[string](nil, func(k string) string { return k }, shared.Options{}))
	require.ErrorContains(t, err, "the Bucket is nil")
	_, err = shaper.NewGroup(limitsOf, shaper.WithBuckets[string](m, nil, shared.Options{}))
	require.ErrorContains(t, err, "WithBuckets")
	for _, o := range []shared.Options{
		{},
		{Patience: -1}, {Patience: math.MinInt64}, {Patience: 1}, {Patience: longest},
		{Timeout: time.Millisecond}, {Timeout: 10 * time.Second},
		{ColdGuard: time.Minute},
		{RateVersion: 1}, {RateVersion: 1 << 53},
	} {
		s, err := shaper.New(limits, shaper.WithBucket(m, "k", o))
		require.NoError(t, err, "%+v", o)
		require.NoError(t, s.Close())
		g, err := shaper.NewGroup(limitsOf, nil, shaper.WithBuckets(m, ownKey, o), nil)
		require.NoError(t, err, "a nil option is none")
		require.NoError(t, g.Close())
	}
}

// If a Fallback was an option itself, a call that has it outside of the Options would compile, and open the
// limit in an outage.
func TestAFallbackIsNoOption(t *testing.T) {
	for _, f := range []any{shared.FallbackClosed, shared.FallbackOpen, shared.FallbackLocal(2)} {
		_, isOption := f.(shaper.Option)
		require.False(t, isOption, "%T", f)
		_, isGroupOption := f.(shaper.GroupOption)
		require.False(t, isGroupOption, "%T", f)
	}
}

// A key function that returns "" is a mistake of the program: nobody leaves, and the error says
// so. One that panics takes nothing with it.
func TestKeyFunctionThatBreaksItsContract(t *testing.T) {
	m := buckettest.NewMemory()
	g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 1000, Depth: 9}, nil },
		shaper.WithBuckets(m, func(k string) string {
			if k == "panic" {
				panic("no key")
			}
			return k
		}, shared.Options{}))
	require.NoError(t, err)
	err = g.Wait(t.Context(), "")
	require.ErrorContains(t, err, "the key function of WithBuckets has returned an empty key")
	require.False(t, g.Allow(""))
	require.EqualValues(t, 2, g.Stats().LimitErrors)
	g.Limiter("").Hold(time.Second)
	require.PanicsWithValue(t, "no key", func() { _ = g.Wait(t.Context(), "panic") })
	require.PanicsWithValue(t, "no key", func() { g.Allow("panic") })
	require.NoError(t, g.Wait(t.Context(), "good"))
	require.NoError(t, g.Close())
}

// Over HTTP an outage is a 503 with Retry-After, not a 429: the caller has done nothing wrong. And
// a Transport returns the error.
func TestOutageOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.Fail(faultOf(buckettest.FailBefore))
		s := sharedShaper(t, m, shaper.Limits{Rate: 10})
		h := shaper.Middleware(s)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("served") }))
		for range 5 {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
			require.Equal(t, http.StatusServiceUnavailable, w.Code)
			require.Equal(t, "1", w.Header().Get("Retry-After"))
			require.Contains(t, w.Header().Get("Content-Type"), "application/problem+json")
		}
		client := &http.Client{Transport: shaper.Transport{Limiter: s}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://upstream.invalid/", nil)
		require.NoError(t, err)
		_, err = client.Do(req)
		require.ErrorIs(t, err, shaper.ErrUnavailable)
		require.Equal(t, uint64(6), s.Stats().Unavailable)
	})
}

// A Hold and a cap keep requests of a shared Shaper as they do without a Bucket, and slots are
// not leased long before they can be used.
func TestHoldAndCapOfASharedShaper(t *testing.T) {
	share(t, 1, "100/s depth 99", 2*ms, func(p *processes) {
		s := p.all[0]
		s.Hold(500 * ms)
		p.arrive(0, 1, 1, 1)
		p.at(490 * ms)
		for _, e := range p.Log() {
			require.Falsef(t, e.Op == "Take" && e.Take.First == 1, "slots are leased: %+v", e)
		}
		require.False(t, s.Allow())
		p.at(time.Second)
		at := p.instants()
		require.Len(t, at, 3)
		require.InDelta(t, 500*ms, at[0], float64(2*ms+10*us), "the width of the estimate of the Bucket's clock is a round trip")
		require.GreaterOrEqual(t, at[0], 500*ms)
		require.Zero(t, s.Stats().Bucket.Dropped)
		p.check()
	})
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(ms, ms)
		s := sharedShaper(t, m, shaper.Limits{Rate: 100, Depth: 99, InFlight: 2})
		var mu sync.Mutex
		most := 0
		done := make(chan struct{})
		for range 20 {
			go func() {
				if err := s.Do(t.Context(), 1, func(ctx context.Context) error {
					mu.Lock()
					most = max(most, s.Stats().InFlight)
					mu.Unlock()
					time.Sleep(50 * ms)
					return nil
				}); err != nil {
					t.Error(err)
				}
				done <- struct{}{}
			}()
		}
		began := time.Now()
		for range 20 {
			<-done
		}
		require.Equal(t, 2, most)
		require.InDelta(t, 500*ms, time.Since(began), float64(60*ms))
		require.NoError(t, s.Close())
		st := s.Stats().Bucket
		require.Equal(t, uint64(20), st.Leased-st.Dropped-st.GivenBack)
		require.LessOrEqual(t, st.Dropped, uint64(4))
	})
}

// What predicts a wait takes this process's share of late.
func TestPredictionsUseTheShare(t *testing.T) {
	share(t, 4, "100/s depth 100", 2*ms, func(p *processes) {
		stop := p.saturate(60)
		defer stop()
		p.at(10 * time.Second)
		s := p.all[0]
		require.InDelta(t, 0.25, s.Stats().Bucket.Share, 0.02)
		wait, err := s.Forecast(1)
		require.NoError(t, err)
		require.InDelta(t, 60*40*ms, wait, float64(300*ms))
		began := time.Now()
		require.NoError(t, s.Wait(p.t.Context()))
		require.InDelta(t, time.Since(began), wait, float64(300*ms))
		ctx, cancel := context.WithTimeout(p.t.Context(), time.Second)
		defer cancel()
		err = s.Wait(ctx)
		require.ErrorIs(t, err, shaper.ErrTooLate)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, s.SetLimits(shaper.Limits{Rate: 100, Depth: 60}))
		time.Sleep(100 * ms)
		err = s.Wait(p.t.Context())
		require.ErrorIs(t, err, shaper.ErrQueueFull)
		require.LessOrEqual(t, refusal(t, err).RetryAfter, 200*ms, "that is how long the slots of four batches take")
	})
}

// A process that changes the rate goes on with the slots that it has leased, so requests leave however
// often it does, and Shutdown ends: never faster than at the greatest of the rates, and one process
// alone no slower than at the least. Of several each lengthens, by a cut, the time of what all have leased.
func TestRequestsLeaveHoweverOftenTheRateIsChanged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limits    string
		every     time.Duration
		rates     []rate.Limit
		processes int // each of which changes the rate
		cost      int
		opts      []any
		rtt       time.Duration
	}{
		{"5/s depth 99", 100 * ms, []rate.Limit{5, 6, 7, 8, 9, 10}, 1, 1, nil, 2 * ms},
		{"5/s depth 99", 100 * ms, []rate.Limit{10, 9, 8, 7, 6, 5}, 1, 1, nil, 2 * ms},
		{"5/s depth 99", 100 * ms, []rate.Limit{5, 10}, 1, 1, nil, 2 * ms},
		{"5/s depth 99", 3 * ms, []rate.Limit{5, 10}, 1, 1, nil, 20 * ms},
		{"5/s depth 99", 100 * ms, []rate.Limit{5, 10}, 1, 3, nil, 2 * ms},
		{"50/s burst 20 depth 99", 10 * ms, []rate.Limit{50, 100, 75}, 1, 2, nil, 2 * ms},
		{"50/s depth 99", 10 * ms, []rate.Limit{50, 100, 75}, 3, 1, nil, 2 * ms},
		{"5/s depth 99", 100 * ms, []rate.Limit{5, 10}, 3, 1, nil, 20 * ms},
		{"5/s depth 99", 100 * ms, []rate.Limit{5, 10}, 1, 1, []any{shaper.WithFairQueue(nil)}, 2 * ms},
	} {
		t.Run(fmt.Sprintf("%s, %v each %v, %d processes, cost %d, %v", c.limits, c.rates, c.every, c.processes, c.cost, c.rtt), func(t *testing.T) {
			t.Parallel()
			share(t, c.processes, c.limits, c.rtt, func(p *processes) {
				changes, stop := context.WithCancel(context.Background())
				var changing sync.WaitGroup
				defer func() {
					stop()
					changing.Wait()
				}()
				slowest, fastest := c.rates[0], c.rates[0]
				for _, r := range c.rates {
					slowest, fastest = min(slowest, r), max(fastest, r)
				}
				p.limits.Rate = slowest
				for i, s := range p.all {
					changing.Go(func() {
						time.Sleep(time.Duration(i) * c.every / 3)
						for k := i; changes.Err() == nil; k++ {
							l := p.limits
							l.Rate = c.rates[k%len(c.rates)]
							require.NoError(p.t, s.SetLimits(l))
							time.Sleep(c.every)
						}
					})
				}
				const each = 30
				for i := range p.all {
					for range each {
						p.arrive(i, c.cost)
					}
				}
				whole := time.Duration(float64(each*c.processes*c.cost) / float64(slowest) * float64(time.Second))
				p.at(whole / 3)
				left := len(p.departures())
				require.GreaterOrEqual(p.t, left, each*c.processes/6, "of %d", each*c.processes)
				done := make(chan error)
				for _, s := range p.all {
					go func() { done <- s.Shutdown(context.Background()) }()
				}
				for range p.all {
					require.NoError(p.t, <-done)
				}
				require.Less(p.t, time.Since(p.start), whole*time.Duration(min(2, c.processes)))
				p.limits.Rate = fastest
				p.lateness = max(20*ms, 2*c.rtt+ms, time.Duration(float64(time.Second)/float64(slowest)))
				p.check()
			}, c.opts...)
		})
	}
}

// What a process has leased leaves when it was due, whoever changes the rate. If the state is lost then,
// the process has its slots in the level all the same, so nothing leaves in their place.
func TestWhatIsLeasedLeavesWhenItWasDueThoughTheRateChanges(t *testing.T) {
	for _, limits := range []string{"100/s depth 99", "100/s burst 5 depth 99"} {
		for _, to := range []rate.Limit{1, 10, 400} {
			for _, by := range []int{0, 1} {
				for _, lost := range []bool{false, true} {
					if lost && by > 0 {
						continue // The other one has a right to what has been lost.
					}
					why := fmt.Sprintf("%s to %v/s by process %d, lost: %v", limits, to, by, lost)
					share(t, 2, limits, 2*ms, func(p *processes) {
						for range 30 {
							p.arrive(0, 1)
						}
						p.at(105 * ms)
						before := len(p.departures())
						held := p.all[0].Stats().Bucket.Held
						require.Positive(p.t, held)
						l := p.limits
						l.Rate = to
						require.NoError(p.t, p.all[by].SetLimits(l))
						if by > 0 {
							go func() { _ = p.wait(context.Background(), by, 1) }() // It tells the Bucket.
						}
						if lost {
							p.Wipe()
						}
						p.at(40 * time.Second)
						var own []time.Duration
						for _, d := range p.departures() {
							if d.Process == 0 {
								own = append(own, d.At)
							}
						}
						require.Len(p.t, own, 30, why)
						for i, at := range own[before-1 : before+int(held)] {
							require.InDelta(p.t, own[before-1]+time.Duration(i)*10*ms, at, float64(10*us), why)
						}
						last := before + int(held) - 1
						interval := time.Duration(float64(time.Second) / float64(to))
						require.GreaterOrEqual(p.t, own[last+2]-own[last], interval-10*us, why)
						require.Zero(p.t, p.all[0].Stats().Bucket.Dropped, why)
						p.limits.Rate = max(100, to)
						p.check()
					})
				}
			}
		}
	}
}

// In an outage a request in line is refused when its patience or its bound ends, whichever comes first; at one
// instant it is the outage that it is told of.
func TestInAnOutagePatienceAndBoundEndWaitsWhicheverComesFirst(t *testing.T) {
	const ends = 1750 * ms // of the patience: the outage begins at 750 ms
	for _, test := range []struct {
		bound time.Duration
		at    time.Duration
		why   error
	}{
		{ends - 1, ends - 1, shaper.ErrTooLate},
		{ends, ends, shaper.ErrUnavailable},
		{ends + 1, ends, shaper.ErrUnavailable},
	} {
		during(t, "10/s depth 99", func(o *outage) {
			o.beginsWith(o.t.Context(), 4)
			o.at(3 * time.Second)
			require.Len(t, o.ends, 4)
			for _, e := range o.ends {
				require.Equal(t, test.at, e.at)
				require.Equal(t, test.why, refusal(t, e.err).Reason)
				require.Positive(t, refusal(t, e.err).RetryAfter)
				require.Contains(t, o.told, e)
			}
			st := o.Stats()
			require.EqualValues(t, 4, st.Refused)
			require.EqualValues(t, 4, st.TooLate+st.Unavailable)
			require.Equal(t, test.why == shaper.ErrTooLate, st.TooLate == 4)
		}, shared.Options{Patience: time.Second}, shaper.WithLineTimeout(test.bound))
	}
}

// A client that comes back sooner would be refused again.
func TestABoundInAnOutageTellsWhenTheBucketIsAskedAgain(t *testing.T) {
	for _, patience := range []time.Duration{-1, time.Hour} {
		during(t, "10/s depth 99", func(o *outage) {
			o.beginsWith(o.t.Context(), 4)
			o.at(9 * time.Second)
			require.Len(t, o.ends, 4)
			newcomer := refusal(t, o.Wait(o.t.Context()))
			require.Equal(t, shaper.ErrUnavailable, newcomer.Reason)
			for _, e := range o.ends {
				require.Equal(t, 9*time.Second, e.at)
				require.Equal(t, shaper.ErrTooLate, refusal(t, e.err).Reason)
				require.Equal(t, newcomer.RetryAfter, refusal(t, e.err).RetryAfter)
			}
		}, shared.Options{Patience: patience}, shaper.WithLineTimeout(9*time.Second))
	}
}

// With a fallback the line goes on, at another rate, and those who can't leave in time are refused.
func TestABoundHoldsInAFallback(t *testing.T) {
	during(t, "10/s depth 99", func(o *outage) {
		o.beginsWith(o.t.Context(), 5)
		o.at(20 * time.Second)
		left := 0
		for _, e := range o.ends {
			require.LessOrEqual(t, e.waited, 3*time.Second)
			if e.err == nil {
				left++
				continue
			}
			require.Equal(t, 3*time.Second, e.at)
			require.Equal(t, shaper.ErrTooLate, refusal(t, e.err).Reason)
		}
		require.Len(t, o.ends, 5)
		require.Equal(t, 3, left)
	}, shared.Options{Fallback: shared.FallbackLocal(10)}, shaper.WithLineTimeout(3*time.Second))
}

// Units that come when nobody is in line any more are for others.
func TestABoundThatComesWhileTheBucketIsAskedKeepsNothingLeased(t *testing.T) {
	during(t, "100/s depth 99", func(o *outage) {
		o.SetDelay(50*ms, 50*ms)
		o.enter(o.t.Context(), 3)
		o.at(60 * ms)
		require.Len(t, o.ends, 3)
		for _, e := range o.ends {
			require.Equal(t, 60*ms, e.at)
			require.Equal(t, shaper.ErrTooLate, refusal(t, e.err).Reason)
		}
		o.at(time.Second)
		b := o.Stats().Bucket
		require.Positive(t, b.Leased)
		require.Equal(t, b.Leased, b.GivenBack+b.Dropped)
		o.SetDelay(ms, ms)
		require.NoError(t, o.Wait(o.t.Context()), "the line goes on")
	}, shaper.WithLineTimeout(60*ms))
}

// Whoever waits longer than the prediction, as other processes take their share, is refused at the bound.
func TestOtherProcessesMakeNoWaitLongerThanItsBound(t *testing.T) {
	share(t, 2, "10/s depth 99", 2*ms, func(p *processes) {
		var mu sync.Mutex
		var waits []string
		for range 10 { // Alone the last would leave after 0.9 s.
			go func() {
				came := time.Now()
				err := p.wait(context.Background(), 0, 1)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					waits = append(waits, fmt.Sprint(time.Since(came), " ", refusal(t, err).Reason))
				}
			}()
			synctest.Wait()
		}
		stop := p.saturate(20, 1)
		time.Sleep(3 * time.Second)
		stop()
		mu.Lock()
		defer mu.Unlock()
		require.NotEmpty(t, waits)
		require.Less(t, len(waits), 9)
		require.Len(t, slices.Compact(waits), 1)
		require.Equal(t, "1s shaper: would leave too late", waits[0])
	}, shaper.WithLineTimeout(time.Second))
}

// In a Group of shared buckets each key is asked for by itself, and each request has its own bound.
func TestBoundsInAGroupOfSharedBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(ms, ms)
		g := sharedGroup(t, m, shaper.Limits{Rate: 10, Depth: 99}, shared.Options{Patience: time.Hour}, shaper.WithLineTimeout(2*time.Second))
		require.NoError(t, g.Wait(t.Context(), "a"))
		require.NoError(t, g.Wait(t.Context(), "b"))
		start := time.Now()
		m.Fail(faultOf(buckettest.LoseRequest)) // It counts as an outage after 500 ms.
		var all sync.WaitGroup
		for i, key := range []string{"a", "b", "a", "b"} {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 10 * ms)
				err := g.Wait(context.Background(), key)
				require.Equal(t, shaper.ErrTooLate, refusal(t, err).Reason)
				require.Equal(t, 2*time.Second, time.Since(start)-time.Duration(i)*10*ms)
			})
		}
		all.Wait()
		require.EqualValues(t, 4, g.Stats().TooLate)
		m.Fail(nil)
		time.Sleep(5 * time.Second)
		require.NoError(t, g.Wait(t.Context(), "a"))
		require.NoError(t, g.Close())
	})
}
