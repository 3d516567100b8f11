package shaper_test

import (
	"math/big"
	"time"
)

// What is told of a wait for a seat (a place upstream) is an estimate from how long
// the seats before it were taken. An exact average of all is of no use here: which
// seats are timed, and how much each weighs, is stated by inflight.go, and written
// here anew.

// upstreamFor notes that one has ended which left as number-th.
func (m *model) upstreamFor(w *waiter) {
	timed := w.number <= 16 || w.number%64 == 0 || w.longBefore
	if !timed {
		return
	}
	stay := m.now - w.left
	if m.stay == 0 {
		m.stay = stay
		return
	}
	m.stay += (stay - m.stay) / 8 // towards 0, a part of a nanosecond being none
}

// seatWait is the estimate for the k-th who waits: so many must end first.
func (m *model) seatWait(k int) time.Duration {
	if m.hasRoom() {
		return 0
	}
	must := int64(len(m.upstream) - m.limits.InFlight + k)
	wait := big.NewInt(must)
	wait.Mul(wait, big.NewInt(int64(m.stay)))
	wait.Div(wait, big.NewInt(int64(m.limits.InFlight)))
	return max(time.Millisecond, saturated(wait))
}
