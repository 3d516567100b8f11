package pgbucket

import (
	"context"
	"fmt"

	"example.com/leakybucket/shaper/shared"
)

var (
	_ shared.Seater = (*Bucket)(nil)
	_ shared.Keeper = (*Bucket)(nil)
)

const sitSQL = `SELECT granted, target, clock FROM leaky_buckets_sit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`

// Seats implements [shared.Seater].
func (b *Bucket) Seats(ctx context.Context, q shared.Seating) (shared.Seated, error) {
	return b.seats(ctx, q, 0)
}

// seats is Seats at a reading of the clock, which tests choose; 0 stands for the server's.
func (b *Bucket) seats(ctx context.Context, q shared.Seating, clock int64) (s shared.Seated, err error) {
	if err := q.Check(); err != nil {
		return shared.Seated{}, fmt.Errorf("pgbucket: %w", err)
	}
	if err := b.enter(ctx); err != nil {
		return shared.Seated{}, err
	}
	defer b.leave()
	err = b.db.QueryRow(ctx, b.sit, mode, column(q.Key), []byte(q.ID), int64(q.Cap), int64(q.Held), int64(q.Want), q.Number, q.Answered,
		shared.SeatLease.Microseconds(), 2*shared.SeatPoll.Microseconds(), shared.SeatGuard.Microseconds(), clock,
	).Scan(&s.Held, &s.Target, &s.Now)
	if err != nil {
		return shared.Seated{}, failed(ctx, err)
	}
	return s, nil
}

const keepSQL = `SELECT keeper, own, last_value, clock FROM leaky_buckets_keep($1, $2, $3, $4, $5)`

// Keep implements [shared.Keeper].
func (b *Bucket) Keep(ctx context.Context, k shared.Keeping) (shared.Kept, error) {
	return b.keepAt(ctx, k, 0)
}

// keepAt is Keep at a reading of the clock, which tests choose; 0 stands for the server's.
func (b *Bucket) keepAt(ctx context.Context, k shared.Keeping, clock int64) (kept shared.Kept, err error) {
	if err := k.Check(); err != nil {
		return shared.Kept{}, fmt.Errorf("pgbucket: %w", err)
	}
	if err := b.enter(ctx); err != nil {
		return shared.Kept{}, err
	}
	defer b.leave()
	var keeper []byte
	var own bool
	err = b.db.QueryRow(ctx, b.keep, mode, column(k.Key), []byte(k.ID), k.Lease.Microseconds(), k.Value, clock).
		Scan(&keeper, &own, &kept.Value, &kept.Now)
	if err != nil {
		return shared.Kept{}, failed(ctx, err)
	}
	if kept.ID = string(keeper); own {
		kept.Value = k.Value
	}
	return kept, nil
}
