package caddyshaper

import (
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// withSlash returns where a request for the page belongs if its address does not end in "/":
// the page names its files and its API relative to its own address. Otherwise it returns "".
//
// The answer is relative: an absolute path that begins with "//" would name another host.
func withSlash(r *http.Request) string {
	sent := originalPath(r)
	if r.URL.Path != "" && r.URL.Path != "/" || sent == "" || strings.HasSuffix(sent, "/") {
		return ""
	}
	to := "./" + path.Base(sent) + "/"
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	return to
}

// belowPath returns the request with the path below the place where the page is, as it was
// sent. Place is stripped; another handler may have stripped it already.
//
// Caddy's strip_prefix, and so handle_path, cleans the path as if what is encoded in it were
// not: of a key such as "a/../b", which is one segment "a%2F..%2Fb", only "b" would be left.
func belowPath(r *http.Request, place string) *http.Request {
	sent, stripped := originalPath(r), r.URL.EscapedPath()
	if below, ok := strings.CutPrefix(stripped, place); ok && place != "" {
		return withPath(r, below)
	}
	if sent == "" || strings.HasSuffix(sent, stripped) {
		return r
	}
	// The beginning is right in any case: "/api/buckets/" of "/api/buckets/SOURCE/KEY".
	// What follows it has no such segments, as its slashes are encoded.
	parts := strings.SplitAfterN(stripped, "/", 4)
	if len(parts) < 4 {
		return r
	}
	at := strings.LastIndex(sent, "/"+parts[1]+parts[2])
	if at < 0 {
		return r
	}
	return withPath(r, sent[at:])
}

// withPath returns the request with another path, which is encoded.
func withPath(r *http.Request, escaped string) *http.Request {
	path, err := url.PathUnescape(escaped)
	if err != nil {
		return r
	}
	r = r.Clone(r.Context())
	r.URL.Path, r.URL.RawPath = path, escaped
	return r
}

// originalPath returns the path of a request as it was sent, or "" if that is not known.
func originalPath(r *http.Request) string {
	sent, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request)
	if !ok || sent.URL == nil {
		return ""
	}
	return sent.URL.EscapedPath()
}
