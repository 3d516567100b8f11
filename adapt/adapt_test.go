package adapt_test

import (
	"context"
	"math"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// A rig is a Controller with its Shaper in a bubble.
type rig struct {
	*testing.T
	s *shaper.Shaper
	a *adapt.Controller
}

// inBubble runs a test of a Controller in a bubble. Limits without a depth get a deep line.
func inBubble(t *testing.T, l shaper.Limits, c adapt.Config, test func(rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		if l.Depth == 0 {
			l.Depth = 10_000
		}
		s, err := shaper.New(l)
		require.NoError(t, err)
		a, err := adapt.New(s, c)
		require.NoError(t, err)
		test(rig{t, s, a})
	})
}

// fill makes so many requests wait until the end of the test.
func (r rig) fill(n int) {
	r.Helper()
	for range n {
		go func() {
			if release, err := r.s.Acquire(r.Context(), 1); err == nil && r.s.Limits().InFlight == 0 {
				release()
			}
		}()
	}
	synctest.Wait()
}

// observe observes so many answers at once.
func (r rig) observe(n int, o adapt.Outcome, latency time.Duration) {
	for range n {
		r.a.Observe(o, latency)
	}
}

// rate returns the rate in force, which must be the one that Stats tells.
func (r rig) rate() float64 {
	r.Helper()
	require.Equal(r, r.s.Limits().Rate, r.a.Stats().Rate)
	return float64(r.a.Stats().Rate)
}

const ms = time.Millisecond

// Promise 1. Of the calls that were under way when the rate was lowered none lowers it again, also if
// the answer comes much later.
func TestOneEventLowersTheRateOnce(t *testing.T) {
	inBubble(t, shaper.Limits{Rate: 100}, adapt.Config{Start: 100}, func(r rig) {
		time.Sleep(time.Second)
		r.observe(1, adapt.Refused, 50*ms)
		first := time.Now()
		require.Equal(r, 90.0, r.rate())
		r.observe(8, adapt.Refused, 50*ms)
		time.Sleep(50 * ms)
		r.observe(1, adapt.Refused, 50*ms) // It left at the instant of the decrease, and so not after it.
		time.Sleep(time.Hour)
		r.observe(20, adapt.Failed, time.Hour+50*ms)
		require.Equal(r, 90.0, r.rate())
		require.Equal(r, adapt.Stats{Rate: 90, Min: 1, Max: 100, Decreases: 1, Refused: 1, LastDecrease: first, Reason: "refused"}, r.a.Stats())

		r.observe(1, adapt.Refused, time.Hour+50*ms-1)
		require.Equal(r, 45.0, r.rate(), "the last ten are bad, and a decrease takes at most half")
		require.Equal(r, uint64(2), r.a.Stats().Decreases)
	})
}

