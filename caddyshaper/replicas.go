package caddyshaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/llm/replicas"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

// A fleetKey says which replicas of a gateway there are, and what this process is among them. A configuration with another one
// hands the line on, and takes part in the other fleet.
type fleetKey struct {
	name      string // of the handler
	store     string // with placeholders replaced; "": there is one process
	advertise string // likewise
	fallback  int    // how many replicas there are, which share the quota while the store can't be asked; 0: none leaves then
}

// readReplicas reads what a quota says of its store.
func readReplicas(s *Shape, set *settings) error {
	switch {
	case s.Advertise == "":
		return errors.New("advertise: missing; say at which host and port the other replicas reach this one, such as advertise {env.POD_IP}:8080")
	case s.Fallback == "open":
		return errors.New("fallback: open stands beside quota, of which each replica would take all; say closed, or local and the number of replicas")
	case s.Instances < 0 || s.Instances > 0 && s.Fallback != "local":
		return fmt.Errorf("instances: %d, must be at least 1, and only with the fallback local", s.Instances)
	}
	if _, err := parseFallback(s.Fallback, s.Instances); err != nil {
		return err
	}
	set.replicas = fleetKey{name: set.name, fallback: s.Instances}
	return nil
}

// resolve completes the key by values with placeholders.
func (k *fleetKey) resolve(s *Shape, store string, repl *caddy.Replacer) (err error) {
	k.store = store
	if k.advertise, err = repl.ReplaceOrErr(s.Advertise, true, true); err != nil {
		return fmt.Errorf("advertise: %w", err)
	}
	return CheckAdvertise(k.advertise)
}

// CheckAdvertise returns the mistake in a host and port at which other replicas are to reach this one.
func CheckAdvertise(address string) error {
	if err := replicas.CheckAdvertise(address); err != nil {
		return fmt.Errorf("advertise: %w", err)
	}
	return nil
}

// fleets has the fleets of all configurations, by fleetKey. They outlive a configuration, as lines do.
var fleets = caddy.NewUsagePool()

// A fleet is the part of this process in the replicas of a gateway: one of them has the line, and the others pass their calls
// on to it. It takes part while a configuration with its key is in force. What it asks of the line is answered by the
// configuration that was started last.
type fleet struct {
	key    fleetKey
	store  *store
	keeper shared.Keeper
	log    *slog.Logger

	part   atomic.Int64          // the lines have the quota divided by this
	latest atomic.Pointer[Shape] // of the configuration that was started last

	// replica is nil until the fleet takes part for the first time, and begun is closed then. fleetsMu guards that a fleet takes
	// part.
	replica   atomic.Pointer[replicas.Replica]
	begun     chan struct{}
	takesPart bool
	hasMoved  atomic.Bool // a configuration has another fleet for the lines, or none
}

// acquireFleet returns the fleet of settings, with one more user; nil: there is one process.
func acquireFleet(set settings, log *slog.Logger) (*fleet, error) {
	if set.replicas.store == "" {
		return nil, nil
	}
	return loadOrNew(fleets, set.replicas, func() (*fleet, error) { return newFleet(set.replicas, log) })
}

func newFleet(key fleetKey, log *slog.Logger) (*fleet, error) {
	s, err := acquireStore(key.store, log)
	if err != nil {
		return nil, err
	}
	f := &fleet{key: key, store: s, begun: make(chan struct{}), log: slog.New(newLatestLog("shape.replicas")).With("shape", key.name)}
	f.part.Store(1)
	var ok bool
	if f.keeper, ok = s.bucket.(shared.Keeper); !ok {
		s.release()
		return nil, errors.New("store: it can't say which of the replicas has the line")
	}
	return f, nil
}

// release ends the use of the fleet by one configuration.
func (f *fleet) release() { _, _ = fleets.Delete(f.key) }

// Destruct implements [caddy.Destructor].
func (f *fleet) Destruct() error {
	fleetsMu.Lock()
	leaveFleetsLocked(func(other *fleet) bool { return other == f }) // The app may be cleaned up later.
	fleetsMu.Unlock()
	f.close()
	f.store.release()
	return nil
}

// close refuses the calls that have no line.
func (f *fleet) close() {
	if r := f.replica.Load(); r != nil {
		_ = r.Close() // It always returns nil.
	}
}

// closeFleets does so when the process has been told to end, and the time for its calls is over.
func closeFleets() {
	fleetsMu.Lock()
	defer fleetsMu.Unlock()
	for _, f := range ended {
		f.close()
	}
}

// handOnWithin is how long a process that ends waits for the store to take what it hands on.
const handOnWithin = 2 * time.Second

var (
	fleetsMu sync.Mutex
	inFleets []*fleet // that take part
	ended    []*fleet // that took part when the process was told to end
)

