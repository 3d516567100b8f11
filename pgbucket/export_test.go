package pgbucket

import (
	"context"

	"example.com/leakybucket/shaper/shared"
)

var Column = column

// SeatsAt and KeepAt are the calls at a reading of the clock.
func SeatsAt(ctx context.Context, b *Bucket, q shared.Seating, now int64) (shared.Seated, error) {
	return b.seats(ctx, q, now)
}

func KeepAt(ctx context.Context, b *Bucket, k shared.Keeping, now int64) (shared.Kept, error) {
	return b.keepAt(ctx, k, now)
}
