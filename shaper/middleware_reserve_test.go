package shaper_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// onlyReserves is a Limiter of another type.
type onlyReserves struct{ s *shaper.Shaper }

func (o onlyReserves) WaitN(ctx context.Context, n int) error { return o.s.WaitN(ctx, n) }
func (o onlyReserves) Reserve(ctx context.Context, n int) (func(int), error) {
	return o.s.Reserve(ctx, n)
}

type derivedKey struct{}

// serveReserved lets a request of estimate 10 through a Middleware to a handler.
func serveReserved(handle func(w http.ResponseWriter, r *http.Request), middlewares ...func(http.Handler) http.Handler) *httptest.ResponseRecorder {
	var h http.Handler = http.HandlerFunc(handle)
	for _, m := range middlewares {
		h = m(h)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("POST", "/", nil))
	return w
}

// Whatever the Limiter is, its level is what it would be if the request had come with the cost that Settle says.
func TestAHandlerSettlesWhatMiddlewareHasReserved(t *testing.T) {
	l := shaper.Limits{Rate: 1, Burst: 20, Depth: 9}
	ten := shaper.WithCost(func(*http.Request) int { return 10 })
	for _, limiter := range []struct {
		name  string
		make  func(s *shaper.Shaper) shaper.Limiter
		level float64 // after a settle with 3
		ok    bool
	}{
		{"a Shaper", func(s *shaper.Shaper) shaper.Limiter { return s }, 3, true},
		{"a Chain", func(s *shaper.Shaper) shaper.Limiter {
			return shaper.Chain(must(shaper.New(l)), s)
		}, 3, true},
		{"a cost in other units", func(s *shaper.Shaper) shaper.Limiter {
			return shaper.Priced(s, func(n int) int { return 2 * n })
		}, 6, true},
		{"another type that reserves", func(s *shaper.Shaper) shaper.Limiter { return onlyReserves{s} }, 3, true},
		{"another type that does not", func(s *shaper.Shaper) shaper.Limiter {
			return struct{ shaper.Limiter }{s}
		}, 10, false},
	} {
		t.Run(limiter.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := must(shaper.New(l))
				m := shaper.Middleware(limiter.make(s), ten, shaper.WithReserve())
				var kept *http.Request
				serveReserved(func(_ http.ResponseWriter, r *http.Request) {
					kept = r.WithContext(context.WithValue(r.Context(), derivedKey{}, 1)) // One derived from it.
					require.Equal(t, limiter.ok, shaper.Settle(kept, 3))
					require.InDelta(t, limiter.level, s.Stats().Level, 1e-9, "at once")
					require.False(t, shaper.Settle(r, 1), "a second time")
				}, m)
				require.False(t, shaper.Settle(kept, 1), "after the handler has returned")
				require.InDelta(t, limiter.level, s.Stats().Level, 1e-9)
			})
		})
	}
}

func TestWhatIsNotSettledStandsAsItWasReserved(t *testing.T) {
	l := shaper.Limits{Rate: 1, Burst: 20, Depth: 9}
	cost := func(n int) shaper.MiddlewareOption { return shaper.WithCost(func(*http.Request) int { return n }) }
	for _, c := range []struct {
		name    string
		options []shaper.MiddlewareOption
		settle  func(r *http.Request) bool
		level   float64
	}{
		{"nobody settles", []shaper.MiddlewareOption{cost(10), shaper.WithReserve()}, func(*http.Request) bool { return true }, 10},
		{"the cost is unknown", []shaper.MiddlewareOption{cost(10), shaper.WithReserve()}, func(r *http.Request) bool { return shaper.Settle(r, -1) }, 10},
		{"it is not reserved", []shaper.MiddlewareOption{cost(10)}, func(r *http.Request) bool { return !shaper.Settle(r, 1) }, 10},
		{"it costs nothing", []shaper.MiddlewareOption{cost(0), shaper.WithReserve()}, func(r *http.Request) bool { return !shaper.Settle(r, 1) }, 0},
		{"it costs more", []shaper.MiddlewareOption{cost(10), shaper.WithReserve()}, func(r *http.Request) bool { return shaper.Settle(r, 15) }, 15},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := must(shaper.New(l))
				serveReserved(func(_ http.ResponseWriter, r *http.Request) { require.True(t, c.settle(r)) }, shaper.Middleware(s, c.options...))
				require.InDelta(t, c.level, s.Stats().Level, 1e-9)
				require.Zero(t, s.Stats().Reserved)
			})
		})
	}
}

