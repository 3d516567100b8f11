package shaper_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// Clients go away in every way while requests of every kind wait in one line. The
// requests leave the line, no handler runs, and each slot goes to the next
// waiter.
func TestADepartedClientLeavesTheLine(t *testing.T) {
	withHook(t)
	t.Parallel()
	const head = " %s HTTP/1.1\r\nHost: a\r\n"
	requests := map[string]string{
		"GET":                  "GET" + head + "\r\n",
		"GET-with-a-body":      "GET" + head + "Content-Length: 5\r\n\r\nhello",
		"two-GETs":             "GET" + head + "\r\n" + get("/second"),
		"sent":                 "POST" + head + "Content-Length: 5\r\n\r\nhello",
		"sent-in-part":         "POST" + head + "Content-Length: 5\r\n\r\nhe",
		"withheld":             "POST" + head + "Content-Length: 5\r\n\r\n",
		"great-sent-in-part":   "PUT" + head + "Content-Length: 1000000\r\n\r\nhe",
		"chunked-sent":         "POST" + head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"chunked-sent-in-part": "POST" + head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhe",
		"chunked-withheld":     "POST" + head + "Transfer-Encoding: chunked\r\n\r\n",
		"to-be-asked-for":      "POST" + head + "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n",
		"HTTP-1.0":             "POST %s HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello",
	}
	ways := map[string]func(*visitor){
		"closes": (*visitor).leave, "resets": (*visitor).reset, "half-closes": (*visitor).closeHalf,
	}
	e := newEntrance(t, 100).open()
	want, gone := []string{}, map[string]*visitor{}
	for kind, request := range requests {
		for way := range ways {
			path := "/" + kind + "/" + way
			gone[path] = e.visit(fmt.Sprintf(request, path))
			want = append(want, path+" 499")
		}
	}
	e.waiting(len(gone))
	other := e.visit(get("/next"))
	e.waiting(len(gone) + 1)

	for path, v := range gone {
		ways[path[strings.LastIndex(path, "/")+1:]](v)
	}
	e.waiting(1)
	var ended []string
	for range gone {
		ended = append(ended, e.ended())
	}
	require.ElementsMatch(t, want, ended)
	for path, v := range gone {
		if strings.HasSuffix(path, "/half-closes") {
			a, body := v.answer()
			require.Equal(t, 499, a.StatusCode, path)
			require.True(t, a.Close, path)
			require.Empty(t, body, path)
		}
	}
	e.admit("100/s depth 1")
	other.reads(200)
	require.Equal(t, "/next", realtime.Next(t, e.ran))
	require.EqualValues(t, 2, e.Stats().Departed, "the first slot of all, and this one")
	require.EqualValues(t, len(gone), e.Stats().Abandoned)
	require.Zero(t, e.Stats().Refused)
}

// net/http stops watching a connection on which a byte of the next request has come. So
// the middleware notices that the client has gone only when its slot comes.
func TestAClientWhoIsNotWatchedIsAskedForWhenItsSlotComes(t *testing.T) {
	for _, more := range []struct{ name, text string }{
		{"a stray byte", "G"}, {"a pipelined request", get("/later")},
	} {
		t.Run(more.name, func(t *testing.T) {
			withHook(t)
			t.Parallel()
			e := newEntrance(t, 2).open()
			gone := e.visit(get("/gone"))
			e.waiting(1)
			other := e.visit(get("/next"))
			e.waiting(2)
			gone.send(more.text)
			gone.leave()
			require.Equal(t, 2, e.Stats().Waiting)

			e.admit("100/s depth 2")
			other.reads(200)
			require.ElementsMatch(t, []string{"/gone 499", "/next 200"}, []string{e.ended(), e.ended()})
			require.Equal(t, "/next", realtime.Next(t, e.ran))
			require.EqualValues(t, 1, e.Stats().Abandoned)
			require.EqualValues(t, 2, e.Stats().Departed)
		})
	}
}

