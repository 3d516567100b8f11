package shaper_test

import (
	"bytes"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// The server's timeouts are for slow clients. A client whose request waited in line for
// longer than a timeout is not slow.

const (
	timeout  = 10 * time.Second // of the servers
	longWait = 13 * time.Second // in line
)

func readTimeout(s *http.Server)   { s.ReadTimeout = timeout }
func shortTimeouts(s *http.Server) { s.ReadTimeout, s.WriteTimeout = timeout, timeout }

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

func TestTimeInTheLineCostsAnAdmittedRequestNothing(t *testing.T) {
	inBubbles(t, func(t *testing.T, k connectionKind) {
		h := shaper.Middleware(kept(longWait, nil))(http.HandlerFunc(echo))
		client, url := k.serve(t, h, with(shortTimeouts), onPipes)
		for _, body := range []string{"", "small", strings.Repeat("0123456789", 30_000)} {
			require.Equal(t, "200: "+strings.ToUpper(body), postTo(client, url, strings.NewReader(body)))
		}
	})
}

// After the wait, or without one, a client has all of the server's ReadTimeout for the rest of its
// body, and no more. The handler gets what has come before the rest.
func TestTheRestOfABodyHasTheServersTimeout(t *testing.T) {
	for _, wait := range []time.Duration{0, longWait} {
		for _, sniffed := range []bool{false, true} {
			for _, length := range []int64{-1, 16} {
				inBubbles(t, func(t *testing.T, k connectionKind) {
					start, first, ended := time.Now(), make(chan string, 2), make(chan error, 1) // There are two requests.
					h := shaper.Middleware(kept(wait, nil))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						part := make([]byte, 7)
						_, _ = io.ReadFull(r.Body, part)
						first <- fmt.Sprint(string(part), "after ", time.Since(start))
						rest, err := io.ReadAll(r.Body)
						_, _ = w.Write(rest)
						ended <- err
					}))
					if sniffed {
						h = touched(putBacks["multi"])(h)
					}
					client, url := k.serve(t, h, with(shortTimeouts), onPipes)
					begin := func() (*io.PipeWriter, <-chan string) {
						body, end := io.Pipe()
						r, err := http.NewRequest("POST", url, body)
						require.NoError(t, err)
						r.ContentLength = length
						became := do(client, r)
						_, err = io.WriteString(end, "before ")
						require.NoError(t, err)
						return end, became
					}
					end, became := begin()
					require.Equal(t, fmt.Sprint("before after ", wait), realtime.Next(t, first))
					time.Sleep(timeout - 1)
					_, err := io.WriteString(end, "and after")
					require.NoError(t, err)
					require.NoError(t, end.Close())
					require.NoError(t, realtime.Next(t, ended))
					require.Equal(t, "200: and after", realtime.Next(t, became))

					start = time.Now()
					end, _ = begin()
					time.Sleep(wait + timeout/2)
					_, err = io.WriteString(end, "a") // No part of the rest gives time for another.
					require.NoError(t, err)
					require.ErrorContains(t, realtime.Next(t, ended), "i/o timeout")
					require.Equal(t, wait+timeout, time.Since(start))
					require.NoError(t, end.Close())
				})
			}
		}
	}
}

