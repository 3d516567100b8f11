package shaper

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

const (
	// defaultIPv6Bits is the prefix of one network (RFC 4291, section 2.5.4). A host
	// takes any address in its network, so by address it would have 2⁶⁴ buckets.
	defaultIPv6Bits = 64

	// maxHops is how many addresses of X-Forwarded-For are read. Real chains have few,
	// but a client may send a megabyte of trusted addresses.
	maxHops = 32
)

// ByClientIP returns a [KeyFunc] whose key is the address of the client, which is the
// other end of the connection unless that is one of your own proxies. It is the method
// [ClientIP.Key] of a [ClientIP] with these proxies and prefixes of 64 bits.
//
//	ByClientIP()                                         // clients connect to this process
//	ByClientIP(netip.MustParsePrefix("10.1.0.0/24"))     // through load balancers in 10.1.0.0/24
//
// If a proxy's prefix is missing, all clients that come through that proxy share one
// bucket. If a prefix contains clients as well, these clients can claim any address.
func ByClientIP(trusted ...netip.Prefix) KeyFunc {
	return ClientIP{Trusted: slices.Clone(trusted)}.Key
}

// A ClientIP finds the address from which a request comes. It is made as a literal, and
// its method Key is a [KeyFunc]; [ByClientIP] is shorter and enough for most programs.
//
// The peer is the address in Request.RemoteAddr. If the peer is not trusted, it is the
// client. If the peer is trusted, X-Forwarded-For is read from right to left, all its
// lines as one. Each trusted proxy is believed about where it got the request from, and
// the first address that is not trusted is the client. What a client writes into the
// field stands left of its own address and is never read. If all addresses are trusted,
// the left-most one, which is furthest away, is the client; without the field the peer
// is. If an element is empty or no address, or the client is not among the last 32
// elements, the field is not believed and the client is the peer. A port may follow
// the address, as some proxies write it.
//
// No other field is read, because proxies pass on what clients write into fields that
// they do not know. So no outer handler may set RemoteAddr from such a field either.
//
// A ClientIP is safe for concurrent use, as long as its fields are not changed.
type ClientIP struct {
	// Trusted are the addresses of your own proxies which write X-Forwarded-For or
	// append to it. Nil means that there are none, and the field is not read.
	//
	// A client that can connect from one of these addresses, or through a proxy that
	// only passes the field on, can claim any address. So trust neither a network that
	// clients share, nor that of a provider whose customers can send from it too. An
	// IPv4-mapped prefix (::ffff:10.0.0.0/104) stands for the IPv4 one.
	Trusted []netip.Prefix

	// IPv6Bits is how many bits of an IPv6 address make the key, from 1 to 128; 0
	// means 64. Many customers are given a whole /56 or /48, that is 256 or 65,536
	// networks of 64 bits: use 56 or 48 if they abuse it. With 128 each address has
	// a bucket of its own, so a client with a network of 64 bits has 2⁶⁴ buckets.
	IPv6Bits int
}

// Key returns the address of an IPv4 client (192.0.2.1). For an IPv6 client it returns
// the prefix that contains the address (2001:db8::/64), or with 128 bits the address.
// An IPv4-mapped address counts as IPv4, and a zone is left out.
//
// If RemoteAddr is no address, as with a Unix socket, the key is empty and all such
// requests share one bucket, whatever their header says.
//
// If a field of c is out of range, every call returns an error that names the field.
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

// forwardedFor returns the client of a trusted peer. lines are those of X-Forwarded-For.
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
