package pgbucket

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/leakybucket/shaper/shared"
)

// A DB runs statements: a [*pgxpool.Pool], a [*pgx.Conn] or a [pgx.Tx]. A [Bucket] uses the
// last two for one call at a time; nothing else may use them meanwhile. Neither is for a service:
// if a call's context ends before its answer, pgx closes the connection, and all later calls fail.
// Any other DB must be safe for concurrent use, and must run no statement twice.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// A Bucket is a [shared.Bucket], a [shared.Seater] and a [shared.Keeper] in tables of PostgreSQL. New returns one, and [Migrate]
// makes the tables; use the Bucket with shaper.WithBucket or shaper.WithBuckets, and
// call Sweep now and then if it has many keys. Where the server can't be asked, or refuses,
// each method returns its error; none of them tries again. A Bucket is safe for concurrent
// use.
type Bucket struct {
	db   DB
	turn chan struct{} // has room for the one call that uses db; nil if all may

	take, giveBack, sit, keep string // statements
	sweeps                    []sweep
	err                       error // the mistake in the options
}

var _ shared.Bucket = (*Bucket)(nil)

var errNoDB = errors.New("pgbucket: the DB is nil")

// New returns a [Bucket] whose levels are in a table that db leads to. Nothing is asked of
// the server yet. If an option is wrong, or db is nil, all methods return an error that
// says so.
func New(db DB, opts ...Option) *Bucket {
	o, err := newOptions(opts)
	b := &Bucket{
		db:       db,
		take:     o.inTable(takeSQL),
		giveBack: o.inTable(giveBackSQL),
		sit:      o.inTable(sitSQL),
		keep:     o.inTable(keepSQL),
		sweeps:   sweeps(o),
		err:      err,
	}
	switch db.(type) {
	case nil:
		b.err = cmp.Or(err, errNoDB)
	case *pgx.Conn, *pgxpool.Conn, pgx.Tx:
		b.turn = make(chan struct{}, 1)
	}
	return b
}

// Every statement is sent with its parameters in one round trip, and leaves no prepared
// statement behind: behind PgBouncer, the next one may reach another connection of the
// server. The Take is a function of the server, because planning it anew each time
// would cost too much: connections of the server keep the plans of functions.
const mode = pgx.QueryExecModeExec

const takeSQL = `
SELECT ok, asked, before, before_part, cold, version, unit, unit_part, parts, burst, hold - greatest(0, written - asked)
FROM leaky_buckets_ask($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)`

// Take implements [shared.Bucket].
func (b *Bucket) Take(ctx context.Context, t shared.Take) (taken shared.Taken, err error) {
	if err := b.enterWith(ctx, t); err != nil {
		return shared.Taken{}, err
	}
	defer b.leave()
	rise, room := t.Rise(), t.Room()
	var rate shared.BucketRate
	err = b.db.QueryRow(ctx, b.take, mode, column(t.Key),
		rise.Micros, rise.Part, room.Micros, room.Part, t.Ahead.Microseconds(),
		t.Rate.Version, t.Rate.Micros, t.Rate.Part, t.Rate.Parts, t.Rate.Burst,
		t.High.Micros, t.High.Part, t.Seen, t.Hold, t.Guard.Microseconds(), commitsAlone(b.db),
	).Scan(
		&taken.OK, &taken.Now, &taken.Empty.Micros, &taken.Empty.Part, &taken.Cold,
		&rate.Version, &rate.Micros, &rate.Part, &rate.Parts, &rate.Burst, &taken.Hold,
	)
	if err != nil {
		return shared.Taken{}, failed(ctx, err)
	}
	if taken.Hold <= taken.Now {
		taken.Hold = 0 // It has ended.
	}
	own := t.Rate
	if own.Version = rate.Version; rate != own {
		taken.Other = &rate
	}
	return taken, nil
}

