package hijack_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper/internal/hijack"
)

// The ResponseWriter of an outer handler may implement any set of interfaces, and handlers
// behave according to which it implements. The wrapper that notices a Hijack must implement
// the same set.

// abilities are the interfaces that handlers look for in a ResponseWriter.
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

// An able notes which of its methods are called.
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

// An unwrapped is a ResponseWriter that can't be hijacked itself, but unwraps to one that
// can.
type unwrapped struct{ able }

func (u unwrapped) Unwrap() http.ResponseWriter { return hijackAbility(u) }

// sets has a ResponseWriter for each set of abilities.
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
		serve(t, original, func(w http.ResponseWriter) {
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

// serve runs a handler on a ResponseWriter whose Hijack is noticed, and returns how often
// the request has ended.
func serve(t *testing.T, w http.ResponseWriter, h func(http.ResponseWriter)) (ended int) {
	t.Helper()
	w, end := hijack.Until(w, func() { ended++ })
	h(w)
	end()
	return ended
}

// A hijackerFunc is a Hijacker that returns no connection.
type hijackerFunc func() error

func (f hijackerFunc) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, f() }

// A failingFlusher returns an error that only http.ResponseController sees.
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
			serve(t, original, func(w http.ResponseWriter) {
				require.Equal(t, errFlush, http.NewResponseController(w).Flush())
			})
		})
	}
}

type onlyFlushError struct{}

func (onlyFlushError) FlushError() error { return errFlush }

// A logged is a ResponseWriter that has only an Unwrap, to one that can do more.
type logged struct{ http.ResponseWriter }

func (l logged) Unwrap() http.ResponseWriter { return l.ResponseWriter }

// If a connection can't be hijacked, its request ends when the handler does.
func TestAWriterThatCantBeHijackedIsHandedOnAsItIs(t *testing.T) {
	rec := httptest.NewRecorder()
	for _, given := range []http.ResponseWriter{rec, &logged{rec}} {
		ran := false
		require.Equal(t, 1, serve(t, given, func(w http.ResponseWriter) {
			ran = true
			require.Same(t, given, w)
		}))
		require.True(t, ran)
		require.Same(t, given, hijack.Through(given, nil))
	}
}

// The cases are the ResponseWriters of net/http, and what handlers do with them.
func TestAWriterCanDoWhatItCould(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP/2 %t", h2), func(t *testing.T) {
			var before, after []string
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				before = abilities(w)
				w, end := hijack.Until(w, func() {})
				defer end()
				after = abilities(w)
				controller := http.NewResponseController(w)
				// HTTP/2 leaves the second to the server.
				for name, err := range map[string]error{
					"read deadline":  controller.SetReadDeadline(time.Now().Add(time.Minute)),
					"write deadline": controller.SetWriteDeadline(time.Now().Add(time.Minute)),
					"full duplex":    controller.EnableFullDuplex(),
					"flush":          controller.Flush(),
				} {
					if err != nil {
						fmt.Fprintln(w, name, err)
					}
				}
				_, _ = io.WriteString(w, "one ")
				_, _ = io.Copy(w, strings.NewReader("two "))
				_, _ = w.Write([]byte("three"))
			}))
			server.EnableHTTP2 = h2
			server.StartTLS()
			defer server.Close()
			answer, err := server.Client().Get(server.URL)
			require.NoError(t, err)
			defer answer.Body.Close()
			body, err := io.ReadAll(answer.Body)
			require.NoError(t, err)
			require.Equal(t, "one two three", string(body))
			require.Equal(t, before, after)
			require.Equal(t, map[bool][]string{false: {"flush", "hijack", "read"}, true: {"flush", "push"}}[h2], before)
		})
	}
}

// A request ends once: when its connection is hijacked, or else when its handler returns.
func TestARequestEndsOnce(t *testing.T) {
	type writer struct {
		http.ResponseWriter
		http.Hijacker
	}
	failure := errors.New("not now")
	for _, c := range []struct {
		name   string
		err    error // of the Hijack
		times  int   // how often the handler calls Hijack
		within int   // how often the request has ended before the handler returns
	}{{"no hijack", nil, 0, 0}, {"one", nil, 1, 1}, {"two", nil, 2, 1}, {"one that fails", failure, 1, 0}} {
		t.Run(c.name, func(t *testing.T) {
			ended := 0
			w, end := hijack.Until(writer{httptest.NewRecorder(), hijackerFunc(func() error { return c.err })}, func() { ended++ })
			for range c.times {
				_, _, err := http.NewResponseController(w).Hijack()
				require.Equal(t, c.err, err)
			}
			require.Equal(t, c.within, ended)
			end()
			require.Equal(t, 1, ended)
		})
	}
}
