package shaper_test

import (
	"bufio"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

func TestASmallBodyIsReadAheadSoThatADepartureIsSeen(t *testing.T) {
	for _, way := range []struct {
		name string
		out  func(*visitor)
	}{{"closes", (*visitor).leave}, {"resets", (*visitor).reset}, {"half-closes", (*visitor).closeHalf}} {
		for _, sent := range []string{"hello", "he"} {
			t.Run("client "+way.name+" after "+sent, func(t *testing.T) {
				t.Parallel()
				e := newBlindEntrance(t, 2)
				e.Config.ReadTimeout = time.Minute
				e.open()
				gone := e.visit(post("/gone", sent))
				e.waiting(1)
				other := e.visit(post("/next", "hello"))
				e.waiting(2)
				way.out(gone)
				e.abandoned(1)
				require.Equal(t, "/gone 499", e.ended())
				e.admit("100/s depth 2")
				require.Equal(t, "HELLO", other.reads(200))
				require.Equal(t, "/next", realtime.Next(t, e.ran))
				require.EqualValues(t, 2, e.Stats().Departed)
			})
		}
	}
}

// pipeListener accepts the connections that are sent to it.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newPipeListener() pipeListener {
	closed := make(chan struct{})
	return pipeListener{make(chan net.Conn), closed, sync.OnceFunc(func() { close(closed) })}
}

func (l pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l pipeListener) Close() error { l.close(); return nil }

func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// What has come of a slow body during the wait is handed on with the rest, and the rest
// has all of the server's ReadTimeout again.
func TestASlowBodyIsHandedOnWithItsRestUnread(t *testing.T) {
	t.Parallel()
	unlessLate(t, 300*time.Millisecond, func(t testing.TB, timeout time.Duration) {
		e := newBlindEntrance(t, 1)
		e.Config.ReadTimeout = timeout
		begun := make(chan string, 1)
		e.handler = func(w http.ResponseWriter, r *http.Request) {
			part := make([]byte, 2)
			_, _ = io.ReadFull(r.Body, part)
			begun <- string(part)
			echo(w, r)
		}
		e.open()
		v := e.visit(post("/", "he"))
		e.waiting(1)
		time.Sleep(timeout * 4 / 3)
		e.admit("100/s depth 1")
		require.Equal(t, "he", realtime.Next(t, begun))
		v.send("llo")
		require.Equal(t, "LLO", v.reads(200))
	})
}

// A body that never comes costs its handler no more than the ReadTimeout, whether the
// request waited or not.
func TestABodyThatNeverComesHasADeadline(t *testing.T) {
	for _, waits := range []bool{false, true} {
		t.Run(fmt.Sprintf("waits %t", waits), func(t *testing.T) {
			t.Parallel()
			unlessLate(t, time.Second, func(t testing.TB, timeout time.Duration) {
				e := newBlindEntrance(t, 1)
				e.Config.ReadTimeout = timeout
				if !waits {
					e.admit("inf")
				}
				e.open()
				begun := time.Now()
				v := e.visit(post("/", "he"))
				if waits {
					e.waiting(1)
					begun = time.Now()
					e.admit("100/s depth 1")
				}
				require.Contains(t, v.reads(400), "timeout")
				require.Less(t, time.Since(begun), timeout*9/5, "a silent client is held for one ReadTimeout, not for two")
			})
		})
	}
}

// A handler may answer before it reads the body. So the handler begins at once, not when
// the body has come.
func TestNoHandlerIsDelayedByReadingAheadWhereNobodyWaits(t *testing.T) {
	for name, middleware := range openLimiters(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newBlindEntrance(t, 1)
			e.Config.ReadTimeout = time.Hour // Which is how long it would be delayed.
			e.outer = func(h http.Handler) http.Handler {
				return middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if body := fmt.Sprintf("%T", r.Body); body != "*http.body" {
						t.Errorf("the body is a %s", body)
					}
					e.ran <- r.URL.Path
					echo(w, r)
				}))
			}
			e.open()
			v := e.visit(post("/", "he"))
			realtime.Next(t, e.ran)
			v.send("llo")
			require.Equal(t, "HELLO", v.reads(200))
		})
	}
}

func TestAHandlerNeedNotReadABodyThatIsReadAhead(t *testing.T) {
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		answer  string // how the connection goes on
	}{
		{"answers", func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		}, "HTTP/1.1 200 OK"},
		{"panics", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			unlessLate(t, 200*time.Millisecond, func(t testing.TB, timeout time.Duration) {
				e := newBlindEntrance(t, 1)
				e.Config.ReadTimeout = timeout
				e.handler = c.handler
				e.open()
				v := e.visit(post("/", "he"))
				e.waiting(1)
				e.admit("100/s depth 1")
				all, err := io.ReadAll(v)
				require.NoError(t, err)
				line, _, _ := strings.Cut(string(all), "\r\n")
				require.Equal(t, c.answer, line)
			})
		})
	}
}

