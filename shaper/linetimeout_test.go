package shaper_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// The timelines of WithLineTimeout. The model plays it against many more (TestBoundedModel).

func TestNoWaitIsLongerThanItsBound(t *testing.T) {
	second := shaper.WithLineTimeout(time.Second)
	slower := func(g *stage, limits string) { require.NoError(g.t, g.SetLimits(must(shaper.ParseLimits(limits)))) }
	for _, test := range []struct {
		name, limits string
		options      []shaper.Option
		timeline     func(g *stage)
		want         []string
	}{
		{"a rate that falls", "10/s depth 9", []shaper.Option{second}, func(g *stage) {
			g.arriveAll("a", "b", "c")
			g.at(50 * ms)
			slower(g, "0.1/s depth 9")
			g.at(time.Minute)
			// The half unit that is left at 50 ms takes 5 s.
		}, []string{"0s a left", "1s b late, retry 4.05s", "1s c late, retry 4.05s"}},
		{"MaxWait, where no other time is given", "10/s depth 9 wait 300ms", []shaper.Option{shaper.WithLineTimeout(0)}, func(g *stage) {
			g.arriveAll("a", "b", "c")
			g.at(50 * ms)
			slower(g, "0.1/s depth 9")
			g.at(60 * ms)
			g.arriveAll("d") // No MaxWait is in force, so it has no bound.
			g.at(20 * time.Second)
		}, []string{"0s a left", "300ms b late, retry 4.75s", "300ms c late, retry 4.75s", "5.05s d left"}},
		{"a slot at the bound is in time", "1/s depth 9", []shaper.Option{second}, func(g *stage) {
			g.arriveAll("a", "b", "c")
			g.at(time.Minute)
		}, []string{"0s a left", "0s c late, retry 1s", "1s b left"}},
		{"a hold that ends after the bound refuses at once, and one that ends at it does not", "10/s depth 9", []shaper.Option{second}, func(g *stage) {
			g.arriveAll("a", "b")
			g.at(50 * ms)
			g.arriveAll("c")
			g.Hold(950 * ms)
			g.at(90 * ms)
			g.Hold(910*ms + 1)
			g.at(95 * ms)
			g.Hold(0) // It brings nobody back.
			g.at(time.Minute)
		}, []string{"0s a left", "90ms b late, retry 910.000001ms", "100ms c left"}},
		{"a hold of a snapshot", "10/s depth 9", []shaper.Option{second}, func(g *stage) {
			g.arriveAll("a", "b")
			require.NoError(g.t, g.Restore([]byte(`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z","held_ns":60000000000}`)))
			g.at(time.Minute)
		}, []string{"0s a left", "0s b late, retry 1m0s"}},
		{"a request without a bound that stands where one with a bound has stood", "1/s depth 9 wait 5s", []shaper.Option{shaper.WithLineTimeout(0)}, func(g *stage) {
			g.arriveAll("a", "b", "c")
			g.cancel("c")
			slower(g, "1/s depth 9")
			g.arriveAll("d") // In the same instant, and by the waiter of c.
			slower(g, "1/h depth 9")
			g.at(2 * time.Hour)
		}, []string{"0s a left", "0s c cancelled", "5s b late, retry 59m55s", "1h0m0s d left"}},
		{"a seat that does not come", "1/s depth 9 inflight 1", []shaper.Option{second}, func(g *stage) {
			g.acquire("a", 1)
			g.at(9 * time.Second)
			g.release("a") // From now on a seat is expected in 9 s.
			g.acquire("b", 1)
			g.acquire("c", 1)
			g.at(time.Minute)
		}, []string{"0s a left", "9s b left", "10s c late, retry 9s"}},
		{"a place that a bound frees is there for who comes at that instant", "1/min depth 1", []shaper.Option{second}, func(g *stage) {
			g.arriveAll("a")
			slower(g, "1/s depth 1")
			g.arriveAll("b")
			slower(g, "1/min depth 1 wait 1d")
			g.arriveAll("c")
			g.at(time.Second)
			slower(g, "1/s depth 1")
			g.arriveAll("d")
			g.at(time.Minute)
		}, []string{"0s a left", "0s c full, retry 1m59s", "1s b late, retry 59s", "1.983333334s d left"}},
		{"a shutdown", "1/s depth 9 inflight 1", []shaper.Option{second}, func(g *stage) {
			g.acquire("a", 1)
			g.acquire("b", 1)
			g.calls("shutdown", func() error { return g.Shutdown(context.Background()) })
			g.at(time.Minute)
		}, []string{"0s a left", "1s b late, retry 1ms", "1s shutdown left"}},
		{"keys that share a rate, whoever's turn it is", "1/s depth 9", []shaper.Option{second, shaper.WithFairQueue(func(string) int { return 1 })}, func(g *stage) {
			g.arriveAll("a", "b")
			slower(g, "1/min depth 9 wait 1d")
			g.at(500 * ms)
			slower(g, "10/s depth 9")
			g.calls("k", func() error { return g.For("k").Wait(context.Background()) })
			slower(g, "1/min depth 9")
			g.at(time.Minute)
		}, []string{"0s a left", "1s b late, retry 1m58s", "1.5s k late, retry 58.5s"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			play(t, test.limits, func(g *stage) {
				test.timeline(g)
				g.saw(test.want...)
			}, test.options...)
		})
	}
}

