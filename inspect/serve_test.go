package inspect_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/shaper"
)

const (
	patience = 30 * time.Second      // for what should have happened long before
	tick     = 10 * time.Millisecond // between two looks at it
)

// serve returns the URL of a server that shows sources.
func serve(t *testing.T, i *inspect.Inspector) string {
	server := httptest.NewServer(i)
	t.Cleanup(server.Close)
	t.Cleanup(func() { require.NoError(t, i.Close()) })
	return server.URL
}

// request returns a request of a client of the same machine.
func request(method, target string) *http.Request {
	r := httptest.NewRequest(method, target, nil)
	r.Host, r.RemoteAddr = "localhost:6060", "127.0.0.1:50000"
	return r
}

// ask returns the answer to a GET request, without a network.
func ask(i http.Handler, target string) *httptest.ResponseRecorder {
	return recorded(i, request(http.MethodGet, target))
}

func recorded(i http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	i.ServeHTTP(w, r)
	return w
}

// A bucket has what tests look at, of a bucket in the API.
type bucket struct {
	Source, Key, ID, Limits      string
	Rate                         *float64
	Burst, Depth                 int
	Waiting                      int
	Level, Fill                  float64
	OldestWait                   float64  `json:"oldest_wait_s"`
	Idle                         *float64 `json:"idle_s"`
	LastCall                     *string  `json:"last_call"`
	DryRun                       bool     `json:"dry_run"`
	Departed, Refused, Abandoned uint64
	Refusing                     bool
}

type list struct {
	Sources []struct {
		Name, Kind string
		Keys       int
		Closed     bool
	}
	Matched int
	Buckets []bucket
	Next    *string
}

// keys returns those of the buckets, in their order.
func (l list) keys() []string {
	keys := []string{}
	for _, b := range l.Buckets {
		keys = append(keys, b.Key)
	}
	return keys
}

// listOf returns the answer to a request for a list, which must be one.
func listOf(t *testing.T, i http.Handler, query string) (l list) {
	t.Helper()
	return listIn(t, ask(i, "/api/buckets?"+query))
}

// listIn returns the list that an answer holds.
func listIn(t *testing.T, w *httptest.ResponseRecorder) (l list) {
	t.Helper()
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &l))
	return l
}

// groupOf makes a Group whose limits are the same for all keys.
func groupOf(t *testing.T, limits string, opts ...shaper.GroupOption) *shaper.Group[string] {
	l, err := shaper.ParseLimits(limits)
	require.NoError(t, err)
	g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return l, nil }, opts...)
	require.NoError(t, err)
	return g
}

// lineUp lets n calls with a key wait until the test ends, in a bubble.
func lineUp(t *testing.T, g *shaper.Group[string], key string, n int) {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	for range n {
		go func() { _ = g.Wait(ctx, key) }()
		synctest.Wait()
	}
}