// A client that goes is seen on each kind of connection, however late it goes, and whatever
// handlers and limiters are around its request. What can't be asked is read ahead.
func TestADepartedClientIsSeen(t *testing.T) {
	candidate := mustDryRun(t, "1 per 1h")
	require.True(t, candidate.Allow())
	listen := func(e *entrance, l net.Listener) {
		require.NoError(e.t, e.Listener.Close())
		e.Listener = l
	}
	unasked := func(e *entrance) {
		e.Config.ConnContext = nil
		e.Config.ReadTimeout = time.Minute
	}
	pipes := newPipeListener()
	for _, c := range []struct {
		name    string
		request string
		asked   bool // it is seen only where a connection can be asked
		setUp   func(e *entrance)
		connect func(e *entrance) (net.Conn, error) // nil: as usual
		stays   time.Duration
		options []serverOption
		goes    func(*visitor) // nil: it closes the connection
	}{
		{name: "late, as it is asked again and again", request: chunked("/gone"), asked: true, stays: 600 * time.Millisecond},
		{name: "through TLS", request: chunked("/gone"), asked: true, options: []serverOption{overTLS},
			connect: func(e *entrance) (net.Conn, error) {
				return tls.Dial("tcp", e.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
			}},
		{name: "on a Unix socket", request: chunked("/gone"), asked: true, setUp: func(e *entrance) {
			l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
			require.NoError(e.t, err)
			listen(e, l)
		}},
		{name: "on a pipe, which has no file descriptor", request: post("/gone", "hello"),
			setUp: func(e *entrance) { listen(e, pipes) },
			connect: func(*entrance) (net.Conn, error) {
				return pipes.dial(context.Background(), "", "")
			}},
		{name: "with a body that was sniffed", request: post("/gone", "he"), asked: true,
			setUp: func(e *entrance) { e.outer = touched(putBacks["multi"]) }},
		{name: "with a part of its body, by a reset", request: post("/gone", "he"), setUp: unasked, goes: (*visitor).reset},
		{name: "with a part of its body, by a half", request: post("/gone", "he"), setUp: unasked, goes: (*visitor).closeHalf},
		{name: "with its body read ahead, by a half", request: post("/gone", "hello"), setUp: unasked, goes: (*visitor).closeHalf},
		{name: "beside a candidate that would refuse", request: post("/gone", "hello"), setUp: func(e *entrance) {
			e.Config.ConnContext = nil
			e.limiter = shaper.Chain(e.Shaper, candidate)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.asked {
				withHook(t)
			}
			t.Parallel()
			e := newEntrance(t, 1)
			if c.setUp != nil {
				c.setUp(e)
			}
			e.open(c.options...)
			var gone *visitor
			if c.connect == nil {
				gone = e.visit(c.request)
			} else {
				conn, err := c.connect(e)
				require.NoError(t, err)
				gone = visitOn(t, conn, c.request)
			}
			e.waiting(1)
			time.Sleep(c.stays)
			if c.goes == nil {
				c.goes = (*visitor).leave
			}
			c.goes(gone)
			e.abandoned(1)
			require.Equal(t, "/gone 499", e.ended())
		})
	}
}

// In HTTP/2 a client goes by resetting its stream. The connection stays, and its other requests keep
// their places. With a ReadTimeout the middleware must not find out by a read whether the body has
// been read: even a read of nothing would wait for the first byte.
func TestADepartedClientIsSeenInHTTP2(t *testing.T) {
	withheld, end := io.Pipe()
	for _, c := range []struct {
		name   string
		body   io.Reader
		length int64
		end    func() error
	}{
		{"no body", nil, 0, func() error { return nil }},
		{"greater than the window", bytes.NewReader(make([]byte, 4<<20)), 4 << 20, func() error { return nil }},
		{"withheld", withheld, 5, end.Close},
	} {
		t.Run(c.name, func(t *testing.T) {
			var connections atomic.Int64
			e := newEntrance(t, 2)
			e.Config.ReadTimeout = time.Minute
			e.open(overHTTP2, with(countConnections(&connections)))
			stays := send(t.Context(), t, e.Client(), e.URL+"/stays", nil)
			e.waiting(1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r := must(http.NewRequestWithContext(ctx, "POST", e.URL+"/gone", c.body))
			r.ContentLength = c.length
			became := do(e.Client(), r)
			e.waiting(2)
			cancel()
			require.NoError(t, c.end()) // The client looks up from its own read of the body only now.
			require.Contains(t, realtime.Next(t, became), "context canceled")
			e.abandoned(1)
			require.Equal(t, "/gone 499", e.ended())

			next := send(t.Context(), t, e.Client(), e.URL+"/next", nil)
			e.waiting(2)           // The place is free.
			e.admit("4/s depth 2") // Far enough apart that their handlers begin in that order on a busy machine too.
			require.Equal(t, "200: ", realtime.Next(t, stays))
			require.Equal(t, "200: ", realtime.Next(t, next))
			require.Equal(t, []string{"/stays", "/next"}, []string{realtime.Next(t, e.ran), realtime.Next(t, e.ran)})
			require.EqualValues(t, 3, e.Stats().Departed, "the first slot of all is not theirs")
			require.EqualValues(t, 1, connections.Load())
		})
	}
}

// With a cap a request has a seat from its departure to the end of its handler and no
// longer, in whatever way the handler ends.

// limitedInFlight is a Shaper that is limited by its cap alone.
func limitedInFlight(t *testing.T, inFlight, depth int) *shaper.Shaper {
	t.Helper()
	s := must(shaper.New(shaper.Limits{Rate: rate.Inf, Depth: depth, InFlight: inFlight}))
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
		words <- "word" // The stream goes on.
		line, err := bufio.NewReader(answer.Body).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "data: word\n", line, "it is flushed")
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

// Between the departure and the handler, and in looking for a Hijack, foreign methods are called,
// which may panic.
func TestAPanicBeforeTheHandlerFreesTheSeat(t *testing.T) {
	s := limitedInFlight(t, 1, 0)
	h := shaper.Middleware(s, shaper.WithHeaders(shaper.HeaderServerTiming))(http.NotFoundHandler())
	for _, w := range []http.ResponseWriter{headless{httptest.NewRecorder()}, unwrappable{httptest.NewRecorder()}} {
		require.PanicsWithValue(t, "burst", func() { h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil)) })
		require.Equal(t, 0, s.Stats().InFlight)
	}
}

