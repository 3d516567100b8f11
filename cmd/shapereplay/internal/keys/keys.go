// Package keys makes the keys of the requests of a log: the same as the handler of package
// caddyshaper makes of the requests themselves, as far as the log has the parts.
package keys

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
	"example.com/leakybucket/shaper"
)

// A Maker makes the keys of requests from their parts. [New] makes one. It is for one
// goroutine.
type Maker struct {
	parts []part

	onlyClient bool // the only part is client_ip, as in most replays

	requests, strangers int    // all, and all with a client that is no address
	stranger            string // the first such client, cut

	values []string // of the parts, while a key is made
	from   client   // of the request whose key is made
	header []string

	clients memo[string, client]
	routes  memo[target, string] // the patterns that requests fit
	byMux   shaper.KeyFunc
	ip      shaper.ClientIP
}

// A part is one part of the keys.
type part struct {
	name string
	of   func(*accesslog.Record) string // the key of a request
	told bool                           // any request had a value
}

// A client is the other end of a request.
type client struct {
	part    string // of keys
	key     string // that has no other part
	address string // the part, if it is an address or a prefix
}

// New returns the Maker of keys with the given parts:
//
//	route        the pattern that mux matches
//	client_ip    the address of the client; of an IPv6 address the prefix of so many bits
//	host         the host without its port
//	header:NAME  the value of a header field
//	all          stands alone: all requests have one key
func New(parts []string, mux *http.ServeMux, ipv6Bits int) (*Maker, error) {
	m := &Maker{byMux: shaper.ByRoute(mux), ip: shaper.ClientIP{IPv6Bits: ipv6Bits}}
	if len(parts) == 1 && parts[0] == "all" {
		return m, nil
	}
	for _, name := range parts {
		of, err := m.part(name)
		if err != nil {
			return nil, err
		}
		m.parts = append(m.parts, part{name: name, of: of})
	}
	m.onlyClient = slices.Equal(parts, []string{"client_ip"})
	m.values = make([]string, len(m.parts))
	return m, nil
}

func (m *Maker) part(name string) (func(*accesslog.Record) string, error) {
	if field, ok := strings.CutPrefix(name, "header:"); ok {
		if _, err := shaper.ByHeader(field)(&http.Request{}); err != nil {
			return nil, fmt.Errorf("%q: must have the name of a header field after the colon", name)
		}
		i := len(m.header)
		m.header = append(m.header, field)
		if http.CanonicalHeaderKey(field) == "Host" {
			// A server takes this field out of the header, so logs have it as the host of the request.
			return func(r *accesslog.Record) string { return bounded(cmp.Or(r.Header[i], r.Host)) }, nil
		}
		return func(r *accesslog.Record) string { return bounded(r.Header[i]) }, nil
	}
	switch name {
	case "route":
		return m.route, nil
	case "client_ip":
		return func(*accesslog.Record) string { return m.from.part }, nil
	case "host":
		return func(r *accesslog.Record) string { return hostname(r.Host) }, nil
	case "all":
		return nil, errors.New(`"all" stands beside other parts, must stand alone`)
	}
	if strings.Contains(name, "{") {
		return nil, fmt.Errorf("%q: a log does not tell the value of a placeholder; the parts are route, client_ip, host, header:NAME and all", name)
	}
	return nil, fmt.Errorf("%q: the parts are route, client_ip, host, header:NAME and all", name)
}

// bounded returns the value of a header field as [shaper.ByHeader] does, which shortens one
// that is longer than anybody's key.
func bounded(value string) string {
	const field, keptWhole = "X-Value", 256
	if len(value) <= keptWhole {
		return value
	}
	short, err := shaper.ByHeader(field)(&http.Request{Header: http.Header{field: {value}}})
	if err != nil {
		return value
	}
	return short
}

// Header returns the names of the header fields that the keys are made of, as
// [accesslog.Options] wants them.
func (m *Maker) Header() []string { return m.header }

// Of returns the key of a request, and its client as a firewall wants it, which is the
// address, or of an IPv6 address the prefix. The client is "" if the log has no address.
func (m *Maker) Of(r *accesslog.Record) (key, address string) {
	m.from = m.client(r.Client)
	for i := range m.parts {
		m.values[i] = m.parts[i].of(r)
		m.parts[i].told = m.parts[i].told || m.values[i] != ""
	}
	address = m.from.address
	if m.requests++; address == "" && r.Client != "" {
		m.strangers++
		m.stranger = cmp.Or(m.stranger, accesslog.ShortName(r.Client))
	}
	if m.onlyClient {
		return m.from.key, address
	}
	return shaper.Join(m.values...), address
}

// Untold returns the parts that were empty in all keys so far, as of a header field that the
// log does not have.
func (m *Maker) Untold() (names []string) {
	for _, p := range m.parts {
		if !p.told {
			names = append(names, p.name)
		}
	}
	return names
}

// Strangers returns how many of the requests so far had a client that is no address, and the
// first such client, cut as [accesslog.ShortName] does.
func (m *Maker) Strangers() (n int, first string) { return m.strangers, m.stranger }

// StrangersAreMost reports whether the keys are made of clients, and most of the clients so far
// were no addresses: a server would make other keys.
func (m *Maker) StrangersAreMost() bool {
	return 2*m.strangers > m.requests && slices.ContainsFunc(m.parts, func(p part) bool { return p.name == "client_ip" })
}

// client returns the client with a name, which is an address in nearly every log.
func (m *Maker) client(name string) client {
	return m.clients.get(name, len(name), func() client {
		stranger := client{part: name, key: shaper.Join(name)}
		if _, err := netip.ParseAddr(name); err != nil {
			return stranger
		}
		part, err := m.ip.Key(&http.Request{RemoteAddr: name})
		if err != nil {
			return stranger
		}
		return client{part, shaper.Join(part), part}
	})
}

// hostname returns a host in lower case, without its port, the brackets of an address and the
// dot that may end a name.
func hostname(host string) string {
	host = strings.ToLower(host)
	if strings.HasPrefix(host, "[") {
		host, _, _ = strings.Cut(host[1:], "]")
		return host
	}
	if name, _, found := strings.Cut(host, ":"); found && strings.Count(host, ":") == 1 {
		host = name
	}
	return strings.TrimSuffix(host, ".")
}

// A memo remembers the results for values that stand in many lines of a log.
type memo[K comparable, V any] struct{ kept map[K]V }

const (
	maxKept     = 1 << 16 // how many things a memo remembers; then it begins anew
	longestKept = 512     // bytes of a thing; longer ones seldom come again, and one may be a mebibyte
)

// get returns the result for k, which has so many bytes.
func (m *memo[K, V]) get(k K, bytes int, compute func() V) V {
	v, ok := m.kept[k]
	if ok {
		return v
	}
	if bytes > longestKept {
		return compute()
	}
	if m.kept == nil || len(m.kept) >= maxKept {
		m.kept = make(map[K]V)
	}
	v = compute()
	m.kept[k] = v
	return v
}

// A target has the parts that decide which pattern a request fits.
type target struct{ method, host, path string }

// route returns the pattern that a request fits, as an [http.ServeMux] decides, or "".
func (m *Maker) route(record *accesslog.Record) string {
	at := target{record.Method, record.Host, record.Path}
	return m.routes.get(at, len(at.method)+len(at.host)+len(at.path), func() string {
		address, err := url.ParseRequestURI(at.path)
		if err != nil {
			address = &url.URL{Path: at.path}
		}
		pattern, err := m.byMux(&http.Request{Method: at.method, Host: at.host, URL: address})
		if err != nil {
			return ""
		}
		return pattern
	})
}