func TestTimeInTheLineCostsARefusalNothing(t *testing.T) {
	limiters := map[string]shaper.Limiter{
		"/full": kept(longWait, &shaper.RejectError{Reason: shaper.ErrQueueFull}),
		"/down": kept(longWait, errors.New("engine is down")),
		"/deadline": limiterFunc(func(ctx context.Context, n int) error {
			ctx, cancel := context.WithTimeout(ctx, longWait)
			defer cancel()
			<-ctx.Done()
			return ctx.Err()
		}),
		"/closed": limiterFunc(func(ctx context.Context, n int) error {
			s, err := shaper.New(shaper.Limits{Rate: 1. / 3600, Depth: 1})
			if err != nil {
				return err
			}
			s.Allow()
			defer time.AfterFunc(longWait, func() { _ = s.Close() }).Stop()
			return s.WaitN(ctx, n)
		}),
	}
	want := map[string]string{
		"/full":     `429, retry 1: {"title":"Too Many Requests","status":429,"detail":"Too many requests are waiting already."}`,
		"/down":     `503, retry 1: {"title":"Service Unavailable","status":503,"detail":"The request could not be admitted."}`,
		"/deadline": `503, retry 1: {"title":"Service Unavailable","status":503,"detail":"The time for the request ran out while it waited."}`,
		"/closed":   `503, retry 1: {"title":"Service Unavailable","status":503,"detail":"The server takes no more requests."}`,
	}
	inBubbles(t, func(t *testing.T, k connectionKind) {
		site := http.NewServeMux()
		for path, l := range limiters {
			site.Handle(path, shaper.Middleware(l)(http.NotFoundHandler()))
		}
		client, url := k.serve(t, site, with(shortTimeouts), onPipes)
		for path := range limiters {
			for _, body := range []string{"", "small"} {
				require.Equal(t, want[path]+"\n", postTo(client, url+path, strings.NewReader(body)))
			}
		}
	})
}

// A comeBody is a body that says of itself that all of it has come.
type comeBody struct{ io.Reader }

func (comeBody) Close() error  { return nil }
func (comeBody) HasCome() bool { return true }

// A read deadline that passes while the handler runs would cancel its request, whether the
// middleware has left it under a body that has been read, or it applies to net/http's own read of
// the connection. A Middleware within another must know whose body it gets.
func TestAHandlerMayOutlastTheReadTimeout(t *testing.T) {
	small := func() io.Reader { return strings.NewReader("small") }
	unknown := func() io.Reader { return io.MultiReader(small()) }
	in := touched(func(r *http.Request) { _, _ = io.ReadAll(r.Body) })
	inLimited := func(h http.Handler) http.Handler { return http.MaxBytesHandler(in(h), 9) }
	andBack := touched(func(r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
	})
	inAnotherWay := touched(func(r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = comeBody{bytes.NewReader(body)}
	})
	const before, after, never = -timeout, 2 * timeout, 0
	for _, c := range []struct {
		name  string
		body  func() io.Reader
		outer func(http.Handler) http.Handler
		wait  time.Duration
		reads time.Duration // when the handler reads its body
	}{
		{"no body", func() io.Reader { return nil }, asIs, longWait, before},
		{"a body that the handler reads", small, asIs, longWait, before},
		{"a body that an outer handler has read", small, in, longWait, never},
		{"a limited body that an outer handler has read", small, inLimited, longWait, never},
		{"a body that an outer handler has read and put back", small, andBack, longWait, after},
		{"a body that an outer handler has put back in a way that says so", small, inAnotherWay, longWait, after},
		{"of unknown length, read by an outer handler", unknown, in, longWait, never},
		{"of unknown length, read and put back", unknown, andBack, longWait, after},
		{"a body read ahead", small, asIs, timeout / 4, after},
		{"a body that another Middleware has read ahead", small, shaper.Middleware(kept(timeout/4, nil)), timeout / 4, after},
		{"a body that nobody reads", small, asIs, 0, never},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubbles(t, func(t *testing.T, k connectionKind) {
				if k.h2 && c.wait == timeout/4 {
					t.Skip("nothing is read ahead")
				}
				h := c.outer(shaper.Middleware(kept(c.wait, nil))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					var body []byte
					if c.reads == before {
						body, _ = io.ReadAll(r.Body)
					}
					select {
					case <-r.Context().Done():
						fmt.Fprint(w, "cancelled")
					case <-time.After(2 * timeout):
					}
					if c.reads == after {
						body, _ = io.ReadAll(r.Body)
					}
					_, _ = w.Write(body)
				})))
				client, url := k.serve(t, h, with(readTimeout), onPipes)
				want := "small"
				if c.body() == nil || c.reads == never {
					want = ""
				}
				require.Equal(t, "200: "+want, postTo(client, url, c.body()))
			})
		})
	}
}

