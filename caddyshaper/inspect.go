package caddyshaper

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	caddy.RegisterModule(new(Inspect))
	httpcaddyfile.RegisterDirective("shape_inspect", parseInspect)
	// Behind what asks who somebody is. In front of shape, so that a visitor who wants to see
	// the line need not wait in it.
	httpcaddyfile.RegisterDirectiveOrder("shape_inspect", httpcaddyfile.After, "templates")
}

// Inspect is the handler that serves the page and the API of package inspect for all
// limiters of the running configuration: http.handlers.shape_inspect, in a Caddyfile
// shape_inspect.
//
//	basic_auth /shaper* {
//		Ann $2a$14$…
//	}
//	shape_inspect /shaper* {
//		hosts shop.example
//	}
//
// Who may look must be said around it, for example by basic_auth or remote_ip: the page
// shows the keys of all clients. Unless hosts are named, it answers only clients of the
// same machine that call it by a loopback name.
//
// As the handler of a path, it stands in front of a shape of the whole site. Within handle or
// handle_path it comes behind it, so that a visitor waits in line like all other clients.
//
// What it shows outlives a reload: limiters come and go with the configuration, the
// history of those that stay goes on, and so do changes made through the API.
type Inspect struct {
	// The path below which the page is, such as /shaper. In a Caddyfile it is that of the
	// matcher. Leave it out if another handler strips it, as handle_path does.
	Path string `json:"path,omitempty"`

	// The title of the page. Default: Shapers.
	Title string `json:"title,omitempty"`

	// Hosts by which clients may call the page, beside the loopback names. With it,
	// clients of other machines are answered.
	Hosts []string `json:"hosts,omitempty"`

	// The token by which limits may be changed for a time, and lines held and released.
	// Without it nothing can be changed. It should be a placeholder, such as
	// {env.SHAPER_TOKEN} or {file./run/secrets/shaper}, because Caddy shows and keeps its
	// configuration.
	Control string `json:"control,omitempty"`

	kept    inspectorKey
	shown   *keptInspector
	serving context.Context // ends when the server of this handler begins to shut down
}

// CaddyModule implements [caddy.Module].
func (*Inspect) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.shape_inspect", New: func() caddy.Module { return new(Inspect) }}
}

// Provision implements [caddy.Provisioner]. It takes over the page of the configuration
// before, if its options were the same.
func (h *Inspect) Provision(ctx caddy.Context) error {
	token, err := h.token()
	if err != nil {
		return err
	}
	h.kept = inspectorKey{title: h.Title, hosts: strings.Join(h.Hosts, " "), control: h.Control != "", token: token}
	if h.shown, err = useInspector(h.kept); err != nil {
		return err
	}
	serving, end := context.WithCancel(ctx)
	h.serving = serving
	// An open page is a request that never ends by itself: it would keep the server from
	// ending until the grace period is over, which by default is never.
	if server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok {
		server.RegisterOnShutdown(end)
	}
	context.AfterFunc(ctx, end)
	return nil
}

// token returns the token of Control, with its placeholders replaced.
func (h *Inspect) token() (string, error) {
	token, err := caddy.NewReplacer().ReplaceOrErr(h.Control, true, true)
	token = strings.TrimSpace(token)
	switch {
	case h.Control == "":
		return "", nil
	case err != nil:
		return "", fmt.Errorf("control: the token %q: %w", h.Control, err)
	case token == "":
		return "", fmt.Errorf("control: the token %q is empty", h.Control)
	}
	return token, nil
}

// Cleanup implements [caddy.CleanerUpper]. It ends the page, unless the next configuration
// goes on with it.
func (h *Inspect) Cleanup() error {
	if h.shown == nil {
		return nil
	}
	return leaveInspector(h.kept)
}

// ServeHTTP implements [caddyhttp.MiddlewareHandler]: it answers a request for the page or its
// API.
func (h *Inspect) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	r = belowPath(r, h.Path)
	if to := withSlash(r); to != "" {
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusPermanentRedirect)
		return nil
	}
	h.shown.serve(w, r, h.serving)
	return nil
}

// parseInspect reads the directive. A path as its matcher is where the page is.
func parseInspect(helper httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	h := new(Inspect)
	helper.Next() // the name of the directive
	if helper.NextArg() && strings.HasPrefix(helper.Val(), "/") {
		h.Path = strings.TrimRight(strings.TrimSuffix(helper.Val(), "*"), "/")
	}
	helper.Reset()
	helper.Next()
	matchers, err := helper.ExtractMatcherSet()
	if err != nil {
		return nil, err
	}
	if err := h.UnmarshalCaddyfile(helper.Dispenser); err != nil {
		return nil, err
	}
	return helper.NewRoute(matchers, h), nil
}

// UnmarshalCaddyfile reads the directive:
//
//	shape_inspect [<matcher>] {
//		title   <text>
//		hosts   <host>...
//		control <token>
//	}
func (h *Inspect) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the name of the directive
	if d.NextArg() {
		return d.ArgErr()
	}
	for d.NextBlock(0) {
		name := d.Val()
		args := d.RemainingArgs()
		switch {
		case name != "title" && name != "hosts" && name != "control":
			return d.Errf("shape_inspect has no subdirective %q; there are title, hosts and control", name)
		case len(args) == 0 || len(args) > 1 && name != "hosts":
			return d.ArgErr()
		case name == "title" && h.Title != "", name == "control" && h.Control != "":
			return d.Errf("%s: it is said twice", name)
		case name == "title":
			h.Title = args[0]
		case name == "hosts":
			h.Hosts = append(h.Hosts, args...)
		case name == "control":
			h.Control = args[0]
		}
	}
	return nil
}

var (
	_ caddy.Provisioner           = (*Inspect)(nil)
	_ caddy.CleanerUpper          = (*Inspect)(nil)
	_ caddyhttp.MiddlewareHandler = (*Inspect)(nil)
	_ caddyfile.Unmarshaler       = (*Inspect)(nil)
)
