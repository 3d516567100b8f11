package caddyshaper

import (
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"example.com/leakybucket/shaper"
)

// refuse responds to a request that was not admitted as [Shape.writeError] does. If there are error
// routes for it, they respond, and only the fields that a client needs in any case are put into the
// header.
func (s *Shape) refuse(w http.ResponseWriter, r *http.Request, err error) {
	c := callOf(r)
	c.times.resume()
	c.tell(reasonOf(err))
	a := answered{header: http.Header{}}
	s.writeError(&a, r, err)
	if a.status >= 500 {
		s.failures.note(a.status, s.lines.redact(err))
	}
	h := w.Header()
	if s.gateway == nil { // else the gateway has done it, as the body may say the time too
		s.spread(a.header, h)
	}
	if len(s.errors) > 0 {
		if failed := caddyhttp.Error(a.status, err); s.errors.match(r, failed) {
			for _, field := range [...]string{"Cache-Control", "Retry-After", "Retry-After-Ms"} {
				if value := a.header.Get(field); value != "" {
					h.Set(field, value)
				}
			}
			c.err = failed
			return
		}
	}
	// An outer handler may have set these for the body of another response.
	for _, field := range [...]string{"Content-Length", "Etag", "Last-Modified"} {
		h.Del(field)
	}
	maps.Copy(h, a.header)
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // An error means that the client has gone.
}

// writeError responds like [shaper.WriteError], or in the format of a provider.
func (s *Shape) writeError(w http.ResponseWriter, r *http.Request, err error) {
	if s.gateway != nil {
		s.gateway.WriteError(w, r, err)
		return
	}
	shaper.WriteError(w, r, err)
}

// errorRoutes are the routes by which errors of a handler may be answered: the routes of its
// server, and of subroutes that it is in. They are provisioned after the handler.
type errorRoutes []*caddyhttp.HTTPErrorConfig

// errorRoutesOf returns the error routes of the handler that is being provisioned.
func errorRoutesOf(ctx caddy.Context) (all errorRoutes) {
	if server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok && server.Errors != nil {
		all = append(all, server.Errors)
	}
	for _, module := range ctx.Modules() {
		if sub, ok := module.(*caddyhttp.Subroute); ok && sub.Errors != nil {
			all = append(all, sub.Errors)
		}
	}
	return all
}

// match reports whether a handler of the routes takes an error. For an error that no route matches
// Caddy sends only its status: a site without handle_errors may share its server with one that has
// some, or they may be for other statuses.
func (e errorRoutes) match(r *http.Request, err error) bool {
	for _, config := range e {
		// As Caddy does before it runs the routes: their matchers see the error, and the request as it came.
		failed := config.WithError(r, err)
		if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok {
			failed.Method, failed.RemoteAddr, failed.RequestURI, failed.URL = original.Method, original.RemoteAddr, original.RequestURI, original.URL
		}
		if anyHandles(config.Routes, failed) {
			return true
		}
	}
	return false
}

// anyHandles reports whether a handler of routes gets a request, be it in subroutes.
func anyHandles(routes caddyhttp.RouteList, r *http.Request) bool {
	for _, route := range routes {
		switch matches, err := route.MatcherSets.AnyMatchWithError(r); {
		case err != nil:
			return true // It is Caddy's to tell.
		case !matches:
			continue
		}
		for _, handler := range route.Handlers {
			if sub, ok := handler.(*caddyhttp.Subroute); !ok || anyHandles(sub.Routes, r) {
				return true
			}
		}
	}
	return false
}

// A failureLog logs refusals for other reasons than the limits, as while the store can't be
// asked: at most one line a second for each status.
type failureLog struct {
	log *slog.Logger

	mu       sync.Mutex
	byStatus map[int]*seldom[error]
}

func newFailureLog(log *slog.Logger) *failureLog {
	return &failureLog{log: log, byStatus: map[int]*seldom[error]{}}
}

func (l *failureLog) note(status int, err error) {
	l.mu.Lock()
	of := l.byStatus[status]
	if of == nil {
		of = &seldom[error]{tell: func(count int, latest error) {
			// Without the request's context: from it Caddy would add the key of one of the requests.
			l.log.Error("requests are refused, and not for their limits", "status", status, "error", latest, "refused", count)
		}}
		l.byStatus[status] = of
	}
	l.mu.Unlock()
	of.note(err)
}

// close logs the requests that have not been logged. Later refusals are not logged.
func (l *failureLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, of := range l.byStatus {
		of.close()
	}
}

// spread adds a random number of whole seconds, from 0 to RetrySpread and each equally likely, to the Retry-After of
// a refusal. The fields in limits were set for the exact time, and get the same number: a client must
// not come too early, nor together with the others, whichever of them it obeys.
func (s *Shape) spread(refusal, limits http.Header) {
	after := refusal.Get("Retry-After")
	n, err := strconv.ParseInt(after, 10, 64)
	most := time.Duration(s.RetrySpread)
	if err != nil || most < time.Second {
		return
	}
	more := rand.Int64N(int64(most/time.Second) + 1)
	later := strconv.FormatInt(n+more, 10)
	refusal.Set("Retry-After", later)
	if fields := limits["Ratelimit"]; len(fields) > 0 {
		last := &fields[len(fields)-1]
		if limit, ok := strings.CutSuffix(*last, ";t="+after); ok {
			*last = limit + ";t=" + later
		}
	}
	const reset = "X-RateLimit-Reset"
	if at, err := strconv.ParseInt(limits.Get(reset), 10, 64); err == nil && s.XRateLimitHeaders {
		limits.Set(reset, strconv.FormatInt(at+more, 10))
	}
}

// An answered records the output of [shaper.WriteError].
type answered struct {
	header http.Header
	status int
	body   []byte
}

func (a *answered) Header() http.Header    { return a.header }
func (a *answered) WriteHeader(status int) { a.status = status }
func (a *answered) Write(p []byte) (int, error) {
	a.body = append(a.body, p...)
	return len(p), nil
}

// reasonOf returns in one word why a request was not admitted.
func reasonOf(err error) string {
	switch word := shaper.Reason(err); word {
	case "blocked", "no-line":
		return "queue-full"
	case "queue-full", "too-late", "too-costly", "unavailable", "closed", "deadline":
		return word
	}
	return "failed"
}
