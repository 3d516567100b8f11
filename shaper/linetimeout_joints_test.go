package shaper

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/exact"
)

// Waiters go from line to line within a shard. The bound of a request that has left the line of one key is nothing to the
// request of another key that has its waiter.
func TestABoundOfOneKeyRefusesNoneOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := NewGroup(func(string) (Limits, error) { return Limits{Rate: 1, Depth: 10}, nil }, WithLineTimeout(5*time.Second))
		require.NoError(t, err)
		a, b := "a", ""
		for i := 0; b == "" || g.shardOf(a) != g.shardOf(b); i++ {
			b = fmt.Sprint("b", i)
		}
		for _, key := range []string{a, b} {
			require.NoError(t, g.Wait(t.Context(), key))
			g.Limiter(key).Hold(4 * time.Second)
		}
		waits := func(ctx context.Context, key string) chan error {
			done := make(chan error, 1)
			go func() { done <- g.Wait(ctx, key) }()
			synctest.Wait()
			return done
		}
		ctx, cancel := context.WithCancel(t.Context())
		gone := waits(ctx, a)
		cancel()
		require.ErrorIs(t, <-gone, context.Canceled)
		ofB := waits(t.Context(), b)
		time.Sleep(time.Second)
		ofA := waits(t.Context(), a)
		g.Limiter(a).Hold(10 * time.Second)
		require.ErrorIs(t, <-ofA, ErrTooLate)
		require.NoError(t, <-ofB)
		require.NoError(t, g.Close())
	})
}

// What a long line takes for its bounds goes with it.
func TestBoundsOfALongLineAreForgottenWithIt(t *testing.T) {
	s, err := New(Limits{Rate: 1000, Depth: 5000}, WithLineTimeout(time.Hour))
	require.NoError(t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	for range 5000 {
		r := &request{ctx: context.Background(), cost: 1, deadline: exact.Forever}
		require.NoError(t, s.decideLocked(&s.flow, 0, r).err)
	}
	for range 5000 {
		s.clock += int64(time.Millisecond)
		s.advanceLocked(s.clock, headFirst)
	}
	require.Zero(t, s.waiting)
	require.Nil(t, s.flow.bounds())
}

// A retry in a dry run enters the shadow as a newcomer, with the bound by which it was judged.
func TestARetryInADryRunHasTheBoundOfANewcomer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Limits{Rate: 1, Depth: 10}, WithLineTimeout(2*time.Second), WithDryRun())
		require.NoError(t, err)
		asked := time.Now()
		time.Sleep(5 * time.Second)
		require.True(t, s.Allow())
		_, err = innerOf(s).enter(&waitContext{Context: t.Context(), asked: asked}, 1, reentry)
		require.NoError(t, err)
		require.Equal(t, []uint64{1, 0}, []uint64{uint64(s.Stats().Waiting), s.Stats().TooLate})
		require.NoError(t, s.Close())
	})
}

type roundTrips func(*http.Request) (*http.Response, error)

func (f roundTrips) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// behindMiddleware runs a function as the handler behind a Middleware that reserves 10 units.
func behindMiddleware(l Limiter, r *http.Request, handle func(ctx context.Context), opts ...MiddlewareOption) {
	opts = append(opts, WithReserve(), WithCost(func(*http.Request) int { return 10 }))
	Middleware(l, opts...)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { handle(r.Context()) })).
		ServeHTTP(httptest.NewRecorder(), r)
}

