package caddyshaper

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"example.com/leakybucket/config"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

func init() { caddy.RegisterModule((*Shape)(nil)) }

// Shape is the handler http.handlers.shape: it lets requests wait in line, so that they
// reach the handlers behind it at the rate of the limits, and refuses those for which there
// is no place.
//
// Exactly one of rules, limits and quota is needed; all else may be left out.
type Shape struct {
	// Name stands for the lines in metrics, logs, the page and the state file, and in the
	// store. A reload of the configuration finds the lines by their name. The Caddyfile
	// gives each handler a name after its site and matcher; in JSON the default is "shape".
	// Handlers of one name share their lines, so they must have the same settings, except
	// for settings of answers and of keys.
	Name string `json:"name,omitempty"`

	// Rules are files of rules, each a layer over those before it (package config). They
	// are read again whenever they change.
	Rules []string `json:"rules,omitempty"`

	// Limits are the limits of every key, as in "50/s burst 10 depth 100 wait 2s".
	Limits string `json:"limits,omitempty"`

	// Candidate are limits to try beside Limits: they hold no request up, and only give their
	// verdict. In Rules, each rule may have a candidate.
	Candidate string `json:"candidate,omitempty"`

	// DryRun turns Limits and Site into candidates: they hold no request up.
	DryRun bool `json:"dry_run,omitempty"`

	// Key has the parts of the key of a request; each key has a line of its own. A part is
	// route, client_ip, host, header:NAME, a text with {placeholders}, or all, which stands
	// alone and means that all requests have one line. The default is client_ip.
	Key []string `json:"key,omitempty"`

	// Fair makes the keys share the rate of Limits, in place of a line and a rate for each. It has
	// the parts of the key itself; with Rules it is empty, and the files have them.
	Fair *Fair `json:"fair,omitempty"`

	// Adapt lets the rate of the line of Fair, or of the Site, follow what the upstream answers.
	Adapt *Adapt `json:"adapt,omitempty"`

	// Quota makes the handler a gateway to a provider of language models, in place of Limits. Calls of the
	// keys of Fair, or of the owners of Teams' tokens, take turns.
	Quota *Quota `json:"quota,omitempty"`

	// Depth, Wait and InFlight are for a Quota: the number of calls that may wait, their longest
	// wait, and the number of calls at the provider. 0 means 1000, 2m, and any number.
	Depth    int            `json:"depth,omitempty"`
	Wait     caddy.Duration `json:"wait,omitempty"`
	InFlight int            `json:"inflight,omitempty"`

	// TeamInFlight is for a Quota: the number of calls of a team in the line and at the provider; 0: any number.
	TeamInFlight int `json:"team_inflight,omitempty"`

	// Teams is a file of lines "team: sha256" with the tokens of the gateway ([gateway.Teams]). A call
	// without a token is refused with 401. The team is the part team of the key.
	Teams string `json:"teams,omitempty"`

	// Usage is the file that gets a line of JSON for each call ([gateway.Record]), stdout or stderr.
	Usage string `json:"usage,omitempty"`

	// TeamMetrics is how many teams have a label of their own in metrics; the others are "other".
	TeamMetrics int `json:"team_metrics,omitempty"`

	// Routes are patterns for the part route of a key, as for http.ServeMux: "POST /login",
	// "/orders/{id}". Patterns that begin a rule's key need not be named here.
	Routes []string `json:"routes,omitempty"`

	// IPv6Bits is how many bits of an IPv6 address make a client_ip; 0 means 64.
	IPv6Bits int `json:"ipv6_bits,omitempty"`

	// Cost is the cost of a request, as a number or as placeholders. A value that is no
	// number, or less than 1, counts as 1; the default is 1.
	Cost string `json:"cost,omitempty"`

	// MaxCost bounds a Cost with placeholders; 0 means 1000.
	MaxCost int `json:"max_cost,omitempty"`

	// Skip names requests that pass whatever the limits. The only word is preflight, for the requests by which a
	// browser asks whether a page of another origin may send a request. They have no key and no token.
	Skip string `json:"skip,omitempty"`

	// Site are limits of all requests together. Their line comes behind the lines of the keys.
	Site string `json:"site,omitempty"`

	// Store is the URL of the server that keeps the levels for several processes. Without
	// it they are this process's own. With a Quota it says which of several replicas has the line,
	// and the others pass their calls on to that.
	Store string `json:"store,omitempty"`

	// Advertise is for a Quota with a Store: the host and port at which the other replicas reach this one by plain HTTP.
	Advertise string `json:"advertise,omitempty"`

	// Fallback is the behaviour while the store can't be asked: closed (the default), open
	// or local. With a Quota it can't be open.
	Fallback string `json:"fallback,omitempty"`

	// Instances is for the fallback local: how many processes share the rate.
	Instances int `json:"instances,omitempty"`

	// Patience is how long a request in line waits while the store can't be asked, with the
	// fallback closed. The default is 5 s; with 0 it waits until the store is back or its
	// client has gone.
	Patience *caddy.Duration `json:"patience,omitempty"`

	// ColdGuard is for how long no request leaves when the store does not know a key.
	ColdGuard caddy.Duration `json:"cold_guard,omitempty"`

	// SharedInFlight is how many requests of all processes together may be under way, for each key; with Fair, of all
	// keys. 0 means any number. A new key waits 3.6 s for its first request.
	SharedInFlight int `json:"shared_inflight,omitempty"`

	// SiteSharedInFlight is the same for the requests of the Site.
	SiteSharedInFlight int `json:"site_shared_inflight,omitempty"`

	// RateVersion is the version of the rates in the store; 0 means the time.
	RateVersion int64 `json:"rate_version,omitempty"`

	// State is the file that keeps the levels, and operators' changes for a time, while the process does not run.
	State string `json:"state,omitempty"`

	// MaxKeys is how many keys may have a line of their own; 0 means 100,000.
	MaxKeys int `json:"max_keys,omitempty"`

	// LineTimeout is for how long a request may be in line, whatever was predicted when it came
	// ([shaper.WithLineTimeout]): a duration, or off. Without it that is the wait of its limits.
	LineTimeout string `json:"line_timeout,omitempty"`

	// Block is for how long a key that was refused is refused again.
	Block caddy.Duration `json:"block,omitempty"`

	// CoarseTimer saves CPU time at rates above 1,000/s.
	CoarseTimer bool `json:"coarse_timer,omitempty"`

	// RateLimitHeaders adds the fields RateLimit and RateLimit-Policy to responses.
	RateLimitHeaders bool `json:"ratelimit_headers,omitempty"`

	// XRateLimitHeaders adds the fields X-RateLimit-Limit, X-RateLimit-Remaining and
	// X-RateLimit-Reset to responses.
	XRateLimitHeaders bool `json:"x_ratelimit_headers,omitempty"`

	// ServerTiming adds a field Server-Timing with the wait to responses.
	ServerTiming bool `json:"server_timing,omitempty"`

	// VerdictHeader is the name of a field with the verdict of a dry run.
	VerdictHeader string `json:"verdict_header,omitempty"`

	// RetrySpread bounds a random time that is added to Retry-After.
	RetrySpread caddy.Duration `json:"retry_spread,omitempty"`

	// LogRefusals logs refusals, at most one line a second.
	LogRefusals bool `json:"log_refusals,omitempty"`

	lines   *limiters
	all     []*limiters      // of a Quota with several models; the first is lines
	gateway *gateway.Gateway // the first of models; nil: there is no Quota
	models  gateway.Models
	fleet   *fleet         // of the replicas; nil: this process is the only one
	here    http.Handler   // the lines behind the fleet
	tokens  *gateway.Teams // nil: no call needs a token
	usage   *usageLog      // nil: none
	keyOf   keyFunc
	costOf  costFunc
	errors  errorRoutes
	options []shaper.MiddlewareOption // of the middleware of each line
	entry   http.Handler              // the lines, with the handlers behind them
	shared  atomic.Pointer[lineHandler]

	failures *failureLog
}

