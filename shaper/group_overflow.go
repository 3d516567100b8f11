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
	seed   maphash.Seed
	flows  *[maxOverflow]*keyedFlow[K] // nil: there has been none yet
	probes int                         // no bucket has been found further than that from a key's own place
}

// of returns the bucket for a key with that plan, which is nil if it is to be made
// at the place that is returned: the key's own one, or the next that has this
// plan or is free, reach places on; or else the first such one of the last resort. If
// there is none, place is -1. All keys that do not equal themselves have one place, as
// the hash of one is never the same.
func (o *overflow[K]) find(key K, p *plan) (c *keyedFlow[K], index, probes int) {
	if o.flows == nil {
		o.flows = new([maxOverflow]*keyedFlow[K])
	}
	home := 0
	if key == key {
		home = int(maphash.Comparable(o.seed, key) % hashed)
	}
	for probes = range hashed {
		index = (home + probes) % hashed
		if c = o.flows[index]; c == nil || c.flow.bucket.plan == p {
			return c, index, probes
		}
	}
	for index = hashed; index < maxOverflow; index++ {
		if c = o.flows[index]; c == nil || c.flow.bucket.plan == p {
			return c, index, index - hashed
		}
	}
	return nil, -1, 0
}

// reached notes that a key found its bucket so many places from its own.
func (o *overflow[K]) noteProbes(c *keyedFlow[K], probes int) {
	c.probes = max(c.probes, int16(probes))
	o.probes = max(o.probes, probes)
}

// passed says whether some key passed a place on its way to its bucket, which is
// not drained: then the place must not become free, or the key would get a new
// bucket in it.
func (o *overflow[K]) isPassed(index int, now int64) bool {
	for _, c := range o.flows[max(index+1, hashed):] { // They passed all before theirs.
		if c != nil && !c.flow.drained(now) {
			return true
		}
	}
	for i := 1; index < hashed && i <= o.probes; i++ {
		if c := o.flows[(index+i)%hashed]; c != nil && int(c.probes) >= i && !c.flow.drained(now) {
			return true
		}
	}
	return false
}