type headless struct{ *httptest.ResponseRecorder }

func (headless) Header() http.Header { panic("burst") }

type unwrappable struct{ *httptest.ResponseRecorder }

func (unwrappable) Unwrap() http.ResponseWriter { panic("burst") }

// In HTTP/2 many requests share a connection. What happens to one must not affect
// the others.

// A refusal ends the stream, not the connection.
func TestRefusedUploadLeavesTheConnectionToTheOthers(t *testing.T) {
	var connections atomic.Int64
	client, url := http2Kind.open(t, refusingHandler(t), countConnections(&connections))
	for _, body := range bodySizes {
		for range 5 {
			became := send(t.Context(), t, client, url, bytes.NewReader(make([]byte, body.size)))
			require.Contains(t, realtime.Next(t, became), "429, retry ", body.name)
		}
	}
	require.EqualValues(t, 1, connections.Load())
}

// recommended are the settings that the documents recommend. The connection's window
// has room for what clients may send on all streams before a handler reads, so that
// requests that wait leave some of it to those that run. The window of a stream is
// 64 KiB: a client that has not read the settings yet would overrun a smaller one.
func recommended(s *http.Server) {
	s.HTTP2 = &http.HTTP2Config{
		MaxConcurrentStreams:          128,
		MaxReceiveBufferPerStream:     64 << 10,
		MaxReceiveBufferPerConnection: 128 * 64 << 10,
	}
}

