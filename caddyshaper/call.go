package caddyshaper

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"example.com/leakybucket/adapt"
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
	finder  *atomic.Pointer[adapt.Controller] // of the handler's lines

	isStranger bool // it has no token, where one is needed

	shape *Shape
	way   *way // nil: there are no replicas

	waited   time.Duration // in the lines of this handler
	told     bool          // placeholders and log fields have been set
	returned bool          // the handlers behind have, and not panicked
	err      error         // that the handler returns
}

type callKey struct{}

// callOf returns the call of a request that a [Shape] has begun to serve.
func callOf(r *http.Request) *call { return r.Context().Value(callKey{}).(*call) }

// isPreflight reports whether a browser asks by a request whether a page of another origin may send another (CORS). It
// sends no API key and no token with it.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// newCall begins the call of a request.
func (s *Shape) newCall(r *http.Request, next caddyhttp.Handler) *call {
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	isStranger := s.authorize(r, repl) // It finds a part of the key.
	c := &call{name: s.lines.name, key: s.keyOf(r, repl), cost: s.costOf(repl), next: next, request: r, isStranger: isStranger, shape: s, finder: &s.lines.finder}
	if s.Skip != "" && isPreflight(r) {
		c.cost = 0
	}
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
	if a := c.finder.Load(); a != nil {
		o := observing(a, w, r)
		c.err = c.next.ServeHTTP(o, r)
		o.end(c.err)
	} else {
		c.err = c.next.ServeHTTP(w, r)
	}
	c.returned = true
}

// end ends the call, after the handlers have returned.
func (c *call) end() {
	if !c.told { // Neither admitted nor refused: package shaper has answered with status 499, or another replica has.
		c.times.resume()
		reason := "gone"
		if c.shape.fleet != nil && c.request.Context().Err() == nil {
			reason = ""
		}
		c.tell(reason)
	}
	if c.request.Header.Get("Upgrade") == "" { // After an upgrade the connection is no longer the server's.
		c.times.finish()
	}
}

// totalWait returns the time in the lines of this handler and of the handlers in front of it.
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
		if c.told { // A gateway has sent the call before, and is about to do so again.
			c.times.later(e.Waited)
		}
	}
}

// connContext is [shaper.ConnContext] for a connection of Caddy, which may have wrapped it.
func connContext(ctx context.Context, c net.Conn) context.Context {
	return shaper.ConnContext(ctx, unwrapped(c))
}

// unwrapped returns the connection within the wrappers of Caddy and of its listener wrappers:
// the first that has a file descriptor or, like a TLS connection, tells the one within. Caddy does
// not export its wrappers, but embeds the connection in them.
func unwrapped(c net.Conn) net.Conn {
	for inner := c; inner != nil; {
		switch t := inner.(type) {
		case interface{ File() (*os.File, error) }, interface{ NetConn() net.Conn }:
			return inner
		case interface{ Raw() net.Conn }: // of the PROXY protocol
			inner = t.Raw()
		default:
			inner = embedded(inner)
		}
	}
	return c
}

// embedded returns the connection that is embedded in another; nil if there is none.
func embedded(c net.Conn) net.Conn {
	v := reflect.Indirect(reflect.ValueOf(c))
	if v.Kind() != reflect.Struct {
		return nil
	}
	field, ok := v.Type().FieldByName("Conn")
	if !ok || !field.Anonymous || len(field.Index) != 1 {
		return nil
	}
	inner, _ := v.FieldByIndex(field.Index).Interface().(net.Conn)
	return inner
}

// A costFunc returns the cost of a request.
type costFunc func(*caddy.Replacer) int

// defaultMaxCost bounds costs by placeholders, unless max_cost does: all requests behind a
// request wait for its cost, and a client may have written it.
const defaultMaxCost = 1000

// newCost returns the function for a cost, as it is configured.
func newCost(text string, most int) (costFunc, error) {
	if most < 0 {
		return nil, fmt.Errorf("max_cost: %d, must be at least 1, or 0 for %d", most, defaultMaxCost)
	}
	if hasPlaceholder(text) {
		if most == 0 {
			most = defaultMaxCost
		}
		return func(repl *caddy.Replacer) int {
			// It returns 0 for a text that is no number, and the nearest int for one out of range.
			n, _ := strconv.Atoi(strings.TrimSpace(repl.ReplaceAll(text, "")))
			return min(max(n, 1), most)
		}, nil
	}
	if most != 0 {
		return nil, fmt.Errorf("max_cost: %d, but the cost %q has no placeholder", most, text)
	}
	n := 1
	if text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 {
			return nil, fmt.Errorf("cost: %q, must be a number of at least 1, or a text with a {placeholder}", text)
		}
	}
	return func(*caddy.Replacer) int { return n }, nil
}
