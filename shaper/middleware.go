package shaper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"example.com/leakybucket/shaper/internal/hijack"
	"example.com/leakybucket/shaper/internal/httpin"
	"example.com/leakybucket/shaper/internal/serverconn"
)

// Middleware returns net/http middleware that lets each request wait for l before its handler runs: it delays
// instead of rejecting. A request that l does not admit is answered by [WriteError], or by the function of
// [WithErrorHandler]. A request costs 1 unless [WithCost] says otherwise; one of cost 0 passes untouched. Flushing,
// hijacking and [http.ResponseController] keep working, and panics of the handler pass through.
//
// With [Limits.InFlight], or a [Limiter] with a method like [Shaper.Acquire] (unless one like [Shaper.Limits] says
// that InFlight is 0), a request is in flight until its handler has returned, panicked, or hijacked the connection.
//
// A request that may leave at once is served, whether its client seems to be there or not. If the client has gone
// while its request waited, or has closed the sending half of its connection, no handler runs, and a [Shaper] gives
// the slot to the next waiter. The request ends with status 499 without a body. The deadline of an outer handler
// counts at once.
//
// To notice that the client of a request with a body has gone, Middleware needs [ConnContext]. Without it, a body of
// known length up to 64 KiB is read ahead while its request waits; of other bodies it is not noticed. A read
// deadline of an outer handler is lifted then, a Hijack that fails loses the rest of the body, and if an
// [http.MaxBytesReader] of the handler refuses a body, answer with "Connection: close".
//
// The time in the line is not taken off the server's timeouts: they are restarted after the wait. A refusal reaches
// a client that is still sending: the middleware waits for the rest of the body, for 100 ms at most.
func Middleware(l Limiter, opts ...MiddlewareOption) func(http.Handler) http.Handler {
	if l == nil {
		panic("shaper: Middleware needs a Limiter; to let every request pass, leave it out")
	}
	limiter := innerOf(l)
	h := newHandler(limiter.mayDryRun(), opts)
	h.limiter = limiter
	if h.key != nil {
		s, ok := l.(*Shaper)
		if !ok || !s.ordered {
			panic("shaper: WithKey is for a Middleware in front of a Shaper WithFairQueue; for a bucket for each key use Group.Middleware")
		}
		h.limiterFor = func(r *http.Request) (inner, error) { return s.limiterByKey(h.key, r) }
	}
	return h.wrap
}

// ConnContext belongs in the field of the same name of an [http.Server]:
//
//	server := &http.Server{Handler: handler, ConnContext: shaper.ConnContext}
//
// It lets [Middleware] ask the connection of a request that waits whether its client is still there, as net/http
// does not say so while the body of an HTTP/1 request is unread (golang/go#23262). That works on Linux, by a
// ppoll(2). Elsewhere, and on connections without a file descriptor, ConnContext does nothing.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return serverconn.NewContext(ctx, c)
}

// A handler is the http.Handler that [Middleware] puts in front of another.
type handler struct {
	limiter   inner
	mayDryRun bool // the limiter may be a dry run
	next      http.Handler
	watcher   *serverconn.Watcher
	middlewareOptions

	// limiterFor is nil unless each request has a limiter of its own, which it returns
	// in place of limiter.
	limiterFor func(r *http.Request) (inner, error)
}

// newHandler returns a handler that has no [Limiter] yet.
func newHandler(mayDryRun bool, opts []MiddlewareOption) handler {
	return handler{mayDryRun: mayDryRun, watcher: new(serverconn.Watcher), middlewareOptions: newMiddlewareOptions(opts)}
}

// wrap returns h in front of another handler.
func (h handler) wrap(next http.Handler) http.Handler {
	h.next = next
	return &h
}

// ServeHTTP lets the request wait, and then runs the next handler or answers.
//
// While a request waits, the frames of ServeHTTP and serve are on its stack. They are
// kept small, as a goroutine that needs a little more than 4 KiB of stack gets 8. So code
// that runs after the wait, or for few requests, is in functions that are not inlined.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if n := h.cost(r); n == 0 {
		h.next.ServeHTTP(w, r)
	} else if h.limiterFor != nil || h.mayDryRun || h.reserve {
		h.serveEach(w, r, n)
	} else {
		h.serve(h.limiter, nil, w, r, n)
	}
}

