package shaper_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// The server's timeouts are for slow clients. A client whose request waited in line for
// longer than a timeout is not slow.

// serverTimeout is the timeout of the servers on a machine that is in time. The handshakes of
// all connections of a test begin at once, and each must end within it. Under the race
// detector on a busy machine, beside tests that compute, a second was too short.
var serverTimeout = map[bool]time.Duration{false: 800 * ms, true: 2000 * ms}[underRace]

// longWait is a wait in line that is longer than a timeout.
func longWait(timeout time.Duration) time.Duration { return timeout * 13 / 10 }

func readTimeout(timeout time.Duration) func(*http.Server) {
	return func(s *http.Server) { s.ReadTimeout = timeout }
}

func shortTimeouts(timeout time.Duration) func(*http.Server) {
	return func(s *http.Server) { s.ReadTimeout, s.WriteTimeout = timeout, timeout }
}

// kept returns a Limiter whose every call waits, and then returns err.
func kept(wait time.Duration, err error) limiterFunc {
	return func(ctx context.Context, _ int) error {
		select {
		case <-time.After(wait):
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// A claim is a call and the result that it should have.
type claim struct {
	name string
	call func() string
	want string
}

// holdAtOnce checks claims. It makes all calls at once, because they spend their
// time waiting.
func holdAtOnce(t testing.TB, claims []claim) {
	t.Helper()
	got := make([]string, len(claims))
	var wg sync.WaitGroup
	for i, c := range claims {
		wg.Go(func() { got[i] = c.call() })
	}
	wg.Wait()
	for i, c := range claims {
		require.Equal(t, c.want, got[i], c.name)
	}
}

func TestTimeInTheLineCostsAnAdmittedRequestNothing(t *testing.T) {
	t.Parallel()
	unlessLate(t, serverTimeout, func(t testing.TB, timeout time.Duration) {
		large := strings.Repeat("0123456789", 30_000)
		var claims []claim
		for _, k := range connectionKinds {
			running := map[string]chan struct{}{"/parts": make(chan struct{}), "/parts/known": make(chan struct{})}
			h := shaper.Middleware(kept(longWait(timeout), nil))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if began := running[r.URL.Path]; began != nil {
					close(began)
				}
				echoBody(w, r)
			}))
			client, url := k.open(t, h, shortTimeouts(timeout))
			inParts := func(length int64, path string) string {
				body, end := io.Pipe()
				failed := make(chan struct{}) // if the handler never runs
				defer close(failed)
				go func() {
					_, _ = io.WriteString(end, "before ")
					select {
					case <-running[path]:
					case <-failed:
					}
					_, _ = io.WriteString(end, "and after")
					_ = end.Close()
				}()
				r, err := http.NewRequest("POST", url+path, body)
				if err != nil {
					return err.Error()
				}
				r.ContentLength = length
				return <-do(client, r)
			}
			claims = append(claims,
				claim{k.name + ", no body", func() string { return postTo(client, url, nil) }, "200: "},
				claim{k.name + ", small body", func() string { return postTo(client, url, strings.NewReader("small")) }, "200: small"},
				claim{k.name + ", large body", func() string { return postTo(client, url, strings.NewReader(large)) }, "200: " + large},
				claim{k.name + ", body that comes in parts", func() string { return inParts(-1, "/parts") }, "200: before and after"},
				claim{k.name + ", body of known length that comes in parts", func() string { return inParts(16, "/parts/known") }, "200: before and after"},
			)
		}
		holdAtOnce(t, claims)
	})
}

func TestTimeInTheLineCostsARefusalNothing(t *testing.T) {
	t.Parallel()
	unlessLate(t, serverTimeout, func(t testing.TB, timeout time.Duration) {
		s, err := shaper.New(shaper.Limits{Rate: rate.Every(time.Hour), Depth: 99})
		require.NoError(t, err)
		require.True(t, s.Allow())
		limiters := map[string]shaper.Limiter{
			"/full": kept(longWait(timeout), &shaper.RejectError{Reason: shaper.ErrQueueFull}),
			"/down": kept(longWait(timeout), errors.New("engine is down")),
			"/deadline": limiterFunc(func(ctx context.Context, n int) error {
				ctx, cancel := context.WithTimeout(ctx, longWait(timeout))
				defer cancel()
				<-ctx.Done()
				return ctx.Err()
			}),
			"/closed": limiterFunc(func(ctx context.Context, n int) error {
				defer time.AfterFunc(longWait(timeout), func() { _ = s.Close() }).Stop()
				return s.WaitN(ctx, n)
			}),
		}
		want := map[string]string{
			"/full":     `429, retry 1: {"title":"Too Many Requests","status":429,"detail":"Too many requests are waiting already."}`,
			"/down":     `503, retry 1: {"title":"Service Unavailable","status":503,"detail":"The request could not be admitted."}`,
			"/deadline": `503, retry 1: {"title":"Service Unavailable","status":503,"detail":"The time for the request ran out while it waited."}`,
			"/closed":   `503, retry 1: {"title":"Service Unavailable","status":503,"detail":"The server takes no more requests."}`,
		}
		var claims []claim
		for _, k := range connectionKinds {
			site := http.NewServeMux()
			for path, l := range limiters {
				site.Handle(path, shaper.Middleware(l)(echoBody))
			}
			client, url := k.open(t, site, shortTimeouts(timeout))
			for path := range limiters {
				for _, body := range []string{"", "small"} {
					claims = append(claims, claim{
						fmt.Sprintf("%s, %s, body %q", k.name, path, body),
						func() string { return postTo(client, url+path, strings.NewReader(body)) },
						want[path] + "\n",
					})
				}
			}
		}
		holdAtOnce(t, claims)
	})
}

