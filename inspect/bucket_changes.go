package inspect

import (
	"time"

	"example.com/leakybucket/shaper"
)

// A changer is the part of a [bucketRef] that changes its bucket.
type changer interface {
	// limitsNow returns the limits of the bucket or, if it is not in use, those that it
	// would get. It may call the limits function of a Group.
	limitsNow() (shaper.Limits, error)

	// setting returns what SetLimits has said of the bucket.
	setting() setting

	// setLimits puts limits in force.
	setLimits(l shaper.Limits) error

	// putBack undoes setLimits. before is what setting returned then.
	putBack(before setting) error

	// hold holds the line of the bucket; 0 ends all holds.
	hold(d time.Duration)
}

// A setting is the limits that SetLimits has given a bucket. given is false if it has given
// none, so that the limits function of a Group says them.
type setting struct {
	limits shaper.Limits
	given  bool
}

func (s *openShaper) limitsNow() (shaper.Limits, error) { return s.s.Limits(), nil }

func (s *openShaper) setting() setting { return setting{s.s.Limits(), true} }

func (s *openShaper) setLimits(l shaper.Limits) error { return s.s.SetLimits(l) }

func (s *openShaper) putBack(before setting) error { return s.s.SetLimits(before.limits) }

func (s *openShaper) hold(d time.Duration) { s.s.Hold(d) }

func (b *groupBucket[K]) limitsNow() (shaper.Limits, error) {
	return b.group.g.LimitsOf(b.key)
}

func (b *groupBucket[K]) setting() setting {
	l, ok := b.group.g.Override(b.key)
	return setting{l, ok}
}

func (b *groupBucket[K]) setLimits(l shaper.Limits) error { return b.group.g.SetLimits(b.key, l) }

// putBack lets the limits function say the limits of the key again, which may have
// changed meanwhile, unless the program had set others.
func (b *groupBucket[K]) putBack(before setting) error {
	if before.given {
		return b.group.g.SetLimits(b.key, before.limits)
	}
	return b.group.g.ResetLimits(b.key)
}

func (b *groupBucket[K]) hold(d time.Duration) { b.group.g.Hold(b.key, d) }