// joinFleets lets the fleets of the configuration in force take part, and no others.
func joinFleets() {
	fleetsMu.Lock()
	defer fleetsMu.Unlock()
	wanted := map[*fleet]bool{}
	if apps := inForce.list(); len(apps) > 0 {
		for _, s := range apps[len(apps)-1].replicated {
			s.fleet.latest.Store(s)
			wanted[s.fleet] = true
		}
	}
	leaveFleetsLocked(func(f *fleet) bool {
		f.hasMoved.Store(!wanted[f])
		return !wanted[f]
	})
	for f := range wanted {
		if f.takesPart {
			continue
		}
		if err := f.begin(); err != nil {
			f.log.Error("the replica can't take part", "error", err)
			continue
		}
		inFleets = append(inFleets, f)
	}
}

// leaveFleets lets no fleet take part any more, as the process ends: the line goes to another replica before this one waits for the
// calls that it serves.
func leaveFleets() {
	fleetsMu.Lock()
	defer fleetsMu.Unlock()
	ended = slices.Clone(inFleets)
	leaveFleetsLocked(func(*fleet) bool { return true })
}

func leaveFleetsLocked(leaves func(*fleet) bool) {
	ctx, cancel := context.WithTimeout(context.Background(), handOnWithin)
	defer cancel()
	var leaving sync.WaitGroup
	inFleets = slices.DeleteFunc(inFleets, func(f *fleet) bool {
		if !leaves(f) {
			return false
		}
		f.takesPart = false
		leaving.Go(func() {
			if err := f.replica.Load().Shutdown(ctx); err != nil {
				f.log.Warn("the line could not be handed on; the next replica begins when this one's time is over, with full levels", "error", err)
			}
			if f.hasMoved.Load() {
				f.close() // Calls in line go on by the configuration in force.
			}
		})
		return true
	})
	leaving.Wait()
}

// A quietKeeper returns errors without the password of its store.
type quietKeeper struct {
	shared.Keeper
	store *store
}

func (k quietKeeper) Keep(ctx context.Context, q shared.Keeping) (shared.Kept, error) {
	kept, err := k.Keeper.Keep(ctx, q)
	if err != nil {
		err = k.store.redact(err)
	}
	return kept, err
}

// begin lets the fleet take part.
func (f *fleet) begin() error {
	f.store.begin()
	r, err := replicas.New(replicas.Config{
		Keeper: quietKeeper{f.keeper, f.store}, Key: shaper.Join(f.key.name), Advertise: f.key.advertise, Line: fleetLine{f}, Fallback: f.key.fallback,
		Team:   func(r *http.Request) (string, bool) { c := callOf(r); return c.key, !c.isStranger },
		Wait:   func() time.Duration { return f.latest.Load().lines.says.Load().settings.quota.wait },
		Bodies: f.latest.Load().Quota.Bodies,
		Unavailable: func(w http.ResponseWriter, r *http.Request, status int, after time.Duration) {
			callOf(r).shape.unavailable(w, r, status, after)
		},
		Log: f.log,
	})
	if err != nil {
		return err
	}
	f.takesPart = true
	f.hasMoved.Store(false)
	if before := f.replica.Swap(r); before == nil {
		close(f.begun)
	} else {
		_ = before.Close() // It always returns nil.
	}
	return nil
}

// inFleet returns the lines of the handler behind its replicas: a call comes to the lines here only while this process has them.
func (s *Shape) inFleet(lines http.Handler) http.Handler {
	if s.fleet == nil {
		return lines
	}
	s.here = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		callOf(r).way.enterHere(s, r)
		lines.ServeHTTP(w, r)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-s.fleet.begun:
		case <-r.Context().Done(): // Servers answer a moment before their configuration is in force.
			shaper.WriteError(w, r, r.Context().Err())
			return
		}
		c := callOf(r)
		c.way = &way{
			ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w},
			call:                  c, replica: s.fleet.replica.Load(), url: r.URL, uri: r.RequestURI,
		}
		// Another replica is to route the call as it came, whatever handlers in front of this one have made of its path.
		if came, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok && came.URL != nil {
			u := *came.URL
			r.URL, r.RequestURI = &u, came.RequestURI
		}
		c.way.replica.Wrap(s.here).ServeHTTP(c.way, r)
	})
}

// goOn lets a call go on by the configuration in force, which has another fleet for the lines, or none.
func (s *Shape) goOn(r *http.Request) {
	w := callOf(r).way
	w.replica = nil
	for _, f := range takingPart() { // It waits for a configuration that is just being put in force.
		if f.key.name == s.fleet.key.name {
			w.replica = f.replica.Load()
			w.replica.Wrap(s.here).ServeHTTP(w, r)
			return
		}
	}
	s.here.ServeHTTP(w, r)
}