// Promises 2 and 3: what answers to calls that left one after the other do to a rate of 100.
func TestWhatLowersTheRate(t *testing.T) {
	const ok, refused, failed, slow = 'o', 'r', 'f', 's'
	for _, tt := range []struct {
		answers string
		rates   []float64 // after the answers that changed it
		reason  string
	}{
		{"oooooooooo", nil, ""},
		{"r", []float64{90}, "refused"}, // at the ceiling, too
		{"ooooooooor", []float64{90}, "refused"},
		{"rooooooooor", []float64{90, 81}, "refused"}, // each is alone among ten
		{"roooooooor", []float64{90, 72}, "refused"},  // they are not
		{"rrrrr", []float64{90, 72, 50.4, 30.24, 15.12}, "refused"},
		{"rrrrrrr", []float64{90, 72, 50.4, 30.24, 15.12, 7.56, 5}, "refused"}, // Min is 5
		{"ffff", nil, ""},
		{"fffff", []float64{50}, "failed"},
		{"ffffoooooof", nil, ""}, // the first has left the ten: four of them
		{"fffoooooff", []float64{50}, "failed"},
		{"ssss", nil, ""},
		{"sssss", []float64{85}, "slow"},
		{"ssffs", []float64{85}, "slow"},
		{"sffsf", []float64{70}, "failed"}, // three of ten failed
		{"ssssf", []float64{90}, "failed"},
		{"ssssss", []float64{85}, "slow"}, // the upstream's queue has to drain first
		{"sssssr", []float64{85, 76.5}, "refused"},
		{"fffffo", []float64{50}, "failed"},
	} {
		t.Run(tt.answers, func(t *testing.T) {
			inBubble(t, shaper.Limits{Rate: 100}, adapt.Config{Min: 5, Start: 100, Slow: 200 * ms}, func(r rig) {
				var rates []float64
				for _, kind := range tt.answers {
					before := r.rate()
					time.Sleep(301 * ms)
					switch kind {
					case ok:
						r.a.Observe(adapt.OK, 200*ms)
					case refused:
						r.a.Observe(adapt.Refused, 300*ms)
					case failed:
						r.a.Observe(adapt.Failed, 300*ms)
					case slow:
						r.a.Observe(adapt.OK, 300*ms)
					}
					if r.rate() != before {
						rates = append(rates, math.Round(r.rate()*1e6)/1e6)
					}
				}
				require.Equal(r, tt.rates, rates)
				st := r.a.Stats()
				require.Equal(r, tt.reason, st.Reason)
				require.Len(r, tt.rates, int(st.Decreases))
				require.Equal(r, st.Decreases, st.Refused+st.Failed+st.Slow)
			})
		})
	}
}

// Promise 2.
func TestOneInAHundredThatFailsLowersNothing(t *testing.T) {
	inBubble(t, shaper.Limits{Rate: 100}, adapt.Config{Start: 100, Slow: 100 * ms}, func(r rig) {
		for range 100 {
			r.observe(98, adapt.OK, 50*ms)
			r.observe(1, adapt.Failed, time.Second)
			r.observe(1, adapt.OK, time.Second)
			time.Sleep(time.Second)
		}
		require.Equal(r, 100.0, r.rate())
	})
}

// The queue of the upstream drains in 5 × (latency − Slow/2), and until then its answers are slow
// because of calls that left at the old rate.
func TestSlowAnswersWaitForTheQueueOfTheUpstream(t *testing.T) {
	inBubble(t, shaper.Limits{Rate: 100}, adapt.Config{Start: 100, Slow: 200 * ms}, func(r rig) {
		r.observe(5, adapt.OK, 300*ms)
		require.Equal(r, 85.0, r.rate())
		time.Sleep(time.Second - 1)
		r.observe(1, adapt.OK, 300*ms)
		require.Equal(r, 85.0, r.rate())
		time.Sleep(time.Nanosecond)
		r.observe(1, adapt.OK, 300*ms)
		require.Equal(r, 72.25, r.rate())
		require.Equal(r, uint64(2), r.a.Stats().Slow)
	})
}

