package shaper_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// Handlers outside the middleware change a request and its body. What the middleware then
// asks of the body, and does to the connection, must still be right.

// putBacks look at the beginning of a body and put it back.
var putBacks = map[string]func(r *http.Request){
	"bufio": func(r *http.Request) { r.Body = io.NopCloser(bufio.NewReader(r.Body)) },
	"multi": func(r *http.Request) {
		p := make([]byte, 2)
		_, _ = io.ReadFull(r.Body, p)
		r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(p), r.Body))
	},
}

// touched is an outer handler that does something to each request.
func touched(f func(*http.Request)) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f(r); h.ServeHTTP(w, r) })
	}
}

func TestARequestWithoutABodyOfItsOwn(t *testing.T) {
	e := newEntrance(t, 3)
	e.Config.ConnContext = nil
	e.outer = touched(func(r *http.Request) { _, _ = io.ReadAll(r.Body); r.Body = nil })
	e.admit("inf")
	e.open()
	e.visit(post("/", "hello")).reads(200)
}

func TestACancelledRequestOfAClientThatStaysFreesTheConnection(t *testing.T) {
	e := newEntrance(t, 3)
	cancels := make(chan context.CancelFunc, 1)
	e.outer = func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, c := context.WithCancel(r.Context())
			cancels <- c
			h.ServeHTTP(w, r.WithContext(ctx))
		})
	}
	e.open()
	v := e.visit(post("/", "he"))
	e.waiting(1)
	(<-cancels)()
	v.reads(499)
	_, err := v.from.ReadByte()
	require.ErrorIs(t, err, io.EOF)
}

// It is cheaper to close the connection of a long body, even one that came whole, than to
// read the body. For a short body it is not.
func TestARefusalEndsTheConnectionOfALongBodyOnly(t *testing.T) {
	for length, closes := range map[int]bool{64 << 10: false, 100 << 10: true} {
		e := newEntrance(t, 0)
		e.open()
		a, err := http.Post(e.URL, "text/plain", strings.NewReader(strings.Repeat("x", length)))
		require.NoError(t, err)
		require.Equal(t, 429, a.StatusCode)
		require.Equal(t, closes, a.Close, "%d bytes", length)
		require.NoError(t, a.Body.Close())
	}
}

// The ways in which the middleware can come between a body or a request and the handlers around it.
var betweenLimiters = map[string]func(t testing.TB, e *entrance) shaper.Limiter{
	"read ahead": func(_ testing.TB, e *entrance) shaper.Limiter { return e.Shaper },
	"dry run":    func(t testing.TB, _ *entrance) shaper.Limiter { return mustDryRun(t, "1 per 1h") },
	"dry run and read ahead": func(t testing.TB, e *entrance) shaper.Limiter {
		return shaper.Chain(mustDryRun(t, "1 per 1h"), e.Shaper)
	},
}

// An access log around the middleware reads the fields that the mux and the parsers have written
// into the request, and net/http removes the files of a form by the request that it has made, as
// without a middleware.
func TestOuterHandlersSeeWhatTheMuxAndTheParsersWrite(t *testing.T) {
	type seen struct {
		Pattern, id, rest, own, outer string
		form, postForm                string
		files                         int
	}
	look := func(r *http.Request) (s seen) {
		s = seen{Pattern: r.Pattern, id: r.PathValue("id"), rest: r.PathValue("rest"), own: r.PathValue("own"),
			outer: r.PathValue("outer"), form: r.Form.Encode(), postForm: r.PostForm.Encode()}
		if r.MultipartForm != nil {
			s.files = len(r.MultipartForm.File)
		}
		return s
	}
	var multi bytes.Buffer
	m := multipart.NewWriter(&multi)
	require.NoError(t, m.WriteField("a", "b"))
	f, err := m.CreateFormFile("f", "f")
	require.NoError(t, err)
	_, err = f.Write(make([]byte, 20<<10))
	require.NoError(t, err)
	require.NoError(t, m.Close())
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	filesThere := func() int {
		d, err := os.ReadDir(dir)
		require.NoError(t, err)
		return len(d)
	}
	for _, body := range []struct {
		kind, text string
		want       seen
	}{
		{"application/x-www-form-urlencoded", "a=b", seen{form: "a=b&c=d", postForm: "a=b"}},
		{m.FormDataContentType(), multi.String(), seen{form: "a=b&c=d", postForm: "a=b", files: 1}},
	} {
		for name, l := range betweenLimiters {
			for _, hook := range hooks {
				t.Run(strings.Join([]string{name, body.kind[:9], hook.name}, "/"), func(t *testing.T) {
					e := newBlindEntrance(t, 1)
					hook.set(e.Config)
					e.limiter = l(t, e)
					inner := http.NewServeMux()
					inner.HandleFunc("POST /{id}/{rest...}", func(w http.ResponseWriter, r *http.Request) {
						r.SetPathValue("own", "a router's")
						_ = r.ParseMultipartForm(1)
						fmt.Fprint(w, filesThere())
					})
					e.handler = inner.ServeHTTP
					saw := make(chan seen, 1)
					e.outer = func(h http.Handler) http.Handler {
						around := http.NewServeMux()
						around.HandleFunc("/{outer}/", func(w http.ResponseWriter, r *http.Request) {
							h.ServeHTTP(w, r)
							saw <- look(r)
						})
						return around
					}
					e.open()
					v := e.visit(fmt.Sprintf("POST /a/b/c?c=d HTTP/1.1\r\nHost: a\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
						body.kind, len(body.text), body.text))
					if name != "dry run" {
						e.waiting(1)
						e.admit("100/s depth 1")
					}
					require.Equal(t, fmt.Sprint(body.want.files), v.reads(200), "files that the handler sees")
					want := body.want
					want.Pattern, want.id, want.rest, want.own = "POST /{id}/{rest...}", "a", "b/c", "a router's"
					got := realtime.Next(t, saw)
					got.outer = "" // A mux takes the values of one around it away, and nobody looks for them.
					require.Equal(t, want, got)
					realtime.Until(t, func() bool { return filesThere() == 0 }, "the files are removed")
				})
			}
		}
	}
}

