package main

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"example.com/leakybucket/shaper"
)

// addressProblem returns the mistake of an address in the key of a rule, or "". Keys
// have addresses as [shaper.ClientIP] writes them, and a rule in other words matches
// none of them.
func addressProblem(key string) string {
	parts := strings.Split(key, "/")
	for i, part := range parts {
		text, err := url.PathUnescape(part)
		if err != nil {
			continue // Some part that Join has shortened.
		}
		next := ""
		if i+1 < len(parts) {
			next = parts[i+1]
		}
		if problem := problemOf(text, next, i > 0); problem != "" {
			return problem
		}
	}
	return ""
}

// problemOf returns the mistake of one part of a key, which next follows.
func problemOf(text, next string, joined bool) string {
	if p, err := netip.ParsePrefix(text); err == nil {
		return prefixProblem(p, text)
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return ""
	}
	if bits, err := strconv.Atoi(next); err == nil {
		if p := netip.PrefixFrom(a, bits); p.IsValid() && (a.Is4() || joined) {
			if a.Is4() {
				return prefixProblem(p, text+"/"+next)
			}
			return "among other parts of a key, a network is written " + shaper.Join(p.Masked().String())
		}
	}
	if written := a.WithZone("").Unmap().String(); written != text {
		return "keys have this address as " + written
	}
	return ""
}

// prefixProblem returns the mistake of a network, which is written as text.
func prefixProblem(p netip.Prefix, text string) string {
	if p.Addr().Is4() || p.Addr().Is4In6() {
		return "keys have addresses of IPv4 clients, not networks, and " + text + " is compared as a text"
	}
	if written := p.Masked().String(); written != text {
		return "keys have this network as " + shaper.Join(written)
	}
	return ""
}
