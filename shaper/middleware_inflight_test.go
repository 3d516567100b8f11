package shaper_test

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// With a cap a request has a seat from its departure to the end of its handler and no
// longer, in whatever way the handler ends.

// limitedInFlight is a Shaper that is limited by its cap alone.
func limitedInFlight(t *testing.T, inFlight, depth int) *shaper.Shaper {
	t.Helper()
	s, err := shaper.New(shaper.Limits{Rate: rate.Inf, Depth: depth, InFlight: inFlight})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func inFlight(s *shaper.Shaper, n int) func() bool {
	return func() bool { return s.Stats().InFlight == n }
}

// onBothProtocols runs a test over HTTP/1 and HTTP/2.
func onBothProtocols(t *testing.T, test func(t *testing.T, k connectionKind)) {
	for _, k := range []connectionKind{{name: "HTTP/1", wrap: asIs, configure: hooked}, http2Kind} {
		t.Run(k.name, func(t *testing.T) { test(t, k) })
	}
}

func TestAStreamKeepsItsSeatUntilTheHandlerReturns(t *testing.T) {
	onBothProtocols(t, func(t *testing.T, k connectionKind) {
		s := limitedInFlight(t, 1, 1)
		words := make(chan string)
		client, url := k.open(t, shaper.Middleware(s)(duplexSite(words)))
		answer, err := client.Get(url + "/events")
		require.NoError(t, err)
		defer answer.Body.Close()
		became := send(t.Context(), t, client, url, nil)
		realtime.Until(t, inLine(s, 1), "the next waits")

		reader := bufio.NewReader(answer.Body)
		for _, word := range []string{"first", "second"} {
			words <- word
			line, err := reader.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "data: "+word+"\n", line)
			_, err = reader.ReadString('\n')
			require.NoError(t, err)
		}
		st := s.Stats()
		require.Equal(t, []int{1, 1}, []int{st.InFlight, st.Waiting}, "in flight, in line")
		close(words)
		require.Equal(t, "200: hello", realtime.Next(t, became))
		realtime.Until(t, inFlight(s, 0), "all seats are free")
	})
}

func TestAPanicFreesTheSeat(t *testing.T) {
	onBothProtocols(t, func(t *testing.T, k connectionKind) {
		s := limitedInFlight(t, 1, 1)
		ready := make(chan struct{})
		client, url := k.open(t, shaper.Middleware(s)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/panic" {
				<-ready
				panic(http.ErrAbortHandler)
			}
		})))
		panics := send(t.Context(), t, client, url+"/panic", nil)
		realtime.Until(t, inFlight(s, 1), "it runs")
		became := send(t.Context(), t, client, url, nil)
		realtime.Until(t, inLine(s, 1), "the next waits")
		close(ready)
		require.Equal(t, "200: ", realtime.Next(t, became))
		require.NotRegexp(t, "^[0-9]+: ", realtime.Next(t, panics), "an error, whose port may look like a status")
		realtime.Until(t, inFlight(s, 0), "all seats are free")
	})
}

func TestAFullCapIsAnsweredWith429(t *testing.T) {
	s := limitedInFlight(t, 1, 0)
	release, err := s.Acquire(t.Context(), 1)
	require.NoError(t, err)
	h := shaper.Middleware(s)(http.NotFoundHandler())
	require.Equal(t, "429, retry 1", statusLine(answerOf(h, t.Context(), "")))
	release()
	require.Equal(t, "404", statusLine(answerOf(h, t.Context(), "")))
	require.Equal(t, "404", statusLine(answerOf(h, t.Context(), "")), "the seat was given back")
}

// Without ConnContext and with a body, so that only the Limiter's context tells.
func TestAClientThatLeavesTheLineFreesNoSeat(t *testing.T) {
	onBothProtocols(t, func(t *testing.T, k connectionKind) {
		s := limitedInFlight(t, 1, 2)
		stay := make(chan struct{})
		client, url := k.open(t, shaper.Middleware(s)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/stays" {
				<-stay
			}
		})))
		stays := send(t.Context(), t, client, url+"/stays", nil)
		realtime.Until(t, inFlight(s, 1), "it runs")
		ctx, leave := context.WithCancel(t.Context())
		leaves := send(ctx, t, client, url, nil)
		realtime.Until(t, inLine(s, 1), "it waits")
		leave()
		require.Contains(t, realtime.Next(t, leaves), "context canceled")
		realtime.Until(t, func() bool { return s.Stats().Abandoned == 1 }, "it has left the line")
		require.Equal(t, 1, s.Stats().InFlight)
		close(stay)
		require.Equal(t, "200: ", realtime.Next(t, stays))
		realtime.Until(t, inFlight(s, 0), "all seats are free")
	})
}

// Between the departure and the handler, foreign methods are called, which may panic.
func TestAPanicBeforeTheHandlerFreesTheSeat(t *testing.T) {
	s := limitedInFlight(t, 1, 0)
	h := shaper.Middleware(s, shaper.WithServerTiming())(http.NotFoundHandler())
	require.PanicsWithValue(t, "no header", func() {
		h.ServeHTTP(headless{httptest.NewRecorder()}, httptest.NewRequest("GET", "/", nil))
	})
	require.Equal(t, 0, s.Stats().InFlight)
}

type headless struct{ *httptest.ResponseRecorder }

func (headless) Header() http.Header { panic("no header") }
