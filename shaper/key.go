package shaper

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// A KeyFunc returns the key of a request: requests with equal keys share one bucket. An error means that the
// function itself is set up wrongly: the request must be refused. [ByClientIP], [ByHeader], [ByRoute] and [ByHost]
// are ready for use, [By] combines several, and [Join] makes the key in a function of your own. All are safe for
// concurrent use, and nothing that a client sends makes them fail. What a request lacks gives the empty key, which
// is a key like any other.
//
// A client that may write a part of its key freely gets a fresh bucket for each new value, and one that can write
// the value of another client spends from that client's bucket.
type KeyFunc func(*http.Request) (string, error)

// By returns a [KeyFunc] that joins the keys of several by [Join]; the first error is its error. Put the part that
// picks the rule first, and any part that the client can choose after it:
//
//	shaper.By(shaper.ByRoute(mux), shaper.ByClientIP()) // POST %2Flogin/192.0.2.1
//
// Without arguments every request has the empty key. If an argument is nil, every call returns an error.
func By(keys ...KeyFunc) KeyFunc {
	keys = slices.Clone(keys)
	for i, key := range keys {
		if key == nil {
			err := fmt.Errorf("shaper: By: keys[%d] is nil, must be a function", i)
			return func(*http.Request) (string, error) { return "", err }
		}
	}
	return func(r *http.Request) (string, error) {
		parts := make([]string, len(keys))
		for i, key := range keys {
			part, err := key(r)
			if err != nil {
				return "", err
			}
			parts[i] = part
		}
		return Join(parts...), nil
	}
}

// ByHeader returns a [KeyFunc] whose key is the value of a header field, such as an API key; for "Host" it is the
// host that the request is for. A missing or empty field gives the empty key, and so does one in several lines, of
// which the handler might use another. A value longer than 256 bytes is cut as by [Join]. If name is no field name,
// every call returns an error.
//
// The client writes its header, so use this where a proxy or an outer handler has checked the value. Keys are shown
// in statistics: replace a secret by the name of its owner. A browser's preflights (CORS) have no such field: let
// them pass by their cost ([WithCost]).
func ByHeader(name string) KeyFunc {
	if !isFieldName(name) {
		err := fmt.Errorf("shaper: ByHeader: name is %q, must be that of a header field", name)
		return func(*http.Request) (string, error) { return "", err }
	}
	if http.CanonicalHeaderKey(name) == "Host" {
		// net/http removes this field from the header.
		return func(r *http.Request) (string, error) { return bounded(r.Host), nil }
	}
	return func(r *http.Request) (string, error) {
		if lines := r.Header.Values(name); len(lines) == 1 {
			return bounded(lines[0]), nil
		}
		return "", nil
	}
}

