package shaper_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// levelsOf returns the levels of a Shaper with meters.
func levelsOf(s *shaper.Shaper) (levels []float64) {
	levels = append(levels, s.Stats().Level)
	for _, m := range s.Meters() {
		levels = append(levels, m.Level)
	}
	return levels
}

func newMetered(t *testing.T) *shaper.Shaper {
	s, err := shaper.New(shaper.Limits{Rate: 1, Burst: 10, Depth: 9}, shaper.WithFairQueue(nil), shaper.WithMeters(
		shaper.Meter{Name: "in", Rate: 1, Burst: 100}, shaper.Meter{Name: "out", Rate: 1, Burst: 100, Returns: true}))
	require.NoError(t, err)
	return s
}

// A request that a Middleware has let in settles at each level; what it does not say stands.
func TestAMiddlewareReservesAtEachLevel(t *testing.T) {
	for _, tt := range []struct {
		actual []int
		want   []float64
	}{
		{[]int{1, 30, 50}, []float64{1, 30, 50}},
		{[]int{1, -1, 5}, []float64{1, 40, 5}},
		{[]int{0}, []float64{0, 40, 20}},
		{nil, []float64{1, 40, 20}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newMetered(t)
			h := shaper.Middleware(s, shaper.WithKey(func(*http.Request) (string, error) { return "k", nil }),
				shaper.WithCosts(func(*http.Request) []int { return []int{1, 40, 20} }))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				require.Equal(t, []float64{1, 40, 20}, levelsOf(s))
				require.True(t, shaper.Settle(r, tt.actual...))
				require.False(t, shaper.Settle(r, 0, 0, 0))
			}))
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/", nil))
			require.Equal(t, tt.want, levelsOf(s), tt.actual)
		})
	}
}

// A Transport reserves at each level, and settles with each response: what a refusal has reserved comes back before its request
// waits again.
func TestATransportReservesAtEachLevel(t *testing.T) {
	for _, behind := range []bool{false, true} { // a Middleware that has reserved for it
		synctest.Test(t, func(t *testing.T) {
			s := newMetered(t)
			attempts, begun := 0, time.Now()
			transport := &shaper.Transport{
				Limiter: s, Retry: true, Key: func(*http.Request) (string, error) { return "k", nil },
				Base: roundTripFunc(func(r *http.Request) (*http.Response, error) {
					attempts++
					require.Equal(t, []float64{1, 40, 20}, levelsOf(s))
					if attempts == 1 {
						return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"50"}}, Body: http.NoBody, Request: r}, nil
					}
					return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
				}),
				Each: func(*http.Request) ([]int, func(*http.Response) func() []int, error) {
					return []int{1, 40, 20}, func(response *http.Response) func() []int {
						return func() []int {
							if response.StatusCode == 429 {
								return []int{0, 0, 0}
							}
							return []int{1, 30, 50}
						}
					}, nil
				},
			}
			send := func(_ http.ResponseWriter, r *http.Request) {
				out := must(http.NewRequestWithContext(r.Context(), "GET", "http://api", nil))
				response, err := transport.RoundTrip(out)
				require.NoError(t, err)
				require.Equal(t, 200, response.StatusCode)
			}
			h := http.Handler(http.HandlerFunc(send))
			if behind {
				h = shaper.Middleware(s, shaper.WithKey(transport.Key), shaper.WithCosts(func(*http.Request) []int { return []int{1, 40, 20} }))(h)
			}
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/", nil))
			require.Equal(t, 2, attempts)
			require.Equal(t, 50*time.Second, time.Since(begun))
			require.Equal(t, []float64{1, 30, 50}, levelsOf(s))
		})
	}
}

// Costs that are no costs send nothing.
func TestATransportSendsNothingWithoutItsCosts(t *testing.T) {
	wrong := errors.New("the body can't be read")
	for _, tt := range []struct {
		costs []int
		err   error
		said  string
	}{
		{nil, wrong, wrong.Error()},
		{[]int{0, -1, 0}, nil, shaper.ErrNegativeCost.Error()},
		{[]int{1, 2}, nil, "2 costs"},
	} {
		synctest.Test(t, func(t *testing.T) {
			transport := &shaper.Transport{
				Limiter: newMetered(t),
				Base:    roundTripFunc(func(*http.Request) (*http.Response, error) { panic("it is sent") }),
				Each: func(*http.Request) ([]int, func(*http.Response) func() []int, error) {
					return tt.costs, func(*http.Response) func() []int { return nil }, tt.err
				},
			}
			_, err := transport.RoundTrip(httptest.NewRequest("GET", "http://api", nil))
			require.ErrorContains(t, err, tt.said)
			if tt.said == shaper.ErrNegativeCost.Error() { // Whatever other Limiters make of it.
				transport.Limiter = rate.NewLimiter(1, 1)
				_, err = transport.RoundTrip(httptest.NewRequest("GET", "http://api", nil))
				require.Equal(t, shaper.ErrNegativeCost, err)
			}
		})
	}
}

// Without a function for the actual costs the estimates stand, each at its level, and one of 0 is sent at once.
func TestATransportWithoutActualCostsSpendsItsEstimates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, costs := newMetered(t), []int{1, 40, 20}
		transport := &shaper.Transport{
			Limiter: s,
			Base: roundTripFunc(func(r *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
			}),
			Each: func(*http.Request) ([]int, func(*http.Response) func() []int, error) { return costs, nil, nil },
		}
		_, err := transport.RoundTrip(httptest.NewRequest("GET", "http://api", nil))
		require.NoError(t, err)
		require.Equal(t, []float64{1, 40, 20}, levelsOf(s))

		require.NoError(t, s.Close())
		costs = []int{0, 0, 0}
		_, err = transport.RoundTrip(httptest.NewRequest("GET", "http://api", nil))
		require.NoError(t, err)
	})
}

// Of several options for the costs the last one counts, whole.
func TestTheLastOptionForCostsCounts(t *testing.T) {
	one, each := shaper.WithCost(func(*http.Request) int { return 3 }), shaper.WithCosts(func(*http.Request) []int { return []int{1, 40, 20} })
	for _, tt := range []struct {
		opts []shaper.MiddlewareOption
		want []float64
	}{
		{[]shaper.MiddlewareOption{one, each}, []float64{1, 40, 20}},
		{[]shaper.MiddlewareOption{each, one}, []float64{3, 0, 0}},
		{[]shaper.MiddlewareOption{each, shaper.WithCosts(nil)}, []float64{1, 0, 0}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newMetered(t)
			shaper.Middleware(s, tt.opts...)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).
				ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/", nil))
			require.Equal(t, tt.want, levelsOf(s))
		})
	}
}