// Only the body differs, so the handler gets the same request.
func TestTheRequestThatIsHandedOnIsTheOneThatCame(t *testing.T) {
	e := newBlindEntrance(t, 1)
	came, handed := make(chan *http.Request, 1), make(chan *http.Request, 1)
	e.outer = touched(func(r *http.Request) { came <- r })
	e.handler = func(w http.ResponseWriter, r *http.Request) { handed <- r; echo(w, r) }
	e.open()
	v := e.visit(post("/", "hello"))
	e.waiting(1)
	e.admit("100/s depth 1")
	require.Equal(t, "HELLO", v.reads(200))
	require.Same(t, realtime.Next(t, came), realtime.Next(t, handed))
}

// A handler that does not read its body to the end leaves the rest to the handlers
// around the middleware, as it does without a middleware.
func TestOuterHandlersGetTheRestOfTheBody(t *testing.T) {
	for name, l := range betweenLimiters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newBlindEntrance(t, 1)
			e.limiter = l(t, e)
			e.handler = func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.ReadFull(r.Body, make([]byte, 2))
				r.Body = struct {
					io.Reader
					io.Closer
				}{io.MultiReader(r.Body, strings.NewReader(" of the handler")), r.Body}
			}
			rests := make(chan string, 1)
			e.outer = func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					h.ServeHTTP(w, r)
					rest, err := io.ReadAll(r.Body)
					rests <- fmt.Sprint(string(rest), err)
				})
			}
			e.open()
			v := e.visit(post("/", "hello"))
			if name != "dry run" {
				e.waiting(1)
				e.admit("100/s depth 1")
			}
			v.reads(200)
			require.Equal(t, "llo of the handler<nil>", realtime.Next(t, rests))
		})
	}
}

// "Too many requests are waiting already" makes somebody look for a line where there is none.
func TestARefusalSpeaksOfALineOnlyWhereThereIsOne(t *testing.T) {
	const (
		waiting = "Too many requests are waiting already."
		noLine  = "More requests have come than the limit allows."
		blocked = "Requests are refused for a time, because too many have come."
	)
	for _, row := range []struct {
		limits       string
		block        time.Duration
		first, later string // of refusals
	}{
		{"1/h", 0, noLine, noLine},
		{"1/h depth 1", 0, waiting, waiting},
		{"1/h", time.Minute, blocked, blocked},
		{"1/h depth 1", time.Minute, blocked, blocked},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := must(shaper.ParseLimits(row.limits))
			s := must(shaper.New(l, shaper.WithBlock(row.block)))
			h := shaper.Middleware(s)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			visit := func() string {
				rec := httptest.NewRecorder()
				h.ServeHTTP(rec, httptest.NewRequest("GET", "/", nil))
				var body struct{ Detail string }
				_ = json.Unmarshal(rec.Body.Bytes(), &body)
				return body.Detail
			}
			require.Empty(t, visit())
			if l.Depth > 0 {
				go visit()
				synctest.Wait()
			}
			require.Equal(t, row.first, visit(), row.limits)
			for range 20 { // Those that follow are refused without the lock.
				require.Equal(t, row.later, visit(), row.limits)
			}
			err := s.Wait(t.Context())
			require.Equal(t, row.first == noLine, errors.Is(err, shaper.ErrNoLine))
			require.Equal(t, row.block > 0, errors.Is(err, shaper.ErrBlocked))
			rejected, ok := errors.AsType[*shaper.RejectError](fmt.Errorf("wrapped: %w", err))
			require.True(t, ok)
			require.True(t, rejected.Reason == shaper.ErrQueueFull)
			rec := httptest.NewRecorder()
			shaper.WriteError(rec, httptest.NewRequest("GET", "/", nil), fmt.Errorf("wrapped: %w", err))
			require.Contains(t, rec.Body.String(), row.later)
			require.NoError(t, s.Close())
		})
	}
}

