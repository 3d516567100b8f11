package pgbucket

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	if err := checkSeating(q); err != nil {
		return shared.Seated{}, err
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

// checkSeating returns why a Seating can't be asked for.
func checkSeating(q shared.Seating) error {
	const mostSeats, most = 1<<31 - 1, 1 << 53
	switch {
	case q.Key == "":
		return errors.New("pgbucket: the key is empty")
	case q.ID == "":
		return errors.New("pgbucket: the ID is empty")
	case q.Cap < 1 || q.Cap > mostSeats:
		return fmt.Errorf("pgbucket: Cap is %d, must be from 1 to 2³¹ − 1", q.Cap)
	case q.Held < 0 || q.Held > mostSeats:
		return fmt.Errorf("pgbucket: Held is %d, must be from 0 to 2³¹ − 1", q.Held)
	case q.Want < 0 || q.Want > mostSeats:
		return fmt.Errorf("pgbucket: Want is %d, must be from 0 to 2³¹ − 1", q.Want)
	case q.Number < 0 || q.Number > most:
		return fmt.Errorf("pgbucket: Number is %d, must be from 0 to 2⁵³", q.Number)
	case q.Answered < 0 || q.Answered > q.Number:
		return fmt.Errorf("pgbucket: Answered is %d, must be from 0 to Number, which is %d", q.Answered, q.Number)
	}
	return nil
}

const keepSQL = `SELECT keeper, own, last_value, clock FROM leaky_buckets_keep($1, $2, $3, $4, $5)`

// Keep implements [shared.Keeper].
func (b *Bucket) Keep(ctx context.Context, k shared.Keeping) (shared.Kept, error) {
	return b.keepAt(ctx, k, 0)
}

// keepAt is Keep at a reading of the clock, which tests choose; 0 stands for the server's.
func (b *Bucket) keepAt(ctx context.Context, k shared.Keeping, clock int64) (kept shared.Kept, err error) {
	if err := checkKeeping(k); err != nil {
		return shared.Kept{}, err
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

// checkKeeping returns why a Keeping can't be asked for.
func checkKeeping(k shared.Keeping) error {
	switch {
	case k.Key == "":
		return errors.New("pgbucket: the key is empty")
	case k.ID == "":
		return errors.New("pgbucket: the ID is empty")
	case k.Lease < 0 || k.Lease > time.Minute || k.Lease%time.Millisecond != 0:
		return fmt.Errorf("pgbucket: Lease is %v, must be whole milliseconds from 0 to a minute", k.Lease)
	case len(k.Value) > 1<<20:
		return fmt.Errorf("pgbucket: Value has %d bytes, may have 1 MiB", len(k.Value))
	}
	return nil
}