// A refusal that the caller gets is settled as if the request had not been reserved for by a Middleware.
func TestActualSettlesTheRefusalThatIsReturned(t *testing.T) {
	for name, body := range map[string]io.Reader{"the second one": nil, "one whose request can't be sent again": io.MultiReader(strings.NewReader("hello"))} {
		t.Run(name, func(t *testing.T) {
			s, err := New(Limits{Rate: 1e-3, Burst: 100, Depth: 10})
			require.NoError(t, err)
			refuses := roundTrips(func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusTooManyRequests, Body: io.NopCloser(strings.NewReader("no"))}, nil
			})
			transport := Transport{Limiter: s, Retry: true, Base: refuses, Actual: func(*http.Response) func() int { return func() int { return 0 } }}
			behindMiddleware(s, httptest.NewRequest("GET", "/", nil), func(ctx context.Context) {
				r, err := http.NewRequestWithContext(ctx, "POST", "http://upstream.example", body)
				require.NoError(t, err)
				response, err := transport.RoundTrip(r)
				require.NoError(t, err)
				text, err := io.ReadAll(response.Body)
				require.NoError(t, err)
				require.Equal(t, "no", string(text))
				require.NoError(t, response.Body.Close())
			})
			require.InDelta(t, 0, s.Stats().Level, 1e-3)
		})
	}
}

// A Limiter with costs of its own is one Limiter wherever it stands.
func TestATransportSendsWhatMiddlewareHasReservedInOtherUnits(t *testing.T) {
	s, err := New(Limits{Rate: 1e-3, Burst: 100, Depth: 10})
	require.NoError(t, err)
	l := Priced(s, func(n int) int { return 2 * n })
	answers := roundTrips(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})
	behindMiddleware(l, httptest.NewRequest("GET", "/", nil), func(ctx context.Context) {
		for _, limiter := range []Limiter{l, Priced(s, func(n int) int { return n })} { // The second is another one.
			r, err := http.NewRequestWithContext(ctx, "GET", "http://upstream.example", nil)
			require.NoError(t, err)
			_, err = Transport{Limiter: limiter, Base: answers}.RoundTrip(r)
			require.NoError(t, err)
		}
	})
	require.Equal(t, uint64(2), s.Stats().Departed)
	require.InDelta(t, 21, s.Stats().Level, 1e-3)
}

// Whoever says that they wait for two seconds does not wait for thirty because an upstream asks.
func TestARetryKeepsTheBoundOfTheFieldOfItsMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Limits{Rate: 10, Burst: 20, Depth: 10})
		require.NoError(t, err)
		sent := 0
		refuses := roundTrips(func(*http.Request) (*http.Response, error) {
			sent++
			return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"30"}}, Body: http.NoBody}, nil
		})
		in := httptest.NewRequest("GET", "/", nil)
		in.Header.Set("Wait", "2")
		start := time.Now()
		behindMiddleware(s, in, func(ctx context.Context) {
			r, err := http.NewRequestWithContext(ctx, "GET", "http://upstream.example", nil)
			require.NoError(t, err)
			response, err := Transport{Limiter: s, Retry: true, Base: refuses}.RoundTrip(r)
			require.NoError(t, err)
			require.Equal(t, http.StatusTooManyRequests, response.StatusCode)
		}, WithWaitField("Wait"))
		require.Equal(t, []any{1, 0 * time.Second}, []any{sent, time.Since(start)})
		require.NoError(t, s.Close())
	})
}

// A ticker that is late makes nobody late: whoever would have left between the bound of the one ahead and their own has a slot.
func TestALateTickerRefusesOnlyWhoWouldHaveBeenLate(t *testing.T) {
	s, err := New(Limits{Rate: 10, Burst: 5, Depth: 9}, WithLineTimeout(400*time.Millisecond))
	require.NoError(t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	enter := func(n int64, now time.Duration) *waiter {
		dec := s.decideLocked(&s.flow, int64(now), &request{ctx: context.Background(), cost: n, deadline: exact.Forever})
		require.NoError(t, dec.err)
		return dec.waiter
	}
	enter(2, 0)
	dear := enter(5, 0) // It needs an empty bucket.
	const changed = 100 * time.Millisecond
	cheap := enter(1, changed)
	s.changeLocked(&s.flow, s.planOf(Limits{Rate: 1, Burst: 5, Depth: 9}), int64(changed))
	now := int64(600 * time.Millisecond) // Dear's bound came at 400 ms, cheap's at 500 ms.
	s.clock = now
	s.markDirtyLocked(&s.flow)
	s.advanceLocked(now, headFirst)
	require.Equal(t, []state{overdue, departed}, []state{dear.state, cheap.state})
}
