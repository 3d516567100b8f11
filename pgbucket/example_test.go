package pgbucket_test

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/leakybucket/pgbucket"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

// newPayments is what docs/shared.md points at: one rate for all processes that use the database.
func newPayments(ctx context.Context, pool *pgxpool.Pool) (*shaper.Shaper, *pgbucket.Bucket, error) {
	if err := pgbucket.Migrate(ctx, pool); err != nil { // makes the table, unless it is there
		return nil, nil, err
	}
	bucket := pgbucket.New(pool)
	s, err := shaper.New(shaper.Limits{Rate: 50, Depth: 100}, shaper.WithBucket(bucket, "payments-api", shared.Options{}))
	return s, bucket, err
}

// sweepNow is the same for the rows of keys that nobody uses any more.
func sweepNow(ctx context.Context, bucket *pgbucket.Bucket) (int64, error) {
	deleted, err := bucket.Sweep(ctx) // once an hour, from one of the processes
	return deleted, err
}
