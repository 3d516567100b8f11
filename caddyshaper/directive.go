package caddyshaper

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

func init() {
	httpcaddyfile.RegisterDirective("shape", parseDirective)
	// After what changes a request, or asks who sends it; before handle and route, so that a
	// shape of the site also holds for what is in these.
	httpcaddyfile.RegisterDirectiveOrder("shape", httpcaddyfile.Before, "invoke")
}

// parseDirective reads a directive, and gives the handler a name if it has none.
func parseDirective(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	if !h.Next() {
		return nil, h.ArgErr()
	}
	matcher := ""
	if h.NextArg() && isMatcher(h.Val()) {
		matcher = h.Val()
	}
	h.Reset()
	h.Next()
	matchers, err := h.ExtractMatcherSet()
	if err != nil {
		return nil, err
	}
	s := new(Shape)
	if err := s.UnmarshalCaddyfile(h.Dispenser); err != nil {
		return nil, err
	}
	named := s.Name != ""
	if !named {
		s.Name = siteOf(h) + strings.TrimPrefix(matcher, "*")
	}
	h.Reset()
	h.Next() // What is wrong with several lines together is told of the first.
	if err := s.check(); err != nil {
		return nil, h.WrapErr(err)
	}
	if err := noteName(h, s, named); err != nil {
		return nil, h.WrapErr(err)
	}
	return h.NewRoute(matchers, s), nil
}

// isMatcher reports whether the first argument of a directive is a matcher.
func isMatcher(arg string) bool {
	return arg == "*" || strings.HasPrefix(arg, "/") || strings.HasPrefix(arg, "@")
}

// siteOf returns the first address of the site that a directive is in, as it is written; of a
// named route its name. Caddy does not export it. If it can't be had, handlers in different
// sites have to be named.
func siteOf(h httpcaddyfile.Helper) string {
	keys := reflect.ValueOf(h).FieldByName("parentBlock")
	if keys.Kind() == reflect.Struct {
		keys = keys.FieldByName("Keys")
	}
	if keys.Kind() != reflect.Slice || keys.Len() == 0 || keys.Index(0).Kind() != reflect.Struct {
		return defaultName
	}
	text := keys.Index(0).FieldByName("Text")
	if text.Kind() != reflect.String || text.String() == "" {
		return defaultName
	}
	return text.String()
}

// A namedHandler is a handler that has been read.
type namedHandler struct {
	where string // file and line
	named bool
	lines string
}

// noteName notes the name of a handler. It returns an error if another one has that name, and
// both can't share their lines.
func noteName(h httpcaddyfile.Helper, s *Shape, named bool) error {
	const key = "caddyshaper names"
	names, ok := h.State[key].(map[string]namedHandler)
	if !ok {
		names = map[string]namedHandler{}
		h.State[key] = names
	}
	this := namedHandler{fmt.Sprintf("%s:%d", h.File(), h.Line()), named, s.linesText()}
	other, ok := names[s.Name]
	switch {
	case !ok:
		names[s.Name] = this
	case !named && !other.named:
		return fmt.Errorf(`name: the handlers at %s and %s would both be called %q; give one of them a name, as in "shape uploads {"`, other.where, this.where, s.Name)
	case this.lines != other.lines:
		return fmt.Errorf("name: the handlers at %s and %s are both called %q, and differ: handlers of one name share their lines, so give one of them another name", other.where, this.where, s.Name)
	}
	return nil
}

// linesText returns all settings that handlers of one name must have in common.
func (s *Shape) linesText() string {
	text, _ := json.Marshal(s) // There is nothing in it that JSON can't hold.
	var fields map[string]any
	_ = json.Unmarshal(text, &fields)
	for _, own := range [...]string{"key", "routes", "ipv6_bits", "cost", "max_cost", "ratelimit_headers", "server_timing", "verdict_header", "retry_spread", "log_refusals"} {
		delete(fields, own)
	}
	text, _ = json.Marshal(fields) // Its keys are sorted.
	return string(text)
}
