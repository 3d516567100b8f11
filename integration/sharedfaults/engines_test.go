package sharedfaults_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/pgbucket"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper/shared"
)

// openBucket returns the shared bucket of a plan, and a function that closes it.
func openBucket(p plan) (b shared.Bucket, closeBucket func(), err error) {
	if !strings.HasPrefix(p.Addr, "postgres:") {
		// MaxRetries is what users have by default: the client would repeat what may be repeated.
		client := redis.NewClient(&redis.Options{
			Addr: p.Addr, ContextTimeoutEnabled: true, DialTimeout: time.Second, DialerRetries: 1,
			ReadTimeout: patience, WriteTimeout: patience, // of calls without a deadline
		})
		return redisbucket.New(client), func() { client.Close() }, nil
	}
	config, err := pgxpool.ParseConfig(p.Addr)
	if err != nil {
		return nil, nil, err
	}
	config.MaxConns = 4
	config.ConnConfig.ConnectTimeout = 10 * time.Second // A busy server needs a second for a new process.
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, nil, err
	}
	return pgbucket.New(pool), pool.Close, nil
}

// startPostgres starts a server which has the table of pgbucket.
func startPostgres(t *testing.T) *servers.Postgres {
	t.Helper()
	db := servers.StartPostgres(t, "-c", "max_connections=200")
	onConnection(t, db, func(conn *pgx.Conn) error { return pgbucket.Migrate(t.Context(), conn) })
	return db
}

// onConnection does something on a connection of its own to a server.
func onConnection(t *testing.T, db *servers.Postgres, do func(conn *pgx.Conn) error) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	require.NoError(t, do(conn))
}
