package caddyshaper

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"golang.org/x/time/rate"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/config"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

// pool has the limiters of all configurations, by poolKey. They outlive a configuration: the
// next one finds them here before the last one has left.
var pool = caddy.NewUsagePool()

// A poolKey is the name of lines, with the settings that can't change while they are in use.
type poolKey struct {
	name  string
	fixed fixed
}

// limiters are the lines of a name. All configurations with the same name and the same fixed
// settings share them; the one that was started last sets their limits.
type limiters struct {
	name  string
	key   poolKey
	store *store // nil: the levels are this process's own

	live  *shaper.Group[string]                // nil: there is fair queueing
	trial atomic.Pointer[shaper.Group[string]] // a dry run of the candidates; nil: there have been none
	fair  ownLine                              // of fair queueing; nil: each key has a line in live
	site  ownLine                              // nil: none

	replaced atomic.Pointer[[]*shaper.Shaper] // lines that were fair or site before, in which requests may still wait; nil: none

	ledger *gateway.Ledger // of a gateway; nil: there is none

	finder atomic.Pointer[adapt.Controller] // of the rate of fair or site; nil: it does not adapt
	adapts adaptation                       // with finder; the lock guards it

	says atomic.Pointer[entry] // the entry in force

	mu       sync.Mutex
	entries  []*entry // of the configurations that were started and have not ended
	started  bool     // some configuration was
	restored bool     // the levels of a state file have been put back, or came too late
	levels   *stateFile
	saved    []keptChange // changes in the state file, until the lines are in use
}

// An ownLine is a line for all requests.
type ownLine struct {
	atomic.Pointer[shaper.Shaper]

	// says are the limits of the line by the configuration; others in force are an operator's. The lock of the limiters
	// guards them.
	says atomic.Pointer[shaper.Limits]
}

// loadOrNew returns the value of a key in a pool, with one more user. If there is none, it is
// made.
func loadOrNew[V caddy.Destructor](pool *caddy.UsagePool, key any, makeNew func() (V, error)) (V, error) {
	got, _, err := pool.LoadOrNew(key, func() (caddy.Destructor, error) { return makeNew() })
	if err != nil {
		var none V
		return none, err
	}
	return got.(V), nil
}

// newLimiters makes limiters, which begin with the settings of e.
func newLimiters(key poolKey, e *entry) (*limiters, error) {
	l := &limiters{name: key.name, key: key}
	if key.fixed.quota != "" {
		l.ledger = gateway.NewLedger()
	}
	l.says.Store(e)
	var err error
	if key.fixed.store != "" {
		if l.store, err = acquireStore(key.fixed.store, e.log); err != nil {
			return nil, err
		}
	}
	if err = l.makeLines(e); err == nil {
		err = l.setStateLocked(e.settings.state)
	}
	if err != nil {
		_ = l.Destruct()
		return nil, err
	}
	l.restored = true
	known.add(l)
	return l, nil
}

// makeLines makes the lines.
func (l *limiters) makeLines(e *entry) (err error) {
	f := l.key.fixed
	if f.fair {
		return errors.Join(l.setFairLocked(e), l.setAdaptLocked(e))
	}
	// A key is blocked by itself. The line of the site would be blocked for all.
	opts := []shaper.GroupOption{shaper.WithMaxKeys(f.maxKeys), shaper.WithBlock(f.block)}
	for _, o := range l.options(l.name) {
		opts = append(opts, o)
	}
	if l.store != nil {
		opts = append(opts, shaper.WithBuckets(l.store.bucket, l.bucketKey, f.levels))
	}
	if l.live, err = shaper.NewGroup(l.limitsOf, opts...); err != nil {
		return err
	}
	return errors.Join(l.setSiteLocked(e.settings.site), l.setAdaptLocked(e))
}

