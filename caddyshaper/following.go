package caddyshaper

import (
	"slices"
	"sync"
	"time"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/inspect"
	"example.com/leakybucket/promshaper"
	"example.com/leakybucket/shaper"
)

// A shownLine is one entry of pages and metrics for the lines of one name: the lines of the
// keys, the line of fair queueing, the lines of the candidates, or the line of the site.
type shownLine struct {
	name  string
	lines *limiters
	group *shaper.Group[string] // nil if it is one line for all keys
	line  *shaper.Shaper        // nil if it is a group

	finder *adapt.Controller // of the line's rate; nil: it does not adapt
}

// The ends of the names of the lines of candidates, and of the line of the site.
const (
	candidateSource = "/candidate"
	siteSource      = "/site"
)

// shownLines returns all lines that are in use, by their names in package shaper.
func shownLines() (all []shownLine) {
	for _, l := range running() {
		if line := l.fair.Load(); line != nil {
			all = append(all, shownLine{name: l.name, lines: l, line: line, finder: l.finder.Load()})
			continue
		}
		all = append(all, shownLine{name: l.name, lines: l, group: l.live})
	}
	for _, l := range running() {
		if l.tries() {
			all = append(all, shownLine{name: l.name + candidateSource, lines: l, group: l.trial.Load()})
		}
		if site := l.site.Load(); site != nil {
			all = append(all, shownLine{name: l.name + siteSource, lines: l, line: site, finder: l.finder.Load()})
		}
	}
	names := map[string]bool{}
	return slices.DeleteFunc(all, func(l shownLine) bool {
		twice := names[l.name] // "shop/site" may be the site of shop, or a handler of that name.
		names[l.name] = true
		return twice
	})
}

// inspected returns the line as pages show it.
func (l shownLine) inspected() inspect.Source {
	switch {
	case l.group == nil && l.lines.ledger != nil:
		return inspect.OfQuota(l.line, l.quotaTaken)
	case l.finder != nil:
		return inspect.OfAdaptive(l.line, l.finder)
	case l.group == nil:
		return inspect.Of(l.line)
	}
	return inspect.OfGroup(l.group, inspect.WithExplain(l.where))
}

// where returns the origin of the limits of a key, if it is a file of rules.
func (l shownLine) where(key string) (rule, file string, line int) {
	if rules := l.lines.file(); rules != nil {
		return rules.Where(key)
	}
	return "", "", 0
}

// measured returns the line as metrics tell it.
func (l shownLine) measured() promshaper.Source {
	switch {
	case l.finder != nil:
		return promshaper.OfAdaptive(l.line, l.finder)
	case l.group == nil:
		return promshaper.Of(l.line)
	}
	return promshaper.OfGroup(l.group)
}

// hideWait is how long a change of the lines in use waits for followers that hide the others.
const hideWait = 5 * time.Second

// A follower shows all lines that are in use somewhere.
type follower struct {
	show func(shownLine) (hide func())

	updated chan struct{}        // closed when the last update has ended; nil: there was none
	shown   map[shownLine]func() // the lines that are shown, with the functions that hide them; used by updates alone
}

var (
	followersMu sync.Mutex // not held while a follower shows or hides anything
	followers   = map[*follower]bool{}
)

// follow shows all lines that are in use, from now on and until stop is called. stop hides
// nothing.
func follow(show func(shownLine) (hide func())) (stop func()) {
	f := &follower{show: show, shown: map[shownLine]func(){}}
	followersMu.Lock()
	followers[f] = true
	updated := f.want(shownLines())
	followersMu.Unlock()
	<-updated // It has nothing to hide.
	return func() {
		followersMu.Lock()
		defer followersMu.Unlock()
		delete(followers, f)
	}
}

// linesChanged lets all followers show the lines in use. It must be called whenever these have
// changed. It returns when all followers are done, or after hideWait; a slow one follows when it
// can.
func linesChanged() {
	var updates []<-chan struct{}
	followersMu.Lock()
	now := shownLines()
	for f := range followers {
		updates = append(updates, f.want(now))
	}
	followersMu.Unlock()
	patience := time.NewTimer(hideWait)
	defer patience.Stop()
	for _, updated := range updates {
		select {
		case <-updated:
		case <-patience.C:
			return
		}
	}
}

// want begins to show some lines, and to hide all others, when the updates before it have ended. The channel
// is closed when that is done. The caller holds followersMu.
func (f *follower) want(lines []shownLine) (updated <-chan struct{}) {
	before, done := f.updated, make(chan struct{})
	f.updated = done
	go func() {
		if before != nil {
			<-before
		}
		f.updateTo(lines)
		close(done)
	}()
	return done
}

// updateTo hides the lines that are not in use any more, and shows the new ones.
func (f *follower) updateTo(now []shownLine) {
	stay := map[shownLine]bool{}
	for _, l := range now {
		stay[l] = true
	}
	// First those that go, as another line may come under the same name. None waits for another.
	var hiding sync.WaitGroup
	for l, hide := range f.shown {
		if !stay[l] {
			delete(f.shown, l)
			hiding.Go(hide)
		}
	}
	hiding.Wait()
	for _, l := range now {
		if f.shown[l] == nil {
			f.shown[l] = f.show(l)
		}
	}
}
