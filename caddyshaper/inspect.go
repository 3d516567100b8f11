package caddyshaper

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/shaper"
)

func init() {
	caddy.RegisterModule(new(Inspect))
	httpcaddyfile.RegisterDirective("shape_inspect", parseInspect)
	// Behind authentication. In front of shape, so that a visitor who wants to see the line need not
	// wait in it.
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
// Restrict who may look, for example by basic_auth or remote_ip: the page shows the keys of all
// clients. Unless hosts are named, it answers only clients of the same machine that call it by a
// loopback name.
//
// As the handler of a path, it stands in front of a shape of the whole site. Within handle or
// handle_path it comes behind it, so that a visitor waits in line like all other clients.
//
// It outlives a reload: limiters come and go with the configuration, and the history of the ones
// that stay goes on. A change made through the API stays in force for its time, unless the new
// configuration has other limits for the same line or key; with a state file also over a restart.
type Inspect struct {
	// The path below which the page is, such as /shaper. In a Caddyfile it is the path of the
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

// parseInspect reads the directive. If its matcher is a path, the page is there.
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
		case slices.Contains(args, ""):
			return d.Errf("%s: \"\", must not be empty", name)
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
// Caddy's strip_prefix, and so handle_path, cleans the path as if encoded characters in it were
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
	// The rest has no such segments, as its slashes are encoded.
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

// inspectors are the Inspectors that configurations use, by their options, so that a reload
// goes on with them.
var inspectors = caddy.NewUsagePool()

// Two Inspectors with the same inspectorKey are one.
type inspectorKey struct {
	admin   bool // of the admin endpoint
	title   string
	hosts   string // with blanks between them
	control bool
	token   string
}

// A keptInspector shows all lines that are in use under the options of a configuration, until
// none wants it.
type keptInspector struct{ *inspect.Inspector }

// cores has the common part of all keptInspectors, as long as there is one: the lines, their
// histories, and one list of changes, so that the admin endpoint can put back a change made by a
// page.
var cores = caddy.NewUsagePool()

// A coreKey is the key of the only value of cores.
type coreKey struct{}

// useInspector returns the Inspector of key. Each call must be undone by leaveInspector.
func useInspector(key inspectorKey) (*keptInspector, error) {
	return loadOrNew(inspectors, key, func() (*keptInspector, error) { return newInspector(key) })
}

func leaveInspector(key inspectorKey) error {
	_, err := inspectors.Delete(key)
	return err
}

func newInspector(key inspectorKey) (*keptInspector, error) {
	log := slog.New(newLatestLog("shape_inspect"))
	opts := []inspect.Option{inspect.WithLogger(log), inspect.WithHosts(strings.Fields(key.hosts)...)}
	if key.title != "" {
		opts = append(opts, inspect.WithTitle(key.title))
	}
	if key.control {
		opts = append(opts, inspect.WithControl(key.token))
	}
	all, err := loadOrNew(cores, coreKey{}, func() (*core, error) { return newCore(log), nil })
	if err != nil {
		return nil, err
	}
	k := &keptInspector{all.With(opts...)}
	if err := k.Err(); err != nil {
		return nil, errors.Join(err, k.Destruct())
	}
	return k, nil
}

// Destruct implements [caddy.Destructor].
func (k *keptInspector) Destruct() error {
	_, err := cores.Delete(coreKey{})
	return err
}

// serve answers a request. A stream ends when serving ends.
func (k *keptInspector) serve(w http.ResponseWriter, r *http.Request, serving context.Context) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(serving, cancel)()
	k.ServeHTTP(w, r.WithContext(ctx))
}

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

// adminToken is the token that the Inspector wants of whoever changes something. It never
// leaves the process.
var adminToken = rand.Text()

// CaddyModule implements [caddy.Module].
func (*Admin) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "admin.api.shape", New: func() caddy.Module { return new(Admin) }}
}

// Provision implements [caddy.Provisioner]. It takes over the Inspector of the configuration
// before.
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

// quotaTaken returns the usage of a quota, as pages show it.
func (l shownLine) quotaTaken(teams int) inspect.Quota {
	st := l.lines.ledger.Status(time.Now(), teams)
	shown := inspect.Quota{
		Provider: st.Provider, Level: st.Level, Reserved: st.Reserved, Capacity: st.Capacity,
		Others: teamShown(st.Others), LongestWait: st.LongestWait,
		Refused: st.Refused, Refusals: st.Refusals, Forfeited: st.Forfeited, Hint: st.Hint,
		Replicas: l.lines.says.Load().settings.fleet.words(),
	}
	first := l.line.Stats()
	levels := map[string]shaper.MeterStats{string(llm.Requests): {Meter: shaper.Meter{Burst: first.Limits.Burst}, Level: first.Level, Reserved: first.Reserved}}
	for _, m := range l.line.Meters() {
		levels[m.Name] = m
	}
	for _, part := range []struct {
		kind  llm.Kind
		used  uint64
		limit int
	}{
		{llm.Requests, st.Minute.Requests, st.Quota.Requests},
		{llm.Tokens, st.Minute.Tokens, st.Quota.Tokens},
		{llm.Input, st.Minute.Input, st.Quota.Input},
		{llm.Output, st.Minute.Output, st.Quota.Output},
	} {
		if part.limit > 0 {
			m := levels[string(part.kind)]
			most := float64(max(m.Burst, 1))
			shown.Parts = append(shown.Parts, inspect.QuotaPart{Name: kindWords(part.kind), Used: part.used, Limit: uint64(part.limit), Level: m.Level / most, Reserved: float64(m.Reserved) / most})
		}
	}
	for _, team := range st.Teams {
		shown.Teams = append(shown.Teams, teamShown(team))
	}
	return shown
}

// kindWords returns a kind of limit as people say it.
func kindWords(k llm.Kind) string { return strings.ReplaceAll(string(k), "-", " ") }

func teamShown(t gateway.TeamStatus) inspect.QuotaTeam {
	return inspect.QuotaTeam{
		Team: t.Team, Weight: t.Weight, Waiting: t.Waiting,
		MinuteRequests: t.Minute.Requests, MinuteTokens: t.Minute.Tokens,
		HourRequests: t.Hour.Requests, HourTokens: t.Hour.Tokens,
		LongestWait: t.LongestWait, Refused: t.Refused,
	}
}
