package caddyshaper

import (
	"fmt"
	"net/http"
	"slices"
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
	rules := new(config.Rules)
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
func newRoutes(routes []string, rules *config.Rules, place int) (shaper.KeyFunc, error) {
	mux, err := rules.Routes(place, routes...)
	if err != nil {
		return nil, fmt.Errorf("routes: %w", err)
	}
	return shaper.ByRoute(mux), nil
}
