// Package pgbucket keeps the levels of shared buckets in a table of PostgreSQL, by way of
// pgx:
//
//	pool, err := pgxpool.New(ctx, "postgres://…?target_session_attrs=read-write")
//	err = pgbucket.Migrate(ctx, pool) // once, or whenever a process starts
//	bucket := pgbucket.New(pool)
//	s, err := shaper.New(limits, shaper.WithBucket(bucket, "payments-api", shared.Options{}))
//
// Each step is one statement and one round trip. It is carried out wholly or not at all,
// on the server's clock; the clocks of the processes do not count. Numbers are exact: the
// statement answers what [shared.Take.Apply] would, to the last part of a microsecond.
//
// # The stored state
//
// [Migrate] makes a table, leaky_buckets unless [WithTable] names another, two more for seats and keepers, and
// functions. Its SQL is schema.sql in this folder; [Schema] returns it, for those who have
// a tool for such changes. A role that is not the owner needs no more than
//
//	GRANT SELECT, INSERT, UPDATE, DELETE ON leaky_buckets, leaky_buckets_seat, leaky_buckets_kept TO role
//
// where DELETE is for [Bucket.Sweep], and the other tables are for seats and keepers alone. There is a row of about 200 bytes for each key. It
// stays until a Sweep finds that its level has been 0 for a minute; so with a key for each
// user call Sweep once an hour or so. A row whose numbers make no sense counts as none.
//
// Processes of an older version go on when a newer one calls Migrate, and this one does where only an older version has:
// then it has no seats and no keepers.
//
// Keys are bytes, as not every string is a text for PostgreSQL; to read them,
//
//	SELECT encode(key, 'escape'), to_timestamp(empty / 1e6) AS empty FROM leaky_buckets
//
// A key of more than 512 bytes has a hash in place of the bytes behind these.
//
// # Seats and keepers
//
// A [Bucket] is a [shared.Seater] and a [shared.Keeper] too, each by one statement that answers what
// [shared.Seating.Apply] and [shared.Keeping.Apply] would. Each key that has them has a row in leaky_buckets_seat of some 200 bytes
// and 60 more for each process, or in leaky_buckets_kept. A row counts for a day after it was written, and then goes with a Sweep.
//
// The table of seats is UNLOGGED: a crash or a fail-over empties it, and seats are given again after [shared.SeatGuard];
// whoever has some keeps them. A row that came back from before the crash would show seats as free that are in use. A
// keeper's row is on the disk before the call returns, whatever [Bucket.Take] does with synchronous_commit: if it were lost, two
// processes could keep the key. A standby that follows asynchronously may still lose it, in a fail-over.
//
// # The server
//
// The package is tested with PostgreSQL 15, and uses nothing newer than 12. The defaults
// will do. These settings matter:
//
//   - synchronous_commit need not be changed: [Bucket.Take] turns it off for itself, as a
//     crash then loses only the Takes of less than the last second. On a disk that has to be waited
//     for, that is several times faster. Nothing else of the session is changed, and a
//     transaction of yours ends as you want it. Only for a [DB] of a type of your own, of
//     which the package can't know whether it is in a transaction, set synchronous_commit
//     to off for its role or connections.
//   - The table may be made UNLOGGED (ALTER TABLE leaky_buckets SET UNLOGGED). Then Takes
//     write no log, but a crash, and a fail-over to a standby, empties it. Processes that still run
//     put the levels right that they know (High of [shared.Take]). A level lasts Burst/Rate: with a
//     burst above 1, if that is longer than a restart takes, as for logins, the table must not be
//     UNLOGGED.
//   - default_transaction_isolation must be read committed, as it is by default. Otherwise
//     sessions that take from one key at once get errors, though nothing is taken wrongly.
//   - lock_timeout, at some 200 ms, ends a Take that waits for a row which a transaction of
//     somebody else's holds. A Take whose context ends is canceled on the server too, but
//     that takes a connection more.
//   - A transaction that is open for long anywhere in the database (a dump, a forgotten
//     session) keeps VACUUM from removing old versions of rows. For each 10,000 Takes of
//     one key meanwhile, a Take of it gets slower by some 0.2 ms, until it ends.
//   - The clock of the server should be slewed by NTP rather than stepped.
//
// A server that only reads is an error; target_session_attrs=read-write lets pgx find the
// one that writes, after a fail-over too.
//
// # Connections
//
// A Take needs a connection for about as long as a round trip, and there is one Take at a
// time for each key and process. So a few connections serve many keys; but a pool whose
// connections are all at work for long makes Takes wait, and they fail as if the server
// were down. A pool of its own keeps buckets from that. pgxpool pings a connection that was
// idle for a second before it uses it, which is one more round trip; ShouldPing of its
// Config can forbid that.
//
// PgBouncer may stand between, in transaction mode too: the package prepares no statements
// and leaves nothing behind in a session, whatever the mode of the pool.
//
// With a [pgx.Tx] units are taken when the transaction is committed. Until then it holds the rows,
// and all other processes wait for them. That is for tests that roll back, and for transactions
// that end at once.
//
// # When an answer is lost
//
// A Take whose answer does not come may have been carried out, so it must not be sent again: its
// units would be taken twice, as a question for seats would overtake a later one. Neither the package nor pgx sends a statement twice. A DB that does
// so must not be used.
package pgbucket
