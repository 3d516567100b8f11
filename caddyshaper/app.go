package caddyshaper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/time/rate"

	"example.com/leakybucket/config"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/shaper"
)

func init() { caddy.RegisterModule((*app)(nil)) }

const appName = "shape"

// An app has all handlers of this package in one configuration of Caddy. Caddy makes a new
// configuration whole before it gives up the old one, and may still find that the new one does
// not work. So lines that are in use change only when Caddy says that the configuration has
// started, and change back if it ends while an older one goes on.
type app struct {
	ctx     caddy.Context
	entries map[string]*entry // by name

	replicated []*Shape // with replicas
	servers    map[*caddyhttp.Server]map[*entry]bool

	grace time.Duration // of the http app; 0: without end
	delay time.Duration // before it

	ending atomic.Bool
}

// CaddyModule implements [caddy.Module].
func (*app) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: appName, New: func() caddy.Module { return new(app) }}
}

// Provision implements [caddy.Provisioner].
func (a *app) Provision(ctx caddy.Context) error {
	a.ctx, a.entries, a.servers = ctx, map[string]*entry{}, map[*caddyhttp.Server]map[*entry]bool{}
	if err := registerMetrics(ctx); err != nil {
		return err
	}
	loaded, err := ctx.App("events")
	if err != nil {
		return err
	}
	events := loaded.(*caddyevents.App)
	if err := events.On("started", &onEvent{a.started}); err != nil {
		return err
	}
	return events.On("stopping", &onEvent{a.stopping})
}

// onEvent runs a function at an event of Caddy. Caddy logs it, so it must not be a function
// itself.
type onEvent struct{ do func() }

// Handle implements [caddyevents.Handler].
func (e *onEvent) Handle(context.Context, caddy.Event) error {
	e.do()
	return nil
}

// Start implements [caddy.App]. It does nothing, because other apps may still fail to start.
func (a *app) Start() error { return nil }

// Stop implements [caddy.App]. It does nothing: the servers end first, then Cleanup is called.
func (a *app) Stop() error { return nil }

// started puts the configuration in force.
func (a *app) started() {
	if loaded, err := a.ctx.AppIfConfigured("http"); err == nil {
		served := loaded.(*caddyhttp.App)
		a.grace, a.delay = time.Duration(served.GracePeriod), time.Duration(served.ShutdownDelay)
	}
	inForce.add(a)
	for _, e := range a.entries {
		e.lines.take(e)
	}
	joinFleets()
	linesChanged()
	kept.forgetGone()
	a.warnOfSlowClients()
}

// warnOfSlowClients warns of each shape with a cap on requests in flight whose server lets clients send their requests, or read
// responses, as slowly as they like: a few of them take all places.
func (a *app) warnOfSlowClients() {
	for server, entries := range a.servers {
		options := missingTimeouts(server)
		if options == "" {
			continue
		}
		for e := range entries {
			if most := e.inFlight(); most > 0 {
				e.log.Warn("slow clients can hold all places of inflight; the server needs time-outs for bodies",
					"inflight", most, "server", server.Name(), "such_as", "servers { timeouts { "+options+" } }")
			}
		}
	}
}

// missingTimeouts returns the missing options of a server that keep clients from sending bodies, or reading responses, for ever;
// "" if there are none. Caddy's own default ends a transfer that stands still for a minute, but not one that trickles.
func missingTimeouts(s *caddyhttp.Server) string {
	var options []string
	if s.ReadTimeout <= 0 && (s.ReadIdleTimeout <= 0 || s.ReadMinRate <= 0) {
		options = append(options, "read_body_idle 20s 10000")
	}
	// A write is of 64 KiB at most, so a time for each is a rate.
	if idle := time.Duration(s.WriteIdleTimeout); s.WriteTimeout <= 0 && (idle <= 0 || idle >= time.Minute && s.WriteMinRate <= 0) {
		options = append(options, "write_idle 20s")
	}
	return strings.Join(options, "; ")
}

