package gateway_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/llm"
)

// A handler that says a second status, or an informational one, is answered for behind the gateway as by net/http itself.
func TestTheFirstStatusOfAHandlerCounts(t *testing.T) {
	for name, statuses := range map[string][]int{
		"none":                  {},
		"a second one":          {200, 500},
		"a refusal second":      {404, 429},
		"early hints":           {103, 201},
		"hints after the first": {202, 103},
		"processing, twice":     {102, 102, 200, 200},
	} {
		t.Run(name, func(t *testing.T) {
			handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for _, status := range statuses {
					w.WriteHeader(status)
				}
				_, _ = io.WriteString(w, "body")
			})
			alone := httptest.NewServer(handler)
			defer alone.Close()
			_, address := over(t, handler)
			require.Equal(t, told(t, alone.URL), told(t, "http://"+address))
		})
	}
}

// told returns what a client is told: all statuses, and the body.
func told(t *testing.T, url string) (all []string) {
	t.Helper()
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(status int, _ textproto.MIMEHeader) error {
		all = append(all, fmt.Sprint(status))
		return nil
	}})
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return append(all, fmt.Sprint(answer.StatusCode), string(body))
}

// A refusal after which the call is sent again is not passed on, whatever status its handler says after it.
func TestASecondStatusDoesNotPassARefusalOn(t *testing.T) {
	for _, second := range [][]int{{500}, {200}, {103}, {429, 500}} {
		synctest.Test(t, func(t *testing.T) {
			attempts := 0
			g := newRig(t, "openai", llm.Quota{Requests: 6000}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if attempts++; attempts > 1 {
					_, _ = io.WriteString(w, "fine")
					return
				}
				for _, status := range slices.Concat([]int{429}, second) {
					w.WriteHeader(status)
				}
				_, _ = io.WriteString(w, "slow down")
			}), nil)
			w := g.call("gold", request(t.Context(), "openai", 10, 10, false))
			require.Equal(t, "200 fine", fmt.Sprint(w.Code, " ", w.Body), second)
			require.Equal(t, 2, attempts)
		})
	}
}

// A handler that has hijacked the connection, be it after a refusal, gets errors as from net/http, and nothing is sent again.
func TestAHandlerThatWritesAfterAHijackGetsAnError(t *testing.T) {
	for _, before := range []int{0, 200, 429, 503} {
		t.Run(fmt.Sprint(before), func(t *testing.T) {
			var attempts atomic.Int64
			g, address := over(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				attempts.Add(1)
				w.Header().Set("Retry-After", "1")
				if before != 0 {
					w.WriteHeader(before)
				}
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				_, err = io.WriteString(w, "lost")
				flushed := http.NewResponseController(w).Flush()
				w.WriteHeader(http.StatusTeapot)
				_, _, again := w.(http.Hijacker).Hijack()
				_, _ = fmt.Fprint(conn, errors.Is(err, http.ErrHijacked), errors.Is(flushed, http.ErrHijacked), errors.Is(again, http.ErrHijacked))
			}))
			conn, err := net.Dial("tcp", address)
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
			_, err = io.WriteString(conn, "POST /v1 HTTP/1.1\r\nHost: gateway\r\nContent-Length: 2\r\n\r\n{}")
			require.NoError(t, err)
			got, err := io.ReadAll(conn)
			require.NoError(t, err)
			require.True(t, strings.HasSuffix(string(got), "true true true"), string(got))
			realtime.Until(t, func() bool { return g.ended() == 1 }, "the call has ended")
			require.EqualValues(t, 1, attempts.Load())
			status := before
			if before == 0 {
				status = http.StatusSwitchingProtocols
			}
			require.Equal(t, status, g.last(t).Status)
			require.Zero(t, g.line.Stats().Reserved)
		})
	}
}
