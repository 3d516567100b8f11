package inspect

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// policy is what a browser may do with an answer: run and show what comes from here,
// and nothing else. There is no inline script and no inline style.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
	"img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// Guard returns a handler that lets through to h only requests that the Inspector would
// answer itself, by their Host field and by where they come from, and sets the same
// header fields on the answer. It is for what a program serves beside an Inspector.
func (i *Inspector) Guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Cache-Control", "no-store")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("X-Frame-Options", "DENY")
		if err := i.admits(r); err != nil {
			fail(w, err)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// admits returns nil if r names a host that is allowed and comes from where it may.
func (i *Inspector) admits(r *http.Request) error {
	if !i.knowsHost(r.Host) {
		// A page of another site can make its own name stand for 127.0.0.1 and then read
		// the answers as its own (DNS rebinding). The browser still sends that name.
		return &failure{Status: http.StatusMisdirectedRequest, Parameter: "Host", Value: r.Host,
			Message: fmt.Sprintf("the host %q is not served here; use a loopback name, or name it among the hosts of the page (WithHosts)", shorten(r.Host))}
	}
	if len(i.hosts) == 0 && !isLocal(r) {
		return &failure{Status: http.StatusForbidden,
			Message: "only clients of this machine are answered, unless hosts are named (WithHosts)"}
	}
	return nil
}

// knowsHost reports whether a Host field names a loopback address or a host of
// [WithHosts].
func (i *Inspector) knowsHost(field string) bool {
	field = strings.ToLower(field)
	host, _, err := net.SplitHostPort(field)
	if err != nil {
		host = field
	}
	host = bare(host)
	if slices.Contains(i.hosts, field) || slices.Contains(i.hosts, host) {
		return true
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// bare returns a host without the brackets around an address of IPv6. One with a port
// keeps them.
func bare(host string) string {
	if inner, ok := strings.CutPrefix(host, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok {
			return inner
		}
	}
	return host
}

// isForeign reports whether a browser says that a page of another origin has sent a
// request. What is not a browser does not say where a request comes from.
func isForeign(r *http.Request) bool {
	from := r.Header.Get("Sec-Fetch-Site")
	return from != "" && from != "same-origin" && from != "none"
}

// isLocal reports whether a request comes from this machine.
func isLocal(r *http.Request) bool {
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		return peer.Addr().Unmap().IsLoopback()
	}
	own, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return own != nil && own.Network() == "unix"
}
