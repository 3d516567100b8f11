package keys

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
	"example.com/leakybucket/config"
	"example.com/leakybucket/shaper"
)

// routes tell which pattern a request fits, as an [http.ServeMux] does.
type routes struct {
	byMux shaper.KeyFunc
	known memo[target, string]
}

// A target is what decides which pattern a request fits.
type target struct{ method, host, path string }

// newRoutes returns the routes of the patterns that are given and of those that stand in
// the rules' keys, where the part with an index is the route.
func newRoutes(patterns []string, rules *config.Rules, index int) (*routes, error) {
	mux := http.NewServeMux()
	seen := map[string]bool{}
	for _, pattern := range patterns {
		if seen[pattern] {
			continue
		}
		seen[pattern] = true
		if err := register(mux, pattern); err != nil {
			return nil, fmt.Errorf("the pattern %q: %w", pattern, err)
		}
	}
	for rule := range rules.All() {
		parts := strings.Split(rule.Key, "/")
		if rule.Key == "" || index >= len(parts) {
			continue
		}
		pattern, err := url.PathUnescape(parts[index])
		// What is no pattern may be the key of something else; what is one begins with a
		// path, maybe after a method and a host.
		if err != nil || !strings.Contains(pattern, "/") || seen[pattern] {
			continue
		}
		seen[pattern] = true
		if err := register(mux, pattern); err != nil {
			return nil, fmt.Errorf("%s:%d: %s: as the pattern of a route: %w", rule.File, rule.Line, rule.Key, err)
		}
	}
	return &routes{byMux: shaper.ByRoute(mux)}, nil
}

// register adds a pattern to a mux, which panics if it does not understand the pattern,
// and if it can't tell it from another.
func register(mux *http.ServeMux, pattern string) (err error) {
	defer func() {
		if problem := recover(); problem != nil {
			text := strings.Join(strings.Fields(fmt.Sprint(problem)), " ")
			err = errors.New(whereRegistered.ReplaceAllString(text, ""))
		}
	}()
	mux.Handle(pattern, http.NotFoundHandler())
	return nil
}

// whereRegistered matches what a mux says of the line of the program, which helps nobody
// who has written the pattern into a file.
var whereRegistered = regexp.MustCompile(` \(registered at [^)]*\)`)

// of returns the pattern that a request fits, or "".
func (r *routes) of(record *accesslog.Record) string {
	at := target{record.Method, record.Host, record.Path}
	return r.known.get(at, func() string {
		address, err := url.ParseRequestURI(at.path)
		if err != nil {
			address = &url.URL{Path: at.path}
		}
		pattern, err := r.byMux(&http.Request{Method: at.method, Host: at.host, URL: address})
		if err != nil {
			return ""
		}
		return pattern
	})
}