// A way is the ResponseWriter of a call that this replica or another may answer.
type way struct {
	*caddyhttp.ResponseWriterWrapper
	call    *call
	replica *replicas.Replica // nil: there is none any more

	// As handlers in front have left them, for the lines here.
	url *url.URL
	uri string
}

// enterHere makes a request that of a call in the lines of this replica.
func (w *way) enterHere(s *Shape, r *http.Request) {
	r.URL, r.RequestURI = w.url, w.uri
	if w.replica == nil {
		return
	}
	if key, ok := w.replica.TeamOf(r); ok { // Another replica may have passed the call here, without its token.
		w.call.key, w.call.isStranger = key, false
		if repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
			repl.Set("http.shape.team", s.teamIn(key))
		}
	}
}

// WriteHeader begins the response. The time until then does not count for Caddy's timeouts, as in line.
func (w *way) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.call.times.resume()
	}
	w.ResponseWriterWrapper.WriteHeader(status)
}

// teamIn returns the owner of a token, which is a part of a key.
func (s *Shape) teamIn(key string) string {
	_, parts := s.keyParts()
	if i, values := slices.Index(parts, "team"), strings.Split(key, "/"); i >= 0 && i < len(values) {
		team, _ := url.PathUnescape(values[i]) // It is a part of Join.
		return team
	}
	return ""
}

// parts returns in how many parts the quota is divided: more than one while each replica has a line, as the store can't be asked.
func (f *fleet) parts() int {
	if f == nil {
		return 1
	}
	return int(f.part.Load())
}

// leaves is [gateway.Config].Leaves.
func leaves(w http.ResponseWriter, r *http.Request) error {
	if replica := callOf(r).way.replica; replica != nil {
		return replica.Leaves(w, r)
	}
	return nil
}

// words say who has the line; "" if there is one process.
func (f *fleet) words() string {
	if f == nil || f.replica.Load() == nil {
		return ""
	}
	switch st := f.replica.Load().State(); {
	case st.Here:
		return "This replica has the line."
	case st.Keeper != "" && st.Err != nil:
		return fmt.Sprintf("The line is at %s: calls that come here are passed on to it. But: %v.", st.Keeper, st.Err)
	case st.Keeper != "":
		return "The line is at " + st.Keeper + ": calls that come here are passed on to it."
	case st.Apart:
		return fmt.Sprintf("The store can't be asked: this replica has a line of its own, with the quota divided by %d.", f.key.fallback)
	case st.Err != nil:
		return "The store can't be asked: calls wait."
	}
	return "No replica has the line just now: calls wait."
}

// takingPart returns the fleets that take part.
func takingPart() []*fleet {
	fleetsMu.Lock()
	defer fleetsMu.Unlock()
	return slices.Clone(inFleets)
}

// errNoKeeper is for a call that no replica could serve.
var errNoKeeper = errors.New("no replica has the line, or the one that had the call has ended")

// unavailable responds to a call that no replica could serve.
func (s *Shape) unavailable(w http.ResponseWriter, r *http.Request, status int, after time.Duration) {
	if status == http.StatusServiceUnavailable && s.fleet.hasMoved.Load() {
		s.goOn(r)
		return
	}
	c := callOf(r)
	c.tell("unavailable")
	s.failures.note(status, errNoKeeper)
	if failed := caddyhttp.Error(status, errNoKeeper); len(s.errors) > 0 && s.errors.match(r, failed) {
		if after > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int((after+time.Second-1)/time.Second)))
		}
		c.err = failed
		return
	}
	s.gateway.WriteUnavailable(w, status, after)
}

// A fleetLine is the lines of all models of a handler, as replicas hand them on, by the configuration in force.
type fleetLine struct{ *fleet }

func (f fleetLine) models() gateway.Models { return f.latest.Load().models }

// Save implements [replicas.Line].
func (f fleetLine) Save() ([]byte, error) { return f.models().Save() }

// Holds implements [replicas.Line].
func (f fleetLine) Holds() ([]byte, error) { return f.models().Holds() }

// Begin implements [replicas.Line]. It never lowers a level, such as one of a state file.
func (f fleetLine) Begin(handed []byte, age time.Duration, full bool) error {
	return f.models().Begin(handed, age, full)
}

// Part implements [replicas.Line].
func (f fleetLine) Part(n int) (err error) {
	if f.part.Swap(int64(n)) == int64(n) {
		return nil
	}
	if n > 1 {
		err = f.models().Empty() // Begin makes them full, by the burst of the part.
	}
	for _, l := range f.latest.Load().all {
		err = errors.Join(err, l.retime())
	}
	return err
}
