package redisbucket

import (
	"context"
	"fmt"
	"time"

	"example.com/leakybucket/shaper/shared"
)

// Encode returns the state on a server for a level, or for one that could only come from damage.
func Encode(l shared.BucketLevel) string {
	if r := l.Rate; r.Parts < 1 || r.Part < 0 || r.Part >= r.Parts || r.Micros < 0 || r.Burst < 1 {
		return fmt.Sprintf("%d %d %d %d %d %d %d %d 0 0", l.Empty.Micros, l.Empty.Part, l.At, r.Version, r.Micros, r.Part, r.Parts, r.Burst)
	}
	state := fmt.Sprintf("%d %d %d %d %s", l.Empty.Micros, l.Empty.Part, l.At, l.Rate.Version, numbersText(l.Rate))
	if l.Hold != 0 {
		state += fmt.Sprintf(" @%d", l.Hold)
	}
	return state
}

var (
	Slot       = slot
	ParseTaken = parseTaken
)

// Reach makes sure that a Bucket has a connection for a key, as its first call does.
func Reach(ctx context.Context, b *Bucket, key string) error { return b.reach(ctx, b.prefix+key) }

// SeatsAt and KeepAt are the calls at a reading of the clock.
func SeatsAt(ctx context.Context, b *Bucket, q shared.Seating, now int64) (shared.Seated, error) {
	return b.seats(ctx, q, now)
}

func KeepAt(ctx context.Context, b *Bucket, k shared.Keeping, now int64) (shared.Kept, error) {
	return b.keep(ctx, k, now)
}

// SeatsName and KeeperName return the names of what is kept for a key beside its level.
func SeatsName(b *Bucket, key string) string  { return b.beside(seatsOf, key) }
func KeeperName(b *Bucket, key string) string { return b.beside(keeperOf, key) }

// EncodeSeats returns the fields of a state of seats that a run of a server has written.
func EncodeSeats(s shared.SeatState, run string) map[string]string {
	fields := map[string]string{"": fmt.Sprint(s.Ready, " ", run)}
	for _, h := range s.Holders {
		fields[h.ID] = fmt.Sprint(h.Held, " ", h.Want, " ", h.Since, " ", h.Expires, " ", h.Number)
	}
	return fields
}

// EncodeKeeper returns the fields of the state of a kept key.
func EncodeKeeper(s shared.KeepState) map[string]string {
	keeper := ""
	if s.ID != "" || s.Lease != 0 || s.Ends != 0 {
		keeper = fmt.Sprint(s.Ends, " ", s.Lease.Microseconds(), " ", s.ID)
	}
	if s.Lease%time.Microsecond != 0 {
		keeper = "damaged"
	}
	return map[string]string{"keeper": keeper, "value": string(s.Value)}
}
