package shaper_test

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

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// The ways in which handlers come to a Hijack, and what is between them and the
// ResponseWriter of net/http.
var hijacks = []struct {
	name  string
	outer func(http.ResponseWriter) http.ResponseWriter
	by    func(http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error)
}{
	{"type assertion", bare, asserted},
	{"http.ResponseController", bare, controlled},
	{"http.ResponseController behind a logger", logged, controlled},
	{"http.ResponseController behind two", func(w http.ResponseWriter) http.ResponseWriter { return logged(logged(w)) }, controlled},
}

func bare(w http.ResponseWriter) http.ResponseWriter   { return w }
func logged(w http.ResponseWriter) http.ResponseWriter { return &statusWriter{ResponseWriter: w} }

func asserted(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) {
	return w.(http.Hijacker).Hijack()
}

func controlled(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w).Hijack()
}

func TestAHijackFreesTheSeatOnceAndForAll(t *testing.T) {
	for _, way := range hijacks {
		t.Run(way.name, func(t *testing.T) {
			s := limitedInFlight(t, 1, 1)
			stay, hijacked := map[string]chan struct{}{"/hijack": make(chan struct{}), "/second": make(chan struct{})}, make(chan error, 1)
			inner := shaper.Middleware(s)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/hijack" {
					conn, _, err := way.by(w)
					hijacked <- err
					if err == nil {
						defer conn.Close()
					}
				}
				<-stay[r.URL.Path]
			}))
			ended := make(chan string, 3)
			addr := openServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				inner.ServeHTTP(way.outer(w), r)
				ended <- r.URL.Path
			}))
			stay["/third"] = make(chan struct{})
			client := newClient(t)
			send(t.Context(), t, client, "http://"+addr+"/hijack", nil)
			require.NoError(t, realtime.Next(t, hijacked))
			require.Equal(t, 0, s.Stats().InFlight, "its handler goes on without a seat")

			second := send(t.Context(), t, client, "http://"+addr+"/second", nil)
			realtime.Until(t, inFlight(s, 1), "the second has the seat")
			third := send(t.Context(), t, client, "http://"+addr+"/third", nil)
			realtime.Until(t, inLine(s, 1), "the third waits for it")
			close(stay["/hijack"])
			require.Equal(t, "/hijack", realtime.Next(t, ended))
			st := s.Stats()
			require.Equal(t, []int{1, 1}, []int{st.InFlight, st.Waiting}, "in flight, in line")

			close(stay["/second"])
			require.Equal(t, "200: ", realtime.Next(t, second))
			close(stay["/third"])
			require.Equal(t, "200: ", realtime.Next(t, third))
			realtime.Until(t, inFlight(s, 0), "all seats are free")
		})
	}
}

// A websocket through a proxy with a single seat.
func TestAnUpgradedConnectionHasNoSeat(t *testing.T) {
	s := limitedInFlight(t, 1, 0)
	addr := openServer(t, shaper.Middleware(s)(proxyTo(t, openServer(t, duplexSite(nil)))), hooked)
	echoes := upgrade(t, addr)
	for _, word := range []string{"ping", "pong"} {
		echoes(word)
		require.Equal(t, "200: hello", postTo(newClient(t), "http://"+addr, nil))
		realtime.Until(t, inFlight(s, 0), "the seat is free again")
	}
}

func TestAHijackThatFailsKeepsTheSeat(t *testing.T) {
	s := limitedInFlight(t, 1, 0)
	failure := errors.New("not now")
	shaper.Middleware(s)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, by := range []func(http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error){asserted, controlled} {
			_, _, err := by(w)
			require.Equal(t, failure, err)
			require.Equal(t, 1, s.Stats().InFlight)
		}
	})).ServeHTTP(struct {
		http.ResponseWriter
		http.Hijacker
	}{httptest.NewRecorder(), hijackerFunc(func() error { return failure })}, httptest.NewRequest("GET", "/", nil))
	require.Equal(t, 0, s.Stats().InFlight)
}

// The one thing that gets lost, with the remedy in the comment of Middleware.
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

// Looking for a Hijack runs foreign code, which may panic.
func TestAPanicOfUnwrapFreesTheSeat(t *testing.T) {
	s := limitedInFlight(t, 1, 0)
	require.PanicsWithValue(t, "no unwrapping", func() {
		shaper.Middleware(s)(http.NotFoundHandler()).
			ServeHTTP(unwrappable{httptest.NewRecorder()}, httptest.NewRequest("GET", "/", nil))
	})
	require.Equal(t, 0, s.Stats().InFlight)
}

type unwrappable struct{ *httptest.ResponseRecorder }

func (unwrappable) Unwrap() http.ResponseWriter { panic("no unwrapping") }

// hijackerFunc is a Hijacker whose connection does not matter.
type hijackerFunc func() error

func (f hijackerFunc) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, f() }

// A handler that hijacks the connection with its body unread gets what was read
// ahead, then what comes later, as from net/http alone, and no deadline.
func TestAHijackerGetsTheBodyThatWasReadAhead(t *testing.T) {
	t.Parallel()
	for _, way := range hijacks[1:3] {
		for _, hook := range []bool{true, false} {
			for _, sent := range []string{"hello", "he", ""} {
				for read := range min(len(sent), 2) + 1 {
					t.Run(fmt.Sprintf("%s, hook %t, %q sent, %d read", way.name, hook, sent, read), func(t *testing.T) {
						t.Parallel()
						unlessLate(t, 200*time.Millisecond, func(t testing.TB, timeout time.Duration) {
							e := newBlindEntrance(t, 1)
							if hook {
								e.Config.ConnContext = shaper.ConnContext
							}
							e.Config.ReadTimeout, e.Config.WriteTimeout = timeout, timeout
							type result struct {
								known int // bytes that can be had without reading the connection
								all   string
								err   error
							}
							results, hijacked := make(chan result, 1), make(chan bool, 1)
							e.handler = func(w http.ResponseWriter, r *http.Request) {
								var got result
								part := make([]byte, read)
								_, got.err = io.ReadFull(r.Body, part)
								require.NoError(t, got.err)
								conn, buffered, err := way.by(way.outer(w))
								if err != nil {
									results <- result{err: err}
									return
								}
								defer conn.Close()
								hijacked <- true
								got.known = read + buffered.Reader.Buffered()
								rest := make([]byte, len("hello, and more")-read)
								_, got.err = io.ReadFull(buffered, rest)
								got.all = string(part) + string(rest)
								results <- got
								_, _ = buffered.WriteString("bye")
								_ = buffered.Flush()
							}
							e.open()
							v := e.visit(post("/", sent))
							e.waiting(1)
							time.Sleep(timeout / 4) // Now it has been read.
							e.admit("100/s depth 1")
							realtime.Next(t, hijacked)
							time.Sleep(timeout * 3 / 2) // Longer than any deadline of ours or of the server.
							v.send("hello, and more"[len(sent):])
							got := realtime.Next(t, results)
							require.NoError(t, got.err)
							require.Equal(t, "hello, and more", got.all)
							if !hook {
								require.Equal(t, len(sent), got.known)
							}
							back, err := io.ReadAll(v)
							require.NoError(t, err)
							require.Equal(t, "bye", string(back))
						})
					})
				}
			}
		}
	}
}