// Promise 4: what raises a rate of 10, with a ceiling of 100. In each case good answers come for 5 seconds.
func TestOnlyAUsedRateRises(t *testing.T) {
	answer := func(r rig) {
		for range 50 {
			time.Sleep(100 * ms)
			synctest.Wait() // It is decided who has left at this instant.
			r.a.Observe(adapt.OK, 50*ms)
		}
	}
	callers := func(n int, each func(r rig)) func(rig) {
		return func(r rig) {
			var all sync.WaitGroup
			for range n {
				all.Go(func() { each(r) })
			}
			all.Wait()
		}
	}
	for _, tt := range []struct {
		name  string
		l     shaper.Limits
		run   func(rig)
		rises bool
	}{
		{"a line", shaper.Limits{}, func(r rig) { r.fill(1000); answer(r) }, true},
		{"nobody waits", shaper.Limits{}, answer, false},
		{"the line is held", shaper.Limits{}, func(r rig) { r.fill(1000); r.s.Hold(time.Hour); answer(r) }, false},
		{"refusals by the Shaper", shaper.Limits{Depth: 1}, func(r rig) {
			for range 50 {
				time.Sleep(100 * ms)
				for r.s.Allow() {
				}
				r.a.Observe(adapt.OK, 50*ms)
			}
		}, true},
		{"the cap has no free seat", shaper.Limits{InFlight: 3}, func(r rig) { r.fill(1000); time.Sleep(time.Second); answer(r) }, false},
		{"the cap has a free seat", shaper.Limits{InFlight: 1000}, func(r rig) { r.fill(1000); answer(r) }, true},
		{"the calls left before the decrease", shaper.Limits{}, func(r rig) {
			r.fill(1000)
			r.a.Observe(adapt.Refused, 0)
			for i := range 50 {
				time.Sleep(100 * ms)
				r.a.Observe(adapt.OK, time.Duration(i+1)*100*ms)
			}
		}, false},
		{"most answers are to an idle line", shaper.Limits{}, func(r rig) {
			answer(r)
			r.fill(1000)
			for range 5 { // Five of ten are not most of them.
				time.Sleep(100 * ms)
				r.a.Observe(adapt.OK, 50*ms)
			}
		}, false},
		{"an hour after the last answer", shaper.Limits{}, func(r rig) {
			r.fill(1000)
			r.observe(10, adapt.OK, 50*ms)
			time.Sleep(time.Hour)
			r.a.Observe(adapt.OK, 50*ms)
		}, false},
		{"just after a hold", shaper.Limits{}, func(r rig) {
			r.fill(1000)
			r.s.Hold(900 * ms)
			r.observe(10, adapt.OK, 50*ms)
			time.Sleep(900 * ms)
			synctest.Wait()
			r.a.Observe(adapt.OK, 50*ms)
		}, false},
		{"a hold in the midst of use", shaper.Limits{}, func(r rig) {
			r.fill(1000)
			r.observe(20, adapt.OK, 50*ms)
			r.s.Hold(900 * ms)
			r.observe(1, adapt.OK, 50*ms) // to a call that left before
			time.Sleep(900 * ms)
			synctest.Wait()
			r.a.Observe(adapt.OK, 50*ms)
		}, false},
		{"half load", shaper.Limits{}, func(r rig) {
			for range 25 {
				require.NoError(r, r.s.Wait(context.Background()))
				time.Sleep(50 * ms)
				r.a.Observe(adapt.OK, 50*ms)
				time.Sleep(150 * ms)
			}
		}, false},
		{"half load by two at once", shaper.Limits{}, func(r rig) {
			for range 12 {
				callers(2, func(r rig) {
					require.NoError(r, r.s.Wait(context.Background()))
					time.Sleep(50 * ms)
					r.a.Observe(adapt.OK, 50*ms)
				})(r)
				time.Sleep(250 * ms)
			}
		}, false},
		{"one worker that waits for each call", shaper.Limits{}, callers(1, func(r rig) {
			for range 50 {
				require.NoError(r, r.s.Wait(context.Background()))
				time.Sleep(5 * ms)
				r.a.Observe(adapt.OK, 5*ms)
			}
		}), true},
		{"one worker whose calls take longer than an interval", shaper.Limits{}, callers(1, func(r rig) {
			for range 50 {
				require.NoError(r, r.s.Wait(context.Background()))
				time.Sleep(105 * ms)
				r.a.Observe(adapt.OK, 105*ms)
			}
		}), false},
		{"three workers", shaper.Limits{}, callers(3, func(r rig) {
			for range 20 {
				require.NoError(r, r.s.Wait(context.Background()))
				time.Sleep(50 * ms)
				r.a.Observe(adapt.OK, 50*ms)
			}
		}), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := tt.l
			l.Rate = 100
			inBubble(t, l, adapt.Config{Min: 9, Start: 10}, func(r rig) {
				tt.run(r)
				if tt.rises {
					require.Greater(r, r.rate(), 12.0)
				} else {
					require.LessOrEqual(r, r.rate(), 10.0)
				}
			})
		})
	}
}