func TestQueuedUploadsDoNotStallAnotherOnTheirConnection(t *testing.T) {
	const queued = 100
	const size = 1 << 20
	for _, row := range []struct {
		name      string
		configure func(*http.Server)
		passes    bool
	}{
		{"recommended settings", recommended, true},
		{"settings of net/http", func(*http.Server) {}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			var connections atomic.Int64
			s := stuckShaper(t, queued)
			free := shaper.WithCost(func(r *http.Request) int {
				if r.URL.Path == "/free" {
					return 0
				}
				return 1
			})
			length := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n, _ := io.Copy(io.Discard, r.Body)
				if n == size {
					_, _ = io.WriteString(w, "all came")
				}
			})
			client, url := http2Kind.open(t, shaper.Middleware(s, free)(length), row.configure, countConnections(&connections))
			content := make([]byte, size)
			require.Equal(t, "200: all came", realtime.Next(t, send(t.Context(), t, client, url+"/free", bytes.NewReader(content))))

			ctx, leave := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for range queued {
				became := send(ctx, t, client, url, bytes.NewReader(content))
				all.Go(func() { <-became })
			}
			realtime.Until(t, inLine(s, queued), "all wait")

			extra := send(ctx, t, client, url+"/free", bytes.NewReader(content))
			if row.passes {
				require.Equal(t, "200: all came", realtime.Next(t, extra))
			} else {
				// Were this to pass, net/http would no longer need the settings.
				select {
				case became := <-extra:
					t.Error("it passed without: " + became)
				case <-time.After(300 * ms):
				}
			}
			require.EqualValues(t, 1, connections.Load())
			leave()
			all.Wait()
		})
	}
}

// A refusal must reach a client that is still sending. These tests refuse
// uploads on real connections: net/http holds an answer back until it has read
// up to 256 KiB of the body, and a connection that is closed while a part of the
// body is unread can lose the answer.

// refusingHandler returns a handler behind a shaper that refuses every request.
func refusingHandler(t testing.TB, opts ...shaper.MiddlewareOption) http.Handler {
	t.Helper()
	s := must(shaper.New(shaper.Limits{Rate: rate.Every(time.Hour)}))
	require.True(t, s.Allow())
	return shaper.Middleware(s, opts...)(http.HandlerFunc(
		func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }))
}

// writeAll is the simplest of clients: it writes all, and then reads. When the
// server stops reading the write fails, but the answer can still be read.
func writeAll(addr string, body []byte) (*http.Response, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(enough)); err != nil {
		return nil, err
	}
	fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", len(body))
	_, _ = conn.Write(body)
	return readAnswer(bufio.NewReader(conn))
}

// bodySizes lie on both sides of the size that net/http drains (256 KiB), and of the size that the
// middleware finds worth draining (64 KiB).
var bodySizes = []struct {
	name string
	size int
}{{"300 B", 300}, {"64 KiB", 64 << 10}, {"300 KiB", 300 << 10}, {"4 MiB", 4 << 20}}

func TestEveryRefusalReachesAClientThatIsStillSending(t *testing.T) {
	const clients = 8
	uploads := rounds(16, 250, 1000) // of each kind; there are 8
	for _, hook := range hooks {
		addr := openServer(t, refusingHandler(t), hook.set)
		for _, body := range bodySizes {
			t.Run(hook.name+"/"+body.name, func(t *testing.T) {
				t.Parallel()
				content := make([]byte, body.size)
				var left, delivered atomic.Int64
				left.Store(int64(uploads))
				var wg sync.WaitGroup
				for range clients {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							answer, err := writeAll(addr, content)
							if err != nil {
								t.Error(err)
							} else if answer.StatusCode != http.StatusTooManyRequests || answer.Header.Get("Retry-After") == "" {
								t.Error(statusLine(answer))
							} else {
								delivered.Add(1)
							}
						}
					})
				}
				wg.Wait()
				require.EqualValues(t, uploads, delivered.Load())
			})
		}
	}
}

