package keys

import (
	"net/http"
	"net/url"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
	"example.com/leakybucket/shaper"
)

// routes tell which pattern a request fits, as an [http.ServeMux] does.
type routes struct {
	byMux shaper.KeyFunc
	known memo[target, string]
}

// A target is what decides which pattern a request fits.
type target struct{ method, host, path string }

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