// isFieldName reports whether name may stand before the colon of a header field.
func isFieldName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if !isDigit(c) && (c|0x20 < 'a' || c|0x20 > 'z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return name != ""
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// Join returns one key made of several parts, with "/" between them:
//
//	Join("login", "192.0.2.1")    login/192.0.2.1
//	Join("login", "x/../premium") login/x%2F..%2Fpremium
//	Join("login", "", "-")        login/-/%2D
//
// Different parts make different keys. A part longer than 256 bytes is replaced by its first 192, "~", and the
// SHA-256 of the whole part in hexadecimal. Without parts the key is empty. Look up a rule by a Join too: Join("POST
// /login") stands before the first "/" of its keys.
func Join(parts ...string) string {
	var key strings.Builder
	for i, part := range parts {
		if i > 0 {
			key.WriteByte('/')
		}
		switch part {
		case "":
			key.WriteByte('-')
		case "-":
			key.WriteString("%2D")
		default:
			_, _ = escaper.WriteString(&key, bounded(part)) // A Builder takes everything.
		}
	}
	return key.String()
}

var escaper = strings.NewReplacer("%", "%25", "/", "%2F")

const (
	maxPart  = 256 // longest part of a key, in bytes, that is kept as it is
	keptPart = 192 // bytes kept of a longer part; "~" and the hash make it 257, longer than any part kept whole
)

// bounded returns a part, or if it is too long its beginning and its hash.
func bounded(part string) string {
	if len(part) <= maxPart {
		return part
	}
	sum := sha256.Sum256([]byte(part))
	return part[:keptPart] + "~" + hex.EncodeToString(sum[:])
}

// ByHost returns a [KeyFunc] whose key is the host that a request is for, for a [Group.Transport]: the Host of its
// URL, or Request.Host if that is empty, in lower case, without the default port of the request's scheme and a final
// dot: example.com, [2001:db8::1]:8443.
func ByHost() KeyFunc {
	return func(r *http.Request) (string, error) {
		host, scheme := r.Host, "http"
		if r.TLS != nil {
			scheme = "https"
		}
		if r.URL != nil && r.URL.Host != "" {
			host = r.URL.Host
		}
		if r.URL != nil && r.URL.Scheme != "" {
			scheme = strings.ToLower(r.URL.Scheme)
		}
		name, port := strings.ToLower(host), ""
		if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, ']') {
			name, port = name[:colon], name[colon:]
		}
		name = strings.TrimSuffix(name, ".")
		if port != ":" && port != defaultPorts[scheme] {
			name += port
		}
		return bounded(name), nil
	}
}

// defaultPorts has the ports of the schemes (RFC 9110, sections 4.2.1 and 4.2.2).
var defaultPorts = map[string]string{"http": ":80", "https": ":443"}

// ByRoute returns a [KeyFunc] whose key is the pattern that mux matches for a request, as it was registered, such as
// "POST /login". A request that mux redirects has the key of the route to which that leads. One without a route has
// the empty key: limit that as well.
//
// The mux must see the request as this function does: put the limit behind a handler that changes the method, the
// host or the path, as [http.StripPrefix] does. Routes can be added to mux later. If mux is nil, every call returns
// an error.
func ByRoute(mux *http.ServeMux) KeyFunc {
	return func(r *http.Request) (string, error) {
		if mux == nil {
			return "", errNoMux
		}
		handler, pattern := mux.Handler(r)
		if r.Method == http.MethodConnect && reflect.TypeOf(handler) == redirect {
			// For this redirect the mux returns, instead of a pattern, the path to which
			// it leads. The client chose that path, and it could be the name of a rule.
			return "", nil
		}
		return pattern, nil
	}
}

var errNoMux = errors.New("shaper: ByRoute: mux is nil, must be the ServeMux whose routes are meant")

// redirect is the type of the handlers with which a mux redirects.
var redirect = reflect.TypeOf(http.RedirectHandler("/", http.StatusTemporaryRedirect))

const (
	// defaultIPv6Bits is the prefix of one network (RFC 4291, section 2.5.4). A host
	// takes any address in its network, so by address it would have 2⁶⁴ buckets.
	defaultIPv6Bits = 64

	// maxHops is how many addresses of X-Forwarded-For are read. Real chains have few,
	// but a client may send a megabyte of trusted addresses.
	maxHops = 32
)

// ByClientIP returns a [KeyFunc] whose key is the address of the client, which is the other end of the connection
// unless that is one of your own proxies: [ClientIP.Key] with these Trusted proxies.
//
//	ByClientIP()                                     // clients connect to this process
//	ByClientIP(netip.MustParsePrefix("10.1.0.0/24")) // through load balancers in 10.1.0.0/24
func ByClientIP(trusted ...netip.Prefix) KeyFunc {
	return ClientIP{Trusted: slices.Clone(trusted)}.Key
}