// The row is found by its key alone, and all else is asked of the row that is locked.
const giveBackSQL = `
UPDATE leaky_buckets SET
	empty = empty - $2 - CASE WHEN empty_part < $3 THEN 1 ELSE 0 END,
	empty_part = empty_part - $3 + CASE WHEN empty_part < $3 THEN parts ELSE 0 END
WHERE key = $1 AND (empty, empty_part) = ($4, $5)
	AND (unit, unit_part, parts, burst) = ($6, $7, $8, $9)
RETURNING CASE WHEN $10 THEN set_config('synchronous_commit', 'off', true) END`

// GiveBack implements [shared.Bucket].
func (b *Bucket) GiveBack(ctx context.Context, t shared.Take, end shared.Instant) error {
	if err := b.enterWith(ctx, t); err != nil {
		return err
	}
	defer b.leave()
	rise := t.Rise()
	_, err := b.db.Exec(ctx, b.giveBack, mode, column(t.Key), rise.Micros, rise.Part, end.Micros, end.Part,
		t.Rate.Micros, t.Rate.Part, t.Rate.Parts, t.Rate.Burst, commitsAlone(b.db))
	if err != nil {
		return failed(ctx, err)
	}
	return nil
}

// enterWith is enter for a Take, which must be one that can be asked for. Those of package
// shaper can.
func (b *Bucket) enterWith(ctx context.Context, t shared.Take) error {
	r := t.Rate
	switch {
	case t.Key == "":
		return errors.New("pgbucket: the key is empty")
	case t.Cost < 1:
		return fmt.Errorf("pgbucket: the cost is %d, must be at least 1", t.Cost)
	case r.Parts < 1 || r.Parts > 1e12 || r.Part < 0 || r.Part >= r.Parts || r.Micros < 0 || r.Micros > 1<<51 ||
		r.Micros+r.Part == 0 || r.Burst < 1 || r.Version < 0 || r.Version > 1<<53:
		return fmt.Errorf("pgbucket: the rate %+v is none", r)
	}
	return b.enter(ctx)
}

