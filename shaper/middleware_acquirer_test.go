package shaper_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// semaphore is a foreign Limiter. It does not look at the context, and counts its
// releases, each of which takes effect.
type semaphore struct {
	limiterFunc
	acquire  func() // is called by Acquire, if there is one
	released atomic.Int64
}

func (s *semaphore) Acquire(context.Context, int) (release func(), err error) {
	if s.acquire != nil {
		s.acquire()
	}
	return func() { s.released.Add(1) }, nil
}

func TestAnotherLimitersSeatIsReleasedOnceToo(t *testing.T) {
	l := &semaphore{limiterFunc: failing(errors.New("not to be called"))}
	r := httptest.NewRequest("GET", "/", nil)

	t.Run("handler returns", func(t *testing.T) {
		shaper.Middleware(l)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			require.EqualValues(t, 0, l.released.Load())
		})).ServeHTTP(httptest.NewRecorder(), r)
		require.EqualValues(t, 1, l.released.Swap(0))
	})
	t.Run("handler hijacks", func(t *testing.T) {
		shaper.Middleware(l)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for range 2 { // As far as this ResponseWriter goes.
				_, _, err := asserted(w)
				require.NoError(t, err)
				require.EqualValues(t, 1, l.released.Load())
			}
		})).ServeHTTP(struct {
			http.ResponseWriter
			http.Hijacker
		}{httptest.NewRecorder(), hijackerFunc(func() error { return nil })}, r)
		require.EqualValues(t, 1, l.released.Swap(0))
	})
	t.Run("client has gone", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l.acquire = cancel
		rec := httptest.NewRecorder()
		shaper.Middleware(l)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			t.Error("the handler runs")
		})).ServeHTTP(rec, r.WithContext(ctx))
		require.Equal(t, 499, rec.Code)
		require.EqualValues(t, 1, l.released.Swap(0))
	})
}

// Acquire may return a nil release if there is nothing to give back.
func TestMiddlewareBearsANilRelease(t *testing.T) {
	ran := false
	shaper.Middleware(noRelease{failing(nil)})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		ran = true
		_, _, err := asserted(w)
		require.NoError(t, err)
	})).ServeHTTP(struct {
		http.ResponseWriter
		http.Hijacker
	}{httptest.NewRecorder(), hijackerFunc(func() error { return nil })}, httptest.NewRequest("GET", "/", nil))
	require.True(t, ran)
}

// noRelease is a Limiter that does not need to know when a request ends.
type noRelease struct{ limiterFunc }

func (noRelease) Acquire(context.Context, int) (release func(), err error) { return nil, nil }

// ownWait embeds a Shaper, and has a WaitN of its own.
type ownWait struct {
	*shaper.Shaper
	asked *int
}

func (o ownWait) WaitN(ctx context.Context, n int) error {
	*o.asked++
	return o.Shaper.WaitN(ctx, n)
}

func TestWithoutACapNothingIsWrapped(t *testing.T) {
	s, err := shaper.New(shaper.Limits{Rate: rate.Inf})
	require.NoError(t, err)
	asked := 0
	for name, l := range map[string]shaper.Limiter{
		"Shaper": s, "x/time": rate.NewLimiter(rate.Inf, 1), "Shaper inside": ownWait{s, &asked},
	} {
		t.Run(name, func(t *testing.T) {
			type same struct {
				http.ResponseWriter
				http.Hijacker
			}
			given := &same{httptest.NewRecorder(), hijackerFunc(func() error { return nil })}
			ran := false
			shaper.Middleware(l)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				ran = true
				require.Same(t, given, w)
			})).ServeHTTP(given, httptest.NewRequest("GET", "/", nil))
			require.True(t, ran)
		})
	}
	require.Equal(t, 1, asked, "calls of the WaitN that is about the Shaper's")
}