// A ClientIP finds the address from which a request comes, by its method Key. [ByClientIP] is enough for most
// programs.
//
// If the peer (Request.RemoteAddr) is not trusted, it is the client. Otherwise X-Forwarded-For is read from right to
// left, and the first address that is not trusted is the client; if all are trusted, the left-most one. So what a
// client writes into the field is never read. If an element is no address, or the client is not among the last 32,
// it is the peer. No other field is read, because proxies pass on what clients write into fields that they do not
// know.
type ClientIP struct {
	// Trusted are the addresses of your own proxies which append to X-Forwarded-For; nil: there are none. A client that can
	// connect from one of them can claim any address. If one is missing, all clients that come through it share one bucket.
	Trusted []netip.Prefix

	// IPv6Bits is how many bits of an IPv6 address make the key, from 1 to 128; 0 means 64, the prefix of one network. Many
	// customers are given a whole /56 or /48: use 56 or 48 if they abuse it.
	IPv6Bits int
}

// Key returns the address of an IPv4 client (192.0.2.1), or the prefix that contains an IPv6 one (2001:db8::/64;
// with 128 bits the address). An IPv4-mapped address counts as IPv4, and a zone is left out. If RemoteAddr is no
// address, as with a Unix socket, the key is empty. If a field of c is out of range, every call returns an error
// that names the field.
func (c ClientIP) Key(r *http.Request) (string, error) {
	bits := c.IPv6Bits
	if bits == 0 {
		bits = defaultIPv6Bits
	}
	if bits < 0 || bits > 128 {
		return "", fmt.Errorf("shaper: ClientIP.IPv6Bits is %d, must be from 1 to 128, or 0 for 64", c.IPv6Bits)
	}
	for i, p := range c.Trusted {
		if !p.IsValid() {
			return "", fmt.Errorf("shaper: ClientIP.Trusted[%d] is %q, must be a prefix", i, p)
		}
		if p.Addr().Is4In6() && p.Bits() < mappedBits {
			return "", fmt.Errorf("shaper: ClientIP.Trusted[%d] is %q, must have at least %d bits, as an IPv4-mapped prefix", i, p, mappedBits)
		}
	}
	client, ok := address(r.RemoteAddr)
	if !ok {
		return "", nil
	}
	if c.trusts(client) {
		client = c.forwardedFor(client, r.Header.Values("X-Forwarded-For"))
	}
	if client.Is4() || bits == 128 {
		return client.String(), nil
	}
	return netip.PrefixFrom(client, bits).Masked().String(), nil
}

// forwardedFor returns the client of a trusted peer. lines are the values of X-Forwarded-For.
func (c ClientIP) forwardedFor(peer netip.Addr, lines []string) netip.Addr {
	client, hops := peer, 0
	for _, line := range slices.Backward(lines) {
		for end := len(line); end >= 0; {
			comma := strings.LastIndexByte(line[:end], ',') // -1: this is the line's first element
			hop, ok := address(line[comma+1 : end])
			if hops++; !ok || hops > maxHops {
				return peer
			}
			if !c.trusts(hop) {
				return hop
			}
			client, end = hop, comma
		}
	}
	return client
}

// mappedBits is the length of the prefix of IPv4-mapped addresses (RFC 4291, section
// 2.5.5.2).
const mappedBits = 96

// trusts reports whether a is the address of a trusted proxy. It must not be IPv4-mapped
// or have a zone.
func (c ClientIP) trusts(a netip.Addr) bool {
	for _, p := range c.Trusted {
		if p.Addr().Is4In6() {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mappedBits)
		}
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// address parses an address with or without a port. It drops the zone, because no prefix
// contains an address with one, and turns an IPv4-mapped address into IPv4.
func address(text string) (a netip.Addr, ok bool) {
	text = strings.Trim(text, " \t")
	for _, form := range []string{text, text + ":0"} { // with a port, [IPv6] or IPv4
		if ap, err := netip.ParseAddrPort(form); err == nil {
			return ap.Addr().WithZone("").Unmap(), true
		}
	}
	a, err := netip.ParseAddr(text) // IPv6
	return a.WithZone("").Unmap(), err == nil
}