// net/http reads in the background while a handler runs. A read deadline that passes
// meanwhile would cancel the request's context.
func TestHandlerIsNotCancelledByTheReadTimeout(t *testing.T) {
	t.Parallel()
	unlessLate(t, serverTimeout, func(t testing.TB, timeout time.Duration) {
		outerReads := func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if r.URL.Path == "/put-back" {
					r.Body = io.NopCloser(bytes.NewReader(body))
				}
				h.ServeHTTP(w, r)
			})
		}
		h := shaper.Middleware(kept(longWait(timeout), nil))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			select {
			case <-r.Context().Done():
				fmt.Fprint(w, "cancelled")
			case <-time.After(2 * timeout):
				fmt.Fprint(w, "ran to its end")
			}
		}))
		var claims []claim
		for _, k := range connectionKinds {
			client, url := k.open(t, h, readTimeout(timeout))
			outerClient, outer := k.open(t, outerReads(h), readTimeout(timeout))
			const want = "200: ran to its end"
			claims = append(claims,
				claim{k.name + ", no body", func() string { return postTo(client, url, nil) }, want},
				claim{k.name + ", body that the handler reads",
					func() string { return postTo(client, url, strings.NewReader("small")) }, want},
				claim{k.name + ", body that an outer handler has read",
					func() string { return postTo(outerClient, outer, strings.NewReader("small")) }, want},
				claim{k.name + ", and put back",
					func() string { return postTo(outerClient, outer+"/put-back", strings.NewReader("small")) }, want},
				claim{k.name + ", of unknown length, and put back",
					func() string {
						return postTo(outerClient, outer+"/put-back", io.MultiReader(strings.NewReader("small")))
					}, want},
			)
		}
		holdAtOnce(t, claims)
	})
}

// After the wait the timeouts start anew, and are as long as before.
func TestServersTimeoutsHoldAfterTheWait(t *testing.T) {
	t.Parallel()
	unlessLate(t, serverTimeout, func(t testing.TB, timeout time.Duration) {
		var claims []claim
		for name, l := range map[string]shaper.Limiter{"a wait": kept(longWait(timeout), nil), "no wait": failing(nil)} {
			for _, k := range connectionKinds {
				read := make(chan error, 1)
				h := shaper.Middleware(l)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, err := io.Copy(io.Discard, r.Body)
					read <- err
				}))
				client, url := k.open(t, h, readTimeout(timeout))
				body, end := io.Pipe()
				t.Cleanup(func() { _ = end.Close() })
				r, err := http.NewRequest("POST", url, io.MultiReader(strings.NewReader("a part"), body))
				require.NoError(t, err)
				r.ContentLength = 100
				claims = append(claims, claim{k.name + ", " + name, func() string {
					go func() {
						if answer, err := client.Do(r); err == nil {
							_ = answer.Body.Close()
						}
					}()
					select {
					case err := <-read:
						return fmt.Sprint(errors.Is(err, os.ErrDeadlineExceeded))
					case <-time.After(enough):
						return "the handler still waits for the body"
					}
				}, "true"})
			}
		}
		holdAtOnce(t, claims)
	})
}

func TestKeepAliveObeysTheServersTimeoutsAfterAWait(t *testing.T) {
	t.Parallel()
	unlessLate(t, serverTimeout, func(t testing.TB, timeout time.Duration) {
		var claims []claim
		for _, request := range []string{
			"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
			"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nsmall",
		} {
			for _, hook := range hooks {
				conn := dial(t, openServer(t, shaper.Middleware(kept(longWait(timeout), nil))(echoBody), shortTimeouts(timeout), hook.set))
				claims = append(claims, claim{request + hook.name, func() (saw string) {
					reader := bufio.NewReader(conn)
					for range 2 { // The deadlines of one request don't break the next.
						_, _ = io.WriteString(conn, request)
						answer, err := readAnswer(reader)
						if err != nil {
							return err.Error()
						}
						saw += statusLine(answer) + ", "
					}
					_, err := reader.ReadByte() // IdleTimeout, which is ReadTimeout, ends the connection.
					return saw + err.Error()
				}, "200, 200, EOF"})
			}
		}
		holdAtOnce(t, claims)
	})
}

// The ways in which handlers come to a Hijack, and the wrappers between them and the ResponseWriter
// of net/http.
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

// A hijackableRecorder is a ResponseWriter whose connection does not matter.
type hijackableRecorder struct {
	*httptest.ResponseRecorder
	err error // of Hijack
}

func hijackable(err error) *hijackableRecorder {
	return &hijackableRecorder{httptest.NewRecorder(), err}
}

func (h *hijackableRecorder) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, h.err }

// A handler that hijacks the connection with its body unread gets the bytes read ahead, then the
// bytes that come later, as from net/http alone, and no deadline.
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
