package shaper

import "time"

// A broom is the timer by which a Group comes to delete its drained buckets. It is no
// goroutine, so that a Group may be forgotten, and at the end of a testing/synctest
// bubble holds nothing up. The lock of the lanes guards it.
type broom struct {
	sweep func() // what it calls, in a goroutine of its own
	timer *time.Timer
	at    int64 // when it goes off; forever: it does not
	next  int64 // when it should
}

// arm sets the timer to when it should go off.
func (b *broom) arm(now int64) {
	if b.at == b.next {
		return
	}
	b.at = b.next
	switch d := time.Duration(b.next - now); {
	case b.next == forever:
		b.timer.Stop()
	case b.timer == nil:
		b.timer = time.AfterFunc(d, b.sweep)
	default:
		b.timer.Reset(d)
	}
}
