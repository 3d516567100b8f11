package caddyshaper

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/shaper"
)

// pages is the core of all pages; nil: there is none, so nothing is changed for a time.
var pages atomic.Pointer[core]

// A keptChange is a change that an operator has made for a time, outside its lines: while these have
// gone, in a state file, or on the way to the lines that take their place.
type keptChange struct {
	Source string         `json:"source"`
	Key    []byte         `json:"key,omitempty"` // it need not be UTF-8
	Who    string         `json:"who"`
	From   time.Time      `json:"from"`
	Until  time.Time      `json:"until"`
	Limits *shaper.Limits `json:"limits,omitempty"` // nil: it is a hold
	Said   string         `json:"said,omitempty"`   // by the configuration, of the same limits
}

// change returns the change as pages know it, without its limits.
func (k keptChange) change() inspect.Change {
	return inspect.Change{Source: k.Source, Key: string(k.Key), Who: k.Who, From: k.From, Until: k.Until}
}

// isOf reports whether two changes have the same subject: the limits of one key, or the hold of one
// line.
func (k keptChange) isOf(o keptChange) bool {
	return k.Source == o.Source && string(k.Key) == string(o.Key) && (k.Limits == nil) == (o.Limits == nil)
}

// keep returns a change of the line outside it.
func (l shownLine) keep(c inspect.Change) keptChange {
	k := keptChange{Source: c.Source, Key: []byte(c.Key), Who: c.Who, From: c.From, Until: c.Until}
	if c.Limits == (shaper.Limits{}) {
		return k // It is a hold.
	}
	if k.Limits, k.Said = &c.Limits, c.Before.String(); l.lines.key.fixed.quota != "" {
		k.Said, _ = l.says(c.Key)
	}
	return k
}

// errSaysOthers is for a change that is not resumed.
var errSaysOthers = errors.New("the configuration says other limits than when the change was made")

// resume puts a change in force again.
func (l shownLine) resume(i *inspect.Inspector, k keptChange) error {
	c := k.change()
	if k.Limits != nil {
		if now, err := l.says(c.Key); err != nil || now != k.Said {
			return errSaysOthers
		}
		c.Limits = *k.Limits
	}
	return i.Resume(c)
}

// says returns the limits of a key, or of the line, by the configuration in force.
func (l shownLine) says(key string) (text string, err error) {
	limits, e := shaper.Limits{}, l.lines.says.Load()
	switch {
	case l.group != nil && l.group == l.lines.live:
		limits, err = l.lines.limitsOf(key)
	case l.group != nil:
		limits, err = l.lines.candidateOf(key)
	case e.settings.quota.provider != "":
		said := e.settings.quota
		said.bodies = 0 // It is no limit of the line.
		return fmt.Sprintf("%+v", said), nil
	case l.at().says.Load() == nil:
		return "", nil // The line has gone.
	default:
		limits = *l.at().says.Load()
		if c := e.adapts(); c != nil && c.Max > 0 {
			limits.Rate = c.Max // An operator's change is one of the ceiling.
		}
	}
	return limits.String(), err
}

// at returns where the limiters have the line, if it is one for all keys.
func (l shownLine) at() *ownLine {
	if l.lines.key.fixed.fair {
		return &l.lines.fair
	}
	return &l.lines.site
}

// isReplaced reports whether another line has taken the place of this one.
func (l shownLine) isReplaced() bool { return l.line != nil && l.at().Load() != l.line }

// kept has the changes whose lines are not shown, until these, or others of their names, are shown again.
var kept keptChanges

type keptChanges struct {
	mu  sync.Mutex
	all []keptChange
}

// add keeps changes, in place of earlier ones of the same.
func (k *keptChanges) add(changes []keptChange) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range changes {
		k.all = append(slices.DeleteFunc(k.all, c.isOf), c)
	}
}

// of returns the changes of lines.
func (k *keptChanges) of(l *limiters) (all []keptChange) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.all {
		if slices.Contains(l.sources(), c.Source) {
			all = append(all, c)
		}
	}
	return all
}

// take returns the changes of the sources of some names, and keeps them no longer.
func (k *keptChanges) take(sources ...string) (all []keptChange) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = slices.DeleteFunc(k.all, func(c keptChange) bool {
		isOne := slices.Contains(sources, c.Source)
		if isOne && c.Until.After(time.Now()) {
			all = append(all, c)
		}
		return isOne
	})
	return all
}

// forgetGone forgets the changes of lines that the configuration in force does not have.
func (k *keptChanges) forgetGone() {
	isGone := goneSources()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = slices.DeleteFunc(k.all, isGone)
}

// goneSources returns a function that reports whether a change is of a line that the configuration in force does not have: a
// configuration without a line is one that changes its limits. While an older configuration has not ended, it may come back, and
// needs its changes; so do all when the process ends.
func goneSources() (isGone func(keptChange) bool) {
	if len(inForce.list()) != 1 {
		return func(keptChange) bool { return false }
	}
	names := map[string]bool{}
	for _, l := range shownLines() {
		names[l.name] = true
	}
	return func(c keptChange) bool { return !names[c.Source] }
}

