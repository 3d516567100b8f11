package shaper_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
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

var (
	_ shaper.Limiter = (*shaper.Shaper)(nil)
	_ shaper.Limiter = (*rate.Limiter)(nil)
)

// There is one row for each of the answers that a Shaper can lead to. Where a row has no
// note of a handler, none has run.
func TestMiddlewareAnswersByTheTable(t *testing.T) {
	ended := func(err error) context.Context {
		if err == context.Canceled {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			return ctx
		}
		ctx, cancel := context.WithTimeout(context.Background(), -1)
		cancel()
		return ctx
	}
	for _, row := range []struct {
		name, limits string
		timeline     func(v *site)
		saw          []string
	}{
		{"delayed, not refused", "4/s depth 3", func(v *site) {
			for _, name := range []string{"a", "b", "c", "d"} {
				v.visit(name)
			}
		}, []string{"0s a runs", "0s a 200", "250ms b runs", "250ms b 200",
			"500ms c runs", "500ms c 200", "750ms d runs", "750ms d 200"}},

		{"queue full", "1 per 3s depth 1", func(v *site) {
			v.visit("a")
			v.visit("b")
			v.visit("c")
		}, []string{"0s a runs", "0s a 200", "0s c 429, retry 3", "3s b runs", "3s b 200"}},

		{"queue full without a line", "1 per 3s", func(v *site) {
			v.visit("a")
			v.at(500 * ms)
			v.visit("b")
		}, []string{"0s a runs", "0s a 200", "500ms b 429, retry 3"}},

		{"too late for MaxWait", "1/s depth 9 wait 500ms", func(v *site) {
			v.visit("a")
			v.visit("b")
			v.at(500 * ms)
			v.visit("c")
		}, []string{"0s a runs", "0s a 200", "0s b 429, retry 1", "1s c runs", "1s c 200"}},

		{"too late for the request's deadline", "1 per 10s depth 9", func(v *site) {
			v.visit("a")
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			v.visitWith(ctx, "b")
		}, []string{"0s a runs", "0s a 200", "0s b 429, retry 9"}},

		{"too costly", "1/s", func(v *site) {
			v.visit("a?cost=2")
		}, []string{"0s a 429"}},

		{"closed", "1 per 2s depth 9", func(v *site) {
			v.visit("a")
			v.visit("b")
			v.visit("c")
			go func() {
				if err := v.Shutdown(context.Background()); err != nil {
					v.t.Error(err)
				}
			}()
			synctest.Wait()
			v.visit("d")
		}, []string{"0s a runs", "0s a 200", "0s d 503, retry 4",
			"2s b runs", "2s b 200", "4s c runs", "4s c 200"}},

		{"closed while it waits", "1/s depth 9", func(v *site) {
			v.visit("a")
			v.visit("b")
			require.NoError(v.t, v.Close())
		}, []string{"0s a runs", "0s a 200", "0s b 503, retry 1"}},

		{"deadline that ends the wait", "1/s depth 9", func(v *site) {
			v.visit("a")
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			v.visitWith(ctx, "b")
			v.set("1 per 10s depth 9")
			v.at(5 * time.Second)
		}, []string{"0s a runs", "0s a 200", "2s b 503, retry 1"}},

		{"deadline before the wait", "1/s depth 9", func(v *site) {
			v.visitWith(ended(context.DeadlineExceeded), "a")
		}, []string{"0s a 503, retry 1"}},

		{"negative cost", "1/s depth 9", func(v *site) {
			v.visit("a?cost=-1")
		}, []string{"0s a 500"}},

		{"negative cost of a client that has gone", "1/s depth 9", func(v *site) {
			v.visitWith(ended(context.Canceled), "a?cost=-1")
		}, []string{"0s a 500"}},

		{"client gone while it waits", "1/s depth 1", func(v *site) {
			v.visit("a")
			v.visit("b")
			v.at(300 * ms)
			v.cancel("b")
			v.visit("c") // The place and the slot are free.
		}, []string{"0s a runs", "0s a 200", "300ms b 499, close", "1s c runs", "1s c 200"}},

		{"client gone before it waits", "1/s depth 9", func(v *site) {
			v.visitWith(ended(context.Canceled), "a")
		}, []string{"0s a 499, close"}},

		{"cost 0 where nothing else passes", "1/s", func(v *site) {
			require.NoError(v.t, v.Close())
			v.visitWith(ended(context.Canceled), "a?cost=0")
		}, []string{"0s a runs", "0s a 200"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			play(t, row.limits, func(g *stage) {
				row.timeline(newSite(g, g.Shaper))
				g.at(time.Hour)
				g.saw(row.saw...)
			})
		})
	}
}

