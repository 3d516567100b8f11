// Package inspect shows running shapers and groups to people and programs: a live page,
// and an API that lists, filters and explains buckets.
//
//	i := inspect.New()
//	defer i.Close()
//	i.Add("upstream", inspect.Of(s))
//	i.Add("clients", inspect.OfGroup(g))
//	l, err := net.Listen("tcp", "127.0.0.1:6060")
//	…
//	go http.Serve(l, i)
//
// An [Inspector] is an [http.Handler] for a listener of its own: it answers at the paths
// "/", "/web/…" and "/api/…". Its page names them relative to its own address, so with
// [http.StripPrefix] it can also be served below a path that ends in "/". Unless [WithHosts] names others, it answers only clients of
// the same machine that call it by a loopback name, so that neither another machine nor
// a page that a browser has open elsewhere can read it. Unless [WithControl] is given,
// nothing can be changed through it.
//
// Looking costs little. A list of buckets comes from a scan of its source, which is made
// only when somebody asks and at most once a second, however many ask. Keys are text
// wherever they are shown, whatever bytes they hold.
//
// docs/inspect.md describes the API, and openapi.json, which the Inspector serves at
// /api/v1/openapi.json, is its exact form.
package inspect

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// An Inspector shows its sources to people and programs, over HTTP.
//
// Make one with [New], give it sources with [Inspector.Add], and serve it from the root
// of a listener of its own, as keys in its paths may hold anything. [Inspector.Close]
// ends its streams and its goroutine. A failure shows in [Inspector.Err], in its log and in
// its responses; serving goes on.
//
// An Inspector is safe for concurrent use.
type Inspector struct {
	options
	err        error // why the options do not go together; nil: they do
	doorkeeper *doorkeeper

	*core
}

// A core is the common part of Inspectors that were made from one another by [Inspector.With].
type core struct {
	started time.Time

	mu      sync.Mutex
	sources []*watched // in the order in which they were added
	reports []report   // reports that operators must see; at most one now
	ledger  ledger
	streams map[*stream]bool
	tracked map[target]*track
	sampled bool // the sampler runs
	closed  bool

	controller *controller

	sifting   chan struct{}  // has room for as many lists as are made at once; see sift
	exporting chan struct{}  // has room for one, as each keeps a scan in memory while it is read
	closing   chan struct{}  // closed by Close
	running   sync.WaitGroup // the sampler and the streams
}

// New makes an [Inspector]. It never fails: options that do not go together make an Inspector that
// refuses the parts that they would open, and [Inspector.Err] says why.
func New(opts ...Option) *Inspector {
	i := &Inspector{core: &core{
		started:   time.Now(),
		streams:   map[*stream]bool{},
		tracked:   map[target]*track{},
		ledger:    ledger{inForce: map[changeKey]record{}},
		sifting:   make(chan struct{}, max(runtime.GOMAXPROCS(0)/2, 1)),
		exporting: make(chan struct{}, 1),
		closing:   make(chan struct{}),
	}}
	i.set(opts)
	i.controller = newController(i.logger, i.announce)
	return i
}

// With returns an [Inspector] that is the same under other options, for other people: it has the
// same sources, reports and changes, an action through one is seen by all, and Close of one
// closes all. It has the options given here, and none of i's. Changes go to the logger of the
// first Inspector, wrong tokens to its own.
func (i *Inspector) With(opts ...Option) *Inspector {
	other := &Inspector{core: i.core}
	other.set(opts)
	return other
}

// set applies the options of a new Inspector.
func (i *Inspector) set(opts []Option) {
	i.options, i.doorkeeper = options{title: "Shapers", logger: slog.Default()}, newDoorkeeper()
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&i.options)
		}
	}
	if i.err = i.options.validate(); i.err != nil {
		i.logger.Error(i.err.Error())
	}
	if i.mayControl() && i.tokenLength < unguessable {
		i.logger.Warn("inspect: the token of WithControl is short, and so may be guessed", "bytes", i.tokenLength, "wanted", unguessable)
	}
}

// Err returns an error that says why the options that [New] was given do not go together, or nil.
func (i *Inspector) Err() error { return i.err }