// must returns a value that a test knows to be valid.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestALineTimeoutOutOfRangeMakesNoShaper(t *testing.T) {
	for _, d := range []time.Duration{-1, 365*24*time.Hour + 1} {
		want := fmt.Sprintf("WithLineTimeout is %v, must be from 0 to 365 days", d)
		_, err := shaper.New(shaper.Limits{Rate: 1}, shaper.WithLineTimeout(d))
		require.EqualError(t, err, "shaper: New: "+want)
		_, err = shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 1}, nil }, shaper.WithLineTimeout(d))
		require.EqualError(t, err, "shaper: NewGroup: "+want)
	}
}

// A caller can tell it from one that has not waited, and is told when to come back.
func TestWhoHasWaitedTooLongIsAnsweredSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := must(shaper.New(shaper.Limits{Rate: 1, Depth: 9}, shaper.WithLineTimeout(1500*ms)))
		require.NoError(t, s.Wait(context.Background()))
		w := httptest.NewRecorder()
		go shaper.Middleware(s)(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		synctest.Wait()
		s.Hold(2200 * ms)
		synctest.Wait()
		require.Equal(t, []string{"429", "3"}, []string{strconv.Itoa(w.Code), w.Header().Get("Retry-After")})
		require.Contains(t, w.Body.String(), `"The request has waited too long."`)
	})
}

// It is counted, and told to the hook, as any refusal is, of a key, too.
func TestARequestThatHasWaitedTooLongIsCountedAndTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []string
		hooks := shaper.WithTrace(&shaper.Trace{Refused: func(_ context.Context, e shaper.Event) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprint(e.Key, " ", e.Waited, " ", e.Waiting, " ", e.Err))
		}})
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 1, Depth: 9}, nil },
			hooks, shaper.WithLineTimeout(1500*ms))
		require.NoError(t, err)
		require.NoError(t, g.Wait(context.Background(), "k"))
		time.Sleep(500 * ms)
		for range 2 { // The second is predicted to leave at its bound.
			go func() { _ = g.Wait(context.Background(), "k") }()
		}
		synctest.Wait()
		time.Sleep(100 * ms)
		g.Limiter("k").Hold(time.Minute)
		synctest.Wait()
		require.ElementsMatch(t, []string{ // They wake in any order.
			"k 100ms 1 shaper: would leave too late: the request has waited too long (retry after 1m0s)",
			"k 100ms 0 shaper: would leave too late: the request has waited too long (retry after 1m0s)",
		}, told)
		st, _ := g.StatsOf("k")
		require.Equal(t, []uint64{2, 2, 1}, []uint64{st.TooLate, st.Refused, st.Departed})
		var refusals []string
		for _, r := range g.Refusals() {
			refusals = append(refusals, fmt.Sprint(r.Key, " ", r.Reason, " ", r.RetryAfter))
		}
		require.Equal(t, []string{"k shaper: would leave too late 1m0s", "k shaper: would leave too late 1m0s"}, refusals)
	})
}

