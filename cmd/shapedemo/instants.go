package main

import (
	"slices"
	"sync"
	"time"
)

// instants writes down when things happened, but only between start and stop:
// a server that runs for days must not remember each request.
type instants struct {
	mu  sync.Mutex
	on  bool
	all []time.Time
}

func (i *instants) start() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.on, i.all = true, nil
}

func (i *instants) note(at time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.on {
		i.all = append(i.all, at)
	}
}

// stop returns what was noted since start, in order of time: who gets the lock
// first need not have looked at the clock first.
func (i *instants) stop() []time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.on = false
	slices.SortFunc(i.all, time.Time.Compare)
	return i.all
}

// gaps returns the smallest and the median time between neighbours of at,
// which is in order; ok is false if there are none.
func gaps(at []time.Time) (smallest, median time.Duration, ok bool) {
	if len(at) < 2 {
		return 0, 0, false
	}
	between := make([]time.Duration, len(at)-1)
	for i := range between {
		between[i] = at[i+1].Sub(at[i])
	}
	slices.Sort(between)
	return between[0], between[len(between)/2], true
}
