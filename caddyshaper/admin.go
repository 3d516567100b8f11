package caddyshaper

import (
	"context"
	"crypto/rand"
	"net/http"

	"github.com/caddyserver/caddy/v2"
)

func init() { caddy.RegisterModule(new(Admin)) }

// Admin serves the page and the API of package inspect at the admin endpoint of Caddy,
// below the path /shape/, and at /shape/ready whether the process is ready for requests. It
// is the module admin.api.shape, which is always there and has no settings.
//
//	curl localhost:2019/shape/api/buckets
//
// Caddy decides who may call it, as for all of the admin endpoint. Whoever may replace the
// whole configuration there may change limits too: no token is needed. Caddy's checks let
// no browser open a page there; [Inspect] serves it to browsers.
type Admin struct {
	shown   *keptInspector
	running context.Context // of the configuration
}

// adminToken is what the Inspector wants to see of whoever changes something. It never
// leaves the process.
var adminToken = rand.Text()

// CaddyModule implements [caddy.Module].
func (*Admin) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "admin.api.shape", New: func() caddy.Module { return new(Admin) }}
}

// Provision implements [caddy.Provisioner]. It takes over what the configuration before has
// shown.
func (a *Admin) Provision(ctx caddy.Context) error {
	// Caddy cleans no router up, so the end of the configuration has to tell.
	key := inspectorKey{admin: true, hosts: "localhost", control: true, token: adminToken}
	shown, err := useInspector(key)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = leaveInspector(key) })
	a.shown, a.running = shown, ctx
	return nil
}

// Routes implements [caddy.AdminRouter].
func (a *Admin) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{
		{Pattern: "/shape/", Handler: caddy.AdminHandlerFunc(a.serve)},
		{Pattern: "/shape/ready", Handler: caddy.AdminHandlerFunc(serveReady)},
	}
}

func (a *Admin) serve(w http.ResponseWriter, r *http.Request) error {
	http.StripPrefix("/shape", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.Clone(r.Context())
		r.Host = "localhost" // Caddy has checked it, where it can be forged.
		r.Header.Set("Authorization", "Bearer "+adminToken)
		a.shown.serve(w, r, a.running)
	})).ServeHTTP(w, r)
	return nil
}

var (
	_ caddy.Provisioner = (*Admin)(nil)
	_ caddy.AdminRouter = (*Admin)(nil)
)