func TestErrorBodyEchoesNothingOfTheRequest(t *testing.T) {
	const hostile = "<script>alert(1)</script>"
	plain := httptest.NewRequest("GET", "/", nil)
	evil := httptest.NewRequest("POST", "/?q="+strings.Repeat("x", 5000), strings.NewReader(hostile))
	evil.URL.Path = "/" + hostile
	evil.Host = hostile
	evil.Header.Set("Accept", hostile)
	evil.Header.Set("X-Request-Id", hostile+"\r\nSet-Cookie: a=b")

	for _, row := range []struct {
		err    error
		status int
		detail string // or what it says at least
	}{
		{&shaper.RejectError{Reason: shaper.ErrQueueFull}, 429, "Too many requests are waiting"},
		{&shaper.RejectError{Reason: shaper.ErrTooLate}, 429, "wait too long"},
		{&shaper.RejectError{Reason: shaper.ErrTooCostly}, 429, "more than can ever fit"},
		{&shaper.RejectError{Reason: shaper.ErrClosed}, 503, "takes no more requests"},
		{context.DeadlineExceeded, 503, "ran out while it waited"},
		{errors.New(hostile), 503, "could not be admitted"},
		{shaper.ErrNegativeCost, 500, "could not tell what the request costs"},
	} {
		rec := httptest.NewRecorder()
		shaper.WriteError(rec, evil, row.err)
		require.Equal(t, row.status, rec.Code, "%v", row.err)
		require.Equal(t, "application/problem+json", rec.Header().Get("Content-Type"))
		require.Equal(t, "no-store", rec.Header().Get("Cache-Control"))

		var body map[string]any
		require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &body), "%s", rec.Body)
		require.Contains(t, body["detail"], row.detail)
		delete(body, "detail")
		require.Equal(t, map[string]any{
			"title":  http.StatusText(row.status),
			"status": float64(row.status),
		}, body)
		require.Less(t, rec.Body.Len(), 200)

		other := httptest.NewRecorder()
		shaper.WriteError(other, plain, row.err)
		require.Equal(t, other.Result().Header, rec.Result().Header)
		require.Equal(t, other.Body.String(), rec.Body.String())
	}
}

func TestWriteErrorDropsWhatBelongedToAnotherBody(t *testing.T) {
	for _, err := range []error{shaper.ErrQueueFull, context.Canceled} {
		rec := httptest.NewRecorder()
		for _, field := range []string{"Content-Length", "ETag", "Last-Modified", "Content-Encoding", "Vary"} {
			rec.Header().Set(field, "1")
		}
		shaper.WriteError(rec, httptest.NewRequest("GET", "/", nil), err)
		for _, field := range []string{"Content-Length", "ETag", "Last-Modified"} {
			require.Empty(t, rec.Header().Get(field), "%s after %v", field, err)
		}
		for _, field := range []string{"Content-Encoding", "Vary"} {
			require.Equal(t, "1", rec.Header().Get(field), "%s after %v", field, err)
		}
	}
}

// A roomFinder finds out how much memory follows the slice that it is given to write. A handler
// that appends to the slice, as an outer one may that writes lines, writes there.
type roomFinder struct {
	*httptest.ResponseRecorder
	room int
}

func (f *roomFinder) Write(p []byte) (int, error) {
	f.room += cap(p) - len(p)
	return f.ResponseRecorder.Write(p)
}

// All refusals have the same body. What is appended to one must not be seen in another.
func TestAnAnswerIsNotSpoiltByWhatIsAppendedToAnother(t *testing.T) {
	for _, err := range []error{shaper.ErrQueueFull, shaper.ErrTooLate, shaper.ErrTooCostly, shaper.ErrClosed, shaper.ErrNegativeCost} {
		w := &roomFinder{ResponseRecorder: httptest.NewRecorder()}
		shaper.WriteError(w, httptest.NewRequest("GET", "/", nil), err)
		require.NotZero(t, w.Body.Len())
		require.Zero(t, w.room, "%v", err)
	}
}

