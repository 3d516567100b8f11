package caddyshaper

import (
	"context"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"example.com/leakybucket/shaper"
)

// A call is one request on its way through one handler. It lives in the context of the
// request, and belongs to the goroutine of the request.
type call struct {
	name    string
	key     string
	cost    int
	next    caddyhttp.Handler
	request *http.Request
	outer   *call // of a handler in front of this one; nil: there is none
	times   timeouts

	waited time.Duration // in the lines of this handler
	told   bool          // placeholders and log fields have been set
	err    error         // what the handler returns
}

type callKey struct{}

// callOf returns the call of a request that a [Shape] has begun to serve.
func callOf(r *http.Request) *call { return r.Context().Value(callKey{}).(*call) }

// newCall begins the call of a request.
func (s *Shape) newCall(r *http.Request, next caddyhttp.Handler) *call {
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	c := &call{name: s.lines.name, key: s.keyOf(r, repl), cost: s.costOf(repl), next: next, request: r}
	c.outer, _ = r.Context().Value(callKey{}).(*call)
	c.times = holdTimeouts(r.Context())
	// Caddy's placeholders read from the request that it made, so the handlers behind this
	// one must get no other. The verdict is this handler's own.
	*r = *r.WithContext(context.WithValue(shaper.ContextWithVerdict(r.Context()), callKey{}, c))
	return c
}

// admit runs the handlers behind the lines.
func admit(w http.ResponseWriter, r *http.Request) {
	c := callOf(r)
	c.times.resume()
	c.tell("")
	c.err = c.next.ServeHTTP(w, r)
}

// end ends the call, after the handlers have returned.
func (c *call) end() {
	if !c.told { // Neither admitted nor refused: package shaper has answered with status 499.
		c.times.resume()
		c.tell("gone")
	}
}

// totalWait returns the time in the lines of this handler and of those in front of it.
func (c *call) totalWait() (sum time.Duration) {
	for ; c != nil; c = c.outer {
		sum += c.waited
	}
	return sum
}

// tell sets the placeholders and the fields of the access log. reason is why the request
// was not admitted; "" if it was.
func (c *call) tell(reason string) {
	c.told = true
	ctx := c.request.Context()
	verdict := ""
	if v, ok := shaper.VerdictOf(ctx); ok {
		verdict = v.String()
	}
	wait := c.totalWait().Seconds()
	if repl, ok := ctx.Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		repl.Set("http.shape.name", c.name)
		repl.Set("http.shape.key", c.key)
		repl.Set("http.shape.wait", wait)
		repl.Set("http.shape.verdict", verdict)
		repl.Set("http.shape.error", reason)
	}
	log, ok := ctx.Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields)
	if !ok {
		return
	}
	log.Set(zap.String("shape_name", c.name))
	log.Set(zap.String("shape_key", c.key))
	log.Set(zap.Float64("shape_wait", wait))
	if verdict != "" {
		log.Set(zap.String("shape_verdict", verdict))
	}
	if reason != "" {
		log.Set(zap.String("shape_error", reason))
	}
}

// hooks adds up the waits of calls. They run on the goroutines of the calls.
var hooks = shaper.Trace{Departed: addWait, Refused: addWait, Abandoned: addWait}

func addWait(ctx context.Context, e shaper.Event) {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		c.waited += e.Waited
	}
}