// serveEach is serve for requests that have Limiters of their own, or on which a dry run
// may leave a [Verdict].
//
//go:noinline
func (h *handler) serveEach(w http.ResponseWriter, r *http.Request, n int) {
	limiter := h.limiter
	if h.limiterFor != nil {
		var err error
		if limiter, err = h.limiterFor(r); err != nil {
			h.writeRefusal(serverconn.Of(w, r), limiter, w, err)
			return
		}
	}
	ctx := r.Context()
	if h.mayDryRun && !wantsVerdict(ctx) {
		ctx = ContextWithVerdict(ctx)
	}
	var reserved *settling
	if h.reserve && n > 0 && limiter.reserves() {
		reserved = &settling{outer: settlingOf(ctx), limiter: limiter, estimates: []int{n}}
		if h.costs != nil {
			reserved.estimates = h.costs(r)
		}
		ctx = context.WithValue(ctx, settlingKey{}, reserved)
	}
	if ctx == r.Context() {
		h.serve(limiter, nil, w, r, n)
		return
	}
	h.serveWith(ctx, limiter, reserved, w, r, n)
}

// serveWith is serve for a request that gets another context.
//
//go:noinline
func (h *handler) serveWith(ctx context.Context, limiter inner, reserved *settling, w http.ResponseWriter, outer *http.Request, n int) {
	// This makes a map that both requests share. Routers other than net/http's
	// set their path values in it.
	outer.SetPathValue("", "")
	r := outer.WithContext(ctx)
	defer httpin.CopyBack(outer, r)
	if reserved != nil {
		defer reserved.end()
	}
	h.serve(limiter, reserved, w, r, n)
}

// serve lets a request of cost n wait for the [Limiter], and then runs the next handler or
// answers. If reserved is not nil, the cost is an estimate.
func (h *handler) serve(limiter inner, reserved *settling, w http.ResponseWriter, r *http.Request, n int) {
	conn := serverconn.Of(w, r)
	// A Limiter is not asked for a negative cost: some Limiters, x/time's among
	// them, would let more through after it.
	if n < 0 {
		h.conclude(conn, limiter, nil, ErrNegativeCost)
		return
	}
	defer conn.End()
	conn.Suspend()
	// Reading the clock is a tenth of a refusal, so it is read only if it is needed how long
	// the request has waited.
	var start time.Time
	if h.headers&HeaderServerTiming != 0 || h.log != nil || conn.MayHaveBody() {
		start = time.Now()
	}
	ctx := conn.PeerContext(limiter.asksDoneToWait(), h.watcher)
	if h.waitField != "" {
		ctx = h.untilField(ctx, r)
	}
	var release func()
	var err error
	if reserved != nil {
		release, err = reserved.enter(ctx)
	} else {
		release, err = limiter.enter(ctx, n, newcomer)
	}
	err = h.endWait(conn, start, release, err)
	h.conclude(conn, limiter, release, err)
}

// endWait ends the wait of a request that the [Limiter] has let in, or has not, and returns the
// error that it has come to. start is when the wait began; zero if it need not be known how long
// that was. release is to be called when the request has ended, unless it is nil. If endWait
// panics, it releases the request.
func (h *handler) endWait(conn *serverconn.Conn, start time.Time, release func(), err error) error {
	var end time.Time
	if !start.IsZero() {
		end = time.Now()
	}
	waited := end.Sub(start)
	// What follows runs methods of outer handlers' ResponseWriters, which may panic.
	handedOn := false
	defer func() {
		if release != nil && !handedOn {
			release()
		}
	}()
	gone := err != nil && clientGone(conn, err)
	conn.EndWait()
	if gone {
		if err = conn.BodyError(); err == nil {
			err = errGone{waited}
		}
		end = time.Time{} // BodyError may have taken long.
	}
	if h.headers&HeaderServerTiming != 0 {
		httpin.AddServerTiming(conn.Writer().Header(), waited)
	}
	conn.Resume(end, waited)
	handedOn = true
	return err
}