func TestWriteErrorAloneEndsARequestWhoseClientHasGone(t *testing.T) {
	for _, row := range []struct {
		major      int
		connection string
	}{
		{1, "close"},
		{2, ""}, // The field would end all the other requests of the connection.
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.ProtoMajor = row.major
		rec := httptest.NewRecorder()
		shaper.WriteError(rec, r, fmt.Errorf("waiting: %w", context.Canceled))
		require.Equal(t, 499, rec.Code)
		require.Zero(t, rec.Body.Len())
		require.Equal(t, row.connection, rec.Header().Get("Connection"))
	}
}

// onlyReserves is a Limiter of another type.
type onlyReserves struct{ s *shaper.Shaper }

func (o onlyReserves) WaitN(ctx context.Context, n int) error { return o.s.WaitN(ctx, n) }
func (o onlyReserves) Reserve(ctx context.Context, n int) (func(int), error) {
	return o.s.Reserve(ctx, n)
}

type derivedKey struct{}

// serveReserved lets a request of estimate 10 through a Middleware to a handler.
func serveReserved(handle func(w http.ResponseWriter, r *http.Request), middlewares ...func(http.Handler) http.Handler) *httptest.ResponseRecorder {
	var h http.Handler = http.HandlerFunc(handle)
	for _, m := range middlewares {
		h = m(h)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("POST", "/", nil))
	return w
}

// Whatever the Limiter is, its level is what it would be if the request had come with the cost that Settle says.
func TestAHandlerSettlesWhatMiddlewareHasReserved(t *testing.T) {
	l := shaper.Limits{Rate: 1, Burst: 20, Depth: 9}
	ten := shaper.WithCost(func(*http.Request) int { return 10 })
	for _, limiter := range []struct {
		name  string
		make  func(s *shaper.Shaper) shaper.Limiter
		level float64 // after a settle with 3
		ok    bool
	}{
		{"a Shaper", func(s *shaper.Shaper) shaper.Limiter { return s }, 3, true},
		{"a Chain", func(s *shaper.Shaper) shaper.Limiter {
			return shaper.Chain(must(shaper.New(l)), s)
		}, 3, true},
		{"a cost in other units", func(s *shaper.Shaper) shaper.Limiter {
			return shaper.Priced(s, func(n int) int { return 2 * n })
		}, 6, true},
		{"another type that reserves", func(s *shaper.Shaper) shaper.Limiter { return onlyReserves{s} }, 3, true},
		{"another type that does not", func(s *shaper.Shaper) shaper.Limiter {
			return struct{ shaper.Limiter }{s}
		}, 10, false},
	} {
		bubble(t, limiter.name, func(t *testing.T) {
			s := must(shaper.New(l))
			m := shaper.Middleware(limiter.make(s), ten, shaper.WithReserve())
			var kept *http.Request
			serveReserved(func(_ http.ResponseWriter, r *http.Request) {
				kept = r.WithContext(context.WithValue(r.Context(), derivedKey{}, 1)) // One derived from it.
				require.Equal(t, limiter.ok, shaper.Settle(kept, 3))
				require.InDelta(t, limiter.level, s.Stats().Level, 1e-9, "at once")
				require.False(t, shaper.Settle(r, 1), "a second time")
			}, m)
			require.False(t, shaper.Settle(kept, 1), "after the handler has returned")
			require.InDelta(t, limiter.level, s.Stats().Level, 1e-9)
		})
	}
}

func TestWhatIsNotSettledStandsAsItWasReserved(t *testing.T) {
	l := shaper.Limits{Rate: 1, Burst: 20, Depth: 9}
	cost := func(n int) shaper.MiddlewareOption { return shaper.WithCost(func(*http.Request) int { return n }) }
	for _, c := range []struct {
		name    string
		options []shaper.MiddlewareOption
		settle  func(r *http.Request) bool
		level   float64
	}{
		{"nobody settles", []shaper.MiddlewareOption{cost(10), shaper.WithReserve()}, func(*http.Request) bool { return true }, 10},
		{"the cost is unknown", []shaper.MiddlewareOption{cost(10), shaper.WithReserve()}, func(r *http.Request) bool { return shaper.Settle(r, -1) }, 10},
		{"it is not reserved", []shaper.MiddlewareOption{cost(10)}, func(r *http.Request) bool { return !shaper.Settle(r, 1) }, 10},
		{"it costs nothing", []shaper.MiddlewareOption{cost(0), shaper.WithReserve()}, func(r *http.Request) bool { return !shaper.Settle(r, 1) }, 0},
		{"it costs more", []shaper.MiddlewareOption{cost(10), shaper.WithReserve()}, func(r *http.Request) bool { return shaper.Settle(r, 15) }, 15},
	} {
		bubble(t, c.name, func(t *testing.T) {
			s := must(shaper.New(l))
			serveReserved(func(_ http.ResponseWriter, r *http.Request) { require.True(t, c.settle(r)) }, shaper.Middleware(s, c.options...))
			require.InDelta(t, c.level, s.Stats().Level, 1e-9)
			require.Zero(t, s.Stats().Reserved)
		})
	}
}

