package caddyshaper

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"example.com/leakybucket/inspect"
)

// problems are what is wrong with the rules of entries. All pages show them.
var problems = problemList{of: map[*entry]error{}, shownBy: map[*inspect.Inspector]bool{}}

type problemList struct {
	mu      sync.Mutex
	of      map[*entry]error
	shownBy map[*inspect.Inspector]bool
}

// set says what is wrong with the rules of an entry; nil if nothing is.
func (p *problemList) set(e *entry, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if was := p.of[e]; was == nil && err == nil || was != nil && err != nil && was.Error() == err.Error() {
		return
	}
	p.of[e] = err
	if err == nil {
		delete(p.of, e)
	}
	now := p.joinedLocked()
	for i := range p.shownBy {
		i.Report(now)
	}
}

// show lets a page show the problems, from now on and until stop is called.
func (p *problemList) show(i *inspect.Inspector) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shownBy[i] = true
	if now := p.joinedLocked(); now != nil {
		i.Report(now)
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.shownBy, i)
	}
}

// joinedLocked returns all problems as one error, or nil if there are none.
func (p *problemList) joinedLocked() error {
	var all []string
	for e, err := range p.of {
		all = append(all, fmt.Sprintf("%s: the rules in force stay, because the changed ones have mistakes: %v", e.lines.name, err))
	}
	if all == nil {
		return nil
	}
	slices.Sort(all)
	return errors.New(strings.Join(slices.Compact(all), "\n"))
}
