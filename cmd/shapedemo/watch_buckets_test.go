package main

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Requests that a dry run would delay or refuse pass at the instant at which they come.
func TestADryRunDelaysAndRefusesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := newDryRuns(limitsOf(t, defaultLimits))
		require.NoError(t, err)
		defer d.close()
		begin, passed := time.Now(), 0
		var handler http.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			require.Equal(t, begin, time.Now())
			passed++
		})
		for _, middleware := range slices.Backward(d.middleware()) {
			handler = middleware(handler)
		}
		for range 200 {
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/search?client=ana", nil))
		}
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, healthPath, nil))
		require.Equal(t, 201, passed)
		require.Equal(t, candidateState{Limits: "25/s depth 50", Seen: 200, Refused: 149}, d.state())
		all := maps.Collect(d.clients.All())
		require.Len(t, all, 1)
		require.EqualValues(t, 200-5-10, all["search/ana"].Refused)

		require.NoError(t, d.try(limitsOf(t, "10/s depth 60")))
		require.Equal(t, candidateState{Limits: "10/s depth 60"}, d.state(), "what was counted under other limits")
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		require.Equal(t, candidateState{Limits: "10/s depth 60", Seen: 1}, d.state())
	})
}

func TestACandidateIsTighterWhereItCanBe(t *testing.T) {
	for limits, want := range map[string]string{
		defaultLimits:                  "25/s depth 50",
		"20/s burst 5 depth 7 wait 1s": "10/s burst 5 depth 3 wait 1s",
		"50/s depth 9 inflight 2":      "25/s depth 4",
		"1 per 365d depth 8":           "1 per 8760h depth 8",
		"inf depth 9":                  defaultLimits,
	} {
		got, err := candidateFor(limitsOf(t, limits))
		require.NoError(t, err)
		require.Equal(t, limitsOf(t, want).String(), got.String(), limits)
	}
}

func TestEachClientHasAKeyForEachRoute(t *testing.T) {
	for target, want := range map[string]string{
		"/message_send?client=ana": "message_send/ana",
		"/search/more?client=ben":  "search/ben",
		"/?client=ben":             "other/ben",
		"/burst":                   "burst/192.0.2.1",
		"/":                        "other/192.0.2.1",
		"/a?client=x/y":            "a/x%2Fy",
	} {
		got, err := keyOf(httptest.NewRequest(http.MethodGet, target, nil))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestTheSimulatedClientsAreMany(t *testing.T) {
	count := map[string]int{}
	for range 10_000 {
		count[strings.Join(func() []string { route, client := pickClient(); return []string{route, client} }(), "/")]++
	}
	require.Greater(t, len(count), len(routes)*len(clientNames)/2)
	require.LessOrEqual(t, len(count), len(routes)*len(clientNames))
	require.Greater(t, count["message_send/ana"], count["message_send/lena"]+100)
}