// Neither deadlines nor watchers stay behind on a connection.
func TestAConnectionIsGoodForManyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newPipeEntrance(t, 0)
		e.limiter = kept(longWait, nil)
		shortTimeouts(e.Config)
		e.Config.IdleTimeout = time.Minute
		v := e.open().visit("")
		require.NoError(t, v.SetReadDeadline(time.Time{}))
		for range 3 {
			v.send(post("/", "hello"))
			require.Equal(t, "HELLO", v.reads(200))
			v.send(get("/"))
			require.Empty(t, v.reads(200))
			// Pipelined: answered all, in order.
			v.send(post("/", "first") + post("/", "other") + get("/"))
			require.Equal(t, "FIRST", v.reads(200))
			require.Equal(t, "OTHER", v.reads(200))
			require.Empty(t, v.reads(200))
			time.Sleep(time.Minute - 1)
		}
		v.send(get("/"))
		v.reads(200)
		answered := time.Now()
		_, err := v.from.ReadByte()
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, time.Minute, time.Since(answered), "the server's IdleTimeout")
	})
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

// A handler that hijacks the connection with its body unread gets the bytes read ahead, then the
// bytes that come later, as from net/http alone, and no deadline.
func TestAHijackerGetsTheBodyThatWasReadAhead(t *testing.T) {
	for _, sent := range []string{"hello", "he", ""} {
		for read := range min(len(sent), 2) + 1 {
			bubble(t, fmt.Sprintf("%q sent, %d read", sent, read), func(t *testing.T) {
				e := newPipeEntrance(t, 1)
				shortTimeouts(e.Config)
				known, all := make(chan int, 1), make(chan string, 1) // known: bytes that can be had without reading the connection
				e.handler = func(w http.ResponseWriter, r *http.Request) {
					part := make([]byte, read)
					_, err := io.ReadFull(r.Body, part)
					require.NoError(t, err)
					conn, buffered, err := http.NewResponseController(w).Hijack()
					require.NoError(t, err)
					defer conn.Close()
					known <- read + buffered.Reader.Buffered()
					rest := make([]byte, len("hello, and more")-read)
					_, err = io.ReadFull(buffered, rest)
					require.NoError(t, err)
					all <- string(part) + string(rest)
					_, _ = buffered.WriteString("bye")
					_ = buffered.Flush()
				}
				v := e.open().visit(post("/", sent))
				e.waiting(1)
				e.admit("100/s depth 1")
				require.Equal(t, len(sent), realtime.Next(t, known))
				time.Sleep(2 * timeout) // Longer than any deadline of ours or of the server.
				v.send("hello, and more"[len(sent):])
				require.Equal(t, "hello, and more", realtime.Next(t, all))
				back := must(io.ReadAll(v))
				require.Equal(t, "bye", string(back))
			})
		}
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
		{"answers late", func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
				w.WriteHeader(http.StatusInternalServerError)
			case <-time.After(2 * timeout):
			}
		}, "HTTP/1.1 200 OK"},
		{"panics", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, ""},
	} {
		bubble(t, c.name, func(t *testing.T) {
			e := newPipeEntrance(t, 1)
			readTimeout(e.Config)
			e.handler = c.handler
			v := e.open().visit(post("/", "he"))
			e.waiting(1)
			e.admit("100/s depth 1")
			all := must(io.ReadAll(v))
			line, _, _ := strings.Cut(string(all), "\r\n")
			require.Equal(t, c.answer, line)
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

// The connection fails to read in time, although its client is there. To find that out and to drop
// the rest of the body takes longer than the WriteTimeout, which begins anew in between.
func TestABodyThatCannotBeReadIsAnswered408(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newPipeEntrance(t, 1)
		e.Config.WriteTimeout = timeout
		e.Listener = wrapListener{e.Listener, hasty(timeout * 3 / 4)}
		e.open().visit(post("/", "he")).reads(408)
		require.Zero(t, e.Stats().Waiting)
		require.Empty(t, e.ran)
	})
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

// openLimiters never make a request wait.
func openLimiters(t *testing.T) map[string]func(http.Handler) http.Handler {
	always := limitsOf(t, "inf")
	group := func(opts ...shaper.GroupOption) *shaper.Group[string] {
		g := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return always, nil }, opts...))
		t.Cleanup(func() { _ = g.Close() })
		return g
	}
	of := func(l shaper.Limiter) func(http.Handler) http.Handler { return shaper.Middleware(l) }
	foreign := rate.NewLimiter(rate.Inf, 1)
	return map[string]func(http.Handler) http.Handler{
		"Shaper":                     of(mustMake(t, always)),
		"Shaper with a cap":          of(limitedInFlight(t, 10_000, 0)),
		"Group.Limiter":              of(group().Limiter("a")),
		"Group.Middleware":           group().Middleware(firstLetter),
		"Group in a dry run":         group(shaper.WithDryRun()).Middleware(firstLetter),
		"dry run":                    of(mustDryRun(t, "1 per 1h")),
		"x/time":                     of(foreign),
		"a Chain":                    of(shaper.Chain(mustMake(t, always), group().Limiter("a"))),
		"a Chain with x/time's":      of(shaper.Chain(foreign, mustMake(t, always))),
		"a function":                 of(failing(nil)),
		"a semaphore of one's own":   of(&semaphore{}),
		"a Shaper in one's own type": of(limiterFunc(mustMake(t, always).WaitN)),
	}
}