// A read deadline that passes while the handler runs would cancel its request, whether the
// middleware has left it under a body that has been read, or it applies to net/http's own read of
// the connection. A Middleware within another must know whose body it gets.
func TestAHandlerMayOutlastTheReadTimeout(t *testing.T) {
	always, err := shaper.New(limitsOf(t, "inf"))
	require.NoError(t, err)
	for _, c := range []struct {
		name, request string
		outer         func(http.Handler) http.Handler
		hook, waits   bool
		answer        string // of the handler, which reads the body unless this is empty
	}{
		{"of a body read ahead", post("/", "hello"), asIs, false, true, "HELLO"},
		{"of one within another Middleware", post("/", "hello"), shaper.Middleware(always), false, true, "HELLO"},
		{"of a chunked body that an outer handler has read", chunked("/") + "llo\r\n0\r\n\r\n",
			touched(func(r *http.Request) { _, _ = io.ReadAll(r.Body) }), true, true, ""},
		{"of a body that nobody reads", post("/", "he"), asIs, false, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			unlessLate(t, 200*time.Millisecond, func(t testing.TB, timeout time.Duration) {
				e := newBlindEntrance(t, 1)
				if c.hook {
					hooked(e.Config)
				}
				e.outer = c.outer
				e.Config.ReadTimeout = timeout
				e.handler = func(w http.ResponseWriter, r *http.Request) {
					select {
					case <-r.Context().Done():
						w.WriteHeader(http.StatusInternalServerError)
					case <-time.After(timeout * 5 / 2):
						if c.answer != "" {
							echo(w, r)
						}
					}
				}
				if !c.waits {
					e.admit("inf")
				}
				e.open()
				v := e.visit(c.request)
				if c.waits {
					e.waiting(1)
					time.Sleep(timeout / 4)
					e.admit("100/s depth 1")
				}
				require.Equal(t, c.answer, v.reads(200))
			})
		})
	}
}

// Such bodies are not read before the request enters the line: it would take a minute
// until they came.
func TestBodiesThatAreNotReadAhead(t *testing.T) {
	plain := func(h http.Handler) http.Handler { return h }
	change := func(f func(w *http.ResponseWriter, r *http.Request)) func(http.Handler) http.Handler {
		return func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				f(&w, r)
				h.ServeHTTP(w, r)
			})
		}
	}
	const head = "POST / HTTP/1.1\r\nHost: a\r\n"
	for _, c := range []struct {
		name, head, body string
		outer            func(http.Handler) http.Handler
		want             string
	}{
		{"longer than 64 KiB", head + "Content-Length: 65537\r\n\r\n", strings.Repeat("a", 65537), plain,
			strings.Repeat("A", 65537)},
		{"of unknown length", head + "Transfer-Encoding: chunked\r\n\r\n", "2\r\nhe\r\n0\r\n\r\n", plain, "HE"},
		{"limited by an outer handler", post("/", ""), "hello",
			func(h http.Handler) http.Handler { return http.MaxBytesHandler(h, 9) }, "HELLO"},
		{"made by an outer handler", post("/", ""), "\x01\x00\x00\xff\xff",
			// Even a read of nothing waits for the client.
			change(func(_ *http.ResponseWriter, r *http.Request) { r.Body = flate.NewReader(r.Body) }), ""},
		{"whose deadline is hidden", post("/", ""), "hello",
			change(func(w *http.ResponseWriter, _ *http.Request) { *w = struct{ http.ResponseWriter }{*w} }), "HELLO"},
	} {
		for _, hook := range []bool{false, true} {
			t.Run(c.name+map[bool]string{true: ", with the hook"}[hook], func(t *testing.T) {
				t.Parallel()
				e := newBlindEntrance(t, 1)
				if hook {
					e.Config.ConnContext = shaper.ConnContext
				}
				e.outer = c.outer
				e.Config.ReadTimeout = time.Minute
				e.open()
				v := e.visit(c.head)
				e.waiting(1)
				e.admit("100/s depth 1")
				v.send(c.body)
				require.Equal(t, c.want, v.reads(200))
			})
		}
	}
}