// The timeline of a rate with a long line, and an answer each 10 ms: it doubles in each second until the upstream refuses;
// then it is back where it was refused after K = 5.5 s, lingers there, and would be e times as high after 2 K, but
// is never beyond the ceiling.
func TestTheRateComesBackAndLooksFurther(t *testing.T) {
	inBubble(t, shaper.Limits{Rate: 1000}, adapt.Config{Start: 10, Max: 100}, func(r rig) {
		r.fill(1_500)
		good := func(d time.Duration) {
			for range d / (10 * ms) {
				time.Sleep(10 * ms)
				synctest.Wait()
				r.a.Observe(adapt.OK, 5*ms)
			}
		}
		good(time.Second)
		require.InEpsilon(r, 20, r.rate(), 0.02) // The first two answers only begin its use.
		good(time.Second)
		top := r.rate()
		require.InEpsilon(r, 40, top, 0.02)
		r.a.Observe(adapt.Refused, 5*ms)
		require.InEpsilon(r, 0.9*top, r.rate(), 1e-9)
		used := time.Duration(0)
		for _, at := range []struct {
			d    time.Duration
			rate float64
		}{
			{1100 * ms, top * math.Pow(0.9, 0.8*0.8*0.8)},
			{2750 * ms, top * math.Pow(0.9, 0.125)},
			{5500 * ms, top},
			{8250 * ms, top * math.Exp(0.125)},
			{9900 * ms, top * math.Exp(0.512)},
			{20 * time.Second, 100},
		} {
			good(at.d - used)
			used = at.d
			require.InEpsilon(r, at.rate, r.rate(), 0.006, "%v", at.d)
		}
		require.Equal(r, 100.0, r.rate())
	})
}

// Noise is not taken for capacity: one refusal in a hundred, whatever the rate is, keeps it at more than a third of the
// rate that was refused.
func TestALoneRefusalBelowTheTopMovesTheTopLittle(t *testing.T) {
	inBubble(t, shaper.Limits{Rate: 100}, adapt.Config{Start: 100}, func(r rig) {
		r.fill(1_500)
		r.a.Observe(adapt.Refused, 0)
		for range 6 { // Each comes long before the rate is back at its top.
			for range 9 {
				time.Sleep(10 * ms)
				r.a.Observe(adapt.OK, ms)
			}
			time.Sleep(10 * ms)
			r.a.Observe(adapt.Refused, ms)
		}
		low := r.rate()
		for range 500 {
			time.Sleep(10 * ms)
			r.a.Observe(adapt.OK, ms)
		}
		require.Less(r, low, 60.0)
		require.InEpsilon(r, 100*math.Pow(0.98, 6), r.rate(), 0.01, "and not what the last one was")
	})
}

