package caddyshaper

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"example.com/leakybucket/config"
	"example.com/leakybucket/shaper"
)

// A keyFunc returns the key of a request.
type keyFunc func(*http.Request, *caddy.Replacer) string

// keyParts returns the parts of the key of a request, and the field that has them.
func (s *Shape) keyParts() (field string, parts []string) {
	switch {
	case s.Fair != nil:
		return "fair", s.Fair.By
	case s.Teams != "":
		return "teams", []string{"team"}
	case s.Quota != nil:
		return "quota", []string{"all"}
	}
	return "key", s.Key
}

// newKeyFor returns the function that makes the key of a request, for a handler with the lines of an entry. It
// follows the file of the entry: a request has the key by the rules in force when it comes.
func (s *Shape) newKeyFor(e *entry) (keyFunc, error) {
	if e.file == nil {
		return s.newKey(new(config.Rules))
	}
	type ruledKey struct {
		rules *config.Rules
		of    keyFunc
	}
	rules := e.file.Rules()
	first, err := s.newKey(rules)
	if err != nil {
		return nil, err
	}
	var made atomic.Pointer[ruledKey]
	made.Store(&ruledKey{rules, first})
	return func(r *http.Request, repl *caddy.Replacer) string {
		k := made.Load()
		if rules := e.file.Rules(); rules != k.rules {
			// Several requests may do this at the same time, with one result. The last of them may
			// have older rules than another; then the next request does it again.
			changed, err := s.newKey(rules)
			if err != nil {
				e.log.Error("the keys are made as before", "error", err)
				changed = k.of
			}
			k = &ruledKey{rules, changed}
			made.Store(k)
		}
		return k.of(r, repl)
	}, nil
}

// newKey returns the function that makes the key of a request by some rules, which may be empty. The part
// route is the pattern that matches the request. Patterns come from routes, and from the same place in the
// keys of the rules. So the number of routes is bounded, whatever clients ask for.
func (s *Shape) newKey(rules *config.Rules) (keyFunc, error) {
	field, parts := s.keyParts()
	if s.fairInFile() {
		by, _, _ := rules.Fair()
		parts = fairParts(strings.Fields(by))
	}
	var route keyFunc
	if place := slices.Index(parts, "route"); place >= 0 {
		mux, err := rules.Routes(place, s.Routes...)
		if err != nil {
			return nil, fmt.Errorf("routes: %w", err)
		}
		route = withoutError(shaper.ByRoute(mux))
	} else if len(s.Routes) > 0 && !s.fairInFile() { // A file may make route a part of the key later.
		return nil, fmt.Errorf("routes: %q, but no part of the key is route", s.Routes)
	}
	return s.joinKey(field, parts, route)
}

// joinKey returns the function that joins the parts of a key; field is the field that has them. route is for the
// part route.
func (s *Shape) joinKey(field string, parts []string, route keyFunc) (keyFunc, error) {
	ipv6Bits := s.IPv6Bits
	if ipv6Bits < 0 || ipv6Bits > 128 {
		return nil, fmt.Errorf("ipv6_bits: %d, must be from 1 to 128, or 0 for 64", ipv6Bits)
	}
	switch {
	case len(parts) == 0:
		parts = []string{"client_ip"}
	case len(parts) == 1 && parts[0] == "all":
		return func(*http.Request, *caddy.Replacer) string { return "" }, nil
	}
	funcs := make([]keyFunc, len(parts))
	for i, part := range parts {
		if part == "team" && s.Teams == "" {
			return nil, fmt.Errorf(`%s: "team" is the owner of a token, and teams names no file of them`, field)
		}
		var err error
		if funcs[i], err = newKeyPart(part, ipv6Bits, route); err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
	}
	return func(r *http.Request, repl *caddy.Replacer) string {
		values := make([]string, len(funcs))
		for i, f := range funcs {
			values[i] = f(r, repl)
		}
		return shaper.Join(values...)
	}, nil
}

// newKeyPart returns the function of one part of a key.
func newKeyPart(part string, ipv6Bits int, route keyFunc) (keyFunc, error) {
	if name, ok := strings.CutPrefix(part, "header:"); ok {
		if !isFieldName(name) {
			return nil, fmt.Errorf("%q, must have the name of a header field after the colon", part)
		}
		return withoutError(shaper.ByHeader(name)), nil
	}
	switch part {
	case "route":
		return route, nil
	case "client_ip":
		ip := shaper.ClientIP{IPv6Bits: ipv6Bits}
		return func(r *http.Request, _ *caddy.Replacer) string { return clientIP(r, ip) }, nil
	case "team":
		return func(_ *http.Request, repl *caddy.Replacer) string { return repl.ReplaceAll("{http.shape.team}", "") }, nil
	case "host":
		return func(r *http.Request, _ *caddy.Replacer) string { return hostOf(r) }, nil
	case "all":
		return nil, errors.New(`"all" stands beside other parts, must stand alone`)
	}
	if !hasPlaceholder(part) {
		return nil, fmt.Errorf("%q, must be route, client_ip, host, header:NAME, all or a text with a {placeholder}", part)
	}
	return func(_ *http.Request, repl *caddy.Replacer) string { return repl.ReplaceAll(part, "") }, nil
}

// hasPlaceholder reports whether there is a placeholder of Caddy in a text.
func hasPlaceholder(text string) bool {
	_, behind, _ := strings.Cut(text, "{")
	return strings.IndexByte(behind, '}') > 0
}

// withoutError returns the function of a key that is known to return no error: only its
// arguments could be wrong, and these were checked.
func withoutError(key shaper.KeyFunc) keyFunc {
	return func(r *http.Request, _ *caddy.Replacer) string {
		value, _ := key(r)
		return value
	}
}

// isFieldName reports whether a name may stand before the colon of a header field.
func isFieldName(name string) bool {
	_, err := shaper.ByHeader(name)(new(http.Request))
	return err == nil
}

// clientIP returns the address of the client that Caddy has found, by the server's
// trusted_proxies; of an IPv6 address the prefix.
func clientIP(r *http.Request, ip shaper.ClientIP) string {
	address, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	key, _ := ip.Key(&http.Request{RemoteAddr: address}) // An error would be in the fields of ip.
	return key
}

// hostOf returns the host that a request is for, in lower case and without the port, the
// brackets of an address and the dot that may end a name: a client must not get a second line
// by writing the same host in another way.
func hostOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	return strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
}
