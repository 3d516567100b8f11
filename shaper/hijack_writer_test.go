package shaper_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// There is nothing to see of it: it gets the place back when the handler ends.
func TestAWriterThatCantBeHijackedIsHandedOnAsItIs(t *testing.T) {
	rec := httptest.NewRecorder()
	for _, given := range []http.ResponseWriter{rec, logged(rec)} {
		ran := false
		serveCapped(t, given, func(w http.ResponseWriter) {
			ran = true
			require.Same(t, given, w)
		})
		require.True(t, ran)
	}
}

// The ResponseWriters of net/http, and what handlers do with them.
func TestWithACapAWriterCanDoWhatItCould(t *testing.T) {
	onBothProtocols(t, func(t *testing.T, k connectionKind) {
		look := func(w http.ResponseWriter) string { return fmt.Sprint(abilities(w)) }
		var before string
		inner := shaper.Middleware(limitedInFlight(t, 1, 0))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			controller := http.NewResponseController(w)
			// The second is the server's business in HTTP/2.
			for name, err := range map[string]error{
				"read deadline":  controller.SetReadDeadline(time.Now().Add(enough)),
				"write deadline": controller.SetWriteDeadline(time.Now().Add(enough)),
				"full duplex":    controller.EnableFullDuplex(),
				"flush":          controller.Flush(),
			} {
				if err != nil {
					fmt.Fprintln(w, name, err)
				}
			}
			if after := look(w); after != before {
				fmt.Fprintln(w, "was", before, "and is", after)
			}
			_, _ = io.WriteString(w, "one ")
			_, _ = io.Copy(w, strings.NewReader("two "))
			_, _ = w.Write([]byte("three"))
		}))
		client, url := k.open(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			before = look(w)
			inner.ServeHTTP(w, r)
		}))
		require.Equal(t, "200: one two three", receive(t, send(t.Context(), t, client, url, nil)))
		require.Equal(t, map[bool]string{false: "[flush hijack read]", true: "[flush push]"}[k.h2], before)
	})
}

// The one thing that gets lost, and what the comment of Middleware says to do.
func TestWithACapMaxBytesReaderClosesNothing(t *testing.T) {
	for _, tt := range []struct {
		name   string
		l      shaper.Limiter
		header string // that the handler sets
		want   bool
	}{
		{"without a cap", failing(nil), "", true},
		{"with one", limitedInFlight(t, 1, 0), "", false},
		{"with one, and said by the handler", limitedInFlight(t, 1, 0), "close", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			addr := openServer(t, shaper.Middleware(tt.l)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 3))
				if tt.header != "" {
					w.Header().Set("Connection", tt.header)
				}
				http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			})))
			answer, err := newClient(t).Post("http://"+addr, "text/plain", strings.NewReader("hello"))
			require.NoError(t, err)
			defer answer.Body.Close()
			require.Equal(t, http.StatusRequestEntityTooLarge, answer.StatusCode)
			require.Equal(t, tt.want, answer.Close)
		})
	}
}

// To look for a Hijack is to run other people's code.
func TestAPanicOfUnwrapFreesThePlace(t *testing.T) {
	s := limitedInFlight(t, 1, 0)
	require.PanicsWithValue(t, "no unwrapping", func() {
		shaper.Middleware(s)(http.NotFoundHandler()).
			ServeHTTP(unwrappable{httptest.NewRecorder()}, httptest.NewRequest("GET", "/", nil))
	})
	require.Equal(t, 0, s.Stats().InFlight)
}

type unwrappable struct{ *httptest.ResponseRecorder }

func (unwrappable) Unwrap() http.ResponseWriter { panic("no unwrapping") }