// With net/http alone, a client that sends a part of a body and then nothing gets no
// answer, and can keep its connection open for as long as it likes.
func TestRefusalOfAWithheldBodyIsSentAndTheConnectionFreed(t *testing.T) {
	teapot := shaper.WithErrorHandler(func(w http.ResponseWriter, _ *http.Request, _ error) {
		w.WriteHeader(http.StatusTeapot)
	})
	const post = "POST / HTTP/1.1\r\nHost: a\r\n"
	for _, row := range []struct {
		name, sent string
		around     func(http.Handler) http.Handler
		opts       []shaper.MiddlewareOption
		want       int
	}{
		{name: "5 of 50 bytes", sent: post + "Content-Length: 50\r\n\r\n12345", want: 429},
		{name: "none of 50 bytes", sent: post + "Content-Length: 50\r\n\r\n", want: 429},
		{name: "5 of 100,000 bytes", sent: post + "Content-Length: 100000\r\n\r\n12345", want: 429},
		{name: "5 of a million bytes", sent: post + "Content-Length: 1000000\r\n\r\n12345", want: 429},
		{name: "chunked", sent: post + "Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n", want: 429},
		{name: "Expect", sent: post + "Content-Length: 50\r\nExpect: 100-continue\r\n\r\n", want: 429},
		{name: "Expect, chunked", sent: post + "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n", want: 429},
		{name: "answered by an error handler", sent: post + "Content-Length: 50\r\n\r\n12345",
			opts: []shaper.MiddlewareOption{teapot}, want: 418},
		{name: "hidden controller", sent: post + "Content-Length: 50\r\n\r\n12345", around: hide, want: 429},
		// A body that was put back without being read to its end is unread.
		{name: "sniffed", sent: post + "Content-Length: 50\r\n\r\n12345", around: touched(putBacks["bufio"]), want: 429},
		{name: "sniffed in part", sent: post + "Content-Length: 50\r\n\r\n12345", around: touched(putBacks["multi"]), want: 429},
	} {
		for _, hook := range hooks {
			t.Run(row.name+"/"+hook.name, func(t *testing.T) {
				t.Parallel()
				h := refusingHandler(t, row.opts...)
				if row.around != nil {
					h = row.around(h)
				}
				v := visitOn(t, dial(t, openServer(t, h, hook.set)), row.sent)
				answer, _ := v.answer()
				require.Equal(t, row.want, answer.StatusCode)
				require.True(t, answer.Close)
				if row.name == "hidden controller" && hook.name == "without" {
					return // The deadline is out of reach: only the answer can be had.
				}
				_, err := v.from.ReadByte()
				require.ErrorIs(t, err, io.EOF, "the server still waits for the body")
			})
		}
	}
}

// Clients that come back should not have to dial again.
func TestRefusalKeepsTheConnectionOfABodyThatHasCome(t *testing.T) {
	for _, hook := range hooks {
		for _, request := range []string{
			"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\n" + strings.Repeat("x", 50),
			"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		} {
			v := visitOn(t, dial(t, openServer(t, refusingHandler(t), hook.set)), "")
			for range 3 {
				v.send(request)
				answer, _ := v.answer()
				require.Equal(t, http.StatusTooManyRequests, answer.StatusCode)
				require.False(t, answer.Close)
				time.Sleep(drain / 2) // The deadline of one request must not be the next one's.
			}
		}
	}
}

// drain is how long a refusal waits for the rest of a body.
const drain = 100 * time.Millisecond

// The tests of this file are about two things. Answers may last for long, and the shaper
// must not touch them once they have begun. And when a server ends, requests in line must
// still be answered.

// duplexSite answers /ws with an echo over an upgraded connection, /events with
// an event for each word of the channel, and anything else at once.
func duplexSite(events <-chan string) http.Handler {
	site := http.NewServeMux()
	site.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		_, _ = io.Copy(conn, buffered)
	})
	site.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for {
			if err := http.NewResponseController(w).Flush(); err != nil {
				return
			}
			select {
			case word, ok := <-events:
				if !ok {
					return
				}
				fmt.Fprintf(w, "data: %s\n\n", word)
			case <-r.Context().Done():
				return
			}
		}
	})
	site.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	return site
}

// proxyTo stands for the upstream that a shaper usually protects.
func proxyTo(t *testing.T, addr string) http.Handler {
	t.Helper()
	target := must(url.Parse("http://" + addr))
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: transport,
	}
}