// conclude runs the next handler, or answers if err is not nil. end, unless it is nil, is
// to be called when the request has ended.
func (h *handler) conclude(conn *serverconn.Conn, limiter inner, end func(), err error) {
	w, r := conn.Writer(), conn.Request()
	if body := conn.Body(); body != nil {
		// The request keeps this body, because an outer handler may read the rest of
		// it afterwards. net/http itself looks at the body that it has made.
		r.Body = body
		w = hijack.Through(w, body.Hijack)
	}
	switch {
	case err != nil:
		h.setVerdict(w.Header(), r.Context())
		h.writeRefusal(conn, limiter, w, err)
	case end != nil:
		h.serveInFlight(limiter, w, r, end)
	default:
		h.serveNext(limiter, w, r)
	}
}

// serveInFlight runs the next handler for a request that is in flight until end is
// called: when the handler hijacks the connection, or has returned or panicked.
func (h *handler) serveInFlight(limiter inner, w http.ResponseWriter, r *http.Request, end func()) {
	// end is deferred first, because the calls below run methods of outer handlers'
	// ResponseWriters, which may panic.
	defer func() { end() }()
	w, end = hijack.Until(w, end)
	h.serveNext(limiter, w, r)
}

// serveNext runs the next handler for a request that was admitted.
func (h *handler) serveNext(limiter inner, w http.ResponseWriter, r *http.Request) {
	if h.headers&limitHeaders != 0 {
		h.headers.addTo(w.Header(), limiter, nil, httpin.Response{})
	}
	h.setVerdict(w.Header(), r.Context())
	h.next.ServeHTTP(w, r)
}

// setVerdict sets the header field of [WithVerdictHeader], if a dry run has left a
// [Verdict] on the request.
func (h *handler) setVerdict(header http.Header, ctx context.Context) {
	if !h.mayDryRun || h.verdictField == "" {
		return
	}
	if v, ok := VerdictOf(ctx); ok {
		header.Set(h.verdictField, v.String())
	}
}

// writeRefusal answers a request that was not admitted. w is the ResponseWriter of conn, or a
// wrapper around it.
func (h *handler) writeRefusal(conn *serverconn.Conn, limiter inner, w http.ResponseWriter, err error) {
	r := conn.Request()
	if gone, ok := err.(errGone); ok {
		h.log.logGone(r.Context(), gone.waited)
		conn.Refuse(w.Header())
		httpin.WriteGone(w, r)
		return
	}
	if _, refusal := errors.AsType[*RejectError](err); !refusal && !isOwnFault(err) && errors.Is(err, context.Canceled) {
		// Something in the Limiter was cancelled, but not this request. An error
		// handler would take context.Canceled for a client that has gone and needs
		// no answer, but this client waits for one.
		err = fmt.Errorf("shaper: limiter gave up on a request that is still there: %v", err)
	}
	conn.Refuse(w.Header())
	a := responseTo(err)
	if h.retrySpread >= time.Second {
		more := rand.Int64N(int64(h.retrySpread/time.Second) + 1)
		a = a.Later(more)
		r = r.WithContext(context.WithValue(r.Context(), spreadKey{}, more))
	}
	if h.headers&limitHeaders != 0 && a.Status != http.StatusInternalServerError {
		// A 500 is a mistake of the server: no bucket was asked, so a client that
		// obeys the fields must not slow down.
		h.headers.addTo(w.Header(), limiter, err, a)
	}
	h.log.logRefusal(r.Context(), err)
	if h.onError != nil {
		h.onError(w, r, err)
		return
	}
	a.Write(w, r)
}

// errGone is the error of a request whose client has gone while it waited.
type errGone struct{ waited time.Duration }

func (errGone) Error() string { return "shaper: the client has gone" }

// clientGone reports whether the request has ended because its client has gone. If the
// request was refused before that, the refusal counts, and so does a mistake in the
// cost. The deadline of an outer handler ends the context too, but the client then
// still waits for an answer.
func clientGone(conn *serverconn.Conn, err error) bool {
	if _, refused := errors.AsType[*RejectError](err); refused || errors.Is(err, ErrNegativeCost) {
		return false
	}
	return conn.WaitErr() == context.Canceled
}
