package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// This file holds how a Transport settles, and what HoldFor changes.

// A reading is a body that reads along: it knows how many bytes have been read.
type reading struct {
	io.ReadCloser
	n int
}

func (b *reading) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	b.n += n
	return n, err
}

// bytesRead is the Actual of an API that charges a unit for each byte, and none for a refusal.
func bytesRead(response *http.Response) func() int {
	if response.StatusCode != http.StatusOK {
		return func() int { return 0 }
	}
	body := &reading{ReadCloser: response.Body}
	response.Body = body
	return func() int { return body.n }
}

// answers is a Base that gives answers, one after the other: a text, or a status.
func answers(texts ...string) http.RoundTripper {
	return roundTripFunc(func(r *http.Request) (*http.Response, error) {
		text := texts[0]
		texts = texts[1:]
		response := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Request: r, ProtoMajor: 1, Body: io.NopCloser(strings.NewReader(text))}
		if status, err := strconv.Atoi(text); err == nil {
			response.StatusCode = status
		}
		return response, nil
	})
}

func TestATransportSettlesWhenTheBodyHasEnded(t *testing.T) {
	for name, test := range map[string]struct {
		use    func(t *testing.T, body io.ReadCloser)
		actual func(*http.Response) func() int
		level  float64
	}{
		"read":   {func(t *testing.T, body io.ReadCloser) { _, _ = io.Copy(io.Discard, body) }, bytesRead, 11},
		"closed": {func(t *testing.T, body io.ReadCloser) { require.NoError(t, body.Close()) }, bytesRead, 0},
		"both": {func(t *testing.T, body io.ReadCloser) {
			_, _ = io.Copy(io.Discard, body)
			require.NoError(t, body.Close())
		}, bytesRead, 11},
		"cut off": {func(t *testing.T, body io.ReadCloser) {
			_, _ = body.Read(make([]byte, 4))
			require.NoError(t, body.Close())
		}, bytesRead, 4},
		"open":       {func(*testing.T, io.ReadCloser) {}, bytesRead, 20},
		"unknown":    {func(t *testing.T, body io.ReadCloser) { _ = body.Close() }, func(*http.Response) func() int { return func() int { return -1 } }, 20},
		"no say":     {func(t *testing.T, body io.ReadCloser) { _ = body.Close() }, func(*http.Response) func() int { return nil }, 20},
		"it panics":  {func(t *testing.T, body io.ReadCloser) { require.Panics(t, func() { _ = body.Close() }) }, func(*http.Response) func() int { return func() int { panic("actual") } }, 20},
		"without it": {func(t *testing.T, body io.ReadCloser) { _ = body.Close() }, nil, 20},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, "1/s burst 100 inflight 1", func(g *stage) {
				client := &http.Client{Transport: &shaper.Transport{
					Limiter: g.Shaper, Base: answers("hello world"), Cost: func(*http.Request) int { return 20 }, Actual: test.actual,
				}}
				answer, err := client.Get("http://upstream/")
				require.NoError(t, err)
				require.InDelta(t, 20, g.Stats().Level, 1e-9)
				require.Equal(t, 1, g.Stats().InFlight)
				test.use(t, answer.Body)
				require.InDelta(t, test.level, g.Stats().Level, 1e-9)
				if name != "open" {
					require.Zero(t, g.Stats().InFlight)
				}
			})
		})
	}
}

// A request that has no answer, or an answer without a body, is settled before RoundTrip returns.
func TestATransportSettlesWithoutABody(t *testing.T) {
	play(t, "1/s burst 100 inflight 1", func(g *stage) {
		transport := shaper.Transport{Limiter: g.Shaper, Cost: func(*http.Request) int { return 20 }, Actual: func(*http.Response) func() int { return func() int { return 3 } }}
		transport.Base = roundTripFunc(func(*http.Request) (*http.Response, error) { return nil, errors.New("no answer") })
		_, err := transport.RoundTrip(requestTo(t))
		require.Error(t, err)
		require.InDelta(t, 20, g.Stats().Level, 1e-9, "it is not known what it has cost")
		transport.Base = roundTripFunc(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}, nil
		})
		_, err = transport.RoundTrip(requestTo(t))
		require.NoError(t, err)
		require.InDelta(t, 23, g.Stats().Level, 1e-9)
		transport.Cost = func(*http.Request) int { return 0 }
		_, err = transport.RoundTrip(requestTo(t))
		require.NoError(t, err)
		require.InDelta(t, 26, g.Stats().Level, 1e-9, "an estimate of 0 is charged what it has cost")
		require.Zero(t, g.Stats().InFlight)
		require.Panics(t, func() {
			transport.Cost, transport.Actual = nil, func(*http.Response) func() int { panic("actual") }
			_, _ = transport.RoundTrip(requestTo(t))
		})
		require.Zero(t, g.Stats().InFlight)
		require.Zero(t, g.Stats().Reserved)
	})
}

