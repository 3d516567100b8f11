package caddyshaper

import (
	"encoding/json"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	caddy.RegisterModule(new(Readiness))
	httpcaddyfile.RegisterHandlerDirective("shape_ready", parseReady)
	// In front of what asks who somebody is, and of shape, in whose line a load balancer would
	// wait.
	httpcaddyfile.RegisterDirectiveOrder("shape_ready", httpcaddyfile.Before, "redir")
}

// Readiness is the handler that tells load balancers whether to send requests here:
// http.handlers.shape_ready, in a Caddyfile shape_ready. It answers 200 and, from the moment
// at which the process is told to end, 503.
//
//	{
//		shutdown_delay 10s # so that load balancers have the time to ask
//		grace_period 30s   # for those in line
//	}
//	shop.example {
//		shape_ready /ready
//		…
//	}
//
// Caddy takes requests during its shutdown_delay as before. Then it takes no more, and those
// in line leave at their rate until the grace period is over. Without a shutdown_delay a load
// balancer finds no server at all, which tells it the same.
type Readiness struct{}

// CaddyModule implements [caddy.Module].
func (*Readiness) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.shape_ready", New: func() caddy.Module { return new(Readiness) }}
}

// ServeHTTP implements [caddyhttp.MiddlewareHandler].
func (*Readiness) ServeHTTP(w http.ResponseWriter, _ *http.Request, _ caddyhttp.Handler) error {
	return answerReady(w, nil)
}

// serveReady says at the admin endpoint whether the process is ready for requests, and how
// many wait in line, which is nothing that strangers need to know.
func serveReady(w http.ResponseWriter, _ *http.Request) error {
	waiting := 0
	for _, l := range running() {
		waiting += l.waiting()
	}
	return answerReady(w, &waiting)
}

func answerReady(w http.ResponseWriter, waiting *int) error {
	ready := ready()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	return json.NewEncoder(w).Encode(struct {
		Ready   bool `json:"ready"`
		Waiting *int `json:"waiting,omitempty"`
	}{ready, waiting})
}

func parseReady(helper httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	h := new(Readiness)
	return h, h.UnmarshalCaddyfile(helper.Dispenser)
}

// UnmarshalCaddyfile reads the directive, which has nothing but a matcher:
//
//	shape_ready [<matcher>]
func (*Readiness) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the name of the directive
	if d.NextArg() {
		return d.ArgErr()
	}
	if d.NextBlock(0) {
		return d.Errf("shape_ready has no subdirective %q, nor any other", d.Val())
	}
	return nil
}

var (
	_ caddyhttp.MiddlewareHandler = (*Readiness)(nil)
	_ caddyfile.Unmarshaler       = (*Readiness)(nil)
)