func TestRunningHandlersHoldUpNobody(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		h := shaper.Middleware(g.Shaper)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for range 10 { // A stream, of 10 s.
				_, _ = io.WriteString(w, "data\n")
				w.(http.Flusher).Flush()
				time.Sleep(time.Second)
			}
		}))
		v := &site{g, h}
		v.visit("a")
		v.visit("b")
		v.visit("c")
		g.at(5 * time.Second)
		require.Equal(t, uint64(3), g.Stats().Departed)
		g.at(time.Minute)
		g.saw("10s a 200", "11s b 200", "12s c 200")
	})
}

// Errors that a Shaper does not return itself, or not in this form.
func TestMiddlewareAnswersErrorsOfAnyLimiter(t *testing.T) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	expired, cancel := context.WithTimeout(context.Background(), -1)
	defer cancel()
	full := &shaper.RejectError{Reason: shaper.ErrQueueFull, RetryAfter: 5 * time.Second}

	for _, row := range []struct {
		name string
		ctx  context.Context
		err  error
		want string
	}{
		{"unknown", t.Context(), errors.New("engine is down"), "503, retry 1"},
		{"unknown, client gone", gone, errors.New("engine is down"), "499, close"},
		{"unknown, outer deadline", expired, errors.New("engine is down"), "503, retry 1"},
		{"cancelled, client gone", gone, context.Canceled, "499, close"},
		{"cancelled, client still there", t.Context(), context.Canceled, "503, retry 1"},
		{"deadline, client still there", t.Context(), context.DeadlineExceeded, "503, retry 1"},
		{"refusal, client gone since", gone, full, "429, retry 5"},
		{"refusal, wrapped", t.Context(), fmt.Errorf("upstream: %w", full), "429, retry 5"},
		{"reason without a RejectError", t.Context(), shaper.ErrTooLate, "429, retry 1"},
	} {
		t.Run(row.name, func(t *testing.T) {
			never := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("handler ran") })
			h := shaper.Middleware(failing(row.err))(never)
			require.Equal(t, row.want, statusLine(answerOf(h, row.ctx, "")))
		})
	}
}

func TestMiddlewareWithRateLimiterOfXTime(t *testing.T) {
	play(t, "inf", func(g *stage) {
		l := rate.NewLimiter(1, 2)
		v := newSite(g, l)
		short, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		v.visit("a?cost=2")
		v.visit("b")
		v.visitWith(short, "late")
		v.visit("dear?cost=3")
		v.visit("negative?cost=-100")
		v.visit("gone")
		v.cancel("gone")
		v.visit("c")
		g.at(time.Minute)
		g.saw("0s a runs", "0s a 200",
			"0s late 503, retry 1", // "would exceed context deadline"
			"0s dear 503, retry 1", // "exceeds limiter's burst"
			"0s negative 500",      // The limiter would let more through after it.
			"0s gone 499, close",
			"1s b runs", "1s b 200",
			"2s c runs", "2s c 200")
	})
}

// unwritten is net/http's ResponseWriter with the writes dropped, so that a request can be served
// again.
type unwritten struct {
	http.ResponseWriter
	header http.Header
	status int
}

func (u *unwritten) Header() http.Header         { return u.header }
func (u *unwritten) Write(p []byte) (int, error) { return len(p), nil }
func (u *unwritten) WriteHeader(status int)      { u.status = status }
func (u *unwritten) Unwrap() http.ResponseWriter { return u.ResponseWriter }

// A limiter is asked most when there is too much. The first allocation is the middleware's record
// of the connection, which every request needs.
func TestMiddlewareAllocatesOnceForAnAdmittedRequestAndAtMostFourTimesForARefusal(t *testing.T) {
	for _, test := range []struct {
		name         string
		limits       shaper.Limits
		status, most int
	}{
		{"admitted", shaper.Limits{Rate: 1e9, Burst: 1e9, Depth: 1}, http.StatusOK, 1},
		// Three a day, so that Retry-After is a number of several digits.
		{"refused", shaper.Limits{Rate: 3. / (24 * 60 * 60)}, http.StatusTooManyRequests, 4},
	} {
		for _, withConnContext := range []bool{false, true} {
			for body, request := range map[string]string{
				"no body": "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
				"a body":  "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
			} {
				s := mustMake(t, test.limits)
				s.Allow()
				h := shaper.Middleware(s)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
				allocations := make(chan float64, 1) // The one request sends one, and so never blocks.
				addr := openServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					u := &unwritten{ResponseWriter: w, header: http.Header{}}
					wrong := 0
					n := testing.AllocsPerRun(1000, func() {
						clear(u.header)
						if h.ServeHTTP(u, r); u.status != test.status {
							wrong++
						}
					})
					if wrong > 0 {
						n = -1
					}
					allocations <- n
				}), func(s *http.Server) {
					s.ReadTimeout, s.WriteTimeout = time.Minute, time.Minute
					if withConnContext {
						hooked(s)
					}
				})
				_, err := dial(t, addr).Write([]byte(request))
				require.NoError(t, err)
				got := realtime.Next(t, allocations)
				require.GreaterOrEqual(t, got, 0., "%s, %s: a request was answered otherwise", test.name, body)
				require.LessOrEqual(t, got, float64(test.most), "%s, %s, ConnContext %t", test.name, body, withConnContext)
			}
		}
	}
}

