package caddyshaper

import (
	"cmp"
	"slices"
	"sync"

	"github.com/caddyserver/caddy/v2"
)

// inForce has the configurations that were started and have not ended. At a reload there are
// two for a moment.
var inForce configurations

// configurations are in the order in which they were started.
type configurations struct {
	mu   sync.Mutex
	apps []*app
}

func (c *configurations) push(a *app) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apps = append(c.apps, a)
}

func (c *configurations) remove(a *app) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apps = slices.DeleteFunc(c.apps, func(other *app) bool { return other == a })
}

// last returns the configuration that is in force; nil if there is none.
func (c *configurations) last() *app {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.apps) == 0 {
		return nil
	}
	return c.apps[len(c.apps)-1]
}

// running returns the limiters of the configuration in force, by their names.
func running() []*limiters {
	a := inForce.last()
	if a == nil {
		return nil
	}
	all := make([]*limiters, 0, len(a.entries))
	for _, e := range a.entries {
		all = append(all, e.lines)
	}
	slices.SortFunc(all, func(a, b *limiters) int { return cmp.Compare(a.name, b.name) })
	return all
}

// ready reports whether requests are to be sent here: a configuration is in force, and the
// process does not end. It turns false before the servers do anything, and so before Caddy's
// shutdown_delay.
func ready() bool { return inForce.last() != nil && !caddy.Exiting() }

// known has all limiters in use, also those that no configuration has any more.
var known knownLimiters

type knownLimiters struct {
	mu  sync.Mutex
	all []*limiters // in the order in which they were made
}

func (k *knownLimiters) add(l *limiters) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append(k.all, l)
}

func (k *knownLimiters) remove(l *limiters) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = slices.DeleteFunc(k.all, func(other *limiters) bool { return other == l })
}

func (k *knownLimiters) list() []*limiters {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.all)
}

// latest returns the limiters of a name that were made last, of those that a configuration has
// started; nil if there are none. Those of the heir are left out.
func (k *knownLimiters) latest(name string, heir *limiters) *limiters {
	for _, l := range slices.Backward(k.list()) {
		if l != heir && l.name == name && l.wasStarted() {
			return l
		}
	}
	return nil
}

// isLatest reports whether no others have the name of these limiters, which were started.
func (k *knownLimiters) isLatest(l *limiters) bool { return k.latest(l.name, nil) == l }

// inherit gives limiters that are about to be used the levels of those that had the name
// before, with other fixed settings.
func (k *knownLimiters) inherit(heir *limiters) {
	if l := k.latest(heir.name, heir); l != nil {
		heir.restore(l.snapshot())
	}
}

// closeAll refuses all requests that wait, before the process ends.
func closeAll() {
	for _, l := range known.list() {
		l.close()
	}
}
