package shared

import (
	"context"
	"errors"
	"fmt"
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

// Check returns why k can't be asked for, or nil if it can: no field is out of its range. A [Keeper] checks each question before it
// leaves for a server.
func (k Keeping) Check() error {
	switch {
	case k.Key == "":
		return errors.New("the key is empty")
	case k.ID == "":
		return errors.New("the ID is empty")
	case k.Lease < 0 || k.Lease > time.Minute || k.Lease%time.Millisecond != 0:
		return fmt.Errorf("a Lease of %v is out of its range, whole milliseconds from 0 to a minute", k.Lease)
	case len(k.Value) > 1<<20:
		return fmt.Errorf("a Value of %d bytes is out of its range, up to 1 MiB", len(k.Value))
	}
	return nil
}

// Kept is the answer to a [Keeping].
type Kept struct {
	ID string // of the process that keeps the key from now on; "": none does

	// Value is what the process that has kept the key last has written. If this process has just begun to keep the
	// key, it is the one of the process before, or nil, until this process asks again. Nil then means that no process has
	// written any, or that the [Bucket] has lost it: so another one may still have a lease of which the Bucket does not know.
	Value []byte

	Now int64 // the Bucket's clock in this step, in microseconds since 1970, rounded down
}

// A KeepState is the state of one kept key of a [Keeper]. The zero KeepState stands for a key without a state. A Bucket takes
// a state that is damaged for none: one that is not of this form, or has a number outside of its range. It forgets a
// state, and with it the Value, a day after it was last written, and no sooner.
type KeepState struct {
	ID    string        // of the process that keeps the key; "": it is free
	Lease time.Duration // for how long that process asked; whole milliseconds, from 1 ms to a minute, but 0 if the key is free
	Ends  int64         // the reading of the Bucket's clock at which the lease ends, from 1 to 2⁵³; 0 if the key is free
	Value []byte        // what was written last; none is the same as nil
}

// valid reports whether the state is of this form, and all numbers are within their ranges.
func (s KeepState) valid() bool {
	if s.ID == "" {
		return s.Lease == 0 && s.Ends == 0
	}
	return 0 < s.Lease && s.Lease <= time.Minute && s.Lease%time.Millisecond == 0 && 0 < s.Ends && s.Ends <= 1<<53
}

// Apply is the atomic step of [Keeper.Keep]. s is the state of the key, and now the [Bucket]'s clock, in microseconds
// rounded down, read after the key was locked. Apply returns the state to be written, which is s if there is nothing to
// write, and the answer. A Bucket whose server can't call Apply does the same in the server's language; package buckettest
// compares the two.
//
// The steps are these.
//
//  1. If Ends is later than now + Lease, both of the state, the clock has gone back: Ends becomes now + Lease.
//  2. If Ends is not after now, the lease has ended and the key is free. Its Value stays.
//  3. If this process keeps the key, Value becomes k.Value, and Ends now + k.Lease; with a k.Lease of 0 the key is free.
//  4. If the key is free and k.Lease is not 0, this process keeps it, and Ends is now + k.Lease. The Value stays.
//  5. The answer has the ID and the Value of the state as it is then.
//
// The state is written if this process keeps the key or has given it up, or if the clock has gone back. A process that only looks
// does not make a Value last.
func (k Keeping) Apply(s KeepState, now int64) (KeepState, Kept) {
	next := s
	if !s.valid() {
		next = KeepState{}
	}
	if ends := now + next.Lease.Microseconds(); next.Ends > ends {
		next.Ends, s.Ends = ends, ends
	}
	if next.Ends <= now {
		next.ID, next.Lease, next.Ends = "", 0, 0
	}
	switch {
	case next.ID == k.ID:
		next.Value = k.Value
	case next.ID != "" || k.Lease == 0:
		return s, Kept{ID: next.ID, Value: next.Value, Now: now}
	}
	next.ID, next.Lease, next.Ends = k.ID, k.Lease, now+k.Lease.Microseconds()
	if k.Lease == 0 {
		next.ID, next.Ends = "", 0
	}
	return next, Kept{ID: next.ID, Value: next.Value, Now: now}
}
