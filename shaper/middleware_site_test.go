package shaper_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing/synctest"

	"example.com/leakybucket/shaper"
)

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

// answerOf returns what a handler answers to a GET of the path.
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
