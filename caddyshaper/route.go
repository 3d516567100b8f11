package caddyshaper

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"

	"example.com/leakybucket/config"
	"example.com/leakybucket/shaper"
)

// newRoute returns the function for the part route of a key: the pattern that matches a
// request. Patterns are those of routes, and those that rules have in the same place of
// their keys. So the number of routes is bounded, whatever clients ask for. The rules are those
// of an entry; it may be nil, and have none.
func (s *Shape) newRoute(e *entry) (keyFunc, error) {
	place := slices.Index(s.Key, "route")
	if place < 0 {
		if len(s.Routes) > 0 {
			return nil, fmt.Errorf("routes: %q, but no part of the key is route", s.Routes)
		}
		return nil, nil
	}
	var rules *config.Rules
	watched := e != nil && e.file != nil
	if watched {
		rules = e.file.Rules()
	}
	first, err := newRoutes(s.Routes, rules, place)
	if err != nil {
		return nil, err
	}
	var routes atomic.Pointer[shaper.KeyFunc]
	routes.Store(&first)
	if watched {
		e.file.OnChange(func(rules *config.Rules) {
			changed, err := newRoutes(s.Routes, rules, place)
			if err != nil {
				e.log.Error("the routes stay as they were", "error", err)
				return
			}
			routes.Store(&changed)
		})
	}
	return func(r *http.Request, repl *caddy.Replacer) string {
		return withoutError(*routes.Load())(r, repl)
	}, nil
}

// newRoutes returns the function that finds the pattern of a request.
func newRoutes(routes []string, rules *config.Rules, place int) (key shaper.KeyFunc, err error) {
	mux := http.NewServeMux()
	seen := map[string]bool{}
	for _, pattern := range routes {
		if err := register(mux, pattern); err != nil {
			return nil, fmt.Errorf("routes: %w", err)
		}
		seen[pattern] = true
	}
	if rules == nil {
		return shaper.ByRoute(mux), nil
	}
	for rule := range rules.All() {
		parts := strings.Split(rule.Key, "/")
		if len(parts) <= place {
			continue
		}
		// Rules have keys that Join makes, so that the escaping is right.
		pattern, _ := url.PathUnescape(parts[place])
		if seen[pattern] || !strings.Contains(pattern, "/") {
			continue
		}
		seen[pattern] = true
		if err := register(mux, pattern); err != nil {
			return nil, fmt.Errorf("rules: %s:%d: %w", rule.File, rule.Line, err)
		}
	}
	return shaper.ByRoute(mux), nil
}

// register adds a pattern to a mux, which panics if it is none or conflicts with another.
func register(mux *http.ServeMux, pattern string) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("%q is no pattern of a route: %v", pattern, reason)
		}
	}()
	mux.Handle(pattern, http.NotFoundHandler())
	return nil
}