// limiterFunc is a Limiter of one function.
type limiterFunc func(ctx context.Context, n int) error

func (f limiterFunc) WaitN(ctx context.Context, n int) error { return f(ctx, n) }

// failing is a Limiter that admits no request.
func failing(err error) limiterFunc {
	return func(context.Context, int) error { return err }
}

// A site is a stage whose shaper stands in front of a handler. The handler
// notes that it runs; a visit notes the answer.
type site struct {
	*stage
	http.Handler
}

func newSite(g *stage, l shaper.Limiter, opts ...shaper.MiddlewareOption) *site {
	opts = append([]shaper.MiddlewareOption{shaper.WithCost(costInQuery)}, opts...)
	runs := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		g.note(strings.TrimPrefix(r.URL.Path, "/") + " runs")
	})
	return &site{g, shaper.Middleware(l, opts...)(runs)}
}

// costInQuery lets the tests state the cost in the URL: /a?cost=3.
func costInQuery(r *http.Request) int {
	if n, err := strconv.Atoi(r.URL.Query().Get("cost")); err == nil {
		return n
	}
	return 1
}

// visit sends a request for the path named, which cancel can end.
func (v *site) visit(path string) {
	name, _, _ := strings.Cut(path, "?")
	ctx, cancel := context.WithCancel(context.Background())
	v.cancels[name] = cancel
	v.visitWith(ctx, path)
}

func (v *site) visitWith(ctx context.Context, path string) {
	name, _, _ := strings.Cut(path, "?")
	go func() {
		v.note(name + " " + statusLine(answerOf(v, ctx, path)))
	}()
	synctest.Wait()
}

// answerOf returns the answer of a handler to a GET of the path.
func answerOf(h http.Handler, ctx context.Context, path string) *http.Response {
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequestWithContext(ctx, "GET", "/"+path, nil))
	return rec.Result()
}

func statusLine(a *http.Response) string {
	line := strconv.Itoa(a.StatusCode)
	if after := a.Header.Get("Retry-After"); after != "" {
		line += ", retry " + after
	}
	if a.Header.Get("Connection") == "close" {
		line += ", close"
	}
	return line
}

func TestErrorHandlerDecidesWhatIsAnswered(t *testing.T) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	down := errors.New("engine is down")
	var got []error
	h := shaper.Middleware(failing(down), shaper.WithErrorHandler(func(w http.ResponseWriter, _ *http.Request, err error) {
		got = append(got, err)
		w.WriteHeader(http.StatusTeapot)
	}))(http.NotFoundHandler())
	require.Equal(t, "499, close", statusLine(answerOf(h, gone, "")), "nobody is there to be answered")
	require.Empty(t, got)
	require.Equal(t, "418", statusLine(answerOf(h, t.Context(), "")))
	require.Equal(t, []error{down}, got)
}

// An error handler may ignore context.Canceled, because no client reads the answer. So it
// must not get that error for a client that still waits.
func TestErrorHandlerNeverTakesAWaitingClientForGone(t *testing.T) {
	var got error
	h := shaper.Middleware(failing(fmt.Errorf("engine: %w", context.Canceled)), shaper.WithErrorHandler(
		func(_ http.ResponseWriter, _ *http.Request, err error) { got = err }))(http.NotFoundHandler())
	answerOf(h, t.Context(), "")
	require.NotErrorIs(t, got, context.Canceled)
	require.ErrorContains(t, got, "engine: context canceled")
}

func TestNilOptionsMeanTheDefaults(t *testing.T) {
	var asked []int
	l := limiterFunc(func(_ context.Context, n int) error {
		asked = append(asked, n)
		return shaper.ErrQueueFull
	})
	h := shaper.Middleware(l, nil,
		shaper.WithCost(func(*http.Request) int { return 7 }), shaper.WithCost(nil),
		shaper.WithErrorHandler(func(http.ResponseWriter, *http.Request, error) {}), shaper.WithErrorHandler(nil),
	)(http.NotFoundHandler())
	require.Equal(t, "429, retry 1", statusLine(answerOf(h, t.Context(), "")))
	require.Equal(t, []int{1}, asked)
	require.PanicsWithValue(t, "shaper: Middleware needs a Limiter; to let every request pass, leave it out",
		func() { shaper.Middleware(nil) })
}

