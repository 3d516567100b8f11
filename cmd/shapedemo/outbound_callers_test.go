package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// script is a transport that gives each call its next response. When it has none
// left, a call hangs until it is cancelled.
type script struct {
	next func() (status int, retryAfter string, err error)
}

func (s script) RoundTrip(r *http.Request) (*http.Response, error) {
	status, after, err := s.next()
	if status == 0 && err == nil {
		<-r.Context().Done()
		err = r.Context().Err()
	}
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Body: io.NopCloser(strings.NewReader("")),
		Header: http.Header{"Retry-After": {after}},
	}, nil
}

func TestCallersWaitForAsLongAsTheyAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		results := []struct {
			status int
			after  string
			err    error
			at     time.Duration // when it is asked for
		}{
			{status: 200, at: 0},
			{status: 200, at: 0},
			{status: 429, after: "3", at: 0},
			{status: 429, after: "soon", at: 3 * time.Second},
			{status: 429, after: "0", at: 4 * time.Second},
			{err: &shaper.RejectError{Reason: shaper.ErrQueueFull, RetryAfter: 2 * time.Second}, at: 5 * time.Second},
			{status: 502, at: 7 * time.Second},
			{err: errors.New("broken"), at: 7100 * time.Millisecond},
			{at: 7200 * time.Millisecond}, // It is under way at the end.
		}
		start, asked := time.Now(), 0
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		pool := &callers{count: 1, url: "http://x/", client: &http.Client{Transport: script{func() (int, string, error) {
			a := results[asked]
			require.Equal(t, a.at, time.Since(start), asked)
			asked++
			return a.status, a.after, a.err
		}}}}
		saw := pool.run(ctx)
		require.Equal(t, len(results), asked)
		require.Equal(t, callStats{
			served: 2, refused: 3, rejected: 1, failed: 2, times: []time.Duration{0, 0}, duration: 10 * time.Second,
		}, saw)
		require.Equal(t, 8, saw.answered())
		require.InDelta(t, 0.2, saw.perSecond(), 1e-9)
	})
}

func TestACallerEndsInTheMiddleOfARest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		start := time.Now()
		pool := &callers{count: 3, url: "http://x/", client: &http.Client{Transport: script{func() (int, string, error) {
			return 429, "9", nil
		}}}}
		require.Equal(t, 3, pool.run(ctx).refused)
		require.Equal(t, time.Second, time.Since(start))
	})
}
