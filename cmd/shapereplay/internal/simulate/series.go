package simulate

import (
	"time"

	"example.com/leakybucket/internal/replay"
)

// maxBins is how many bins a series has at most. A picture shows no more.
const maxBins = 240

// A Bin is what happened in one piece of the time.
type Bin struct {
	Arrived, Left, Refused int
	Waiting                time.Duration // of all that waited then, added up: divided by the width it is how many waited on average
}

// A Series is what happened over time. Bin i begins i widths after the first arrival of
// the log.
type Series struct {
	clock *clock
	bins  []Bin
}

// Width returns how long a bin lasts.
func (s *Series) Width() time.Duration { return s.clock.width }

// Bins returns the bins, up to the last in which something happened.
func (s *Series) Bins() []Bin { return s.bins }

// A clock has the width of the bins of several series. The length of a log is
// unknown when it is read from a pipe, so the bins are narrow at first, and twice as wide
// whenever there would be too many.
type clock struct {
	width time.Duration
	all   []*Series
}

func newClock() *clock { return &clock{width: time.Millisecond} }

func (c *clock) newSeries() *Series {
	s := &Series{clock: c}
	c.all = append(c.all, s)
	return s
}

// bin returns the bin of an instant.
func (s *Series) bin(at time.Duration) *Bin {
	for int(at/s.clock.width) >= maxBins {
		s.clock.widen()
	}
	i := int(at / s.clock.width)
	for len(s.bins) <= i {
		s.bins = append(s.bins, Bin{})
	}
	return &s.bins[i]
}

// widen makes one bin of two.
func (c *clock) widen() {
	c.width *= 2
	for _, s := range c.all {
		for i, b := range s.bins {
			if i%2 == 0 {
				s.bins[i/2] = b
				continue
			}
			to := &s.bins[i/2]
			to.Arrived += b.Arrived
			to.Left += b.Left
			to.Refused += b.Refused
			to.Waiting += b.Waiting
		}
		s.bins = s.bins[:(len(s.bins)+1)/2]
	}
}

func (s *Series) add(at time.Duration, f replay.Fate) {
	s.bin(at).Arrived++
	if f.Result != replay.Departed {
		s.bin(at).Refused++
		return
	}
	leaves := at + f.Waited
	s.bin(leaves).Left++
	for at < leaves {
		width := s.clock.width
		end := min(leaves, at-at%width+width)
		s.bins[at/width].Waiting += end - at
		at = end
	}
}
