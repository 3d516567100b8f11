package simulate

import (
	"time"

	"example.com/leakybucket/internal/replay"
)

// A Count says what became of requests. Each counts in one of AtOnce, Waited, QueueFull
// and TooLate.
type Count struct {
	Requests  int
	AtOnce    int // left at once
	Waited    int // left after a wait
	QueueFull int // refused, as the line was full
	TooLate   int // refused, as the wait would have been longer than the limits allow
	TotalWait time.Duration
	Longest   time.Duration // wait
}

// Refused returns how many were refused.
func (c *Count) Refused() int { return c.QueueFull + c.TooLate }

func (c *Count) add(f replay.Fate) {
	c.Requests++
	switch {
	case f.Result == replay.QueueFull:
		c.QueueFull++
	case f.Result == replay.TooLate:
		c.TooLate++
	case f.Waited > 0:
		c.Waited++
		c.TotalWait += f.Waited
		c.Longest = max(c.Longest, f.Waited)
	default:
		c.AtOnce++
	}
}

// plus adds another count to c.
func (c *Count) plus(other Count) {
	c.Requests += other.Requests
	c.AtOnce += other.AtOnce
	c.Waited += other.Waited
	c.QueueFull += other.QueueFull
	c.TooLate += other.TooLate
	c.TotalWait += other.TotalWait
	c.Longest = max(c.Longest, other.Longest)
}