// beginTrial makes the lines of the candidates, if settings have any and there are none yet.
func (l *limiters) beginTrial(set *settings) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trial.Load() != nil || l.key.fixed.dryRun || !set.tries() {
		return nil
	}
	opts := []shaper.GroupOption{shaper.WithName(l.name + candidateSource), shaper.WithMaxKeys(l.key.fixed.maxKeys), shaper.WithDryRun()}
	if timeout := l.key.fixed.lineTimeout; timeout != noLineTimeout {
		opts = append(opts, shaper.WithLineTimeout(timeout))
	}
	trial, err := shaper.NewGroup(l.candidateOf, opts...)
	if err == nil {
		l.trial.Store(trial)
	}
	return err
}

// reloadKeys puts the limits of all keys in force, also for requests that wait.
func (l *limiters) reloadKeys() {
	if l.live != nil {
		l.live.Reload()
	}
	if trial := l.trial.Load(); trial != nil {
		trial.Reload()
	}
}

// options returns the options that the lines of keys and the line of the site have in common.
func (l *limiters) options(name string) []shaper.Option {
	f := l.key.fixed
	trace := hooks
	trace.Bucket = l.bucketChanged
	opts := []shaper.Option{shaper.WithName(name), shaper.WithTrace(&trace)}
	if f.coarse {
		opts = append(opts, shaper.WithCoarseTimer())
	}
	if f.dryRun {
		opts = append(opts, shaper.WithDryRun())
	}
	if f.lineTimeout != noLineTimeout {
		opts = append(opts, shaper.WithLineTimeout(f.lineTimeout))
	}
	return opts
}

// bucketKey returns the key in the store for a key of the group. The key of the site has no "/".
func (l *limiters) bucketKey(key string) string { return shaper.Join(l.name) + "/" + key }

// bucketChanged logs that the store can be asked, or can't be.
func (l *limiters) bucketChanged(_ context.Context, e shared.Event) {
	log := l.says.Load().log
	if e.Err != nil {
		log.Warn("the store can't be asked", "state", e.State, "error", l.store.redact(e.Err))
		return
	}
	log.Info("the store is asked", "state", e.State)
}

// redact returns an error that does not have the password of the store.
func (l *limiters) redact(err error) error {
	if l.store == nil {
		return err
	}
	return l.store.redact(err)
}

// limitsOf returns the limits of a key.
func (l *limiters) limitsOf(key string) (shaper.Limits, error) {
	e := l.says.Load()
	if e.file != nil {
		return e.file.Limits(key)
	}
	return e.settings.limits, nil
}

// candidateOf returns the candidate of a key.
func (l *limiters) candidateOf(key string) (shaper.Limits, error) {
	e := l.says.Load()
	switch {
	case e.file != nil:
		return e.file.Candidate(key)
	case e.settings.candidate != nil:
		return *e.settings.candidate, nil
	}
	return shaper.Limits{Rate: rate.Inf}, nil
}

// tries reports whether there is a candidate to try.
func (l *limiters) tries() bool { return !l.key.fixed.dryRun && l.says.Load().settings.tries() }

// file returns the rules; nil if there are none.
func (l *limiters) file() *config.File { return l.says.Load().file }

// take puts the settings of an entry in force, when its configuration has started.
func (l *limiters) take(e *entry) {
	changes := l.inForce()
	l.mu.Lock()
	defer l.overtake(changes)
	defer l.mu.Unlock()
	if !l.started {
		if !known.inherit(l) {
			kept.add(l.saved)
		}
		l.saved = nil
		l.started = true
		if l.store != nil {
			l.store.begin()
		}
	}
	l.entries = append(l.entries, e)
	l.applyLocked(e)
}

// wasStarted reports whether a configuration with the lines has been in force.
func (l *limiters) wasStarted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.started
}

// drop ends the part of an entry, when its configuration ends. If its settings were in force
// and an older configuration goes on, the older settings are in force again.
func (l *limiters) drop(e *entry) {
	changes := l.inForce()
	l.mu.Lock()
	defer l.overtake(changes)
	defer l.mu.Unlock()
	i := slices.Index(l.entries, e)
	if i < 0 {
		return
	}
	l.entries = slices.Delete(l.entries, i, i+1)
	if n := len(l.entries); i == n && n > 0 {
		l.applyLocked(l.entries[n-1])
		kept.add(e.overtook)
	}
}

