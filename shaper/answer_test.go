package shaper_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// Whoever answers in a form of their own says the same as WriteError.
func TestAnAnswerIsWhatIsWritten(t *testing.T) {
	r := httptest.NewRequest("GET", "/", nil)
	for _, err := range []error{
		&shaper.RejectError{Reason: shaper.ErrQueueFull, RetryAfter: 1500 * ms},
		&shaper.RejectError{Reason: shaper.ErrTooLate, RetryAfter: 1},
		&shaper.RejectError{Reason: shaper.ErrTooCostly},
		&shaper.RejectError{Reason: shaper.ErrClosed, RetryAfter: time.Minute},
		&shaper.RejectError{Reason: shaper.ErrUnavailable, RetryAfter: time.Second},
		fmt.Errorf("wrapped: %w", &shaper.RejectError{Reason: shaper.ErrQueueFull, RetryAfter: 3 * time.Second}),
		shaper.ErrNegativeCost, shaper.ErrBody, context.Canceled, context.DeadlineExceeded, errors.New("another"),
	} {
		t.Run(err.Error(), func(t *testing.T) {
			a, w := shaper.AnswerTo(r, err), httptest.NewRecorder()
			shaper.WriteError(w, r, err)
			var body struct{ Title, Detail string }
			if w.Body.Len() > 0 {
				require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
			}
			after, _ := strconv.Atoi(w.Header().Get("Retry-After"))
			require.Equal(t, shaper.Answer{
				Status: w.Code, Title: body.Title, Detail: body.Detail, RetryAfter: time.Duration(after) * time.Second,
			}, a)
		})
	}
}

// The random part of Retry-After is drawn once, so that all that a client may heed say one time.
func TestOneSpreadIsForAllThatAreTold(t *testing.T) {
	s := must(shaper.New(shaper.Limits{Rate: 0.1}))
	require.True(t, s.Allow())
	h := shaper.Middleware(s, shaper.WithRetrySpread(1000*time.Hour), shaper.WithHeaders(shaper.HeaderRateLimit),
		shaper.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error) {
			require.Equal(t, shaper.AnswerTo(r, err), shaper.AnswerTo(r, err))
			w.Header().Set("Answer", strconv.Itoa(int(shaper.AnswerTo(r, err).RetryAfter/time.Second)))
			shaper.WriteError(w, r, err)
		}))(http.NotFoundHandler())
	seen := map[string]bool{}
	for range 10 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		after := w.Header().Get("Retry-After")
		require.Equal(t, after, w.Header().Get("Answer"))
		require.Contains(t, w.Header().Get("Ratelimit"), ";t="+after)
		seen[after] = true
	}
	require.Greater(t, len(seen), 5)
}