// sources returns the names of the lines on pages.
func (l *limiters) sources() []string {
	return []string{l.name, l.name + candidateSource, l.name + siteSource}
}

// inForce returns the changes of the lines that are in force.
func (l *limiters) inForce() (all []keptChange) {
	c := pages.Load()
	if c == nil {
		return nil
	}
	for of, changes := range c.changes() {
		if of.lines == l {
			for _, change := range changes {
				all = append(all, of.keep(change))
			}
		}
	}
	return all
}

// changes returns the changes of the lines, for a state file.
func (l *limiters) changes() []keptChange {
	all := kept.of(l)
	for _, k := range l.inForce() {
		if !slices.ContainsFunc(all, k.isOf) {
			all = append(all, k)
		}
	}
	return slices.DeleteFunc(all, goneSources())
}

// overtake ends the changes of limits that the configuration itself has changed. All other changes stay in
// force.
func (l *limiters) overtake(before []keptChange) {
	c := pages.Load()
	if c == nil {
		return
	}
	for _, k := range before {
		of, ok := c.lineOf(k.Source)
		if !ok || of.isReplaced() || k.Limits == nil {
			continue
		}
		if now, err := of.says(string(k.Key)); err != nil || now == k.Said {
			continue
		}
		if of.group != nil && of.group.ResetLimits(string(k.Key)) != nil {
			continue // The bucket could not get such limits now, so they stay as they are.
		}
		// Another quota may come to the same limits as the one before, so that SetLimits has not been called.
		if of.line != nil && of.line.SetLimits(*of.at().says.Load()) != nil {
			continue
		}
		l.mu.Lock()
		e := l.says.Load()
		e.overtook = append(e.overtook, k)
		l.mu.Unlock()
		c.Overtake(k.change())
	}
}

// A core is an Inspector that is not served itself. It shows all lines that are in use.
type core struct {
	*inspect.Inspector
	log                *slog.Logger
	unfollow, unreport func()

	mu    sync.Mutex
	shown map[string]shownLine
}

// newCore returns an Inspector of all lines that are in use.
func newCore(log *slog.Logger) *core {
	c := &core{Inspector: inspect.New(inspect.WithLogger(log)), log: log, shown: map[string]shownLine{}}
	pages.Store(c)
	c.unfollow = follow(c.show)
	c.unreport = problems.show(c.Inspector)
	return c
}

// Destruct implements [caddy.Destructor]. Without pages nobody can end a change, so all end. If the process ends, the
// state file has them.
func (c *core) Destruct() error {
	if !goesOn() {
		c.keepAll()
	}
	pages.CompareAndSwap(c, nil)
	c.unreport()
	c.unfollow()
	return c.Close()
}

// show shows a line, with the changes of the line whose place it takes.
func (c *core) show(l shownLine) (hide func()) {
	c.Add(l.name, l.inspected())
	c.mu.Lock()
	c.shown[l.name] = l
	c.mu.Unlock()
	c.resume(l)
	return func() {
		c.keep(l)
		c.mu.Lock()
		delete(c.shown, l.name)
		c.mu.Unlock()
		c.Remove(l.name)
	}
}

// resume puts the kept changes of a line in force again, unless the configuration has other limits by now.
func (c *core) resume(l shownLine) {
	for _, k := range kept.take(l.name) {
		if err := l.resume(c.Inspector, k); err != nil {
			c.log.Info("a change for a time was not resumed", "source", k.Source, "who", k.Who, "error", err)
		}
	}
}

// changes returns the changes that are in force, by line.
func (c *core) changes() map[shownLine][]inspect.Change {
	c.mu.Lock()
	shown := maps.Clone(c.shown)
	c.mu.Unlock()
	all := map[shownLine][]inspect.Change{}
	for _, change := range c.Changes() {
		if l, ok := shown[change.Source]; ok && (change.Limits == (shaper.Limits{}) || !l.isReplaced()) {
			all[l] = append(all[l], change)
		}
	}
	return all
}

// keep keeps the changes of a line.
func (c *core) keep(l shownLine) {
	var all []keptChange
	for _, change := range c.changes()[l] {
		all = append(all, l.keep(change))
	}
	kept.add(all)
}

// keepAll keeps the changes of all lines.
func (c *core) keepAll() {
	for l := range c.changes() {
		c.keep(l)
	}
}

// lineOf returns the line that is shown under a name.
func (c *core) lineOf(name string) (l shownLine, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, ok = c.shown[name]
	return l, ok
}

// resume puts the kept changes of lines in force again.
func (l *limiters) resume() {
	c := pages.Load()
	if c == nil {
		return
	}
	for _, name := range l.sources() {
		if of, ok := c.lineOf(name); ok && of.lines == l {
			c.resume(of)
		}
	}
}
