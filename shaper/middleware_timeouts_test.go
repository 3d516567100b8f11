package shaper_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

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
			t.Run(fmt.Sprintf("%q sent, %d read", sent, read), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
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
					back, err := io.ReadAll(v)
					require.NoError(t, err)
					require.Equal(t, "bye", string(back))
				})
			})
		}
	}
}