// Of nested Middlewares all are settled, among them one with a bucket for each key, and one with keys that share a rate.
func TestNestedMiddlewaresAreAllSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := shaper.Limits{Rate: 1, Burst: 20, Depth: 9, InFlight: 3}
		reserve := []shaper.MiddlewareOption{shaper.WithReserve(), shaper.WithCost(func(*http.Request) int { return 10 })}
		key := func(*http.Request) (string, error) { return "k", nil }
		group := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return l, nil }))
		fair := must(shaper.New(l, shaper.WithFairQueue(func(string) int { return 1 })))
		serveReserved(func(_ http.ResponseWriter, r *http.Request) {
			require.True(t, shaper.Settle(r, 4))
			require.Equal(t, 1, fair.Stats().InFlight, "the seat stays")
		}, group.Middleware(key, reserve...), shaper.Middleware(fair, append(reserve, shaper.WithKey(key))...))
		st, _ := group.StatsOf("k")
		require.Equal(t, []any{4., 0, 4., 0}, []any{st.Level, st.InFlight, fair.Stats().Level, fair.Stats().InFlight})
	})
}

// A Transport behind a Middleware with the same Limiter sends the request that was let in, and does not let it wait
// twice. A second attempt takes the place of the first.
func TestATransportSendsWhatMiddlewareHasReserved(t *testing.T) {
	for _, c := range []struct {
		name     string
		refusals int // of the upstream, before it answers
		retry    bool
		want     string
	}{
		{"it is answered", 0, true, "0s 200: left 1, level 4"},
		{"it is refused, and sent again", 1, true, "2s 200: left 2, level 4"},
		{"it is refused twice", 2, true, "2s 429: left 2, level 4"},
		{"it is refused, and not sent again", 1, false, "0s 429: left 1, level 4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := must(shaper.New(shaper.Limits{Rate: 1, Burst: 20, Depth: 9, InFlight: 1}))
				sent := 0
				upstream := roundTripper(func(*http.Request) (*http.Response, error) {
					if sent++; sent > c.refusals {
						return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
					}
					return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"2"}}, Body: http.NoBody}, nil
				})
				transport := shaper.Transport{Limiter: s, Base: upstream, Retry: c.retry}
				start := time.Now()
				w := serveReserved(func(w http.ResponseWriter, r *http.Request) {
					out, err := http.NewRequestWithContext(r.Context(), "GET", "http://upstream.example", nil)
					require.NoError(t, err)
					response, err := transport.RoundTrip(out)
					require.NoError(t, err)
					require.True(t, shaper.Settle(r, 4))
					w.WriteHeader(response.StatusCode)
				}, shaper.Middleware(s, shaper.WithReserve(), shaper.WithCost(func(*http.Request) int { return 10 })))
				st := s.Stats()
				require.Equal(t, c.want, fmt.Sprintf("%v %d: left %d, level %v", time.Since(start), w.Code, st.Departed, st.Level))
				require.Zero(t, st.InFlight)
				require.Zero(t, st.Reserved)
			})
		})
	}
}

// With a Hijack the request is in flight no more, but its cost may be settled until the handler returns.
func TestAHijackedRequestMayStillBeSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := must(shaper.New(shaper.Limits{Rate: 1, Burst: 20, Depth: 9, InFlight: 1}))
		shaper.Middleware(s, shaper.WithReserve(), shaper.WithCost(func(*http.Request) int { return 10 }))(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				require.Equal(t, 1, s.Stats().InFlight)
				_, _, err := http.NewResponseController(w).Hijack()
				require.NoError(t, err)
				require.Equal(t, 0, s.Stats().InFlight)
				require.True(t, shaper.Settle(r, 3))
			})).ServeHTTP(hijackable(nil), httptest.NewRequest("POST", "/", nil))
		require.InDelta(t, 3, s.Stats().Level, 1e-9)
	})
}