// CaddyModule implements [caddy.Module].
func (*Shape) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.shape", New: func() caddy.Module { return new(Shape) }}
}

// Provision implements [caddy.Provisioner]. It finds the lines of the handler's name, or
// makes them. Lines that serve requests already do not change before the whole
// configuration has been started.
func (s *Shape) Provision(ctx caddy.Context) error {
	set, err := s.settings()
	if err == nil {
		err = s.provision(ctx, set)
	}
	if err != nil {
		return fmt.Errorf("%w (in the shape %q)", err, set.name)
	}
	return nil
}

// Cleanup implements [caddy.CleanerUpper].
func (s *Shape) Cleanup() error {
	if s.failures != nil { // else its provisioning has failed before
		s.failures.close()
	}
	if s.usage != nil {
		s.usage.release()
	}
	if s.fleet != nil {
		s.fleet.release()
	}
	return nil
}

// provision is Provision for settings that have been read.
func (s *Shape) provision(ctx caddy.Context, set settings) error {
	loaded, err := ctx.App(appName)
	if err != nil {
		return err
	}
	if s.costOf, err = newCost(s.Cost, s.MaxCost); err != nil {
		return err
	}
	if set.fixed.levels.InFlight > 0 && !set.fixed.fair && !slices.Equal(s.Key, []string{"all"}) {
		ctx.Slogger().Warn("each new key waits for its first seat; for all requests together say key all, or site and site_shared_inflight",
			"shape", set.name, "shared_inflight", s.SharedInFlight, "wait", shared.SeatGuard)
	}
	s.errors = errorRoutesOf(ctx)
	s.failures = newFailureLog(ctx.Slogger().With("shape", set.name))
	server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if s.fleet, err = acquireFleet(set, ctx.Slogger()); err != nil {
		return err
	}
	set.fleet = s.fleet
	var entries []*entry
	for _, one := range set.lines() {
		e, err := loaded.(*app).join(one, server, ctx.Slogger())
		if err != nil {
			return err
		}
		entries = append(entries, e)
		s.all = append(s.all, e.lines)
	}
	e := entries[0]
	s.lines = e.lines
	if s.keyOf, err = s.newKeyFor(e); err != nil {
		return err
	}
	if err := s.provisionQuota(ctx, entries); err != nil {
		return err
	}
	s.options = s.middlewareOptions(ctx)
	s.entry = s.chain()
	if s.fleet != nil {
		loaded.(*app).replicated = append(loaded.(*app).replicated, s)
	}
	return nil
}