// The end of the stream is seen before the middleware is asked.
func TestAHalfClosedClientIsAnsweredWhenItsRequestDoesNotWait(t *testing.T) {
	limiters := func(t *testing.T) map[string]func(http.Handler) http.Handler {
		all := openLimiters(t)
		full := mustMake(t, limitsOf(t, "1 per 1h"))
		full.Allow()
		all["429"], all["503"] = shaper.Middleware(full), shaper.Middleware(failing(errors.New("no")))
		return all
	}
	for name := range limiters(t) {
		for _, request := range []string{get("/"), post("/", "hello"), chunked("/") + "llo\r\n0\r\n\r\n"} {
			bubble(t, name+"/"+request[:4], func(t *testing.T) {
				e := newPipeEntrance(t, 0)
				ended := make(chan struct{})
				e.outer = func(http.Handler) http.Handler {
					waitForTheEnd := touched(func(*http.Request) { <-ended })
					return waitForTheEnd(limiters(t)[name](http.HandlerFunc(echo)))
				}
				e.open().visit(request).leave()
				synctest.Wait()
				close(ended)
				status, _ := strings.CutPrefix(e.ended(), "/ ")
				require.Equal(t, map[bool]string{true: name, false: "200"}[name == "429" || name == "503"], status)
			})
		}
	}
}

// The answers arrive, however the end of the stream and the requests meet.
func TestAHalfClosedClientReadsAllAnswers(t *testing.T) {
	clients := rounds(20, 200, 200)
	for _, request := range []struct {
		text    string
		clients int
		each    int // requests of each client
	}{
		{post("/", "hello"), clients, 1},
		{chunked("/") + "llo\r\n0\r\n\r\n", clients, 1},
		{strings.Repeat(get("/"), 600), 1, 600},
	} {
		for _, hook := range hooks {
			t.Run(request.text[:4]+"/"+hook.name, func(t *testing.T) {
				t.Parallel()
				e := newBlindEntrance(t, 0)
				hook.set(e.Config)
				e.admit("inf")
				e.open()
				for range request.clients {
					v := e.visit(request.text)
					v.closeHalf()
					for range request.each {
						v.reads(200)
					}
					_, err := v.from.ReadByte()
					require.ErrorIs(t, err, io.EOF)
				}
			})
		}
	}
}

// A request that waits for the limits of its key, because another one has just asked for
// them, does not wait in a line.
func TestAHalfClosedClientIsServedThatWaitsForTheLimitsOfItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients = 5
		asked := 0
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
			asked++
			time.Sleep(time.Minute)
			return shaper.Limits{Rate: 1, Burst: clients}, nil
		})
		require.NoError(t, err)
		defer g.Close()
		e := newPipeEntrance(t, 0)
		e.outer = func(http.Handler) http.Handler { return g.Middleware(firstLetter)(http.HandlerFunc(echo)) }
		e.open()
		for range clients {
			e.visit(post("/", "hello")).leave()
		}
		for range clients {
			require.Equal(t, "/ 200", e.ended())
		}
		require.Equal(t, 1, asked)
	})
}