// Add shows source under a name, from now on. It panics if there is a source of that
// name, if the name is empty, or if source is nil: these are mistakes of the program.
func (i *Inspector) Add(name string, source Source) {
	if name == "" || source == nil {
		panic("inspect: Inspector.Add needs a name and a source")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.sourceLocked(name) != nil {
		panic(fmt.Sprintf("inspect: there is a source named %q already", name))
	}
	if i.closed {
		return
	}
	w := newWatched(name, source, i.controller.logger)
	i.sources = append(slices.Clone(i.sources), w)
	if !i.sampled {
		i.sampled = true
		i.running.Go(i.sample)
	}
	i.tellSourcesLocked()
}

// Remove shows the source of a name no longer. Changes of its buckets that were made
// through the API end as with [Inspector.Close], and streams that show it end. Another
// source may be added under the name afterwards; a change that could not be ended, or ends
// later, has nothing to do with it. If there is no source of that name,
// Remove does nothing.
func (i *Inspector) Remove(name string) {
	w := i.source(name)
	if w == nil {
		return
	}
	i.controller.endOf(w) // First, so that the streams still tell of it.
	i.mu.Lock()
	defer i.mu.Unlock()
	k := slices.Index(i.sources, w)
	if k < 0 { // It was removed meanwhile.
		return
	}
	close(w.removed)
	w.turns.end()
	i.sources = slices.Delete(slices.Clone(i.sources), k, k+1)
	maps.DeleteFunc(i.tracked, func(of target, _ *track) bool { return of.source == w })
	for _, c := range i.ledger.endOf(w) {
		i.tellLocked("change", c)
	}
	i.tellSourcesLocked()
}

// Report shows err to operators, on the page and in the event stream: for example that
// a file of limits could not be read. It replaces the earlier report; nil removes it.
func (i *Inspector) Report(err error) {
	r := report{At: time.Now().UTC()}
	if err != nil {
		r.Message = err.Error()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.reports = nil
	if err != nil {
		i.reports = []report{r}
	}
	i.tellLocked("report", r)
}

// Close ends all changes that were made through the API, so that the settings from before
// them are in force again; it ends all streams and the goroutine that takes samples. It
// returns when they have ended, and always returns nil. If the limits function of a Group
// blocks, or the log, Close waits five seconds for it; changes that need it end when it
// returns. The API is answered with status 503 afterwards.
func (i *Inspector) Close() error {
	// First, so that the streams still tell of it.
	i.controller.close()
	i.mu.Lock()
	if !i.closed {
		i.closed = true
		close(i.closing)
		for s := range i.streams {
			s.hurry()
		}
	}
	sources := i.sources
	i.mu.Unlock()
	i.running.Wait()
	for _, w := range sources {
		w.turns.end()
	}
	return nil
}

// ServeHTTP answers a request for the page, its files, or the API.
func (i *Inspector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.Guard(http.HandlerFunc(i.route)).ServeHTTP(w, r)
}

// all returns the sources, in the order in which they were added. The slice is never
// changed.
func (c *core) all() []*watched {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sources
}

// source returns the source of a name, or nil.
func (c *core) source(name string) *watched {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sourceLocked(name)
}

func (c *core) sourceLocked(name string) *watched {
	for _, w := range c.sources {
		if w.name == name {
			return w
		}
	}
	return nil
}

// An Option changes how an [Inspector] behaves.
type Option interface{ apply(*options) }

type option func(*options)

func (f option) apply(o *options) { f(o) }

type options struct {
	title  string
	script string
	logger *slog.Logger
	hosts  []string // in lower case, without the brackets of an address of IPv6

	control     bool // WithControl was given
	tokenHash   [sha256.Size]byte
	tokenLength int
}

// WithHosts names hosts by which clients may call the [Inspector], beside the loopback
// names: "shapers.internal", or with a port "10.1.2.3:6060". With it, clients of other
// machines are answered, so let only those reach the listener who may see the keys. An
// empty name, as of a variable that is not set, names no host and is left out.
func WithHosts(hosts ...string) Option {
	return option(func(o *options) {
		for _, host := range hosts {
			if host = bare(strings.ToLower(strings.TrimSpace(host))); host != "" {
				o.hosts = append(o.hosts, host)
			}
		}
	})
}

// WithControl lets whoever knows the token change limits for a time, and hold and
// release lines. The token is sent as "Authorization: Bearer TOKEN". It should be
// random, as by crypto/rand.Text; one of less than 16 bytes is taken, and the log warns of
// it. With an empty one nothing can be changed, and [Inspector.Err] says why. White space
// around it, such as the end of the line in a file, does not count. Without WithControl the
// [Inspector] is read-only.
func WithControl(token string) Option {
	token = strings.TrimSpace(token)
	return option(func(o *options) {
		o.control, o.tokenHash, o.tokenLength = true, sha256.Sum256([]byte(token)), len(token)
	})
}

// WithLogger sets the logger for changes and mistakes. The default is [slog.Default].
func WithLogger(logger *slog.Logger) Option {
	return option(func(o *options) {
		if logger != nil {
			o.logger = logger
		}
	})
}

// WithTitle sets the title of the page.
func WithTitle(title string) Option {
	return option(func(o *options) { o.title = title })
}

// WithScript names a JavaScript module, by its path on the same host, which the page
// loads after its own. It may fill the element with the id "panel", for example with
// buttons.
func WithScript(path string) Option {
	return option(func(o *options) { o.script = path })
}

// validate returns an error if the options do not go together, or nil.
func (o *options) validate() error {
	switch {
	case !o.control || o.tokenLength > 0:
		return nil
	case len(o.hosts) > 0:
		return errors.New("inspect: WithControl has no token, but WithHosts lets other machines call: nothing can be changed")
	}
	return errors.New("inspect: WithControl has no token: nothing can be changed")
}

// mayControl reports whether the control part is there at all.
func (o *options) mayControl() bool { return o.control && o.validate() == nil }