// The listener of a server that ends after its shaper stays open while the line drains, so that
// each newcomer is refused.
func TestAServerThatEndsBeforeItsShaperRefusesNobody(t *testing.T) {
	for _, order := range []struct {
		name      string
		end       func(context.Context, *http.Server, *shaper.Shaper) error
		allServed bool
	}{
		{"the server first", func(ctx context.Context, server *http.Server, s *shaper.Shaper) error {
			return errors.Join(server.Shutdown(ctx), s.Close())
		}, true},
		{"the shaper first", func(ctx context.Context, server *http.Server, s *shaper.Shaper) error {
			return errors.Join(s.Shutdown(ctx), server.Shutdown(ctx))
		}, false},
	} {
		bubble(t, order.name, func(t *testing.T) {
			b := newBusyServer(t, "50/s depth 100", 40)
			time.Sleep(1001 * ms) // The line is never empty, and nothing else happens at this instant.
			b.forget()
			inLine := b.shaper.Stats().Waiting
			require.GreaterOrEqual(t, inLine, 30)
			require.NoError(t, order.end(t.Context(), b.server, b.shaper))
			b.clients.Wait()
			refused := b.answers[http.StatusServiceUnavailable]
			if order.allServed {
				require.Equal(t, map[int]int{200: inLine}, b.answers)
			} else {
				require.Greater(t, refused, inLine, "if none is refused, the order does not matter")
			}
		})
	}
}

// What is left when the time is over is refused, with an answer.
func TestThoseStillInLineWhenTheTimeIsOverAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBusyServer(t, "1/s depth 100", 40)
		time.Sleep(1001 * ms)
		b.forget()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		require.ErrorIs(t, b.server.Shutdown(ctx), context.DeadlineExceeded)
		require.NoError(t, b.shaper.Close())
		b.clients.Wait()
		require.Equal(t, map[int]int{200: 10, 503: 29}, b.answers)
	})
}

// A busyServer has a line in front of its handler, and clients that keep their connections and
// send their next request 10 ms after each answer, until they reach no server any more.
type busyServer struct {
	server  *http.Server
	shaper  *shaper.Shaper
	clients sync.WaitGroup

	mu      sync.Mutex
	answers map[int]int // by status
}

// newBusyServer starts a server and its clients in a bubble.
func newBusyServer(t *testing.T, limits string, clients int) *busyServer {
	t.Helper()
	l, err := shaper.ParseLimits(limits)
	require.NoError(t, err)
	b := &busyServer{answers: map[int]int{}}
	b.shaper, err = shaper.New(l)
	require.NoError(t, err)
	b.server = &http.Server{Handler: shaper.Middleware(b.shaper)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))}
	pipes := newPipeListener()
	go func() { _ = b.server.Serve(pipes) }()
	for range clients {
		b.clients.Go(func() { b.visitAgainAndAgain(pipes) })
	}
	return b
}

// forget lets answers be counted from now on.
func (b *busyServer) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.answers)
}

func (b *busyServer) visitAgainAndAgain(pipes pipeListener) {
	transport := &http.Transport{DialContext: pipes.dial}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for ; ; time.Sleep(10 * ms) {
		answer, err := client.Get("http://site.example")
		if err != nil {
			return
		}
		_ = answer.Body.Close()
		b.mu.Lock()
		b.answers[answer.StatusCode]++
		b.mu.Unlock()
	}
}

// A mistake of the program is not taken for a client that has gone, whether that has gone or not.
func TestANegativeCostIsAMistakeThoughTheClientHasGone(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s := must(shaper.New(shaper.Limits{Rate: 1}))
	w := httptest.NewRecorder()
	shaper.Middleware(shaper.Priced(s, func(int) int { return -1 }))(http.NotFoundHandler()).
		ServeHTTP(w, httptest.NewRequest("GET", "/", nil).WithContext(ctx))
	require.Equal(t, http.StatusInternalServerError, w.Code)
}