// Promise 5, at each instant of runs that let the rate grow from a hundredth: the rate is at most twice the least that was in
// force within the second before.
func TestTheRateNeverMoreThanDoublesInAStep(t *testing.T) {
	t.Parallel()
	type point struct {
		at   time.Time
		rate float64
	}
	for _, tt := range []struct {
		name    string
		latency time.Duration
		cost    int
		step    func(rate float64) time.Duration
	}{
		{"a second", 20 * ms, 1, func(rate float64) time.Duration { return max(time.Second, time.Duration(4*float64(time.Second)/rate)) }},
		{"two round trips", 2 * time.Second, 1, func(float64) time.Duration { return 4 * time.Second }},
		{"four calls", 20 * ms, 20, func(rate float64) time.Duration { return time.Duration(80 * float64(time.Second) / rate) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, shaper.Limits{Rate: 200}, adapt.Config{Min: 2}, func(r rig) {
				var points []point
				var mu sync.Mutex
				highest := 0.0
				worker := func(until time.Time) {
					for time.Now().Before(until) {
						if err := r.s.WaitN(context.Background(), tt.cost); err != nil {
							panic(err)
						}
						outcome := adapt.OK
						if phase := time.Since(until.Add(-3 * time.Minute)); phase > time.Minute && phase < 2*time.Minute {
							outcome = adapt.Failed // an outage
						}
						time.Sleep(tt.latency)
						r.a.Observe(outcome, tt.latency)
						mu.Lock()
						now := float64(r.a.Stats().Rate)
						if now != points[len(points)-1].rate {
							points = append(points, point{time.Now(), now})
						}
						highest = max(highest, now)
						mu.Unlock()
					}
				}
				points = append(points, point{time.Now(), 2})
				var all sync.WaitGroup
				until := time.Now().Add(3 * time.Minute)
				for range 100 {
					all.Go(func() { worker(until) })
				}
				all.Wait()
				oldest := 0
				for i, p := range points {
					for points[oldest].at.Before(p.at.Add(-tt.step(p.rate))) {
						oldest++
					}
					least := slices.MinFunc(points[oldest:i+1], func(x, y point) int { return int(math.Copysign(1, x.rate-y.rate)) })
					require.LessOrEqual(r, p.rate, 2*least.rate*1.0001, "%v after the start", p.at.Sub(points[0].at))
				}
				require.Greater(r, highest, 20.0, "so there was something to judge")
				require.NotZero(r, r.a.Stats().Failed)
			})
		})
	}
}

// Promise 6: what somebody else does to a rate that was lowered to 45, with bounds of 10 and 100.
func TestTheRateOfTheOperatorIsTheCeiling(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                      string
		set                       []rate.Limit
		rate, ceiling, afterwards rate.Limit
	}{
		{"nothing", nil, 45, 100, 70},
		{"a lower rate", []rate.Limit{30}, 30, 30, 30},
		{"a lower ceiling", []rate.Limit{60}, 45, 60, 60},
		{"a higher ceiling", []rate.Limit{500}, 45, 500, 500},
		{"no limit", []rate.Limit{rate.Inf}, 45, rate.Inf, rate.Inf},
		{"a rate below Min", []rate.Limit{3}, 3, 3, 3},
		{"a rate below Min, and up again", []rate.Limit{3, 80}, 10, 80, 80},
		{"a lower rate, and up again", []rate.Limit{30, 80}, 30, 80, 80},
		{"the same", []rate.Limit{45}, 45, 100, 70},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, shaper.Limits{Rate: 70}, adapt.Config{Min: 10, Max: 100, Start: 50}, func(r rig) {
				r.a.Observe(adapt.Refused, 0)
				require.Equal(r, 45.0, r.rate())
				for _, set := range tt.set {
					require.NoError(r, r.s.UpdateLimits(func(l shaper.Limits) shaper.Limits { l.Rate = set; return l }))
					require.Equal(r, set, r.s.Limits().Rate, "it is in force at once")
					time.Sleep(time.Millisecond)
					r.a.Observe(adapt.OK, 0)
				}
				require.Equal(r, tt.rate, r.s.Limits().Rate)
				require.Equal(r, tt.rate, r.a.Stats().Rate)
				require.Equal(r, tt.ceiling, r.a.Stats().Max)
				require.Equal(r, shaper.Limits{Rate: tt.ceiling, Depth: 10_000}, r.a.Limits())
				require.Equal(r, min(10, tt.ceiling), r.a.Stats().Min)
				r.fill(4_000)
				for range 13_000 { // It never goes beyond.
					time.Sleep(ms)
					r.a.Observe(adapt.OK, 0)
					require.LessOrEqual(r, r.s.Limits().Rate, tt.ceiling)
				}
				if tt.ceiling < rate.Inf {
					require.Equal(r, tt.ceiling, r.s.Limits().Rate)
				}
				r.a.Close()
				require.Equal(r, tt.afterwards, r.s.Limits().Rate)
			})
		})
	}
}

