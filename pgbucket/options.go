package pgbucket

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

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
// in quotes. The functions of the table are called by its name and _step or _take.
func WithTable(name string) Option { return tableOption(name) }

// names matches the names that SQL has for the default table.
var names = regexp.MustCompile(`\bleaky_buckets(_step|_take)?\b`)

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