// If Actual or HoldFor panics nobody else has the response, so its body is closed, and the estimate stands.
func TestATransportClosesAResponseThatAPanicWouldLose(t *testing.T) {
	s := must(shaper.New(shaper.Limits{Rate: 0.01, Burst: 100, InFlight: 1}))
	for _, transport := range []shaper.Transport{
		{Actual: func(*http.Response) func() int { panic("actual") }},
		{HoldFor: func(*http.Response) time.Duration { panic("hold") }},
	} {
		body := &sentBody{}
		transport.Limiter = s
		transport.Base = roundTripFunc(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: body}, nil
		})
		require.Panics(t, func() { _, _ = transport.RoundTrip(requestTo(t)) })
		require.Equal(t, 1, body.closed)
	}
	require.InDelta(t, 2, s.Stats().Level, 0.1)
	require.Zero(t, s.Stats().InFlight)
	require.Zero(t, s.Stats().Reserved)
}

func requestTo(t *testing.T) *http.Request {
	r := must(http.NewRequestWithContext(context.Background(), http.MethodGet, "http://upstream/", nil))
	return r
}

// Other limiters than a Shaper settle too, if they can, and are left alone if not.
func TestATransportSettlesWithAnyLimiterThatCan(t *testing.T) {
	play(t, "1/s burst 100", func(g *stage) {
		keys := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return g.Limits(), nil }))
		embedded := &struct{ *shaper.Shaper }{g.Shaper}
		for name, test := range map[string]struct {
			limiter shaper.Limiter
			level   func() float64
		}{
			"a key":     {keys.Limiter("a"), func() float64 { return keys.Limiter("a").Stats().Level }},
			"a chain":   {shaper.Chain(rate.NewLimiter(rate.Inf, 0), keys.Limiter("b")), func() float64 { return keys.Limiter("b").Stats().Level }},
			"its price": {shaper.Priced(keys.Limiter("c"), func(n int) int { return n }), func() float64 { return keys.Limiter("c").Stats().Level }},
			"embedded":  {embedded, func() float64 { return g.Stats().Level }},
		} {
			client := &http.Client{Transport: &shaper.Transport{
				Limiter: test.limiter, Base: answers("hello world"), Cost: func(*http.Request) int { return 20 }, Actual: bytesRead,
			}}
			answer, err := client.Get("http://upstream/")
			require.NoError(t, err, name)
			_, _ = io.Copy(io.Discard, answer.Body)
			require.InDelta(t, 11, test.level(), 1e-9, name)
		}
		asked := shaper.Transport{
			Limiter: rate.NewLimiter(rate.Inf, 0), Base: answers("x"),
			Actual: func(*http.Response) func() int { panic("a limiter that can't settle has nothing to be told") },
		}
		_, err := asked.RoundTrip(requestTo(t))
		require.NoError(t, err)
	})
}

// HoldFor says how long to hold back, and what is a refusal: only a refusal is sent again.
func TestHoldForStandsInPlaceOfWhatIsRead(t *testing.T) {
	refusals := map[int]bool{403: true, 429: true, 503: true, 529: true}
	for _, status := range []int{200, 204, 400, 401, 403, 404, 408, 409, 425, 429, 500, 502, 503, 504, 529} {
		for _, span := range []time.Duration{3 * time.Second, 0, -1} {
			for _, retry := range []bool{true, false} {
				t.Run(fmt.Sprint(status, span, retry), func(t *testing.T) {
					play(t, "10/s burst 100 depth 9", func(g *stage) {
						client := &http.Client{Transport: &shaper.Transport{
							Limiter: g.Shaper, Base: answers(strconv.Itoa(status), "again"), Retry: retry, Actual: bytesRead,
							Cost: func(*http.Request) int { return 10 },
							HoldFor: func(response *http.Response) time.Duration {
								if response.StatusCode == status {
									return span
								}
								return 0
							},
						}}
						answer, err := client.Get("http://upstream/")
						require.NoError(t, err)
						text := must(io.ReadAll(answer.Body))
						if refusals[status] && span > 0 && retry {
							require.Equal(t, "again", string(text))
							g.note("sent again")
							g.saw("3s sent again")
							require.EqualValues(t, 10+5, g.Stats().GivenBack, "all of the refusal, and what the second has not cost")
							return
						}
						require.Equal(t, strconv.Itoa(status), string(text))
						until := time.Time{}
						if span > 0 {
							until = g.start.Add(span)
						}
						require.Equal(t, until, g.Stats().HeldUntil)
					})
				})
			}
		}
	}
}

