package shaper_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// ResponseWriters of outer handlers come with any set of abilities, and handlers
// behave by what they find. The wrapper that sees a Hijack must change none.

// abilities are what handlers ask of a ResponseWriter by type assertions.
func abilities(w http.ResponseWriter) (found []string) {
	if _, ok := w.(http.Flusher); ok {
		found = append(found, "flush")
	}
	if _, ok := w.(http.Hijacker); ok {
		found = append(found, "hijack")
	}
	if _, ok := w.(io.ReaderFrom); ok {
		found = append(found, "read")
	}
	if _, ok := w.(http.Pusher); ok {
		found = append(found, "push")
	}
	return found
}

// able notes which of its methods are called.
type able struct {
	http.ResponseWriter
	called *[]string
}

func (a able) note(what string) { *a.called = append(*a.called, what) }

type (
	flushAbility  struct{ able }
	hijackAbility struct{ able }
	readAbility   struct{ able }
	pushAbility   struct{ able }
)

func (a flushAbility) Flush() { a.note("flush") }

func (a hijackAbility) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	a.note("hijack")
	return nil, nil, nil
}

func (a readAbility) ReadFrom(io.Reader) (int64, error) {
	a.note("read")
	return 0, nil
}

func (a pushAbility) Push(string, *http.PushOptions) error {
	a.note("push")
	return nil
}

// unwrapped is the middle of a ResponseWriter that can't be hijacked itself, but
// unwraps to one that can.
type unwrapped struct{ able }

func (u unwrapped) Unwrap() http.ResponseWriter { return hijackAbility(u) }

// sets are ResponseWriters of all sets of abilities.
func sets(a able) []http.ResponseWriter {
	u, f, h, r, p := unwrapped{a}, flushAbility{a}, hijackAbility{a}, readAbility{a}, pushAbility{a}
	return []http.ResponseWriter{
		u,
		struct {
			unwrapped
			http.Flusher
		}{u, f},
		struct {
			unwrapped
			http.Hijacker
		}{u, h},
		struct {
			unwrapped
			http.Flusher
			http.Hijacker
		}{u, f, h},
		struct {
			unwrapped
			io.ReaderFrom
		}{u, r},
		struct {
			unwrapped
			http.Flusher
			io.ReaderFrom
		}{u, f, r},
		struct {
			unwrapped
			http.Hijacker
			io.ReaderFrom
		}{u, h, r},
		struct {
			unwrapped
			http.Flusher
			http.Hijacker
			io.ReaderFrom
		}{u, f, h, r},
		struct {
			unwrapped
			http.Pusher
		}{u, p},
		struct {
			unwrapped
			http.Flusher
			http.Pusher
		}{u, f, p},
		struct {
			unwrapped
			http.Hijacker
			http.Pusher
		}{u, h, p},
		struct {
			unwrapped
			http.Flusher
			http.Hijacker
			http.Pusher
		}{u, f, h, p},
		struct {
			unwrapped
			io.ReaderFrom
			http.Pusher
		}{u, r, p},
		struct {
			unwrapped
			http.Flusher
			io.ReaderFrom
			http.Pusher
		}{u, f, r, p},
		struct {
			unwrapped
			http.Hijacker
			io.ReaderFrom
			http.Pusher
		}{u, h, r, p},
		struct {
			unwrapped
			http.Flusher
			http.Hijacker
			io.ReaderFrom
			http.Pusher
		}{u, f, h, r, p},
	}
}

func TestAWrappedWriterHasWhatTheOriginalHasAndNoMore(t *testing.T) {
	var called []string
	met := map[string]bool{}
	for _, original := range sets(able{httptest.NewRecorder(), &called}) {
		want := abilities(original)
		met[fmt.Sprint(want)] = true
		ran := false
		serveCapped(t, original, func(w http.ResponseWriter) {
			ran = true
			require.NotEqual(t, original, w)
			require.Equal(t, want, abilities(w))
			if f, ok := w.(http.Flusher); ok {
				f.Flush()
			}
			if h, ok := w.(http.Hijacker); ok {
				_, _, _ = h.Hijack()
			}
			if r, ok := w.(io.ReaderFrom); ok {
				_, _ = r.ReadFrom(nil)
			}
			if p, ok := w.(http.Pusher); ok {
				_ = p.Push("", nil)
			}
		})
		require.True(t, ran)
		require.Equal(t, want, called)
		called = nil
	}
	require.Len(t, met, 16, "all sets of four abilities")
}

// serveCapped runs a handler behind a cap on a ResponseWriter.
func serveCapped(t *testing.T, w http.ResponseWriter, h func(http.ResponseWriter)) {
	t.Helper()
	shaper.Middleware(limitedInFlight(t, 1, 0))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { h(w) })).
		ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
}

// hijackerFunc is a Hijacker whose connection is of no account.
type hijackerFunc func() error

func (f hijackerFunc) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, f() }

// failingFlusher fails in the way that only http.ResponseController sees.
type failingFlusher struct {
	http.ResponseWriter
	http.Hijacker
}

var errFlush = errors.New("flush fails")

func (failingFlusher) Flush()            {}
func (failingFlusher) FlushError() error { return errFlush }

func TestAnErrorOfFlushIsSeenThroughTheWrapper(t *testing.T) {
	h := hijackerFunc(func() error { return nil })
	for name, original := range map[string]http.ResponseWriter{
		"with Flush": failingFlusher{httptest.NewRecorder(), h},
		"without": struct {
			http.ResponseWriter
			http.Hijacker
			onlyFlushError
		}{httptest.NewRecorder(), h, onlyFlushError{}},
	} {
		t.Run(name, func(t *testing.T) {
			serveCapped(t, original, func(w http.ResponseWriter) {
				require.Equal(t, errFlush, http.NewResponseController(w).Flush())
			})
		})
	}
}

type onlyFlushError struct{}

func (onlyFlushError) FlushError() error { return errFlush }
