package shaper

import "hash/maphash"

const (
	// maxOverflow is how many buckets are shared by the keys that find the table full.
	maxOverflow = 1024
	// lastResort is how many of them are for Limits that find no other place, so that
	// whoever floods the keys of one rule leaves room for those of the others.
	lastResort = 64
	hashed     = maxOverflow - lastResort
)

// overflow holds the buckets that keys share for which a Group has no bucket of
// their own. Each is for one value of Limits, and for those keys that a hash puts
// at its place; the hash is seeded anew in each process, so that nobody can choose
// keys which meet those of somebody else.
type overflow[K comparable] struct {
	seed  maphash.Seed
	cells *[maxOverflow]*cell[K] // nil: there has been none yet
	reach int                    // no bucket has been found further than that from a key's own place
}

// of returns the bucket for a key with that plan, which is nil if it is to be made
// at the place that is returned: the key's own one, or the next that has this
// plan or is free, reach places on; or else the first such one of the last resort. If
// there is none, place is -1. All keys that do not equal themselves have one place, as
// the hash of one is never the same.
func (o *overflow[K]) of(key K, p *plan) (c *cell[K], place, reach int) {
	if o.cells == nil {
		o.cells = new([maxOverflow]*cell[K])
	}
	home := 0
	if key == key {
		home = int(maphash.Comparable(o.seed, key) % hashed)
	}
	for reach = range hashed {
		place = (home + reach) % hashed
		if c = o.cells[place]; c == nil || c.lane.bucket.plan == p {
			return c, place, reach
		}
	}
	for place = hashed; place < maxOverflow; place++ {
		if c = o.cells[place]; c == nil || c.lane.bucket.plan == p {
			return c, place, place - hashed
		}
	}
	return nil, -1, 0
}

// reached notes that a key found its bucket so many places from its own.
func (o *overflow[K]) reached(c *cell[K], reach int) {
	c.reach = max(c.reach, int16(reach))
	o.reach = max(o.reach, reach)
}

// passed says whether some key passed a place on its way to its bucket, which is
// not drained: then the place must not become free, or the key would get a new
// bucket in it.
func (o *overflow[K]) passed(place int, now int64) bool {
	for _, c := range o.cells[max(place+1, hashed):] { // They passed all before theirs.
		if c != nil && !c.lane.drained(now) {
			return true
		}
	}
	for i := 1; place < hashed && i <= o.reach; i++ {
		if c := o.cells[(place+i)%hashed]; c != nil && int(c.reach) >= i && !c.lane.drained(now) {
			return true
		}
	}
	return false
}
