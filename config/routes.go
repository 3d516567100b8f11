package config

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// Routes returns a mux that knows patterns of routes, for [shaper.ByRoute]: those that are
// given, and those that stand in the keys of the rules as the part with an index, counted
// from 0. With the rule "POST %2Flogin/192.0.2.1", the pattern of index 0 is
// "POST /login". A part without a "/" is no pattern, but the name of something else. A
// pattern that is there twice counts once. One that is longer than 256 bytes must be given,
// because the keys of its requests have it shortened.
//
// The mux is for finding patterns only: its handlers answer 404. If [http.ServeMux] does
// not understand a pattern, or cannot tell it from another, the error quotes the pattern,
// and names the file and the line of its rule.
func (r *Rules) Routes(index int, patterns ...string) (*http.ServeMux, error) {
	mux := http.NewServeMux()
	seen := map[string]bool{}
	for _, pattern := range patterns {
		if seen[pattern] {
			continue
		}
		seen[pattern] = true
		if err := addRoute(mux, pattern); err != nil {
			return nil, err
		}
	}
	for i := range r.rules {
		rule := &r.rules[i]
		parts := strings.Split(rule.Key, "/")
		if index < 0 || index >= len(parts) {
			continue
		}
		pattern, err := url.PathUnescape(parts[index])
		if err != nil || !strings.Contains(pattern, "/") || isBounded(pattern) || seen[pattern] {
			continue
		}
		seen[pattern] = true
		if err := addRoute(mux, pattern); err != nil {
			return nil, fmt.Errorf("%s:%d: %s: %w", rule.File, rule.Line, quoted(rule.Key), err)
		}
	}
	return mux, nil
}

// addRoute adds a pattern to a mux, which panics if it cannot.
func addRoute(mux *http.ServeMux, pattern string) (err error) {
	defer func() {
		if problem := recover(); problem != nil {
			why := strings.Join(strings.Fields(fmt.Sprint(problem)), " ")
			err = fmt.Errorf("%q cannot be a route: %w", pattern, errors.New(whereRegistered.ReplaceAllString(why, "")))
		}
	}()
	mux.Handle(pattern, http.NotFoundHandler())
	return nil
}

// whereRegistered matches what a mux says of the line of the program, which does not
// help the one who has written the pattern into a file.
var whereRegistered = regexp.MustCompile(` \(registered at [^)]*\)`)
