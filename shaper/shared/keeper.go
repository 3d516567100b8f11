package shared

import (
	"context"
	"time"
)

// A Keeper is a [Bucket] with which one of several processes can keep a key for a time, as whoever has the one line of
// replicas does. Package buckettest has the tests that it must pass.
type Keeper interface {
	// Keep makes this process keep a key, or go on with it, if no other does; and says who keeps it. It is one atomic step, which
	// [Keeping.Apply] is. An error means that it is not known whether it was taken. Keep must return soon after ctx has
	// ended, and must not be repeated by the Bucket.
	Keep(ctx context.Context, k Keeping) (Kept, error)
}

// A Keeping asks a [Keeper] to keep a key.
type Keeping struct {
	Key string // not empty
	ID  string // of this process; not empty, and no other process has it

	// Lease is for how long the key is kept from now on; whole milliseconds, up to a minute. 0 means that this process
	// gives the key up, if it keeps it.
	Lease time.Duration

	// Value is what others are told. It is written if this process keeps the key already, also as it gives it up: so
	// whoever keeps the key next finds it. At most 1 MiB.
	Value []byte
}

// Kept is the answer to a [Keeping].
type Kept struct {
	ID string // of the process that keeps the key from now on; "": none does

	// Value is what the process that has kept the key last has written. If this process has just begun to keep the
	// key, it is the one of the process before, or nil, until this process asks again.
	Value []byte

	Now int64 // the Bucket's clock in this step, in microseconds since 1970, rounded down
}