// A client that asks "Expect: 100-continue" is not asked for its body while its request
// waits in line.
func TestAnExpectedBodyIsAskedForByTheHandler(t *testing.T) {
	for _, hook := range []bool{false, true} {
		t.Run(map[bool]string{true: "with the hook", false: "without"}[hook], func(t *testing.T) {
			t.Parallel()
			e := newBlindEntrance(t, 1)
			if hook {
				e.Config.ConnContext = shaper.ConnContext
			}
			e.open()
			v := e.visit("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
			e.waiting(1)
			v.readsNothing(100 * time.Millisecond)
			e.admit("100/s depth 1")
			v.reads(100)
			v.send("hello")
			require.Equal(t, "HELLO", v.reads(200))
		})
	}
}

func TestAFullLineRefusesWithoutReadingAhead(t *testing.T) {
	t.Parallel()
	e := newBlindEntrance(t, 0)
	e.Config.ReadTimeout = time.Minute
	e.open()
	e.visit(post("/", "he")).reads(429)
}

func TestTheErrorOfALimitedBodyReachesTheHandler(t *testing.T) {
	t.Parallel()
	e := newBlindEntrance(t, 1)
	e.outer = func(h http.Handler) http.Handler { return http.MaxBytesHandler(h, 3) }
	e.open()
	v := e.visit(post("/", "hello"))
	e.waiting(1)
	e.admit("100/s depth 1")
	require.Equal(t, "http: request body too large", v.reads(400))
}

// The connection fails to read in time, although its client is there.
func TestABodyThatCannotBeReadIsAnswered408(t *testing.T) {
	t.Parallel()
	e := newBlindEntrance(t, 1)
	e.Listener = wrapListener{e.Listener, hasty(100 * time.Millisecond)}
	e.open()
	e.visit(post("/", "he")).reads(408)
	require.Zero(t, e.Stats().Waiting)
	require.Empty(t, e.ran)
}

// hasty returns a function that makes a hastyConn.
func hasty(patience time.Duration) func(net.Conn) net.Conn {
	return func(c net.Conn) net.Conn { return &hastyConn{Conn: c, patience: patience} }
}

// A hastyConn gives each read its patience, except the first, which gets the header.
type hastyConn struct {
	net.Conn
	patience time.Duration
	begun    atomic.Bool
}

func (c *hastyConn) Read(p []byte) (int, error) {
	if c.begun.Swap(true) {
		_ = c.SetReadDeadline(time.Now().Add(c.patience))
	}
	return c.Conn.Read(p)
}

// A client that closes its sending half after its request, as nc -N and Node's
// socket.end(request) do, still reads the answer. net/http takes the end of the
// stream for the end of the client and cancels the request. If the request has not
// waited, the middleware must not treat its client as gone.

// halfClosing sends a text on a connection of its own, closes the sending half, and
// returns how many answers of each status came. One of status 0 is added if they ended
// otherwise than with the end of the stream.
func halfClosing(t *testing.T, addr, requests string) map[int]int {
	t.Helper()
	statuses, err := endAfter(dial(t, addr), requests)
	require.NoError(t, err)
	return statuses
}

// endAfter does the same with a connection that is open, on any goroutine.
func endAfter(conn net.Conn, requests string) (map[int]int, error) {
	defer conn.Close()
	if _, err := io.WriteString(conn, requests); err != nil {
		return nil, err
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return nil, err
	}
	statuses := map[int]int{}
	for reader := bufio.NewReader(conn); ; {
		answer, err := readAnswer(reader)
		if err != nil {
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				statuses[0]++
			}
			return statuses, nil
		}
		statuses[answer.StatusCode]++
	}
}

// waitOfAnother is the time from which a call of another's limiter counts as a wait: only the
// clock tells. On a busy machine a call that did not wait may take as long.
const waitOfAnother = 20 * ms

// othersLimiters are the openLimiters that do not say whether a request has waited.
var othersLimiters = map[string]bool{
	"x/time": true, "a Chain with x/time's": true, "a function": true, "a semaphore of one's own": true, "a Shaper in one's own type": true,
}

// openLimiters never make a request wait.
func openLimiters(t *testing.T) map[string]func(http.Handler) http.Handler {
	always := limitsOf(t, "inf")
	group := func(opts ...shaper.GroupOption) *shaper.Group[string] {
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return always, nil }, opts...)
		require.NoError(t, err)
		t.Cleanup(func() { _ = g.Close() })
		return g
	}
	of := func(l shaper.Limiter) func(http.Handler) http.Handler { return shaper.Middleware(l) }
	foreign := rate.NewLimiter(rate.Inf, 1)
	return map[string]func(http.Handler) http.Handler{
		"Shaper":                     of(mustMake(t, always)),
		"Shaper with a cap":          of(limitedInFlight(t, 10_000, 0)),
		"Group.Limiter":              of(group().Limiter("a")),
		"Group.Middleware":           group().Middleware(shaper.ByClientIP()),
		"Group in a dry run":         group(shaper.WithDryRun()).Middleware(shaper.ByClientIP()),
		"dry run":                    of(mustDryRun(t, "1 per 1h")),
		"x/time":                     of(foreign),
		"a Chain":                    of(shaper.Chain(mustMake(t, always), group().Limiter("a"))),
		"a Chain with x/time's":      of(shaper.Chain(foreign, mustMake(t, always))),
		"a function":                 of(failing(nil)),
		"a semaphore of one's own":   of(&semaphore{}),
		"a Shaper in one's own type": of(limiterFunc(mustMake(t, always).WaitN)),
	}
}