// middlewareOptions returns the options that the middleware of all lines has in common.
func (s *Shape) middlewareOptions(ctx caddy.Context) []shaper.MiddlewareOption {
	opts := []shaper.MiddlewareOption{
		shaper.WithCost(func(r *http.Request) int { return callOf(r).cost }),
		shaper.WithErrorHandler(s.refuse),
		shaper.WithVerdictHeader(s.VerdictHeader),
		shaper.WithRetrySpread(time.Duration(s.RetrySpread)),
	}
	if s.RateLimitHeaders {
		opts = append(opts, shaper.WithHeaders(shaper.HeaderRateLimit))
	}
	if s.XRateLimitHeaders {
		opts = append(opts, shaper.WithHeaders(shaper.HeaderXRateLimit))
	}
	if s.ServerTiming {
		opts = append(opts, shaper.WithHeaders(shaper.HeaderServerTiming))
	}
	if s.LogRefusals {
		opts = append(opts, shaper.WithLogger(ctx.Slogger().With("shape", s.lines.name)))
	}
	if s.Fair != nil {
		opts = append(opts, shaper.WithKey(keyOfCall))
	}
	return opts
}

// keyOfCall returns the key of a request that has begun its way through a handler.
func keyOfCall(r *http.Request) (string, error) { return callOf(r).key, nil }