// Promise 6. Each of the other fields is changed while answers lower and raise the rate.
func TestAllOtherLimitsStayTheOperators(t *testing.T) {
	inBubble(t, shaper.Limits{Rate: 100, InFlight: 7}, adapt.Config{Start: 100}, func(r rig) {
		for i, o := range []adapt.Outcome{adapt.Refused, adapt.OK, adapt.Failed, adapt.Refused, adapt.OK} {
			want := shaper.Limits{Burst: i + 2, Depth: 3 * i, MaxWait: time.Duration(i) * time.Hour, Slack: time.Duration(i) * ms, InFlight: i + 1}
			want.Rate = r.s.Limits().Rate
			require.NoError(r, r.s.SetLimits(want))
			time.Sleep(time.Second)
			r.observe(10, o, ms)
			want.Rate = r.a.Stats().Rate
			require.Equal(r, want, r.s.Limits())
		}
		require.Equal(r, uint64(3), r.a.Stats().Decreases)
		require.Equal(r, rate.Limit(100), r.a.Stats().Max)
	})
}

// The burst that an operator has set may take too long to drain at the rate that an answer would put in force.
func TestARateThatTheLimitsForbidIsNotPutInForce(t *testing.T) {
	inBubble(t, shaper.Limits{Rate: 100}, adapt.Config{Start: 100}, func(r rig) {
		year := 365 * 24 * 3600
		require.NoError(r, r.s.UpdateLimits(func(l shaper.Limits) shaper.Limits { l.Burst = 95 * year; return l }))
		r.a.Observe(adapt.Refused, 0)
		require.Equal(r, 100.0, r.rate())
		require.Zero(r, r.a.Stats().Decreases)
		require.NoError(r, r.s.UpdateLimits(func(l shaper.Limits) shaper.Limits { l.Burst = 1; return l }))
		time.Sleep(time.Nanosecond)
		r.a.Observe(adapt.Refused, 0)
		require.Equal(r, 80.0, r.rate())
	})
}

// Promise 7.
func TestARefusalWithATimeHoldsTheLineAndLowersOnce(t *testing.T) {
	inBubble(t, shaper.Limits{Rate: 100}, adapt.Config{Start: 100}, func(r rig) {
		var refuse atomic.Bool
		refuse.Store(true)
		base := roundTrip(func(*http.Request) (*http.Response, error) {
			time.Sleep(20 * ms)
			if refuse.CompareAndSwap(true, false) {
				return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"2"}}, Body: http.NoBody}, nil
			}
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}, nil
		})
		client := &http.Client{Transport: &shaper.Transport{Limiter: r.s, Base: r.a.RoundTripper(base), Retry: true}}
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				response, err := client.Get("http://upstream.example/")
				if err != nil || response.StatusCode != 200 {
					panic("it was sent again after the hold")
				}
				_ = response.Body.Close()
			})
		}
		time.Sleep(100 * ms)
		require.Equal(r, 90.0, r.rate())
		require.WithinDuration(r, time.Now().Add(1920*ms), r.s.Stats().HeldUntil, 0)
		all.Wait()
		require.Equal(r, 90.0, r.rate())
		require.Equal(r, uint64(1), r.a.Stats().Decreases)
	})
}