func TestPanicsPassThrough(t *testing.T) {
	play(t, "1/s depth 1", func(g *stage) {
		abort := func() { panic(http.ErrAbortHandler) }
		inHandler := shaper.Middleware(g.Shaper)(http.HandlerFunc(
			func(http.ResponseWriter, *http.Request) { abort() }))
		inCost := shaper.Middleware(g.Shaper, shaper.WithCost(
			func(*http.Request) int { abort(); return 1 }))(http.NotFoundHandler())
		require.PanicsWithValue(t, http.ErrAbortHandler, func() { answerOf(inHandler, context.Background(), "") })
		require.PanicsWithValue(t, http.ErrAbortHandler, func() { answerOf(inCost, context.Background(), "") })

		v := newSite(g, g.Shaper)
		v.visit("next")
		g.at(time.Minute)
		g.saw("1s next runs", "1s next 200") // One slot spent, none kept.
	})
}

// semaphore is a foreign Limiter. It does not look at the context, and counts its releases. Each of
// them takes effect.
type semaphore struct {
	limiterFunc
	acquire  func() // is called by Acquire, if there is one
	released atomic.Int64
}

func (s *semaphore) Acquire(context.Context, int) (release func(), err error) {
	if s.acquire != nil {
		s.acquire()
	}
	return func() { s.released.Add(1) }, nil
}

func TestAnotherLimitersSeatIsReleasedOnceToo(t *testing.T) {
	l := &semaphore{limiterFunc: failing(errors.New("not to be called"))}
	r := httptest.NewRequest("GET", "/", nil)

	t.Run("handler returns", func(t *testing.T) {
		shaper.Middleware(l)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			require.EqualValues(t, 0, l.released.Load())
		})).ServeHTTP(httptest.NewRecorder(), r)
		require.EqualValues(t, 1, l.released.Swap(0))
	})
	t.Run("handler hijacks", func(t *testing.T) {
		shaper.Middleware(l)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for range 2 { // As far as this ResponseWriter goes.
				_, _, err := asserted(w)
				require.NoError(t, err)
				require.EqualValues(t, 1, l.released.Load())
			}
		})).ServeHTTP(hijackable(nil), r)
		require.EqualValues(t, 1, l.released.Swap(0))
	})
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

func asserted(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) {
	return w.(http.Hijacker).Hijack()
}

// Acquire may return a nil release if there is nothing to give back.
func TestMiddlewareBearsANilRelease(t *testing.T) {
	ran := false
	shaper.Middleware(noRelease{failing(nil)})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		ran = true
		_, _, err := asserted(w)
		require.NoError(t, err)
	})).ServeHTTP(hijackable(nil), httptest.NewRequest("GET", "/", nil))
	require.True(t, ran)
}

// noRelease is a Limiter that does not need to know when a request ends.
type noRelease struct{ limiterFunc }

func (noRelease) Acquire(context.Context, int) (release func(), err error) { return nil, nil }

// ownWait embeds a Shaper, and has a WaitN of its own.
type ownWait struct {
	*shaper.Shaper
	asked *int
}

func (o ownWait) WaitN(ctx context.Context, n int) error {
	*o.asked++
	return o.Shaper.WaitN(ctx, n)
}

// Without a cap a handler gets the ResponseWriter and the request that came. In a dry run no request
// is in flight, so its cap is none. For a cost of 0 the Limiter is not asked.
func TestWithoutACapNothingIsWrapped(t *testing.T) {
	s := must(shaper.New(shaper.Limits{Rate: rate.Inf}))
	asked := 0
	for name, l := range map[string]shaper.Limiter{
		"Shaper": s, "x/time": rate.NewLimiter(rate.Inf, 1), "Shaper inside": ownWait{s, &asked}, "dry run": mustDryRun(t, "inf inflight 1"),
	} {
		t.Run(name, func(t *testing.T) {
			for cost := range 2 {
				given, r, ran := hijackable(nil), httptest.NewRequest("GET", "/", nil), false
				shaper.Middleware(l, shaper.WithCost(func(got *http.Request) int {
					require.Same(t, r, got)
					return cost
				}))(http.HandlerFunc(func(w http.ResponseWriter, got *http.Request) {
					ran = true
					require.Same(t, given, w)
					if name != "dry run" || cost == 0 { // A verdict needs a context of its own.
						require.Same(t, r, got)
					}
					require.Empty(t, w.Header())
				})).ServeHTTP(given, r)
				require.True(t, ran)
			}
		})
	}
	require.Equal(t, 1, asked, "calls of the WaitN that is about the Shaper's")
}