// applyLocked puts the settings of an entry in force, also for requests that wait.
func (l *limiters) applyLocked(e *entry) {
	if l.says.Swap(e) != e {
		l.reloadKeys()
	}
	if err := l.setFairLocked(e); err != nil {
		e.log.Error("the limits stay as they were", "error", err)
	}
	if e.gateway != nil {
		e.gateway.Begin()
	}
	if err := l.setSiteLocked(e.settings.site); err != nil {
		e.log.Error("the limits of the site stay as they were", "error", err)
	}
	if err := l.setAdaptLocked(e); err != nil {
		e.log.Error("the rate does not adapt", "error", err)
	}
	if err := l.setStateLocked(e.settings.state); err != nil {
		e.log.Error("the state file can't be used", "error", err)
	}
}

// retime puts the limits of the entry in force again, after they have changed without another configuration. An operator's end: they
// were for a line with another part of the quota.
func (l *limiters) retime() error {
	changes := l.inForce()
	l.mu.Lock()
	err := l.setFairLocked(l.says.Load())
	l.mu.Unlock()
	if c := pages.Load(); c != nil && err == nil {
		for _, k := range changes {
			if k.Limits != nil {
				c.Overtake(k.change())
			}
		}
	}
	return err
}

// rulesChanged puts changed rules of an entry in force.
func (l *limiters) rulesChanged(e *entry) {
	changes := l.inForce()
	l.mu.Lock()
	if l.says.Load() != e {
		l.mu.Unlock()
		return // The configuration is not in force, or no more.
	}
	was, finder := l.fair.Load(), l.finder.Load()
	l.reloadKeys()
	err := errors.Join(l.setFairLocked(e), l.setAdaptLocked(e))
	isOther := l.fair.Load() != was || l.finder.Load() != finder
	l.mu.Unlock()
	if err != nil {
		e.log.Error("the limits stay as they were", "error", err)
		return
	}
	l.overtake(changes)
	if isOther {
		linesChanged()
	}
	e.log.Info("changed rules are in force")
}

// setSiteLocked gives the site other limits; none if they are nil.
func (l *limiters) setSiteLocked(limits *shaper.Limits) error {
	if limits == nil {
		l.replaceLocked(&l.site, nil)
		l.site.says.Store(nil)
		return nil
	}
	return l.setLineLocked(&l.site, *limits, l.name+siteSource, shaper.Join(l.name))
}

// setLineLocked gives a line for all requests other limits, or makes it. bucket is its key in the store.
// A line that is no longer used goes on until no request waits in it: see replaceLocked. If the configuration has
// not changed the limits, an operator's stay in force.
func (l *limiters) setLineLocked(at *ownLine, limits shaper.Limits, name, bucket string, more ...shaper.Option) error {
	old, said := at.Load(), at.says.Load()
	if old != nil && *said == limits {
		return nil
	}
	keepsRate := old != nil && old == l.adapts.line && said.Rate == limits.Rate // The one that was found.
	if old != nil && old.UpdateLimits(func(now shaper.Limits) shaper.Limits {
		to := limits
		if keepsRate {
			to.Rate = now.Rate
		}
		return to
	}) == nil {
		at.says.Store(&limits)
		return nil
	}
	// The line is the first, or it is in use and has a cap of requests in flight where the
	// other has none.
	opts := append(l.options(name), more...)
	if l.store != nil {
		levels := l.key.fixed.levels
		if at == &l.site {
			levels.InFlight = l.key.fixed.siteInFlight
		}
		opts = append(opts, shaper.WithBucket(l.store.bucket, bucket, levels))
	}
	line, err := shaper.New(limits, opts...)
	if err != nil {
		return err
	}
	if old != nil {
		copyLevel(old, line)
	}
	at.says.Store(&limits)
	l.replaceLocked(at, line)
	return nil
}