// stopping is called before the servers end. At a reload the lines go on; when the process
// ends, they may until the grace period is almost over.
func (a *app) stopping() {
	a.ending.Store(true)
	if !caddy.Exiting() {
		return
	}
	leaveFleets()
	if a.grace <= 0 {
		return
	}
	time.AfterFunc(a.delay+a.grace-answerTime(a.grace), closeAll)
}

// answerTime returns how long before the end of a grace period the waiting requests are refused,
// so that the responses can be sent.
func answerTime(grace time.Duration) time.Duration {
	return min(max(grace/10, 100*time.Millisecond), 2*time.Second, grace/2)
}

// Cleanup implements [caddy.CleanerUpper].
func (a *app) Cleanup() error {
	inForce.remove(a)
	for _, e := range a.entries {
		e.leave()
	}
	joinFleets()
	linesChanged()
	for _, e := range a.entries {
		e.lines.resume()
	}
	kept.forgetGone()
	return nil
}

// An entry has the settings of one configuration for the lines of a name.
type entry struct {
	app      *app
	settings settings
	server   string       // of the first handler
	file     *config.File // nil: the limits are in the settings
	lines    *limiters
	gateway  *gateway.Gateway // of a handler with a quota; nil: none
	log      *slog.Logger
	done     chan struct{} // closed when the configuration ends

	overtook []keptChange // changes that it has ended by other limits; guarded by the lock of lines
}

// join returns the entry for a handler with settings.
func (a *app) join(set settings, server *caddyhttp.Server, log *slog.Logger) (*entry, error) {
	where := ""
	if server != nil {
		where = server.Name()
		if a.servers[server] == nil {
			a.servers[server] = map[*entry]bool{}
			server.RegisterConnContext(connContext)
		}
	}
	e, err := a.entryOf(set, where, log)
	if err == nil && server != nil {
		a.servers[server][e] = true
	}
	return e, err
}

// entryOf returns the entry for a handler with settings in a server.
func (a *app) entryOf(set settings, where string, log *slog.Logger) (*entry, error) {
	if e := a.entries[set.name]; e != nil {
		return e, e.mayShare(&set, where)
	}
	e := &entry{app: a, settings: set, server: where, log: log.With("shape", set.name), done: make(chan struct{})}
	if len(set.rules) > 0 {
		open := config.Open
		if set.fixed.fair {
			open = config.OpenFair
		}
		file, err := open(set.rules...)
		if err != nil {
			return nil, fmt.Errorf("rules: %w", err)
		}
		e.file = file
		if set.fixed.fair && set.fixed.store != "" && e.lineLimits().Rate == rate.Inf {
			e.closeFile()
			return nil, errors.New("rules: the default is inf beside fair and a store, in which a level needs a rate")
		}
	}
	key := poolKey{set.name, set.fixed}
	var err error
	if e.lines, err = loadOrNew(pool, key, func() (*limiters, error) { return newLimiters(key, e) }); err != nil {
		e.closeFile()
		return nil, err
	}
	if err = e.lines.beginTrial(&set); err != nil {
		e.closeFile()
		_, _ = pool.Delete(key)
		return nil, err
	}
	a.entries[set.name] = e
	if e.file != nil {
		e.file.OnChange(func(*config.Rules) { e.lines.rulesChanged(e) })
		go e.watchFailures()
	}
	return e, nil
}

