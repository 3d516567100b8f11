package shaper

// A cell is a lane of a Group, with its key.
type cell[K comparable] struct {
	lane lane
	key  K // of an overflow bucket: none

	prev, next *cell[K] // in the wheel; nil: it is not in there any more
	spoke      uint8    // of the wheel
	place      int16    // of an overflow bucket; ownBucket: it is that of a key
	reach      int16    // of an overflow bucket: how far from their own places keys have found it
}

const ownBucket = -1
