package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

func TestJudgeOutbound(t *testing.T) {
	info := newLimitsInfo(limitsOf(t, "10/s depth 20 slack 10ms"))
	apart := []time.Time{time.UnixMilli(0), time.UnixMilli(95), time.UnixMilli(195)}
	together := []time.Time{time.UnixMilli(0), time.UnixMilli(100), time.UnixMilli(101)}
	for says, spoil := range map[string]func(direct, shaped *poolResult){
		"":                              func(_, _ *poolResult) {},
		"nothing to show":               func(direct, _ *poolResult) { direct.refused = 0 },
		"1 call was refused by the API": func(_, shaped *poolResult) { shaped.refused = 1 },
		"2 calls were refused by the API behind the shaper, because two reached it within 25 ms":                                                   func(_, shaped *poolResult) { shaped.refused, shaped.departed = 2, together },
		"two reached it within 25 ms that had left the shaper at least 95 ms apart, in both tries: this machine is too busy; try a slower -limits": func(_, shaped *poolResult) { shaped.refused, shaped.departed = 2, apart },
		"1 call failed":  func(direct, _ *poolResult) { direct.failed = 1 },
		"2 calls failed": func(_, shaped *poolResult) { shaped.other = 2 },
		"3 calls were served with the shaper, 3 without it": func(_, shaped *poolResult) { shaped.served = 3 },
		"32 calls were served in 3 s, but only 31 may":      func(_, shaped *poolResult) { shaped.served = 32 },
	} {
		direct, shaped := poolResult{tally: tally{served: 3, refused: 60}}, poolResult{tally: tally{served: 31}}
		spoil(&direct, &shaped)
		faults := judgeOutbound(info, 25*time.Millisecond, direct, shaped)
		if says == "" {
			require.Empty(t, faults)
			continue
		}
		require.Len(t, faults, 1)
		require.Contains(t, faults[0], says)
	}
}

// A timeline of requests at the API: when each comes, and the Retry-After that it
// gets, or "".
func TestTheAPIRefusesAllRequestsAfterABurst(t *testing.T) {
	type visit struct {
		after time.Duration // the one before
		wants string
	}
	const ms = time.Millisecond
	for name, visits := range map[string][]visit{
		"evenly":                  {{0, ""}, {10 * ms, ""}, {10 * ms, ""}},
		"two at once":             {{0, ""}, {0, "1"}},
		"two within the interval": {{0, ""}, {10*ms - 1, "1"}, {500 * ms, "1"}, {400 * ms, "1"}, {100 * ms, ""}},
		"two in the penalty":      {{0, ""}, {0, "1"}, {500 * ms, "1"}, {ms, "1"}, {499 * ms, ""}},
		"all back at once":        {{0, ""}, {0, "1"}, {time.Second, ""}, {0, "1"}},
		"at the end too early":    {{0, ""}, {0, "1"}, {time.Second - 1, "1"}, {2, "1"}, {time.Second, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &burstIntolerantAPI{interval: 10 * ms}
				for i, v := range visits {
					time.Sleep(v.after)
					rec := httptest.NewRecorder()
					a.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
					require.Equal(t, v.wants, rec.Header().Get("Retry-After"), i)
					require.Equal(t, map[bool]int{true: 200, false: 429}[v.wants == ""], rec.Code, i)
				}
			})
		})
	}
}

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
		client := &http.Client{Transport: script{func() (int, string, error) {
			a := results[asked]
			require.Equal(t, a.at, time.Since(start), asked)
			asked++
			return a.status, a.after, a.err
		}}}
		var saw tally
		callAll(ctx, 1, client, "http://x/", saw.add)
		require.Equal(t, len(results), asked)
		require.Equal(t, tally{sent: 7, served: 1, refused: 3, rejected: 1, failed: 1, other: 1}, saw)
	})
}