// enter waits until db may be used. If it returns nil, leave must be called.
func (b *Bucket) enter(ctx context.Context) error {
	if b.err != nil || b.turn == nil {
		return b.err
	}
	select {
	case b.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *Bucket) leave() {
	if b.turn != nil {
		<-b.turn
	}
}

// commitsAlone reports whether each statement is a transaction of its own. Then its end need
// not wait until the disk has it, as the next Take makes up for a loss in a crash. A
// transaction of the caller's ends as the caller wants it.
func commitsAlone(db DB) bool {
	switch db := db.(type) {
	case *pgxpool.Pool:
		return true
	case *pgx.Conn:
		return db.PgConn().TxStatus() == 'I' // idle
	case *pgxpool.Conn:
		return db.Conn().PgConn().TxStatus() == 'I'
	}
	return false
}

// longestKey is the length from which a column has a hash in place of the rest of the key:
// an entry of an index can't have more than about 2,700 bytes.
const longestKey = 512

// column returns a key as it is in the table. Keys are bytes there, because not every string
// is a text for PostgreSQL; where a key has bytes that a client has sent, the client could
// cause an error.
func column(key string) []byte {
	if len(key) <= longestKey {
		return []byte(key)
	}
	sum := sha256.Sum256([]byte(key))
	return append([]byte(key[:longestKey]), sum[:]...)
}

// failed returns the error of a method for one of the [DB].
func failed(ctx context.Context, err error) error {
	switch e, ok := errors.AsType[*pgconn.PgError](err); {
	case ctx.Err() != nil:
		return ctx.Err()
	case ok && (e.Code == undefinedTable || e.Code == undefinedFunction):
		return fmt.Errorf("pgbucket: %w; has Migrate been called?", err)
	}
	return fmt.Errorf("pgbucket: %w", err)
}

const undefinedTable, undefinedFunction = "42P01", "42883"

// An Option is an option of [New], [Migrate] and [Schema].
type Option interface{ apply(*options) }

type options struct{ table string }

func newOptions(opts []Option) (options, error) {
	o := options{table: defaultTable}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if !tableName.MatchString(o.table) {
		return o, fmt.Errorf("pgbucket: WithTable(%q): must be a name, or a schema's and a name with a dot between, of letters, digits and _; the name may have %d of them", o.table, longestName)
	}
	return o, nil
}

const defaultTable = "leaky_buckets"

// longestName leaves room for the endings of the names of functions.
const longestName = 58

var tableName = regexp.MustCompile(`^(?:[A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,57}$`)

type tableOption string

func (t tableOption) apply(o *options) { o.table = string(t) }

// WithTable sets the name of the table; the default is leaky_buckets, which is looked for
// in the search path of the connection. A name may begin with the name of a schema and a
// dot: "limits.buckets". Letters keep their case: "Buckets" is what SQL calls "Buckets"
// in quotes. The functions are called by its name and _ask, _step, _take, _sit or _keep, and the tables of seats and
// keepers by its name and _seat or _kept.
func WithTable(name string) Option { return tableOption(name) }

// names matches the names that SQL has for the default table.
var names = regexp.MustCompile(`\bleaky_buckets(_ask|_step|_take|_seat|_sit|_kept|_keep)?\b`)

// inTable returns sql, which is for the default table, for the table of the options.
func (o options) inTable(sql string) string {
	schema, table, ok := strings.Cut(o.table, ".")
	if !ok {
		schema, table = "", schema
	}
	return names.ReplaceAllStringFunc(sql, func(name string) string {
		id := pgx.Identifier{table + strings.TrimPrefix(name, defaultTable)}
		if schema != "" {
			id = append(pgx.Identifier{schema}, id...)
		}
		return id.Sanitize()
	})
}

// sweepSQL returns the statement that deletes the rows of a table in which a time is so long ago. A page of keys is one
// statement and one transaction, so that no Take waits for long for a row that goes. Rows that others have locked are in
// use, and are not waited for. What is asked of a row is asked again once it is locked.
func sweepSQL(table, column, age string) string {
	return strings.NewReplacer("TBL", table, "COL", column, "AGE", age).Replace(`
WITH page AS MATERIALIZED (
	SELECT key FROM TBL WHERE key > $1 ORDER BY key LIMIT 1000
), old AS MATERIALIZED (
	SELECT b.key FROM TBL AS b JOIN page ON b.key = page.key
	WHERE b.COL < extract(epoch FROM statement_timestamp() - interval 'AGE') * 1000000
	FOR UPDATE OF b SKIP LOCKED
), gone AS (
	DELETE FROM TBL AS b USING old WHERE b.key = old.key RETURNING 1
)
SELECT (SELECT count(*) FROM gone), (SELECT key FROM page ORDER BY key DESC LIMIT 1),
	CASE WHEN $2 THEN set_config('synchronous_commit', 'off', true) END`)
}

// A sweep says what [Bucket.Sweep] does with a table.
type sweep struct {
	may    string // asks whether the role may; "" if that is not asked, as an error says it
	delete string
}

func sweeps(o options) []sweep {
	beside := func(table string) sweep {
		return sweep{
			may: o.inTable(`SELECT coalesce(bool_and(has_table_privilege(to_regclass(` + quoted(table) + `), p)), false)
				FROM unnest(ARRAY['SELECT', 'UPDATE', 'DELETE']) AS p`),
			delete: o.inTable(sweepSQL(table, "written", "1 day")),
		}
	}
	return []sweep{
		{delete: o.inTable(sweepSQL("leaky_buckets", "empty", "1 minute"))},
		beside("leaky_buckets_seat"), beside("leaky_buckets_kept"),
	}
}

// Sweep deletes the rows of levels that reached 0 a minute ago or earlier, and those of seats and keepers that were
// written a day ago or earlier, and returns how many. Without it, each key that has ever been used keeps its row, of about
// 200 bytes. Sweep reads the whole tables, a thousand rows in each transaction, and disturbs no Take; call it
// once an hour, say, from one of the processes. Where its role may not delete the rows of seats and keepers, or
// has no table of them because [Migrate] has not been called since, it leaves these out.
//
// If it returns an error, the rows before that are gone nevertheless.
func (b *Bucket) Sweep(ctx context.Context) (deleted int64, err error) {
	if err := b.enter(ctx); err != nil {
		return 0, err
	}
	defer b.leave()
	for _, s := range b.sweeps {
		may := s.may == ""
		if !may {
			if err := b.db.QueryRow(ctx, s.may, mode).Scan(&may); err != nil {
				return deleted, failed(ctx, err)
			}
		}
		for last := []byte{}; may && last != nil; {
			var n int64
			var ignored *string
			err := b.db.QueryRow(ctx, s.delete, mode, last, commitsAlone(b.db)).Scan(&n, &last, &ignored)
			if err != nil {
				return deleted, failed(ctx, err)
			}
			deleted += n
		}
	}
	return deleted, nil
}

//go:embed schema.sql
var schema string

// Schema returns the SQL that makes the tables of a [Bucket] and their functions, for those who
// apply such changes with a tool of their own. It is schema.sql, with the name of
// [WithTable]. If an option is wrong, it returns "".
func Schema(opts ...Option) string {
	o, err := newOptions(opts)
	if err != nil {
		return ""
	}
	return o.inTable(schema)
}

// Migrate makes the tables of a [Bucket] and their functions, unless they are there, and
// replaces functions that an older version of this package has made. Those of a newer
// version stay. Each process may call it whenever it starts, and several at once; only the
// one that makes or replaces something needs the right to do so. All is done in one
// transaction, which is db's if that is a [pgx.Tx].
func Migrate(ctx context.Context, db DB, opts ...Option) error {
	o, err := newOptions(opts)
	if err == nil && db == nil {
		err = errNoDB
	}
	if err != nil {
		return err
	}
	if _, err := db.Exec(ctx, o.migration(), pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("pgbucket: Migrate: %w", err)
	}
	return nil
}

// migration returns one statement that runs the [Schema] if that is needed. Sessions that run
// it at once wait for each other, because CREATE … IF NOT EXISTS fails where two create the
// same thing; whoever has waited looks again. The number of the lock is arbitrary. What
// exists is looked for first, because CREATE needs the right to do so even if it then has
// nothing to do.
func (o options) migration() string {
	found := `coalesce(substring(obj_description(to_regproc(` + quoted("leaky_buckets_take") + `), 'pg_proc') FROM '^pgbucket v([0-9]+)$')::int, 0)`
	needed := `to_regclass(` + quoted("leaky_buckets") + `) IS NULL OR ` + found + ` < ` + version + ` OR ` + found + ` = ` + version + ` AND (false`
	for _, name := range []string{"leaky_buckets_seat", "leaky_buckets_kept"} {
		needed += ` OR to_regclass(` + quoted(name) + `) IS NULL`
	}
	for _, name := range []string{"leaky_buckets_ask", "leaky_buckets_step", "leaky_buckets_sit", "leaky_buckets_keep"} {
		needed += ` OR to_regproc(` + quoted(name) + `) IS NULL`
	}
	needed += `)`
	return `DO ` + quoted(o.inTable(`
BEGIN
	IF `+needed+` THEN
		PERFORM pg_advisory_xact_lock(7346925168);
		IF `+needed+` THEN
			`+schema+`
		END IF;
	END IF;
END`))
}

// version is the version of the functions in the schema.
var version = regexp.MustCompile(`IS 'pgbucket v([0-9]+)';`).FindStringSubmatch(schema)[1]

// quoted returns a constant of SQL for a text without backslashes.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