// inFlight returns the least cap on requests in flight that a request may meet; 0: there is none.
func (e *entry) inFlight() (least int) {
	all := []shaper.Limits{e.settings.limits}
	if e.settings.site != nil {
		all = append(all, *e.settings.site)
	}
	if e.file != nil {
		for rule := range e.file.Rules().All() {
			all = append(all, rule.Limits)
		}
	}
	caps := []int{e.settings.fixed.levels.InFlight, e.settings.fixed.siteInFlight}
	for _, l := range all {
		caps = append(caps, l.InFlight)
	}
	for _, n := range caps {
		if n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

// mayShare returns nil if a handler with settings may share the lines of e.
func (e *entry) mayShare(set *settings, server string) error {
	where := fmt.Sprintf("two handlers are called %q, one in the server %q and one in %q", set.name, e.server, server)
	if !set.named && !e.settings.named {
		return fmt.Errorf("name: %s: give each a name", where)
	}
	if differ := difference(e.settings.said, set.said); differ != "" {
		return fmt.Errorf("name: %s, and differ in %s: handlers of one name share their lines, so give one of them another name", where, differ)
	}
	return nil
}

// leave ends the entry, when its configuration ends.
func (e *entry) leave() {
	close(e.done)
	e.lines.drop(e)
	e.closeFile()
	e.lines.release(e.app.grace)
}

// closeFile ends the watching of the rules. The last ones stay in force for the requests that
// still wait by them.
func (e *entry) closeFile() {
	if e.file != nil {
		_ = e.file.Close() // It always returns nil.
	}
}

// failuresEvery is the time between two looks for changes of the rules that failed.
const failuresEvery = time.Second

// watchFailures logs when changed rules have mistakes, and so are not in force, and lets all
// pages show it.
func (e *entry) watchFailures() {
	tick := time.NewTicker(failuresEvery)
	defer tick.Stop()
	defer problems.set(e, nil)
	for seen := uint64(0); ; {
		select {
		case <-e.done:
			return
		case <-tick.C:
		}
		st := e.file.Status()
		problems.set(e, st.Err)
		if st.Failures != seen {
			seen = st.Failures
			if st.Err != nil {
				e.log.Error("the rules in force stay, because the changed ones have mistakes", "error", st.Err)
			}
		}
	}
}

// Interface guards.
var (
	_ caddy.App           = (*app)(nil)
	_ caddy.Provisioner   = (*app)(nil)
	_ caddy.CleanerUpper  = (*app)(nil)
	_ caddyevents.Handler = (*onEvent)(nil)
)

// An ordered set has things in the order in which they were added.
type ordered[T comparable] struct {
	mu  sync.Mutex
	all []T
}

func (l *ordered[T]) add(one T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, one)
}

func (l *ordered[T]) remove(one T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = slices.DeleteFunc(l.all, func(other T) bool { return other == one })
}

// list returns all of them.
func (l *ordered[T]) list() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// inForce has the configurations that were started and have not ended. At a reload there are
// two for a moment: the last is in force.
var inForce ordered[*app]

// running returns the limiters of the configuration in force, by their names.
func running() []*limiters {
	apps := inForce.list()
	if len(apps) == 0 {
		return nil
	}
	var all []*limiters
	for _, e := range apps[len(apps)-1].entries {
		all = append(all, e.lines)
	}
	slices.SortFunc(all, func(a, b *limiters) int { return cmp.Compare(a.name, b.name) })
	return all
}

// goesOn reports whether a configuration is in force that does not end.
func goesOn() bool {
	return slices.ContainsFunc(inForce.list(), func(a *app) bool { return !a.ending.Load() })
}

// ready reports whether load balancers should send requests here: a configuration is in force,
// and the process does not end. It turns false before the servers begin to end, and so before
// Caddy's shutdown_delay.
func ready() bool { return len(inForce.list()) > 0 && !caddy.Exiting() }

// known has all limiters in use, also those that no configuration has any more.
var known knownLimiters

type knownLimiters struct{ ordered[*limiters] }

// latest returns the newest limiters of a name that a configuration has started, except the heir;
// nil if there are none.
func (k *knownLimiters) latest(name string, heir *limiters) *limiters {
	for _, l := range slices.Backward(k.list()) {
		if l != heir && l.name == name && l.wasStarted() {
			return l
		}
	}
	return nil
}

// isLatest reports whether these limiters, which were started, are the newest of their name.
func (k *knownLimiters) isLatest(l *limiters) bool { return k.latest(l.name, nil) == l }

// inherit gives limiters that are about to be used the levels of their predecessors: the ones
// with the name and other fixed settings. It reports whether there are any.
func (k *knownLimiters) inherit(heir *limiters) bool {
	l := k.latest(heir.name, heir)
	if l != nil {
		heir.restore(l.snapshot())
	}
	return l != nil
}

// closeAll refuses all requests that wait, before the process ends.
func closeAll() {
	closeFleets()
	for _, l := range known.list() {
		l.close()
	}
}
