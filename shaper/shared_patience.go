package shaper

import (
	"time"

	"example.com/leakybucket/internal/exact"
)

// DefaultPatience is for how long a request in line waits through an outage of its [Bucket],
// unless [WithPatience] sets another time.
const DefaultPatience = 5 * time.Second

type patienceOption time.Duration

func (o patienceOption) apply(to *options) {
	to.shared.patience, to.shared.patient = time.Duration(o), true
}

// WithPatience bounds how long a request in line waits through an outage of its [Bucket], with
// [FallbackClosed]: after d, up to 365 days, it is refused with [ErrUnavailable]. d counts while
// the request is in line and the Bucket counts as unavailable ([BucketDown]): from the start of
// the outage, or from its own entry if that is later. Each outage counts anew. The others keep
// their order, and if the Bucket can be asked again in time, nobody has lost a place.
//
// With 0 requests wait until the Bucket can be asked again, or their contexts end. The default
// is [DefaultPatience]. Without a Bucket, and with another [Fallback], which lets requests leave
// meanwhile, the option changes nothing. A negative d, or one above 365 days, is an error of
// [New] and [NewGroup].
func WithPatience(d time.Duration) Option { return common{patienceOption(d)} }

// patienceEndsLocked returns when the patience of a request in the line ends; forever if there is
// no outage, or the request waits through it.
func (ls *lease) patienceEndsLocked(w *waiter) int64 {
	s := ls.d.shared
	if !ls.backend.open || s.fallback != FallbackClosed || s.patience == 0 {
		return exact.Forever
	}
	return exact.Sum(max(w.at, ls.backend.openedAt), int64(s.patience))
}

// nextPatienceEndsLocked returns when patience in the line ends next. The newcomers are in the
// order in which they came, and so are the retries, which stand before them.
func (ls *lease) nextPatienceEndsLocked() int64 {
	ln := ls.f.line
	ends := ls.patienceEndsLocked(ln.head)
	if w := ln.firstNewcomer(); w != nil {
		ends = min(ends, ls.patienceEndsLocked(w))
	}
	return ends
}

// losePatienceLocked refuses the requests in line whose patience has ended by now. The caller
// then updates the departures.
func (ls *lease) losePatienceLocked(now int64) {
	ln := ls.f.line
	head := ln.head
	for w := head; w != nil && w.reentry && ls.patienceEndsLocked(w) <= now; w = ln.head {
		ls.d.refuseInLineLocked(ln, w, now, unavailable)
	}
	for w := ln.firstNewcomer(); w != nil && ls.patienceEndsLocked(w) <= now; w = ln.firstNewcomer() {
		ls.d.refuseInLineLocked(ln, w, now, unavailable)
	}
	if ln.head != head {
		ln.since = exact.At(now) // The next one could not leave before.
		ln.noteNewHead(now)
	}
}

// refuseInLineLocked refuses a request that is in line, and wakes it.
func (d *dispatcher) refuseInLineLocked(ln *line, w *waiter, now int64, s state) {
	ln.remove(w, s)
	d.waiting--
	w.at = now
	w.wake()
}
