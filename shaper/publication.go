package shaper

import (
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"example.com/leakybucket/shaper/watch"
)

// A publication is a view by which requests are refused without the lock. A refusal under the
// lock publishes it. lockAt, which takes the lock, withdraws it before anything can change. So
// as long as a call finds a publication, the flow is as its view says, and the call is refused
// just as it would be under the lock at that instant.
//
// These methods take the lock of a [Shaper] without lockAt, to save a reading of the clock. They
// may do so, because none of them makes a publication wrong:
//
//   - takeOutcome and reservation.settleUnchanged change nothing that is in a view. (At a bound takeOutcome moves
//     an instant at which the level was 0 up to now, and a view has a copy.)
//   - The methods of a parker and shaperLimiter.stats only read.
//   - seat.release is called only if there is a cap. With one, and for a Shaper with a [shared.Bucket], no view is
//     published.
type publication struct {
	view
	at     int64 // when it was published
	until  int64 // when the next head is to leave; from then on the lock is needed
	cost   int64 // of the request that was refused then
	leaves int64 // view.leaves of that cost, which most requests to come have too

	after     uint64 // the number of the latest refusal in the refusalRing
	stripes   *refusalStripes
	first     *refusalStripe // of stripes
	contended atomic.Bool    // two refusals have met in the first stripe
}

// publishAfter is how many refusals in a row it takes for a view to be published. To make it
// and to withdraw it takes about as long as one refusal, so it is worth it only if several
// more follow.
const publishAfter = 8

// publishAfterLocked notes that a request of cost n has been refused, and publishes the view of
// the flow if enough have been refused in a row.
func (s *Shaper) publishAfterLocked(now, n int64) {
	if s.inRow++; s.inRow >= publishAfter || s.stripes.audited() {
		if p := s.publicationLocked(now, n); p != nil {
			s.published.Store(p)
		}
	}
}

// publicationLocked returns the view of the flow after a refusal of a request of cost n, to be
// published; nil if something is in force for which refusals need the lock.
func (s *Shaper) publicationLocked(now, n int64) *publication {
	f := &s.flow
	if !s.plain || s.ordered || f.capped() || s.phase != open {
		return nil
	}
	if s.stripes == nil {
		s.stripes = newRefusalStripes()
	}
	p := &publication{
		view: f.view(), at: now, until: maxClock, cost: n,
		after: s.refusalRing.count - 1, stripes: s.stripes, first: s.stripes.stripe(0),
	}
	p.leaves = p.view.leaves(n)
	p.findRoom(f.line)
	if f.line.head != nil {
		p.until = min(p.until, f.line.slot)
	}
	return p
}

// withdrawLocked withdraws the publication, and reads the clock. The caller has read it
// before, but other calls may have been refused since then, and the clock must not go back
// behind them.
func (d *dispatcher) withdrawLocked() (now int64) {
	d.published.Store(nil)
	d.inRow = 0
	return int64(time.Since(d.epoch))
}

// refuse refuses a request of s by the published view, without the lock, and runs its hook. If the
// view does not refuse it, dec is empty and the caller must lock. As in lockAt, the caller reads the
// clock before it loads p, so p was still published after now.
//
// It is not inlined, so that calls that may leave need no stack for it.
//
//go:noinline
func (p *publication) refuse(s *Shaper, now int64, r *request) (dec decision) {
	now = max(now, p.at)
	if now >= p.until || r.kind == reentry {
		return dec
	}
	leaves := p.leaves
	if r.cost != p.cost {
		leaves = p.view.leaves(r.cost)
	}
	_, why := p.judge(now, leaves, r)
	if why.reason == notRefused {
		return dec
	}
	dec = decision{waiting: p.waiting, event: refusedEvent}
	stripe := p.lockStripe()
	stripe.noteLocked(p, now, r.cost, why)
	if r.kind != allow || s.trace.Refused != nil {
		dec.err = stripe.newError(why)
	}
	stripe.mu.Unlock()
	if p.stripes.audit != nil {
		p.stripes.audit(p, now, *r, why) // A pointer would make every request escape to the heap.
	}
	if s.hasHooks {
		r.entered = now
		r.announce(&s.dispatcher, &s.flow, dec)
	}
	return dec
}

// lockStripe locks a stripe that is free: the first one, as long as no two calls have met there.
// (So calls that follow one another within one tick of a coarse clock are remembered in their
// order.)
func (p *publication) lockStripe() *refusalStripe {
	if !p.contended.Load() {
		if p.first.mu.TryLock() {
			return p.first
		}
		p.contended.Store(true)
	}
	return p.stripes.lock()
}

// refusalStripes count and remember the refusals that are made without the lock of the
// dispatcher. A word that all processors write to would make them wait for each other as the
// lock does. So once two calls have met, each processor mostly has a stripe to itself. To read
// them all, a goroutine holds the dispatcher's lock, and takes the lock of one stripe after the other.
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

	// after[i] is the number of the dispatcher's latest refusal when refusal i was made. It orders
	// the two rings.
	after [keptRefusals]uint64
}

// newRefusalStripes returns twice as many stripes as processors can run goroutines now, or
// more, so that few processors have one in common.
func newRefusalStripes() *refusalStripes {
	n := min(runtime.GOMAXPROCS(0), 64)
	return &refusalStripes{all: make([]atomic.Pointer[refusalStripe], 2<<bits.Len(uint(n-1)))}
}

// A stripeHint says which stripe the goroutines of a processor use. A [sync.Pool] gives each
// processor its own.
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
func (s *refusalStripes) latest(d *dispatcher) (found []watch.Refusal) {
	s.each(func(stripe *refusalStripe) {
		found = append(found, stripe.refusals(d, func(i uint64) any { return stripe.after[i%keptRefusals] })...)
	})
	return found
}