func TestAHalfClosedClientIsServedWhenNobodyWaits(t *testing.T) {
	const head = "POST / HTTP/1.1\r\nHost: a\r\n"
	for _, request := range []struct {
		name, text string
		clients    int
		each       int // requests of each client
	}{
		{"body with a length", head + "Content-Length: 5\r\n\r\nhello", 200, 1},
		{"chunked body", head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 200, 1},
		{"pipelined GETs", strings.Repeat(get("/"), 600), 1, 600},
	} {
		for _, hook := range hooks {
			for name, middleware := range openLimiters(t) {
				t.Run(strings.Join([]string{request.name, hook.name, name}, "/"), func(t *testing.T) {
					t.Parallel()
					clients := min(request.clients, rounds(80, 200, 200))
					if name != "Shaper" && !long {
						clients = (clients + 9) / 10
					}
					shaped := middleware(http.HandlerFunc(echo))
					var delayed atomic.Bool // a request has taken so long that it may count as one that waited
					addr := openServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						begun := time.Now()
						shaped.ServeHTTP(w, r)
						if time.Since(begun) >= waitOfAnother {
							delayed.Store(true)
						}
					}), hook.set)
					want := map[int]int{http.StatusOK: request.each}
					for range clients {
						got := halfClosing(t, addr, request.text)
						for delayed.Swap(false) && !maps.Equal(got, want) && othersLimiters[name] {
							got = halfClosing(t, addr, request.text)
						}
						require.Equal(t, want, got)
					}
				})
			}
		}
	}
}

// A refusal that comes at once is answered, too, even if net/http has cancelled the request
// before.
func TestAHalfClosedClientIsToldThatItIsRefusedAtOnce(t *testing.T) {
	for name, refusal := range map[string]struct {
		by     shaper.Limiter
		status int
	}{
		"by a Shaper":   {mustMake(t, limitsOf(t, "1 per 1h")), 429},
		"by a function": {failing(errors.New("no")), 503},
	} {
		for _, hook := range hooks {
			t.Run(name+"/"+hook.name, func(t *testing.T) {
				t.Parallel()
				if s, ok := refusal.by.(*shaper.Shaper); ok {
					s.Allow()
				}
				refuse := shaper.Middleware(refusal.by)(http.NotFoundHandler())
				addr := openServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					<-r.Context().Done()
					refuse.ServeHTTP(w, r)
				}), hook.set)
				require.Equal(t, map[int]int{refusal.status: 1}, halfClosing(t, addr, get("/")))
			})
		}
	}
}

// A request that waits for the limits of its key, because another one has just asked for
// them, does not wait in a line.
func TestAHalfClosedClientIsServedThatWaitsForTheLimitsOfItsKey(t *testing.T) {
	const clients = 5
	for _, hook := range hooks {
		t.Run(hook.name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			g, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
				asked.Add(1)
				time.Sleep(300 * time.Millisecond)
				return shaper.Limits{Rate: 1, Burst: clients}, nil
			})
			require.NoError(t, err)
			t.Cleanup(func() { _ = g.Close() })
			addr := openServer(t, g.Middleware(shaper.ByClientIP())(http.HandlerFunc(echo)), hook.set)
			var all sync.WaitGroup
			for range clients {
				conn := dial(t, addr)
				all.Go(func() {
					got, err := endAfter(conn, post("/", "hello"))
					if err != nil || got[http.StatusOK] != 1 {
						t.Errorf("answers were %v, %v", got, err)
					}
				})
			}
			all.Wait()
			require.EqualValues(t, 1, asked.Load())
		})
	}
}

// After a wait the end of the stream counts, because net/http cannot tell such a client
// from one that has gone.
func TestAHalfClosedClientIsGoneAfterAWait(t *testing.T) {
	for _, hook := range hooks {
		for _, request := range []string{get("/"), post("/", "hello")} {
			for name, wait := range map[string]shaper.Limiter{
				"a function that waits for its context": limiterFunc(func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }),
				"one that does not look at it":          kept(longWait(serverTimeout), nil),
				"a Shaper":                              stuckShaper(t, 1),
			} {
				t.Run(strings.Join([]string{hook.name, request[:4], name}, "/"), func(t *testing.T) {
					t.Parallel()
					ran := false
					addr := openServer(t, shaper.Middleware(wait)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran = true })), hook.set)
					begun := time.Now()
					require.Equal(t, map[int]int{499: 1}, halfClosing(t, addr, request))
					require.False(t, ran)
					require.Less(t, time.Since(begun), enough/2)
				})
			}
		}
	}
}
