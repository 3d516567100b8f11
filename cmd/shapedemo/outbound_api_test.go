package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

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

// The API need not look at requests in the order in which they read the clock.
func TestRequestsThatOvertakeEachOtherAreABurst(t *testing.T) {
	a := &burstIntolerantAPI{interval: 10 * time.Millisecond}
	now := time.Now()
	require.LessOrEqual(t, a.penaltyLeft(now), time.Duration(0))
	require.Equal(t, penalty, a.penaltyLeft(now.Add(-time.Microsecond)))
}

func TestTheIntervalIsAQuarterOfThePace(t *testing.T) {
	require.Equal(t, 5*time.Millisecond, burstInterval(newLimitsInfo(limitsOf(t, "50/s"))))
	require.Equal(t, 15*time.Minute, burstInterval(newLimitsInfo(limitsOf(t, "1/h"))))
	require.Positive(t, burstInterval(newLimitsInfo(limitsOf(t, "inf"))))
}
