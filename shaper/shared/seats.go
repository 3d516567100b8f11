package shared

import (
	"context"
	"time"
)

// A Seater is a [Bucket] that can also bound how many requests of all processes together are under way
// ([Options.InFlight]). A Shaper asks for it by assertion, once. Package buckettest has the tests that it must pass.
type Seater interface {
	// Seats tells how many seats of a key a process keeps and could use, and returns how many it has from now on, in
	// one atomic step. [Seating.Apply] is that step. An error means that it is not known whether it was taken. Seats
	// must return soon after ctx has ended, and must not be repeated by the Bucket.
	Seats(ctx context.Context, q Seating) (Seated, error)
}

// A Seating asks a [Seater] for seats: rights of a process to have one request under way each.
type Seating struct {
	Key  string // of the seats; not empty
	ID   string // of this process; not empty, and no other process has it
	Cap  int    // how many seats there are for all processes together; at least 1
	Held int    // how many this process keeps: those in use at least
	Want int    // how many it could use; 0 with a Held of 0: it needs none any more, and is forgotten
}

// Seated is the answer to a [Seating].
type Seated struct {
	Held   int   // how many seats this process has, for [SeatLease] from when it asked; never less than it said that it keeps
	Target int   // to how many it is to come down as its calls end, while others wait for seats; the Cap if nobody waits
	Now    int64 // the Bucket's clock in this step, in microseconds since 1970, rounded down
}

// The times of seats. They are the same for all processes, so they are no options.
const (
	SeatLease = 10 * time.Second        // for how long a process has its seats, from when it asked
	SeatRenew = 3300 * time.Millisecond // how often it asks again while it has some
	SeatPoll  = time.Second             // and while it waits for one
	SeatGuard = 3600 * time.Millisecond // for how long a key without a state gives no seats: until all have said what they hold
)