// After a wait the end of the stream counts, because net/http cannot tell such a client
// from one that has gone.
func TestAHalfClosedClientIsGoneAfterAWait(t *testing.T) {
	for name, wait := range map[string]shaper.Limiter{
		"a function that waits for its context": limiterFunc(func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }),
		"one that does not look at it":          limiterFunc(func(context.Context, int) error { time.Sleep(time.Minute); return nil }),
		"a Shaper":                              nil,
	} {
		for _, request := range []string{get("/"), post("/", "hello")} {
			bubble(t, name+"/"+request[:4], func(t *testing.T) {
				e := newPipeEntrance(t, 1)
				if wait != nil {
					e.limiter = wait
				}
				e.open().visit(request).leave()
				require.Equal(t, "/ 499", e.ended())
				require.Empty(t, e.ran)
			})
		}
	}
}

// The rule is the same on a connection that is no socket and can't be asked (net/http's tests and
// proxies inside a program have such ones): of two requests whose input ends behind them, the second
// one is served if it waits less than a millisecond, and counts as gone after any longer wait.
func TestAPipelinedRequestBehindWhichTheInputEndsCountsAlikeOnEveryConnection(t *testing.T) {
	requests := map[string]string{
		"bodies":                  post("/1", "hello") + post("/2", "hello"), // TestConsumingBodyOnNextConn of net/http
		"an empty line before it": post("/1", "hello") + "\r\n" + get("/2"),  // TestTolerateCRLFBeforeRequestLine
		"no bodies":               get("/1") + get("/2"),
	}
	for name, request := range requests {
		for _, hook := range hooks {
			for limits, second := range map[string]string{
				"500/s depth 1 inflight 1": "/2 499", "2000/s depth 1 inflight 1": "/2 200",
				"500/s depth 1": "/2 499", "2000/s depth 1": "/2 200",
			} {
				bubble(t, fmt.Sprint(name, "/", hook.name, "/", limits), func(t *testing.T) {
					e := newPipeEntrance(t, 1)
					hook.set(e.Config)
					e.Shaper = mustMake(t, limitsOf(t, limits))
					e.limiter = e.Shaper
					l := e.Listener.(pipeListener)
					e.open()
					began := time.Now()
					l.conns <- newRecorded(request)
					require.Equal(t, "/1 200", e.ended())
					require.Equal(t, second, e.ended())
					if second == "/2 499" {
						require.Equal(t, ms, time.Since(began))
						require.EqualValues(t, 1, e.Stats().Abandoned)
					}
				})
			}
			t.Run(fmt.Sprint(name, "/", hook.name, "/TCP"), func(t *testing.T) {
				t.Parallel()
				e := newBlindEntrance(t, 1)
				hook.set(e.Config)
				e.Shaper = mustMake(t, limitsOf(t, "1 per 1h depth 1 inflight 1"))
				e.limiter = e.Shaper
				e.open().visit(request).closeHalf()
				require.Equal(t, "/1 200", e.ended())
				require.Equal(t, "/2 499", e.ended())
			})
		}
	}
}

// A recorded connection is no socket: its input is all there, and ends.
type recorded struct {
	net.Conn // a closed pipe, for its addresses
	input    *strings.Reader
}

func newRecorded(input string) recorded {
	conn, other := net.Pipe()
	_, _ = conn.Close(), other.Close()
	return recorded{conn, strings.NewReader(input)}
}

func (c recorded) Read(p []byte) (int, error)       { return c.input.Read(p) }
func (recorded) Write(p []byte) (int, error)        { return len(p), nil }
func (recorded) SetDeadline(time.Time) error        { return nil }
func (recorded) SetReadDeadline(time.Time) error    { return nil }
func (recorded) SetWriteDeadline(t time.Time) error { return nil }
