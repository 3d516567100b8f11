package caddyshaper

import (
	"log/slog"
	"maps"
	"net/http"
	"strconv"
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
	status, fields := s.answer(r, err)
	if status >= 500 {
		s.failures.note(status, s.lines.redact(err))
	}
	if len(s.errors) > 0 {
		if failed := caddyhttp.Error(status, err); s.errors.match(r, failed) {
			maps.Copy(w.Header(), fields)
			c.err = failed
			return
		}
	}
	s.writeError(w, r, err)
}

// answer returns the status of the response to a request that was not admitted, and the fields that its client needs whoever responds.
func (s *Shape) answer(r *http.Request, err error) (status int, fields http.Header) {
	fields = http.Header{}
	if s.gateway != nil {
		return s.gateway.WriteRetryAfter(fields, r, err), fields
	}
	a := shaper.AnswerTo(r, err)
	fields.Set("Cache-Control", "no-store")
	if a.RetryAfter > 0 {
		fields.Set("Retry-After", strconv.Itoa(int(a.RetryAfter/time.Second)))
	}
	return a.Status, fields
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

// reasonOf returns in one word why a request was not admitted.
func reasonOf(err error) string {
	switch word := shaper.Reason(err); word {
	case "blocked", "no-line":
		return "queue-full"
	case "queue-full", "too-late", "too-costly", "unavailable", "closed", "deadline", "gone":
		return word
	}
	return "failed"
}
