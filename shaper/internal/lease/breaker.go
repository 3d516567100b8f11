package lease

import (
	"math/rand/v2"
	"time"
)

// A Breaker is the circuit breaker of one of the servers of a Bucket, whose keys can be asked for
// or can't together. It is open after FailuresToOpen failures in a row. Then the server is asked
// again after 50 ms, and after twice as long each time, up to 2 s.
type Breaker struct {
	Name     string // of the server
	Failures int    // in a row
	Open     bool   // the server counts as unavailable
	OpenedAt int64
	ProbeAt  int64 // when it is asked again
	Err      error // the latest failure
	backoff  time.Duration
}

// FailuresToOpen is after how many failures in a row a server counts as unavailable.
const FailuresToOpen = 3

const (
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = 2 * time.Second
)

// MayAsk reports whether the server may be asked now; if not, it returns when it may be.
func (b *Breaker) MayAsk(now int64) (until int64, ok bool) {
	if !b.Open || now >= b.ProbeAt { // A probe has moved that on; see Asks.
		return now, true
	}
	return max(b.ProbeAt, now+int64(leastPause)), false
}

// Asks notes that the server is asked in a call that ends within timeout. If the Breaker is open,
// this is the one probe.
func (b *Breaker) Asks(now int64, timeout time.Duration) {
	if b.Open {
		b.ProbeAt = now + int64(timeout+b.backoff)
	}
}

// Failed notes that a call which began at sent has failed at now. It reports whether that opens the
// Breaker.
func (b *Breaker) Failed(sent, now int64, err error) (opens bool) {
	b.Failures++
	b.Err = err
	switch {
	case b.Open && sent < b.OpenedAt:
		return false // It is no probe, and says nothing new.
	case b.Open:
		b.backoff = min(2*b.backoff, lastBackoff)
	case b.Failures >= FailuresToOpen:
		b.Open, b.backoff, b.OpenedAt = true, firstBackoff, now
		opens = true
	default:
		return false
	}
	b.ProbeAt = now + int64(b.backoff)*3/4 + rand.Int64N(int64(b.backoff)/2)
	return opens
}

// Succeeded notes a success. It reports whether that closes the Breaker.
func (b *Breaker) Succeeded() (closes bool) {
	closes = b.Open
	b.Failures, b.Err, b.Open = 0, nil, false
	return closes
}
