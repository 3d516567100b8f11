package pgbucket

import (
	"context"
	_ "embed"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed schema.sql
var schema string

// Schema returns the SQL that makes the table of a [Bucket] and its functions, for those who
// apply such changes with a tool of their own. It is schema.sql, with the name of
// [WithTable]. If an option is wrong, it returns "".
func Schema(opts ...Option) string {
	o, err := newOptions(opts)
	if err != nil {
		return ""
	}
	return o.inTable(schema)
}

// Migrate makes the table of a [Bucket] and its functions, unless they are there, and
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
	needed := `to_regclass(` + quoted("leaky_buckets") + `) IS NULL OR ` + found + ` < ` + version +
		` OR ` + found + ` = ` + version + ` AND to_regproc(` + quoted("leaky_buckets_step") + `) IS NULL`
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
