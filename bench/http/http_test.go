package http

import (
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

func TestMain(m *testing.M) { run.Tests(m, Experiment) }

func TestAMiddlewareThatAnswersOtherwiseIsNotMeasured(t *testing.T) {
	answering := func(status int, fields ...string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for _, field := range fields {
				w.Header().Set(field, "1")
			}
			w.WriteHeader(status)
		})
	}
	for _, c := range []struct {
		middleware string
		becomes    outcome
		does       http.Handler
		err        string
	}{
		{rivals.Ours, admitted, answering(204), ""},
		{rivals.Ours, admitted, answering(429), "the request is answered with status 429, not 204"},
		{rivals.Ours, refused, answering(429, "Retry-After"), ""},
		{rivals.Ours, refused, answering(204, "Retry-After"), "the request is answered with status 204, not 429"},
		{rivals.Ours, refused, answering(429), "the answer has a Retry-After: no"},
		{chi, refused, answering(429), ""},
		{httpRate, admitted, answering(204, "X-RateLimit-Limit"), "the answer has fields of the limit"},
	} {
		err := kind{middleware: c.middleware}.check(c.becomes, &answer{header: http.Header{}}, c.does, nil)
		if c.err == "" {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, c.err)
		}
	}
}

// The clients are a process of their own, or their memory would count.
func TestConnectionsThatWaitTakeMemory(t *testing.T) {
	if !measure.MemoryIsTold() {
		t.Skip("not known on this system")
	}
	quick := run.Options{Quick: true}
	for _, c := range waitingCases(quick) {
		found, err := run.InChild(t.Context(), quick, c)
		require.NoError(t, err, c.Name)
		require.Greater(t, report.Median(found, c.Name, "B/connection"), 8192., "net/http has two buffers of 4 KiB for each connection")
	}
}

func TestRequestsThatDoNotWaitAreNotMeasured(t *testing.T) {
	_, err := kind{}.memoryOf(t, served, 3)
	require.EqualError(t, err, "3 of 3 requests did not wait")
}

func TestCallersSayWhyTheyCannotCall(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	_, err = callers.Take(t.Context(), callersInput{listener.Addr().String(), false, 2})
	require.ErrorContains(t, err, "connection 1 of 2: dial tcp")
}