// replaceLocked puts a line in the place of another, which is remembered while requests wait in it:
// when the lines end, these requests are counted, and refused.
func (l *limiters) replaceLocked(at *ownLine, line *shaper.Shaper) {
	var kept []*shaper.Shaper
	if before := l.replaced.Load(); before != nil {
		kept = slices.DeleteFunc(slices.Clone(*before), func(s *shaper.Shaper) bool { return s.Stats().Waiting == 0 })
	}
	if old := at.Load(); old != nil {
		kept = append(kept, old)
	}
	l.replaced.Store(&kept)
	at.Store(line)
}

// ownLines returns the lines for all requests: of the site, of fair queueing, and the ones that these
// have replaced.
func (l *limiters) ownLines() (lines []*shaper.Shaper) {
	for _, at := range []*ownLine{&l.site, &l.fair} {
		if line := at.Load(); line != nil {
			lines = append(lines, line)
		}
	}
	if replaced := l.replaced.Load(); replaced != nil {
		lines = append(lines, *replaced...)
	}
	return lines
}

// waiting returns how many requests wait in the lines.
func (l *limiters) waiting() int {
	n := 0
	if l.live != nil {
		n = l.live.Stats().Waiting
	}
	for _, line := range l.ownLines() {
		n += line.Stats().Waiting
	}
	if l.ledger != nil {
		n += l.ledger.Waiting()
	}
	return n
}

// seated reports whether a request is in flight that has a seat of a cap of all processes.
func (l *limiters) seated() bool {
	if l.key.fixed.levels.InFlight == 0 && l.key.fixed.siteInFlight == 0 {
		return false
	}
	if l.live != nil {
		for _, st := range l.live.All() {
			if st.InFlight > 0 {
				return true
			}
		}
	}
	return slices.ContainsFunc(l.ownLines(), func(line *shaper.Shaper) bool { return line.Stats().InFlight > 0 })
}

// close refuses all requests that wait, and all that come.
func (l *limiters) close() {
	if l.live != nil {
		_ = l.live.Close()
	}
	for _, line := range l.ownLines() {
		_ = line.Close()
	}
	if l.ledger != nil {
		l.ledger.Close()
	}
}

var (
	// lingerFor is the least time for which lines without a configuration are kept: a request may
	// be on its way to them, and the next configuration may have them again.
	lingerFor = 10 * time.Second

	// longestDrain is the longest time for which they are kept while requests wait in them, or have seats. Then
	// the store can no longer be asked, so other processes get these seats.
	longestDrain = time.Hour
)

// release ends the use of the limiters by one configuration, whose servers have so long to
// end. The lines go on.
func (l *limiters) release(grace time.Duration) {
	users, _ := pool.References(l.key)
	if users > 1 || caddy.Exiting() || !l.wasStarted() {
		_, _ = pool.Delete(l.key)
		return
	}
	l.save()
	go l.linger(cmp.Or(grace, longestDrain))
}

// linger ends the use of the limiters when no request waits in the lines, and none has a seat that must be renewed.
func (l *limiters) linger(most time.Duration) {
	begun := time.Now()
	for {
		time.Sleep(lingerFor)
		if l.waiting() == 0 && !l.seated() || time.Since(begun) >= most {
			break
		}
	}
	_, _ = pool.Delete(l.key)
}

// Destruct implements [caddy.Destructor]. The lines are not closed: a request that still
// comes is served, and they take no memory when they are empty and nothing refers to them. But when the process ends, its servers
// have ended before, and what it has leased is given back: else others would have to wait for the end of the lease.
func (l *limiters) Destruct() error {
	l.save()
	if l.store != nil && caddy.Exiting() {
		l.close()
	}
	known.remove(l)
	if known.latest(l.name, l) == nil {
		kept.take(l.sources()...)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.finder.Swap(nil); a != nil {
		a.Close()
	}
	_ = l.setStateLocked("")
	if l.store != nil {
		l.store.release()
	}
	return nil
}