// Promise 8.
func TestNewRefusesWhatItCantKeep(t *testing.T) {
	nan := rate.Limit(math.NaN())
	bucket := buckettest.NewMemory()
	for _, tt := range []struct {
		l    shaper.Limits
		opts []shaper.Option
		c    adapt.Config
		says string
	}{
		{shaper.Limits{Rate: 10}, []shaper.Option{shaper.WithName("all"), shaper.WithBucket(bucket, "key", shared.Options{})}, adapt.Config{}, `the level of the Shaper "all" is in a Bucket`},
		{shaper.Limits{Rate: 10}, []shaper.Option{shaper.WithName("try"), shaper.WithDryRun()}, adapt.Config{}, `the Shaper "try" runs dry`},
		{shaper.Limits{Rate: rate.Inf}, nil, adapt.Config{Min: 5}, "Config.Max is 0, which means the rate of the Shaper, and that is rate.Inf"},
		{shaper.Limits{Rate: 10}, nil, adapt.Config{Max: rate.Inf}, "Config.Max is rate.Inf"},
		{shaper.Limits{Rate: 10}, nil, adapt.Config{Max: nan}, "Config.Max is NaN"},
		{shaper.Limits{Rate: 10}, nil, adapt.Config{Min: nan}, "Config.Min is NaN"},
		{shaper.Limits{Rate: 10}, nil, adapt.Config{Start: nan}, "Config.Start is NaN"},
		{shaper.Limits{Rate: 10}, nil, adapt.Config{Max: -1}, "Config.Max is -1"},
		{shaper.Limits{Rate: 10}, nil, adapt.Config{Min: -1}, "Config.Min is -1"},
		{shaper.Limits{Rate: 10}, nil, adapt.Config{Start: -2}, "Config.Start is -2"},
		{shaper.Limits{Rate: 10}, nil, adapt.Config{Max: 2e9}, "Config.Max is 2e+09"},
		{shaper.Limits{Rate: 10}, nil, adapt.Config{Min: 11}, "Config.Min is 11, must be at most Max, which is 10"},
		{shaper.Limits{Rate: 10}, nil, adapt.Config{Min: 2, Start: 1}, "Config.Start is 1, must be from Min to Max, which are 2 and 10"},
		{shaper.Limits{Rate: 10}, nil, adapt.Config{Start: 11}, "Config.Start is 11, must be from Min to Max"},
		{shaper.Limits{Rate: 10}, nil, adapt.Config{Slow: -1}, "Config.Slow is -1ns, must not be negative"},
		{shaper.Limits{Rate: 10, Burst: 1e8}, nil, adapt.Config{Min: 1}, "Config.Min is 1: shaper: Limits.Burst is 100000000"},
	} {
		t.Run(tt.says, func(t *testing.T) {
			s, err := shaper.New(tt.l, tt.opts...)
			require.NoError(t, err)
			defer s.Close()
			a, err := adapt.New(s, tt.c)
			require.ErrorContains(t, err, "adapt: ")
			require.ErrorContains(t, err, tt.says)
			require.Nil(t, a)
			require.Equal(t, tt.l, s.Limits())
		})
	}
}

// Of a Shaper with several levels the rate is the first one's, and the others stay as they are.
func TestOfSeveralLevelsTheFirstAdapts(t *testing.T) {
	s, err := shaper.New(shaper.Limits{Rate: 100}, shaper.WithMeters(shaper.Meter{Name: "tokens", Rate: 7, Burst: 9}))
	require.NoError(t, err)
	a, err := adapt.New(s, adapt.Config{Start: 100})
	require.NoError(t, err)
	a.Observe(adapt.Refused, 0)
	require.Equal(t, rate.Limit(90), s.Limits().Rate)
	require.Equal(t, rate.Limit(7), s.Meters()[0].Rate)
}

func TestZeroMeansTheDocumentedDefault(t *testing.T) {
	for _, tt := range []struct {
		l    shaper.Limits
		c    adapt.Config
		want adapt.Stats
	}{
		{shaper.Limits{Rate: 50}, adapt.Config{}, adapt.Stats{Rate: 0.5, Min: 0.5, Max: 50}},
		{shaper.Limits{Rate: 50}, adapt.Config{Max: 200}, adapt.Stats{Rate: 2, Min: 2, Max: 200}},
		{shaper.Limits{Rate: rate.Inf}, adapt.Config{Max: 200, Start: 20}, adapt.Stats{Rate: 20, Min: 2, Max: 200}},
		{shaper.Limits{Rate: 50}, adapt.Config{Min: 5}, adapt.Stats{Rate: 5, Min: 5, Max: 50}},
		{shaper.Limits{Rate: 50}, adapt.Config{Min: 50}, adapt.Stats{Rate: 50, Min: 50, Max: 50}},
	} {
		s, err := shaper.New(tt.l)
		require.NoError(t, err)
		a, err := adapt.New(s, tt.c)
		require.NoError(t, err)
		require.Equal(t, tt.want, a.Stats())
		require.Equal(t, tt.want.Rate, s.Limits().Rate)
		a.Close()
		require.Equal(t, tt.l, s.Limits())
	}
}

