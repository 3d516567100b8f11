package shaper

import (
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
)

// refusalStripes count and remember the refusals that are made without the lock of the
// dispatcher. A word that all processors write to would make them wait for each other as the
// lock does. So once two calls have met, each processor mostly has a stripe to itself. To read
// them all, a goroutine holds the dispatcher's lock, and takes that of one stripe after the other.
type refusalStripes struct {
	all []atomic.Pointer[refusalStripe] // as many as a power of 2; nil: not used yet

	audit func(*publication, int64, request, rejection) // set by tests; is told of each refusal
}

// audited reports whether tests want to be told of refusals. It may be called on nil.
func (s *refusalStripes) audited() bool { return s != nil && s.audit != nil }

// A refusalStripe has the counts of some refusals, and the latest of them.
type refusalStripe struct {
	mu sync.Mutex

	// mu guards these.
	refused refusals
	entered int64 // when the latest call came
	refusalRing
	after [keptRefusals]uint64 // for each in the ring, the number of the one before it in that of the dispatcher
}

// newRefusalStripes returns twice as many stripes as processors can run goroutines now, or
// more, so that few processors have one in common.
func newRefusalStripes() *refusalStripes {
	n := min(runtime.GOMAXPROCS(0), 64)
	return &refusalStripes{all: make([]atomic.Pointer[refusalStripe], 2<<bits.Len(uint(n-1)))}
}

// A stripeHint says which stripe the goroutines of a processor use. [sync.Pool] is what
// gives each processor its own.
type stripeHint struct{ stripe uint32 }

var (
	stripeHints = sync.Pool{New: func() any { return &stripeHint{lastHint.Add(1)} }}
	lastHint    atomic.Uint32
)

// noteLocked counts and remembers a refusal of a request of that cost.
func (s *refusalStripe) noteLocked(p *publication, now, cost int64, why rejection) {
	s.refused.count(why.reason)
	s.entered = max(s.entered, now)
	s.after[s.count%keptRefusals] = p.after
	s.add(now, cost, why)
}

// lock locks a stripe that is free. If it has found none, it sleeps until the one that it tried
// last is free. On a busy machine goroutines are preempted while they hold a stripe. If the others
// went on trying, they would take the processor time that the holders need to go on: a call of
// 64 goroutines on two processors then took 2,000 ns instead of 190.
func (s *refusalStripes) lock() *refusalStripe {
	hint := stripeHints.Get().(*stripeHint)
	stripe := s.stripe(hint.stripe)
	for tries := 1; !stripe.mu.TryLock(); tries++ {
		if tries == len(s.all) {
			stripe.mu.Lock()
			break
		}
		hint.stripe++
		stripe = s.stripe(hint.stripe)
	}
	stripeHints.Put(hint)
	return stripe
}

// stripe returns the stripe of a hint.
func (s *refusalStripes) stripe(hint uint32) *refusalStripe {
	place := &s.all[int(hint)&(len(s.all)-1)]
	if stripe := place.Load(); stripe != nil {
		return stripe
	}
	place.CompareAndSwap(nil, new(refusalStripe))
	return place.Load()
}

// each calls a function with each stripe that is used. It may be called on nil.
func (s *refusalStripes) each(read func(*refusalStripe)) {
	if s == nil {
		return
	}
	for i := range s.all {
		if stripe := s.all[i].Load(); stripe != nil {
			stripe.mu.Lock()
			read(stripe)
			stripe.mu.Unlock()
		}
	}
}

// addTo adds the counts of all stripes to the [Stats] that the dispatcher knows of. refused
// are its own counts. Each call of a stripe was refused, so its latest call is its latest
// refusal.
func (s *refusalStripes) addTo(st *Stats, refused refusals, d *dispatcher) {
	s.each(func(stripe *refusalStripe) {
		for i, n := range stripe.refused {
			refused[i] += n
		}
		last := d.timeOf(stripe.entered)
		if last.After(st.LastCall) {
			st.LastCall = last
		}
		if last.After(st.LastRefusal) {
			st.LastRefusal = last
		}
	})
	st.setRefusals(&refused)
}

// latest returns the latest refusals of each stripe. The Key of each is the number of the one
// that the dispatcher has noted before it.
func (s *refusalStripes) latest(d *dispatcher) (found []Refusal) {
	s.each(func(stripe *refusalStripe) {
		found = append(found, stripe.refusals(d, func(i uint64) any { return stripe.after[i%keptRefusals] })...)
	})
	return found
}
