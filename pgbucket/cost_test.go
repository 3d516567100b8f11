package pgbucket_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
)

// An update that touches an index leaves an old entry behind in it, and the table and the
// index grow until they are vacuumed. It is not parallel: an open transaction of another test keeps old rows.
func TestTakesUpdateNoIndex(t *testing.T) {
	bucket := newBucket(t)
	const keys, each = 40, 20
	for range each {
		for key := range keys {
			_, err := bucket.Take(t.Context(), one(fmt.Sprint("user:", key), every(1)))
			require.NoError(t, err)
		}
	}
	bucket.pool.Close() // A session tells of its updates when it ends.
	conn := newConn(t, server.URL)
	var updates, hot int
	realtime.Until(t, func() bool {
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = $1", bucket.name).Scan(&updates, &hot))
		return updates >= keys*each
	}, "the sessions tell")
	t.Logf("%d of %d updates were HOT", hot, updates)
	require.GreaterOrEqual(t, hot, updates*99/100)
	require.LessOrEqual(t, value[int](t, conn, bucket.name, "SELECT pg_relation_size('TBL') / 8192"), 8)
}
