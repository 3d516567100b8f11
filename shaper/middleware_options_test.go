package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

func TestErrorHandlerDecidesWhatIsAnswered(t *testing.T) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	down := errors.New("engine is down")
	for _, row := range []struct {
		name string
		ctx  context.Context
		err  error
		want string
	}{
		{"unknown error", t.Context(), down, "418"},
		{"nobody is there to be answered", gone, down, "499, close"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var got []error
			h := shaper.Middleware(failing(row.err), shaper.WithErrorHandler(
				func(w http.ResponseWriter, r *http.Request, err error) {
					got = append(got, err)
					w.WriteHeader(http.StatusTeapot)
				}))(http.NotFoundHandler())
			require.Equal(t, row.want, statusLine(answerOf(h, row.ctx, "")))
			if row.ctx == gone {
				require.Empty(t, got)
			} else {
				require.Equal(t, []error{down}, got)
			}
		})
	}
}

// An error handler may ignore context.Canceled, because no client reads the answer. So it
// must not get that error for a client that still waits.
func TestErrorHandlerNeverTakesAWaitingClientForGone(t *testing.T) {
	var got error
	h := shaper.Middleware(failing(fmt.Errorf("engine: %w", context.Canceled)), shaper.WithErrorHandler(
		func(_ http.ResponseWriter, _ *http.Request, err error) { got = err }))(http.NotFoundHandler())
	answerOf(h, t.Context(), "")
	require.NotErrorIs(t, got, context.Canceled)
	require.ErrorContains(t, got, "engine: context canceled")
}

func TestNilOptionsMeanTheDefaults(t *testing.T) {
	var asked []int
	l := limiterFunc(func(_ context.Context, n int) error {
		asked = append(asked, n)
		return shaper.ErrQueueFull
	})
	h := shaper.Middleware(l, nil,
		shaper.WithCost(func(*http.Request) int { return 7 }), shaper.WithCost(nil),
		shaper.WithErrorHandler(func(http.ResponseWriter, *http.Request, error) {}), shaper.WithErrorHandler(nil),
	)(http.NotFoundHandler())
	require.Equal(t, "429, retry 1", statusLine(answerOf(h, t.Context(), "")))
	require.Equal(t, []int{1}, asked)
	require.PanicsWithValue(t, "shaper: Middleware needs a Limiter; to let every request pass, leave it out",
		func() { shaper.Middleware(nil) })
}

// plainWriter is a ResponseWriter that no wrapper can imitate.
type plainWriter struct{ http.ResponseWriter }

func TestMiddlewareHandsOnWhatItGets(t *testing.T) {
	for _, cost := range []int{0, 1} {
		l := limiterFunc(func(context.Context, int) error {
			require.NotZero(t, cost, "asked for a request of cost 0")
			return nil
		})
		w := &plainWriter{httptest.NewRecorder()}
		r := httptest.NewRequest("GET", "/", nil)
		ran := false
		shaper.Middleware(l, shaper.WithCost(func(got *http.Request) int {
			require.Same(t, r, got)
			return cost
		}))(http.HandlerFunc(func(gotWriter http.ResponseWriter, gotRequest *http.Request) {
			ran = true
			require.Same(t, w, gotWriter)
			require.Same(t, r, gotRequest)
			require.Empty(t, gotWriter.Header())
		})).ServeHTTP(w, r)
		require.True(t, ran)
	}
}

func TestPanicsPassThrough(t *testing.T) {
	play(t, "1/s depth 1", func(g *stage) {
		abort := func() { panic(http.ErrAbortHandler) }
		inHandler := shaper.Middleware(g.Shaper)(http.HandlerFunc(
			func(http.ResponseWriter, *http.Request) { abort() }))
		inCost := shaper.Middleware(g.Shaper, shaper.WithCost(
			func(*http.Request) int { abort(); return 1 }))(http.NotFoundHandler())
		require.PanicsWithValue(t, http.ErrAbortHandler, func() { answerOf(inHandler, context.Background(), "") })
		require.PanicsWithValue(t, http.ErrAbortHandler, func() { answerOf(inCost, context.Background(), "") })

		v := newSite(g, g.Shaper)
		v.visit("next")
		g.at(time.Minute)
		g.saw("1s next runs", "1s next 200") // One slot spent, none kept.
	})
}