// chain returns the lines that a request goes through: the line of the candidate, which holds none
// up, the line of its key, and the line of the site. With fair queueing there is one line. For a quota
// a gateway stands in front.
func (s *Shape) chain() http.Handler {
	if s.gateway != nil {
		return s.inFleet(s.models.Wrap(http.HandlerFunc(s.pass)))
	}
	if s.Fair != nil {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.enter(s.lines.fair.Load(), w, r) })
	}
	live := s.lines.live.Middleware(keyOfCall, s.options...)(http.HandlerFunc(s.enterSite))
	// A later configuration may be the first that has a candidate, before this one has left.
	trial := sync.OnceValue(func() http.Handler {
		return s.lines.trial.Load().Middleware(keyOfCall, s.options[:3]...)(live)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.lines.tries() {
			trial().ServeHTTP(w, r)
			return
		}
		live.ServeHTTP(w, r)
	})
}

// A lineHandler is a line for all requests with the handlers behind it.
type lineHandler struct {
	line *shaper.Shaper
	http.Handler
}

// enterSite lets a request that has left the line of its key enter the line of the site, if
// there is one.
func (s *Shape) enterSite(w http.ResponseWriter, r *http.Request) {
	line := s.lines.site.Load()
	if line == nil {
		admit(w, r)
		return
	}
	s.enter(line, w, r)
}

// enter lets a request enter the line for all requests: the line of the site, or of fair queueing. A
// handler has only one of them.
func (s *Shape) enter(line *shaper.Shaper, w http.ResponseWriter, r *http.Request) {
	h := s.shared.Load()
	if h == nil || h.line != line {
		h = &lineHandler{line, shaper.Middleware(line, s.options...)(http.HandlerFunc(admit))}
		s.shared.Store(h)
	}
	h.ServeHTTP(w, r)
}

// ServeHTTP implements [caddyhttp.MiddlewareHandler].
func (s *Shape) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	c := s.newCall(r, next)
	s.entry.ServeHTTP(w, r)
	c.end()
	return c.err
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*Shape)(nil)
	_ caddyhttp.MiddlewareHandler = (*Shape)(nil)
)

// A keyFunc returns the key of a request.
type keyFunc func(*http.Request, *caddy.Replacer) string

// keyParts returns the parts of the key of a request, and the field that has them.
func (s *Shape) keyParts() (field string, parts []string) {
	switch {
	case s.Fair != nil:
		return "fair", s.Fair.By
	case s.Teams != "":
		return "teams", []string{"team"}
	case s.Quota != nil:
		return "quota", []string{"all"}
	}
	return "key", s.Key
}

// newKeyFor returns the function that makes the key of a request, for a handler with the lines of an entry. It
// follows the file of the entry: a request has the key by the rules in force when it comes.
func (s *Shape) newKeyFor(e *entry) (keyFunc, error) {
	if e.file == nil {
		return s.newKey(new(config.Rules))
	}
	type ruledKey struct {
		rules *config.Rules
		of    keyFunc
	}
	rules := e.file.Rules()
	first, err := s.newKey(rules)
	if err != nil {
		return nil, err
	}
	var made atomic.Pointer[ruledKey]
	made.Store(&ruledKey{rules, first})
	return func(r *http.Request, repl *caddy.Replacer) string {
		k := made.Load()
		if rules := e.file.Rules(); rules != k.rules {
			// Several requests may do this at the same time, with one result. The last of them may
			// have older rules than another; then the next request does it again.
			changed, err := s.newKey(rules)
			if err != nil {
				e.log.Error("the keys are made as before", "error", err)
				changed = k.of
			}
			k = &ruledKey{rules, changed}
			made.Store(k)
		}
		return k.of(r, repl)
	}, nil
}

// newKey returns the function that makes the key of a request by some rules, which may be empty. The part
// route is the pattern that matches the request. Patterns come from routes, and from the same place in the
// keys of the rules. So the number of routes is bounded, whatever clients ask for.
func (s *Shape) newKey(rules *config.Rules) (keyFunc, error) {
	field, parts := s.keyParts()
	if s.fairInFile() {
		by, _, _ := rules.Fair()
		parts = fairParts(strings.Fields(by))
	}
	var route keyFunc
	if place := slices.Index(parts, "route"); place >= 0 {
		mux, err := rules.Routes(place, s.Routes...)
		if err != nil {
			return nil, fmt.Errorf("routes: %w", err)
		}
		route = withoutError(shaper.ByRoute(mux))
	} else if len(s.Routes) > 0 && !s.fairInFile() { // A file may make route a part of the key later.
		return nil, fmt.Errorf("routes: %q, but no part of the key is route", s.Routes)
	}
	return s.joinKey(field, parts, route)
}

