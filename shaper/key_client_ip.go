package shaper

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

const (
	// defaultIPv6Bits is one network (RFC 4291, section 2.5.4), in which a host
	// takes whatever address it likes: by address it would have 2⁶⁴ buckets.
	defaultIPv6Bits = 64

	// maxHops is how many addresses of X-Forwarded-For are looked at. Real chains
	// have a handful. A megabyte of trusted addresses should cost nobody anything.
	maxHops = 32
)

// ByClientIP returns the address of the client, as ClientIP does with prefixes of
// 64 bits: that of the connection's other end, unless that is one of your own
// proxies.
//
//	ByClientIP()                                         // clients connect to this process
//	ByClientIP(netip.MustParsePrefix("10.1.0.0/24"))     // through load balancers in 10.1.0.0/24
//
// Without the proxy's prefix all that come through it share one bucket. With a
// prefix that holds clients as well, they can have whatever address they write.
func ByClientIP(trusted ...netip.Prefix) KeyFunc {
	return ClientIP{Trusted: slices.Clone(trusted)}.Key
}

// ClientIP finds the address from which a request comes. It is made as a literal,
// and its method Key is a KeyFunc; ByClientIP is shorter and does for most.
//
// The peer is the address in Request.RemoteAddr. If it is trusted, each trusted
// proxy is believed about whom it got the request from: X-Forwarded-For is read
// from right to left, all its lines as one, over the addresses that are trusted,
// and the first that is not is the client. What a client puts into that field
// itself stands left of its own address and is never reached. If all are trusted
// the client is the left-most of them, that is the one furthest away; without the
// field it is the peer. An element that is no address, an empty one, or more
// than 32 before the client is found: then nothing there is believed, and the client
// is the peer. A port may follow the address, as some proxies write it.
//
// No other field is read, as proxies pass on what clients write into those they
// do not know. Nothing in front may set RemoteAddr from such a field either.
//
// A ClientIP can be used by many goroutines, if nobody changes it meanwhile.
type ClientIP struct {
	// Trusted are the addresses of your own proxies, of those that write
	// X-Forwarded-For or add to it. Nil: there are none, and the field is not
	// read. Whoever can connect from one of them, or through one that only passes
	// the field on, can have any address. So trust neither a whole network in
	// which clients live nor that of a provider whose customers can send from it
	// too. An IPv4-mapped prefix (::ffff:10.0.0.0/104) stands for the IPv4 one.
	Trusted []netip.Prefix

	// IPv6Bits is how much of an IPv6 address makes the key, from 1 to 128 bits;
	// 0 means 64. Many customers are given a whole /56 or /48, that is 256 or
	// 65,536 networks of 64 bits: take that if they abuse it. With 128 each single
	// address has a bucket, and whoever has a network has 2⁶⁴ of them.
	IPv6Bits int
}

// Key returns the address of an IPv4 client (192.0.2.1), and of an IPv6 client the
// prefix in which it is (2001:db8::/64), or with 128 bits the address. An
// IPv4-mapped address is the IPv4 one, and a zone is left out.
//
// If RemoteAddr is no address, as with a Unix socket, the key is empty and all
// such requests share one bucket, whatever their header says.
//
// The error names the field that is out of range, whoever the client is.
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

// forwardedFor is the client that the trusted peer forwards for.
func (c ClientIP) forwardedFor(peer netip.Addr, lines []string) netip.Addr {
	client, hops := peer, 0
	for _, line := range slices.Backward(lines) {
		for end := len(line); end >= 0; {
			comma := strings.LastIndexByte(line[:end], ',') // -1: the line's first
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

// mappedBits are those that IPv4-mapped addresses begin with (RFC 4291, section
// 2.5.5.2).
const mappedBits = 96

// trusts says whether a, which is neither mapped nor has a zone, is a proxy's.
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

// address reads an address with a port or without. It leaves the zone out, with
// which no prefix contains it, and turns an IPv4-mapped one into IPv4.
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
