package shaper_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

func TestRetryAfterIsRoundedUpToWholeSeconds(t *testing.T) {
	for _, row := range []struct {
		exact time.Duration
		field string
	}{
		{0, "1"},
		{1, "1"},
		{time.Second, "1"},
		{time.Second + 1, "2"},
		{2 * time.Second, "2"},
		{2*time.Second + 1, "3"},
		{1<<63 - 1, "9223372037"},
	} {
		rec := httptest.NewRecorder()
		shaper.WriteError(rec, httptest.NewRequest("GET", "/", nil),
			&shaper.RejectError{Reason: shaper.ErrQueueFull, RetryAfter: row.exact})
		require.Equal(t, row.field, rec.Header().Get("Retry-After"), "%v", row.exact)
	}
}

// "Too many requests are waiting already" makes somebody look for a line where there is none.
func TestARefusalSpeaksOfALineOnlyWhereThereIsOne(t *testing.T) {
	const (
		waiting = "Too many requests are waiting already."
		noLine  = "More requests have come than the limit allows."
		blocked = "Requests are refused for a time, because too many have come."
	)
	for _, row := range []struct {
		limits       string
		block        time.Duration
		first, later string // of refusals
	}{
		{"1/h", 0, noLine, noLine},
		{"1/h depth 1", 0, waiting, waiting},
		{"1/h", time.Minute, blocked, blocked},
		{"1/h depth 1", time.Minute, blocked, blocked},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, err := shaper.ParseLimits(row.limits)
			require.NoError(t, err)
			s, err := shaper.New(l, shaper.WithBlock(row.block))
			require.NoError(t, err)
			h := shaper.Middleware(s)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			visit := func() string {
				rec := httptest.NewRecorder()
				h.ServeHTTP(rec, httptest.NewRequest("GET", "/", nil))
				var body struct{ Detail string }
				_ = json.Unmarshal(rec.Body.Bytes(), &body)
				return body.Detail
			}
			require.Empty(t, visit())
			if l.Depth > 0 {
				go visit()
				synctest.Wait()
			}
			require.Equal(t, row.first, visit(), row.limits)
			for range 20 { // Those that follow are refused without the lock.
				require.Equal(t, row.later, visit(), row.limits)
			}
			err = s.Wait(t.Context())
			require.Equal(t, row.first == noLine, errors.Is(err, shaper.ErrNoLine))
			require.Equal(t, row.block > 0, errors.Is(err, shaper.ErrBlocked))
			rejected, ok := errors.AsType[*shaper.RejectError](fmt.Errorf("wrapped: %w", err))
			require.True(t, ok)
			require.True(t, rejected.Reason == shaper.ErrQueueFull)
			rec := httptest.NewRecorder()
			shaper.WriteError(rec, httptest.NewRequest("GET", "/", nil), fmt.Errorf("wrapped: %w", err))
			require.Contains(t, rec.Body.String(), row.later)
			require.NoError(t, s.Close())
		})
	}
}

func TestErrorBodyEchoesNothingOfTheRequest(t *testing.T) {
	const hostile = "<script>alert(1)</script>"
	plain := httptest.NewRequest("GET", "/", nil)
	evil := httptest.NewRequest("POST", "/?q="+strings.Repeat("x", 5000), strings.NewReader(hostile))
	evil.URL.Path = "/" + hostile
	evil.Host = hostile
	evil.Header.Set("Accept", hostile)
	evil.Header.Set("X-Request-Id", hostile+"\r\nSet-Cookie: a=b")

	for _, row := range []struct {
		err    error
		status int
		detail string // or what it says at least
	}{
		{&shaper.RejectError{Reason: shaper.ErrQueueFull}, 429, "Too many requests are waiting"},
		{&shaper.RejectError{Reason: shaper.ErrTooLate}, 429, "wait too long"},
		{&shaper.RejectError{Reason: shaper.ErrTooCostly}, 429, "more than can ever fit"},
		{&shaper.RejectError{Reason: shaper.ErrClosed}, 503, "takes no more requests"},
		{context.DeadlineExceeded, 503, "ran out while it waited"},
		{errors.New(hostile), 503, "could not be admitted"},
		{shaper.ErrNegativeCost, 500, "could not tell what the request costs"},
	} {
		rec := httptest.NewRecorder()
		shaper.WriteError(rec, evil, row.err)
		require.Equal(t, row.status, rec.Code, "%v", row.err)
		require.Equal(t, "application/problem+json", rec.Header().Get("Content-Type"))
		require.Equal(t, "no-store", rec.Header().Get("Cache-Control"))

		var body map[string]any
		require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &body), "%s", rec.Body)
		require.Contains(t, body["detail"], row.detail)
		delete(body, "detail")
		require.Equal(t, map[string]any{
			"title":  http.StatusText(row.status),
			"status": float64(row.status),
		}, body)
		require.Less(t, rec.Body.Len(), 200)

		other := httptest.NewRecorder()
		shaper.WriteError(other, plain, row.err)
		require.Equal(t, other.Result().Header, rec.Result().Header)
		require.Equal(t, other.Body.String(), rec.Body.String())
	}
}

func TestWriteErrorDropsWhatBelongedToAnotherBody(t *testing.T) {
	for _, err := range []error{shaper.ErrQueueFull, context.Canceled} {
		rec := httptest.NewRecorder()
		for _, field := range []string{"Content-Length", "ETag", "Last-Modified", "Content-Encoding", "Vary"} {
			rec.Header().Set(field, "1")
		}
		shaper.WriteError(rec, httptest.NewRequest("GET", "/", nil), err)
		for _, field := range []string{"Content-Length", "ETag", "Last-Modified"} {
			require.Empty(t, rec.Header().Get(field), "%s after %v", field, err)
		}
		for _, field := range []string{"Content-Encoding", "Vary"} {
			require.Equal(t, "1", rec.Header().Get(field), "%s after %v", field, err)
		}
	}
}

// A roomFinder finds out how much memory follows what it is given to write. Whoever appends to
// that, as an outer handler may do that writes lines, writes there.
type roomFinder struct {
	*httptest.ResponseRecorder
	room int
}

func (f *roomFinder) Write(p []byte) (int, error) {
	f.room += cap(p) - len(p)
	return f.ResponseRecorder.Write(p)
}

// All refusals have the same body. What is appended to one must not be seen in another.
func TestAnAnswerIsNotSpoiltByWhatIsAppendedToAnother(t *testing.T) {
	for _, err := range []error{shaper.ErrQueueFull, shaper.ErrTooLate, shaper.ErrTooCostly, shaper.ErrClosed, shaper.ErrNegativeCost} {
		w := &roomFinder{ResponseRecorder: httptest.NewRecorder()}
		shaper.WriteError(w, httptest.NewRequest("GET", "/", nil), err)
		require.NotZero(t, w.Body.Len())
		require.Zero(t, w.room, "%v", err)
	}
}

func TestWriteErrorAloneEndsARequestWhoseClientHasGone(t *testing.T) {
	for _, row := range []struct {
		major      int
		connection string
	}{
		{1, "close"},
		{2, ""}, // The field would end all the other requests of the connection.
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.ProtoMajor = row.major
		rec := httptest.NewRecorder()
		shaper.WriteError(rec, r, fmt.Errorf("waiting: %w", context.Canceled))
		require.Equal(t, 499, rec.Code)
		require.Zero(t, rec.Body.Len())
		require.Equal(t, row.connection, rec.Header().Get("Connection"))
	}
}