// An upstream that refuses all for hours would else keep whoever is in line from asking anybody else. The
// bound of a retry counts from when its request first asked.
func TestARetryHasTheBoundOfItsFirstTry(t *testing.T) {
	for _, test := range []struct {
		name  string
		after string // what the upstream asks for
		want  string
	}{
		{"a hold that ends in time", "2", "2s 200"},
		{"a hold that ends at the bound", "3", "3s 200"},
		{"a hold that ends after it", "4", "500ms 429"},
	} {
		bubble(t, test.name, func(t *testing.T) {
			s := must(shaper.New(shaper.Limits{Rate: 10, Depth: 9}, shaper.WithLineTimeout(3500*ms)))
			start, sent := time.Now(), 0
			upstream := roundTripper(func(*http.Request) (*http.Response, error) {
				sent++
				if sent > 1 {
					return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
				}
				time.Sleep(500 * ms) // So the hold begins 3 s before the bound.
				return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {test.after}}, Body: http.NoBody}, nil
			})
			client := &http.Client{Transport: shaper.Transport{Limiter: s, Base: upstream, Retry: true}}
			response, err := client.Get("http://upstream.example")
			require.NoError(t, err)
			took := time.Since(start)
			if response.StatusCode == http.StatusOK {
				took -= 500 * ms
			}
			require.Equal(t, test.want, fmt.Sprint(took, " ", response.StatusCode))
		})
	}
}

// The wait in front of the first attempt counts, too, if it was a Middleware that has let that in.
func TestARetryOfAReservedRequestHasTheBoundOfItsMiddleware(t *testing.T) {
	for after, want := range map[string]string{"2": "3s 200", "3": "1s 429"} {
		synctest.Test(t, func(t *testing.T) {
			s := must(shaper.New(shaper.Limits{Rate: 1, Depth: 9}, shaper.WithLineTimeout(3*time.Second)))
			require.NoError(t, s.Wait(context.Background()))
			start, sent := time.Now(), 0
			transport := shaper.Transport{Limiter: s, Retry: true, Base: roundTripper(func(*http.Request) (*http.Response, error) {
				if sent++; sent > 1 {
					return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
				}
				return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {after}}, Body: http.NoBody}, nil
			})}
			handler := shaper.Middleware(s, shaper.WithReserve())(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				out, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://upstream.example", nil)
				if err == nil {
					var response *http.Response
					if response, err = transport.RoundTrip(out); err == nil {
						w.WriteHeader(response.StatusCode)
					}
				}
				if err != nil {
					t.Error(err)
				}
			}))
			w := httptest.NewRecorder() // The request waits for a second before it is sent.
			handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			require.Equal(t, want, fmt.Sprint(time.Since(start), " ", w.Code))
			require.NoError(t, s.Close())
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A client may shorten its own wait. Whatever is no time counts as none.
func TestARequestMaySayHowLongItWaits(t *testing.T) {
	for field, want := range map[string]string{
		"":       "2s 200", // There is no field.
		"2":      "2s 200",
		"1.5":    "1s 429 1", // It has waited in the first line.
		"1500ms": "1s 429 1",
		"0":      "0s 429 1",
		"2min":   "2s 200",
		"-1":     "2s 200", "1e3": "2s 200", "soon": "2s 200", "1,2": "2s 200", "0.0000000001": "2s 200", ".": "2s 200",
		"1 s": "2s 200", "9999999999999999": "2s 200",
		"0 and 0": "2s 200", // twice
	} {
		bubble(t, field, func(t *testing.T) {
			first := must(shaper.New(shaper.Limits{Rate: 1, Depth: 9}))
			second := must(shaper.New(shaper.Limits{Rate: 0.5, Depth: 9}))
			// The waits of both lines count.
			handler := shaper.Middleware(shaper.Chain(first, second), shaper.WithWaitField("X-Wait"))(http.NotFoundHandler())
			start := time.Now()
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
			r := httptest.NewRequest("GET", "/", nil)
			if field != "" {
				r.Header["X-Wait"] = strings.Split(field, " and ")
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			got := fmt.Sprint(time.Since(start), " ", strings.Replace(strconv.Itoa(w.Code), "404", "200", 1), " ", w.Header().Get("Retry-After"))
			require.Equal(t, want, strings.TrimSpace(got))
		})
	}
}

// The shadow of a dry run loses a request at its bound. The Verdict was given before.
func TestAShadowLeavesTheLineAtItsBound(t *testing.T) {
	play(t, "10/s depth 9", func(g *stage) {
		g.arriveAll("a", "b")
		g.saw("0s a left", "0s b left")
		g.Hold(time.Minute)
		st := g.Stats()
		require.Equal(t, []uint64{1, 1, 0}, []uint64{st.Departed, st.TooLate, uint64(st.Waiting)})
		v, _ := shaper.VerdictOf(func() context.Context {
			ctx := shaper.ContextWithVerdict(context.Background())
			require.NoError(t, g.Wait(ctx))
			return ctx
		}())
		require.ErrorIs(t, v.Err, shaper.ErrTooLate)
		require.NoError(t, g.Close())
	}, shaper.WithDryRun(), shaper.WithLineTimeout(time.Second))
}
