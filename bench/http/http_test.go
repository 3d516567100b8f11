package http

import (
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

func TestMain(m *testing.M) { run.Tests(m) }

// measureCost compares the answer to each request with the right one.
func TestEveryRequestIsAnsweredAsItShould(t *testing.T) {
	names := map[string]bool{}
	for _, c := range costCases(run.Options{}) {
		require.False(t, names[c.Name], "two benchmarks have the name %s", c.Name)
		names[c.Name] = true
		t.Run(c.Name, func(t *testing.T) {
			in := c.Input
			in.Batch = 100 * time.Microsecond
			found, err := measureCost(in)
			require.NoError(t, err)
			require.Positive(t, found.Ns)
			require.False(t, measure.Known(found.Own), "it is not known before the handler alone has been measured")
		})
	}
}

func TestACostIsMeasuredInAChild(t *testing.T) {
	found, err := costChild.Take(t.Context(), costInput{rivals.Ours, true, true, refused, time.Millisecond})
	require.NoError(t, err)
	require.Positive(t, found.Ns)
	require.Positive(t, found.Allocs)
}

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
		in   costInput
		does http.Handler
		err  string
	}{
		{costInput{Middleware: rivals.Ours, Outcome: admitted}, answering(204), ""},
		{costInput{Middleware: rivals.Ours, Outcome: admitted}, answering(429), "the request is answered with status 429, not 204"},
		{costInput{Middleware: rivals.Ours, Outcome: refused}, answering(429, "Retry-After"), ""},
		{costInput{Middleware: rivals.Ours, Outcome: refused}, answering(204, "Retry-After"), "the request is answered with status 204, not 429"},
		{costInput{Middleware: rivals.Ours, Outcome: refused}, answering(429), "the answer has a Retry-After: no"},
		{costInput{Middleware: chi, Outcome: refused}, answering(429), ""},
		{costInput{Middleware: httpRate, Outcome: admitted}, answering(204, "X-RateLimit-Limit"), "the answer has fields of the limit"},
	} {
		err := c.in.check(&answer{header: http.Header{}}, c.does, nil)
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
	for _, c := range waitingCases(run.Options{Quick: true}) {
		in := c.Input
		in.Connections = 50
		found, err := waitingChild.Take(t.Context(), in)
		require.NoError(t, err, c.Name)
		require.Greater(t, found.Bytes, 8192., "net/http has two buffers of 4 KiB for each connection")
	}
}

func TestRequestsThatDoNotWaitAreNotMeasured(t *testing.T) {
	_, err := memoryWaiting(served, waitingInput{Connections: 3})
	require.EqualError(t, err, "3 of 3 requests did not wait")
}

func TestCallersSayWhyTheyCannotCall(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	_, err = callers.Take(t.Context(), callersInput{listener.Addr().String(), false, 2})
	require.ErrorContains(t, err, "connection 1 of 2: dial tcp")
}