func TestAfterCloseNothingChangesTheRate(t *testing.T) {
	inBubble(t, shaper.Limits{Rate: 70}, adapt.Config{Max: 100, Start: 50}, func(r rig) {
		r.a.Close()
		require.Equal(r, rate.Limit(70), r.s.Limits().Rate)
		require.NoError(r, r.s.UpdateLimits(func(l shaper.Limits) shaper.Limits { l.Rate = 30; return l }))
		r.observe(10, adapt.Refused, 0)
		r.a.Close()
		require.Equal(r, rate.Limit(30), r.s.Limits().Rate)
		require.Zero(r, r.a.Stats().Decreases)

		again, err := adapt.New(r.s, adapt.Config{})
		require.NoError(r, err)
		again.Close()
		require.Equal(r, rate.Limit(30), r.s.Limits().Rate)
	})
}

// A rate that was set and that no answer has followed yet is the operator's already.
func TestCloseKeepsARateThatNoAnswerHasFollowed(t *testing.T) {
	inBubble(t, shaper.Limits{Rate: 70}, adapt.Config{}, func(r rig) {
		require.NoError(r, r.s.UpdateLimits(func(l shaper.Limits) shaper.Limits { l.Rate = 30; return l }))
		r.a.Close()
		require.Equal(r, rate.Limit(30), r.s.Limits().Rate)
	})
}

func TestAnUnknownOutcomeChangesNothing(t *testing.T) {
	inBubble(t, shaper.Limits{Rate: 70}, adapt.Config{Start: 70}, func(r rig) {
		r.observe(10, adapt.Failed+1, 0)
		r.observe(10, -1, 0)
		r.observe(4, adapt.Failed, 0)
		require.Equal(r, 70.0, r.rate())
		r.observe(1, adapt.Refused, -time.Hour) // A negative latency is none: it did not leave in the future.
		r.observe(1, adapt.Refused, -time.Hour)
		require.Equal(r, 35.0, r.rate())
	})
}

// Answers, an operator who changes limits, readers and Close, all at once: nothing of the operator is lost.
func TestAnswersAndOperatorsAtOnce(t *testing.T) {
	s, err := shaper.New(shaper.Limits{Rate: 1000, Depth: 1})
	require.NoError(t, err)
	a, err := adapt.New(s, adapt.Config{Start: 1000})
	require.NoError(t, err)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := range 500 {
				a.Observe(adapt.Outcome(n%3), time.Duration(n))
				if st := a.Stats(); st.Rate < st.Min || st.Rate > st.Max || st.Decreases != st.Refused+st.Failed+st.Slow {
					panic(st)
				}
				s.AllowN(i)
			}
		})
	}
	all.Go(func() {
		for n := range 500 {
			err := s.UpdateLimits(func(l shaper.Limits) shaper.Limits {
				l.Depth++
				if n%10 == 0 {
					l.Rate = rate.Limit(500 + n)
				}
				return l
			})
			if err != nil {
				panic(err)
			}
		}
	})
	all.Wait()
	require.Equal(t, 501, s.Limits().Depth)
	a.Observe(adapt.OK, 0)
	require.Equal(t, rate.Limit(990), a.Stats().Max)

	for range 4 {
		all.Go(func() {
			for n := range 500 {
				a.Observe(adapt.Outcome(n%3), 0)
			}
		})
	}
	a.Close()
	all.Wait()
	require.Equal(t, shaper.Limits{Rate: 990, Depth: 501}, s.Limits())
}
