package pgbucket

import "context"

// A page of keys is one statement and one transaction, so that no Take waits for long for
// a row that goes. Rows that others have locked are in use, and are not waited for. What is
// asked of a row is asked again once it is locked.
const sweepSQL = `
WITH page AS MATERIALIZED (
	SELECT key FROM leaky_buckets WHERE key > $1 ORDER BY key LIMIT 1000
), drained AS MATERIALIZED (
	SELECT b.key FROM leaky_buckets AS b JOIN page ON b.key = page.key
	WHERE b.empty < extract(epoch FROM statement_timestamp() - interval '1 minute') * 1000000
	FOR UPDATE OF b SKIP LOCKED
), gone AS (
	DELETE FROM leaky_buckets AS b USING drained WHERE b.key = drained.key RETURNING 1
)
SELECT (SELECT count(*) FROM gone), (SELECT key FROM page ORDER BY key DESC LIMIT 1),
	CASE WHEN $2 THEN set_config('synchronous_commit', 'off', true) END`

// Sweep deletes the rows of levels that reached 0 a minute ago or earlier, and returns how
// many. Without it, each key that has ever been used keeps its row, of about 200 bytes. Sweep
// reads the whole table, a thousand rows in each transaction, and disturbs no Take; call it
// once an hour, say, from one of the processes.
//
// If it returns an error, the rows before that are gone nevertheless.
func (b *Bucket) Sweep(ctx context.Context) (deleted int64, err error) {
	if err := b.enter(ctx); err != nil {
		return 0, err
	}
	defer b.leave()
	for last := []byte{}; last != nil; {
		var n int64
		var ignored *string
		err := b.db.QueryRow(ctx, b.sweep, mode, last, commitsAlone(b.db)).Scan(&n, &last, &ignored)
		if err != nil {
			return deleted, failed(ctx, err)
		}
		deleted += n
	}
	return deleted, nil
}