// The function that docs/http-client.md points at pauses the line after each of GitHub's refusals, and not
// for a client that lacks a right.
func TestGitHubsRefusalsPauseTheLine(t *testing.T) {
	// GitHub refuses with 403 or 429, and with 403 answers a client that lacks a right, too.
	gitHub := func(response *http.Response) time.Duration {
		h := response.Header
		if response.StatusCode != http.StatusForbidden && response.StatusCode != http.StatusTooManyRequests {
			return 0
		}
		if seconds, err := strconv.Atoi(h.Get("Retry-After")); err == nil {
			return time.Duration(seconds) * time.Second
		}
		if reset, err := strconv.ParseInt(h.Get("X-RateLimit-Reset"), 10, 64); err == nil && h.Get("X-RateLimit-Remaining") == "0" {
			return time.Until(time.Unix(reset, 0))
		}
		return 0
	}
	for _, status := range []string{"403", "429"} {
		for name, c := range map[string]struct {
			header http.Header
			want   string
		}{
			"the secondary limit": {http.Header{"Retry-After": {"60"}, "X-Ratelimit-Remaining": {"4000"}}, "1m0s sent again"},
			"the primary limit":   {http.Header{"X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"946686000"}}, "20m0s sent again"},
			"no time":             {http.Header{"X-Ratelimit-Remaining": {"4000"}, "X-Ratelimit-Reset": {"946686000"}}, "0s " + status},
		} {
			t.Run(status+" "+name, func(t *testing.T) {
				play(t, "10/s depth 9", func(g *stage) { // A bubble begins at 946684800.
					upstream := answers(status, "sent again")
					client := &http.Client{Transport: &shaper.Transport{
						Limiter: g.Shaper, HoldFor: gitHub, MaxHold: time.Hour, Retry: true,
						Base: roundTripFunc(func(r *http.Request) (*http.Response, error) {
							response, err := upstream.RoundTrip(r)
							response.Header = c.header
							return response, err
						}),
					}}
					answer, err := client.Get("https://api.github.com/")
					require.NoError(t, err)
					text := must(io.ReadAll(answer.Body))
					g.note(string(text))
					g.saw(c.want)
				})
			})
		}
	}
}

// What a Middleware has reserved is for the first request that its handler sends to the same Limiter, whichever of several
// Middlewares that was. A second one waits and pays for itself.
func TestAReservationIsForOneRequestOfItsLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := shaper.Limits{Rate: 1, Burst: 100, Depth: 9}
		outer, inner := must(shaper.New(limits)), must(shaper.New(limits))
		send := func(r *http.Request, l shaper.Limiter) {
			transport := shaper.Transport{Limiter: l, Base: answers("200 OK", "200 OK")}
			_, err := transport.RoundTrip(must(http.NewRequestWithContext(r.Context(), http.MethodGet, "http://upstream.example", nil)))
			require.NoError(t, err)
		}
		levels := func() []float64 { return []float64{outer.Stats().Level, inner.Stats().Level} }
		of := func(cost int) []shaper.MiddlewareOption {
			return []shaper.MiddlewareOption{shaper.WithReserve(), shaper.WithCost(func(*http.Request) int { return cost })}
		}
		handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			require.Equal(t, []float64{40, 20}, levels())
			send(r, outer)
			send(r, inner)
			require.Equal(t, []float64{40, 20}, levels())
			send(r, outer)
			require.Equal(t, []float64{41, 20}, levels())
		})
		shaper.Middleware(outer, of(40)...)(shaper.Middleware(inner, of(20)...)(handler)).
			ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		require.Equal(t, []float64{41, 20}, levels())
	})
}

// A retry whose Middleware's handler returns while it waits is not sent, and costs nothing.
func TestARetryThatOutlivesItsHandlerCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := must(shaper.New(shaper.Limits{Rate: 1, Burst: 10, Depth: 9}))
		transport := shaper.Transport{Limiter: s, Retry: true, Base: roundTripFunc(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"5"}}, Body: http.NoBody, Request: r}, nil
		})}
		start := time.Now()
		handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			out := must(http.NewRequestWithContext(r.Context(), http.MethodGet, "http://upstream.example", nil))
			go func() {
				response, err := transport.RoundTrip(out)
				require.NoError(t, err)
				require.Equal(t, 429, response.StatusCode)
				require.Equal(t, 5*time.Second, time.Since(start))
				require.Zero(t, s.Stats().Level)
			}()
			time.Sleep(2 * time.Second)
			require.Equal(t, 1, s.Stats().Waiting)
		})
		shaper.Middleware(s, shaper.WithReserve(), shaper.WithCost(func(*http.Request) int { return 10 }))(handler).
			ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		time.Sleep(4 * time.Second)
		require.Zero(t, s.Stats().Level)
		require.NoError(t, s.Close())
	})
}
