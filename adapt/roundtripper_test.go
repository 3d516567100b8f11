package adapt_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/shaper"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// What each answer means, by what five of them do to the rate: refusals lower it from the first on, and failures at the
// fifth. What is not observed has no part in the ten, so a refusal after it is a lone one.
func TestWhatAnAnswerMeans(t *testing.T) {
	const ok, refused, failed, notObserved = "ok", "refused", "failed", "not observed"
	later := time.Date(2000, 1, 1, 0, 1, 0, 0, time.UTC).Format(http.TimeFormat) // Bubbles begin at 2000-01-01.
	wait := func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	for _, tt := range []struct {
		name   string
		status int
		field  [2]string
		base   roundTrip // in place of a status
		leaves bool      // the caller leaves after 10 ms, else its time is up after 20
		means  string
	}{
		{name: "429", status: 429, means: refused},
		{name: "429 with a time", status: 429, field: [2]string{"Retry-After", "3"}, means: refused},
		{name: "503", status: 503, means: failed},
		{name: "503 with seconds", status: 503, field: [2]string{"Retry-After", "3"}, means: refused},
		{name: "503 with a date", status: 503, field: [2]string{"Retry-After", later}, means: refused},
		{name: "503 with a date in the past", status: 503, field: [2]string{"Retry-After", "Sat, 01 Jan 1999 00:00:00 GMT"}, means: failed},
		{name: "503 with RateLimit", status: 503, field: [2]string{"RateLimit", `"default";r=0;t=3`}, means: refused},
		{name: "503 with something left", status: 503, field: [2]string{"RateLimit", `"default";r=1;t=3`}, means: failed},
		{name: "503 after no time", status: 503, field: [2]string{"Retry-After", "0"}, means: failed},
		{name: "503 malformed", status: 503, field: [2]string{"Retry-After", "soon"}, means: failed},
		{name: "529", status: 529, means: failed},
		{name: "529 with seconds", status: 529, field: [2]string{"Retry-After", "3"}, means: refused},
		{name: "502", status: 502, means: failed},
		{name: "502 with seconds", status: 502, field: [2]string{"Retry-After", "3"}, means: failed},
		{name: "504", status: 504, means: failed},
		{name: "500", status: 500, means: notObserved},
		{name: "501", status: 501, means: ok},
		{name: "200", status: 200, means: ok},
		{name: "200 of which nothing remains", status: 200, field: [2]string{"RateLimit", `"default";r=0;t=3`}, means: ok},
		{name: "304", status: 304, means: ok},
		{name: "400", status: 400, means: ok},
		{name: "403", status: 403, means: ok},
		{name: "404", status: 404, means: ok},
		{name: "408", status: 408, means: ok},
		{name: "error", base: func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }, means: failed},
		{name: "nothing at all", base: func(*http.Request) (*http.Response, error) { return nil, nil }, means: failed},
		{name: "time-out", base: wait, means: failed},
		{name: "the caller leaves", base: wait, leaves: true, means: notObserved},
		{name: "the caller leaves with a cause", base: func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, context.Cause(r.Context())
		}, leaves: true, means: notObserved},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, shaper.Limits{Rate: 100}, adapt.Config{Start: 100, Slow: 15 * ms}, func(r rig) {
				given := &http.Response{StatusCode: tt.status, Header: http.Header{}, Body: http.NoBody}
				if tt.field[0] != "" {
					given.Header.Set(tt.field[0], tt.field[1])
				}
				base := tt.base
				if base == nil {
					base = func(*http.Request) (*http.Response, error) { time.Sleep(10 * ms); return given, nil }
				}
				rt := r.a.RoundTripper(base)
				for i := range 5 {
					ctx, cancel := context.WithTimeout(r.Context(), 20*ms)
					if tt.leaves {
						time.AfterFunc(10*ms, cancel)
					}
					request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://upstream.example/", nil)
					require.NoError(r, err)
					response, err := rt.RoundTrip(request)
					cancel()
					if tt.base == nil {
						require.NoError(r, err)
						require.Same(r, given, response)
					} else {
						require.Nil(r, response)
					}
					switch {
					case tt.means == refused && i == 0:
						require.Equal(r, 90.0, r.rate())
					case i < 4:
						require.Equal(r, tt.means == refused, r.a.Stats().Refused > 0)
						require.Zero(r, r.a.Stats().Failed)
					}
					time.Sleep(ms)
				}
				switch tt.means {
				case failed:
					require.Equal(r, adapt.Stats{Rate: 50, Min: 1, Max: 100, Decreases: 1, Failed: 1, Reason: "failed", LastDecrease: time.Now().Add(-ms)}, r.a.Stats())
				case refused:
					require.Equal(r, uint64(5), r.a.Stats().Refused)
				case ok, notObserved:
					require.Zero(r, r.a.Stats().Decreases)
					r.observe(4, adapt.Failed, 0)
					require.Zero(r, r.a.Stats().Decreases)
					for range 2 { // They would be the ninth to twelfth if OK was observed, and so the ten begin anew.
						r.observe(1, adapt.Failed, 0)
						time.Sleep(ms)
					}
					require.NotZero(r, r.a.Stats().Failed)
				}
			})
		})
	}
}

// The latency is that from departure to the head of the answer: neither the wait in line nor the body counts.
func TestTheWaitInLineIsNoLatency(t *testing.T) {
	inBubble(t, shaper.Limits{Rate: 1}, adapt.Config{Start: 1, Slow: 100 * ms}, func(r rig) {
		base := roundTrip(func(*http.Request) (*http.Response, error) {
			time.Sleep(100 * ms)
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}, nil
		})
		client := &http.Client{Transport: &shaper.Transport{Limiter: r.s, Base: r.a.RoundTripper(base)}}
		done := make(chan error)
		for range 20 {
			go func() {
				response, err := client.Get("http://upstream.example/")
				if err == nil {
					err = response.Body.Close()
				}
				done <- err
			}()
		}
		for range 20 {
			require.NoError(r, <-done)
		}
		require.Zero(r, r.a.Stats().Slow)
	})
}

// A reverse proxy takes the RoundTripper with the Middleware in front: the answers of a real server lower the rate.
func TestAReverseProxyObserves(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(429) }))
	defer upstream.Close()
	to, err := url.Parse(upstream.URL)
	require.NoError(t, err)
	s, err := shaper.New(shaper.Limits{Rate: 100, Depth: 10})
	require.NoError(t, err)
	a, err := adapt.New(s, adapt.Config{Start: 100})
	require.NoError(t, err)
	base := &http.Transport{}
	rt := a.RoundTripper(base)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport = rt
	front := httptest.NewServer(shaper.Middleware(s)(proxy))
	defer front.Close()
	response, err := front.Client().Get(front.URL)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, 429, response.StatusCode)
	require.EqualValues(t, 90, s.Limits().Rate)
	rt.(interface{ CloseIdleConnections() }).CloseIdleConnections() // Else goleak finds the connection.
}

// A base that is nil is the default one, as in a Transport.
func TestWithoutABaseItIsTheDefaultTransport(t *testing.T) {
	upstream := httptest.NewServer(http.NotFoundHandler())
	defer upstream.Close()
	s, err := shaper.New(shaper.Limits{Rate: 100})
	require.NoError(t, err)
	a, err := adapt.New(s, adapt.Config{})
	require.NoError(t, err)
	client := http.Client{Transport: a.RoundTripper(nil)}
	response, err := client.Get(upstream.URL)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, 404, response.StatusCode)
	client.CloseIdleConnections()
}
