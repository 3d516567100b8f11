package redisbucket

import (
	"context"
	_ "embed" // for the scripts
	"fmt"
	"strconv"
	"strings"

	"example.com/leakybucket/shaper/shared"
)

var (
	_, _ shared.Seater = (*Bucket)(nil), (*Ring)(nil)
	_, _ shared.Keeper = (*Bucket)(nil), (*Ring)(nil)
)

//go:embed seats.lua
var seatsText string

//go:embed keep.lua
var keepText string

var seatsScript, keepScript = newScript(seatsText), newScript(keepText)

// seatsOf and keeperOf begin the names of what is kept for a key beside its level. Names of levels begin with the prefix. So
// keys, which clients often choose, can't make a level of one key the seats of another.
const seatsOf, keeperOf = "seats:", "keeper:"

// beside returns the name of what is kept for a key beside its level. In a cluster it is in the slot of the level, so
// that both fail together ([Bucket.Shard]); keys with a brace that has no partner may be in another.
func (b *Bucket) beside(what, key string) string {
	name := b.prefix + key
	if strings.ContainsAny(name, "{}") {
		return what + name
	}
	return what + "{" + name + "}"
}

// askable returns why a question can't be asked for.
func (b *Bucket) askable(q interface{ Check() error }) error {
	if b.invalid != nil {
		return b.invalid
	}
	if err := q.Check(); err != nil {
		return fmt.Errorf("redisbucket: %w", err)
	}
	return nil
}

// Seats implements [shared.Seater].
func (b *Bucket) Seats(ctx context.Context, q shared.Seating) (shared.Seated, error) {
	return b.seats(ctx, q, 0)
}

// seats is Seats at a reading of the clock, which tests choose; 0 stands for the server's.
func (b *Bucket) seats(ctx context.Context, q shared.Seating, clock int64) (s shared.Seated, err error) {
	if err := b.askable(q); err != nil {
		return shared.Seated{}, err
	}
	name := b.beside(seatsOf, q.Key)
	answer, err := b.run(ctx, seatsScript, name, []any{
		clock, q.ID, q.Cap, q.Held, q.Want, q.Number, q.Answered,
		shared.SeatLease.Microseconds(), 2 * shared.SeatPoll.Microseconds(), shared.SeatGuard.Microseconds(),
	})
	if err := b.failed(ctx, name, err); err != nil {
		return shared.Seated{}, err
	}
	text, _ := answer.(string)
	if _, err := fmt.Sscanf(text, "%d %d %d", &s.Held, &s.Target, &s.Now); err != nil {
		return shared.Seated{}, fmt.Errorf("redisbucket: the answer of the script is %v", answer)
	}
	return s, nil
}

// Keep implements [shared.Keeper].
func (b *Bucket) Keep(ctx context.Context, k shared.Keeping) (shared.Kept, error) {
	return b.keep(ctx, k, 0)
}

// keep is Keep at a reading of the clock, which tests choose; 0 stands for the server's.
func (b *Bucket) keep(ctx context.Context, k shared.Keeping, clock int64) (shared.Kept, error) {
	if err := b.askable(k); err != nil {
		return shared.Kept{}, err
	}
	name := b.beside(keeperOf, k.Key)
	answer, err := b.run(ctx, keepScript, name, []any{clock, k.ID, k.Lease.Microseconds(), k.Value})
	if err := b.failed(ctx, name, err); err != nil {
		return shared.Kept{}, err
	}
	kept, ok := parseKept(answer, k)
	if !ok {
		return shared.Kept{}, fmt.Errorf("redisbucket: the answer of the script is %v", answer)
	}
	return kept, nil
}

// parseKept parses the answer of the script: who keeps the key, the clock, and the value, unless that is the one of the
// question.
func parseKept(answer any, k shared.Keeping) (kept shared.Kept, ok bool) {
	parts, _ := answer.([]any)
	var texts [3]string
	for i, p := range parts {
		if text, ok := p.(string); ok && i < len(texts) {
			texts[i] = text
		} else if p != nil || i != 2 {
			return shared.Kept{}, false
		}
	}
	now, err := strconv.ParseInt(texts[1], 10, 64)
	kept = shared.Kept{ID: texts[0], Value: k.Value, Now: now}
	if len(parts) == 3 {
		kept.Value = append([]byte(nil), texts[2]...)
	}
	return kept, err == nil && len(parts) >= 2
}