// Of nested Middlewares all are settled, among them one with a bucket for each key, and one with keys that share a rate.
func TestNestedMiddlewaresAreAllSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := shaper.Limits{Rate: 1, Burst: 20, Depth: 9, InFlight: 3}
		reserve := []shaper.MiddlewareOption{shaper.WithReserve(), shaper.WithCost(func(*http.Request) int { return 10 })}
		key := func(*http.Request) (string, error) { return "k", nil }
		group := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return l, nil }))
		fair := must(shaper.New(l, shaper.WithFairQueue(func(string) int { return 1 })))
		serveReserved(func(_ http.ResponseWriter, r *http.Request) {
			require.True(t, shaper.Settle(r, 4))
			require.Equal(t, 1, fair.Stats().InFlight, "the seat stays")
		}, group.Middleware(key, reserve...), shaper.Middleware(fair, append(reserve, shaper.WithKey(key))...))
		st, _ := group.StatsOf("k")
		require.Equal(t, []any{4., 0, 4., 0}, []any{st.Level, st.InFlight, fair.Stats().Level, fair.Stats().InFlight})
	})
}

// A Transport behind a Middleware with the same Limiter sends the request that was let in, and does not let it wait
// twice. A second attempt takes the place of the first.
func TestATransportSendsWhatMiddlewareHasReserved(t *testing.T) {
	for _, c := range []struct {
		name     string
		refusals int // of the upstream, before it answers
		retry    bool
		want     string
	}{
		{"it is answered", 0, true, "0s 200: left 1, level 4"},
		{"it is refused, and sent again", 1, true, "2s 200: left 2, level 4"},
		{"it is refused twice", 2, true, "2s 429: left 2, level 4"},
		{"it is refused, and not sent again", 1, false, "0s 429: left 1, level 4"},
	} {
		bubble(t, c.name, func(t *testing.T) {
			s := must(shaper.New(shaper.Limits{Rate: 1, Burst: 20, Depth: 9, InFlight: 1}))
			sent := 0
			upstream := roundTripper(func(*http.Request) (*http.Response, error) {
				if sent++; sent > c.refusals {
					return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
				}
				return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"2"}}, Body: http.NoBody}, nil
			})
			transport := shaper.Transport{Limiter: s, Base: upstream, Retry: c.retry}
			start := time.Now()
			w := serveReserved(func(w http.ResponseWriter, r *http.Request) {
				out := must(http.NewRequestWithContext(r.Context(), "GET", "http://upstream.example", nil))
				response, err := transport.RoundTrip(out)
				require.NoError(t, err)
				require.True(t, shaper.Settle(r, 4))
				w.WriteHeader(response.StatusCode)
			}, shaper.Middleware(s, shaper.WithReserve(), shaper.WithCost(func(*http.Request) int { return 10 })))
			st := s.Stats()
			require.Equal(t, c.want, fmt.Sprintf("%v %d: left %d, level %v", time.Since(start), w.Code, st.Departed, st.Level))
			require.Zero(t, st.InFlight)
			require.Zero(t, st.Reserved)
		})
	}
}

// With a Hijack the request is in flight no more, but its cost may be settled until the handler returns.
func TestAHijackedRequestMayStillBeSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := must(shaper.New(shaper.Limits{Rate: 1, Burst: 20, Depth: 9, InFlight: 1}))
		shaper.Middleware(s, shaper.WithReserve(), shaper.WithCost(func(*http.Request) int { return 10 }))(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				require.Equal(t, 1, s.Stats().InFlight)
				_, _, err := http.NewResponseController(w).Hijack()
				require.NoError(t, err)
				require.Equal(t, 0, s.Stats().InFlight)
				require.True(t, shaper.Settle(r, 3))
			})).ServeHTTP(hijackable(nil), httptest.NewRequest("POST", "/", nil))
		require.InDelta(t, 3, s.Stats().Level, 1e-9)
	})
}