// joinKey returns the function that joins the parts of a key; field is the field that has them. route is for the
// part route.
func (s *Shape) joinKey(field string, parts []string, route keyFunc) (keyFunc, error) {
	ipv6Bits := s.IPv6Bits
	if ipv6Bits < 0 || ipv6Bits > 128 {
		return nil, fmt.Errorf("ipv6_bits: %d, must be from 1 to 128, or 0 for 64", ipv6Bits)
	}
	switch {
	case len(parts) == 0:
		parts = []string{"client_ip"}
	case len(parts) == 1 && parts[0] == "all":
		return func(*http.Request, *caddy.Replacer) string { return "" }, nil
	}
	funcs := make([]keyFunc, len(parts))
	for i, part := range parts {
		if part == "team" && s.Teams == "" {
			return nil, fmt.Errorf(`%s: "team" is the owner of a token, and teams names no file of them`, field)
		}
		var err error
		if funcs[i], err = newKeyPart(part, ipv6Bits, route); err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
	}
	return func(r *http.Request, repl *caddy.Replacer) string {
		values := make([]string, len(funcs))
		for i, f := range funcs {
			values[i] = f(r, repl)
		}
		return shaper.Join(values...)
	}, nil
}

// newKeyPart returns the function of one part of a key.
func newKeyPart(part string, ipv6Bits int, route keyFunc) (keyFunc, error) {
	if name, ok := strings.CutPrefix(part, "header:"); ok {
		if !isFieldName(name) {
			return nil, fmt.Errorf("%q, must have the name of a header field after the colon", part)
		}
		return withoutError(shaper.ByHeader(name)), nil
	}
	switch part {
	case "route":
		return route, nil
	case "client_ip":
		ip := shaper.ClientIP{IPv6Bits: ipv6Bits}
		return func(r *http.Request, _ *caddy.Replacer) string { return clientIP(r, ip) }, nil
	case "team":
		return func(_ *http.Request, repl *caddy.Replacer) string { return repl.ReplaceAll("{http.shape.team}", "") }, nil
	case "host":
		return func(r *http.Request, _ *caddy.Replacer) string { return hostOf(r) }, nil
	case "all":
		return nil, errors.New(`"all" stands beside other parts, must stand alone`)
	}
	if !hasPlaceholder(part) {
		return nil, fmt.Errorf("%q, must be route, client_ip, host, header:NAME, all or a text with a {placeholder}", part)
	}
	return func(_ *http.Request, repl *caddy.Replacer) string { return repl.ReplaceAll(part, "") }, nil
}

// hasPlaceholder reports whether there is a placeholder of Caddy in a text.
func hasPlaceholder(text string) bool {
	_, behind, _ := strings.Cut(text, "{")
	return strings.IndexByte(behind, '}') > 0
}

// withoutError returns the function of a key that is known to return no error: only its
// arguments could be wrong, and these were checked.
func withoutError(key shaper.KeyFunc) keyFunc {
	return func(r *http.Request, _ *caddy.Replacer) string {
		value, _ := key(r)
		return value
	}
}

// isFieldName reports whether a name may stand before the colon of a header field.
func isFieldName(name string) bool {
	_, err := shaper.ByHeader(name)(new(http.Request))
	return err == nil
}

// clientIP returns the address of the client that Caddy has found, by the server's
// trusted_proxies; of an IPv6 address the prefix.
func clientIP(r *http.Request, ip shaper.ClientIP) string {
	address, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	key, _ := ip.Key(&http.Request{RemoteAddr: address}) // An error would be in the fields of ip.
	return key
}

// hostOf returns the host that a request is for, in lower case and without the port, the
// brackets of an address and the dot that may end a name: a client must not get a second line
// by writing the same host in another way.
func hostOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	return strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
}
