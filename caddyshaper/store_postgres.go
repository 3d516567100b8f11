package caddyshaper

import (
	"context"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/leakybucket/pgbucket"
)

const (
	migrateEvery = 5 * time.Second // until the server can be asked
	sweepEvery   = time.Hour
)

// postgres is a server of PostgreSQL.
func postgres(u *url.URL) (opener, error) {
	config, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		return nil, err
	}
	return func(log *slog.Logger) *store {
		ctx, cancel := context.WithCancel(context.Background())
		db, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			// ParseConfig has made the config, and nothing is asked of the server yet.
			panic("caddyshaper: pgxpool refuses a config of its own: " + redact(u.String(), err).Error())
		}
		bucket := pgbucket.New(db)
		var work sync.WaitGroup
		keep := func() { keepTable(ctx, db, bucket, log.With("store", shown(u))) }
		return &store{bucket: bucket, work: func() { work.Go(keep) }, end: func() {
			cancel()
			work.Wait()
			db.Close()
		}}
	}, nil
}

// keepTable makes the table as soon as the server can be asked, and removes old rows from it
// now and then, until the context ends.
func keepTable(ctx context.Context, db *pgxpool.Pool, bucket *pgbucket.Bucket, log *slog.Logger) {
	text := db.Config().ConnString()
	for {
		err := pgbucket.Migrate(ctx, db)
		if err == nil {
			break
		}
		log.Warn("the table of the store could not be made; tried again", "in", migrateEvery, "error", redact(text, err))
		if !sleep(ctx, migrateEvery) {
			return
		}
	}
	for sleep(ctx, sweepEvery) {
		if _, err := bucket.Sweep(ctx); err != nil {
			log.Warn("old rows of the store could not be removed", "error", redact(text, err))
		}
	}
}

// sleep reports whether the context has not ended in a time.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
