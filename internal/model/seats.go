package model

import (
	"math/big"
	"time"
)

// The wait for a seat is estimated from how long earlier requests held their seats. The
// guarantees leave open which stays are timed and how much each weighs. Package shaper's
// inflight.go decides that, and this file implements the same rule independently.

// noteStay counts the stay of a request that ends.
func (b *bucket) noteStay(w *waiter) {
	timed := w.number <= 16 || w.number%64 == 0 || w.longBefore
	if !timed {
		return
	}
	stay := b.now - w.left
	if b.stay == 0 {
		b.stay = stay
		return
	}
	b.stay += (stay - b.stay) / 8 // Division drops the fraction of a nanosecond.
}

// seatWait returns an estimate of how long the k-th request that waits for a seat has
// to wait until enough others have ended. It is 0 if there are seats for the first k.
func (b *bucket) seatWait(k int) time.Duration {
	must := int64(len(b.upstream) - b.limits.InFlight + k)
	if !b.capped() || b.blind || must <= 0 {
		return 0
	}
	wait := big.NewInt(must)
	wait.Mul(wait, big.NewInt(int64(b.stay)))
	wait.Div(wait, big.NewInt(int64(b.limits.InFlight)))
	return max(time.Millisecond, saturated(wait))
}
