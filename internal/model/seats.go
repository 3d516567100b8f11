package model

import (
	"math/big"
	"time"
)

// What is predicted for a request that waits for a seat is an estimate from how
// long earlier requests held theirs. The guarantees leave open which stays are
// timed and how much each weighs. Shaper's inflight.go decides that, and it is
// written here anew.

// noteStay counts the stay of a request that ends.
func (m *simulator) noteStay(w *waiter) {
	timed := w.number <= 16 || w.number%64 == 0 || w.longBefore
	if !timed {
		return
	}
	stay := m.now - w.left
	if m.stay == 0 {
		m.stay = stay
		return
	}
	m.stay += (stay - m.stay) / 8 // Division drops the fraction of a nanosecond.
}

// seatWait returns the estimate for the k-th request that waits for a seat: how
// long it takes until enough requests have ended. It is 0 if a seat is free.
func (m *simulator) seatWait(k int) time.Duration {
	if m.hasRoom() {
		return 0
	}
	must := int64(len(m.upstream) - m.limits.InFlight + k)
	wait := big.NewInt(must)
	wait.Mul(wait, big.NewInt(int64(m.stay)))
	wait.Div(wait, big.NewInt(int64(m.limits.InFlight)))
	return max(time.Millisecond, saturated(wait))
}
