package pgbucket_test

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/pgbucket"
	"example.com/leakybucket/shaper/shared"
)

// A fakeClock is a function of the server's that stands in for clock_timestamp in the
// sessions whose search path has it before that.
type fakeClock struct {
	conn *pgx.Conn
	t    *testing.T
}

func newFakeClock(t *testing.T) fakeClock {
	conn := newConn(t, startServer(t).URL+"&search_path=fake,public,pg_catalog")
	exec(t, conn, "", "CREATE SCHEMA IF NOT EXISTS fake")
	exec(t, conn, "", `CREATE OR REPLACE FUNCTION fake.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
		$$ SELECT timestamptz 'epoch' + current_setting('fake.now')::bigint * interval '1 microsecond' $$`)
	return fakeClock{conn, t}
}

func (c fakeClock) set(now int64) {
	exec(c.t, c.conn, "", "SELECT set_config('fake.now', $1, false)", strconv.FormatInt(now, 10))
}

// levelOf returns the state of a key.
func levelOf(t *testing.T, db pgbucket.DB, table, key string) (l shared.BucketLevel) {
	t.Helper()
	err := db.QueryRow(t.Context(), "SELECT empty, empty_part, written, version, unit, unit_part, parts, burst FROM "+table+" WHERE key = $1", []byte(key)).
		Scan(&l.Empty.Micros, &l.Empty.Part, &l.At, &l.Rate.Version, &l.Rate.Micros, &l.Rate.Part, &l.Rate.Parts, &l.Rate.Burst)
	if err != pgx.ErrNoRows {
		require.NoError(t, err)
	}
	return l
}

// setLevel sets the state of a key.
func setLevel(t *testing.T, db pgbucket.DB, table, key string, l shared.BucketLevel) {
	t.Helper()
	exec(t, db, table, `INSERT INTO TBL (key, empty, empty_part, written, version, unit, unit_part, parts, burst) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
		ON CONFLICT (key) DO UPDATE SET (empty, empty_part, written, version, unit, unit_part, parts, burst) = ($2, $3, $4, $5, $6, $7, $8, $9)`,
		[]byte(key), l.Empty.Micros, l.Empty.Part, l.At, l.Rate.Version, l.Rate.Micros, l.Rate.Part, l.Rate.Parts, l.Rate.Burst)
}

// A play is a random game with one key: what is asked, and what the state is.
type play struct {
	*rand.Rand
	now     int64
	version int64
	rates   []shared.BucketRate
}

func (p *play) rate() shared.BucketRate {
	if p.IntN(30) == 0 && len(p.rates) > 0 {
		r := p.rates[len(p.rates)-1] // of a process that was started later
		p.version++
		r.Version = p.version
		p.rates = append(p.rates, r)
	}
	if p.IntN(30) == 0 || len(p.rates) == 0 {
		p.version += p.Int64N(3) // 0: other numbers under the same version
		parts := []int64{1, 3, 7, 1000, 1_000_000_000_000}[p.IntN(5)]
		p.rates = append(p.rates, shared.BucketRate{
			Version: p.version, Micros: 1 + p.Int64N(1<<p.IntN(40)), Part: p.Int64N(parts), Parts: parts, Burst: 1 + p.Int64N(1<<p.IntN(20)),
		})
	}
	if p.IntN(20) == 0 {
		return p.rates[p.IntN(len(p.rates))] // that of an old process
	}
	if p.IntN(20) == 0 {
		r := p.rates[len(p.rates)-1] // of an old process that has the same numbers
		r.Version = max(0, r.Version-1)
		return r
	}
	return p.rates[len(p.rates)-1]
}

// damaged returns a state with one number out of its range, or at the end of its range.
func (p *play) damaged(l shared.BucketLevel) shared.BucketLevel {
	number := []*int64{
		&l.Empty.Micros, &l.Empty.Part, &l.At, &l.Rate.Version, &l.Rate.Micros, &l.Rate.Part, &l.Rate.Parts, &l.Rate.Burst,
	}[p.IntN(8)]
	*number = []int64{-1, 0, 1, -1 << 63, 1<<63 - 1, l.Rate.Parts, 1 << 53, 1<<53 + 1, 1 << 51, 1<<51 + 1, 1e12, 1e12 + 1, l.Rate.Parts - 1}[p.IntN(13)]
	return l
}

// take returns what to ask at state l, and sets the clock, often so that the request could
// just leave, or just could not.
func (p *play) take(l shared.BucketLevel) shared.Take {
	t := shared.Take{
		Key: "key", Cost: 1 + p.Int64N(1<<p.IntN(16)), First: 1 + p.Int64N(1<<p.IntN(10)), Rate: p.rate(),
		Ahead: time.Duration(p.Int64N(int64(shared.MaxAhead/time.Microsecond)+1)) * time.Microsecond,
	}
	if p.IntN(2) == 0 {
		t.Ahead = 0
	}
	if p.IntN(4) == 0 {
		t.Guard = time.Duration(p.IntN(3_000_000)) * time.Microsecond
	}
	limit := l.Empty.Micros - t.Room().Micros - t.Ahead.Microseconds()
	switch p.IntN(8) {
	case 0:
		p.now = l.At - p.Int64N(1000) // back
	case 1:
		p.now += p.Int64N(1 << p.IntN(40))
	case 2:
		p.now += p.Int64N(100)
	default:
		p.now = limit - 2 + p.Int64N(5)
	}
	p.now = min(max(p.now, 1), 1<<52)
	if p.IntN(3) == 0 {
		t.High = shared.Instant{Micros: max(0, l.Empty.Micros-2+p.Int64N(5)), Part: p.Int64N(t.Rate.Parts)}
		t.Seen = p.now - 1 + p.Int64N(3)
	}
	return t
}

// The statement on the server must be the step that Take.Apply is, to the last part of a
// microsecond, or processes share one rate and count by two.
func TestTakeIsApply(t *testing.T) {
	t.Parallel()
	clock := newFakeClock(t)
	table, name := newTable(t, clock.conn)
	bucket := pgbucket.New(clock.conn, table)
	steps := 2000
	if os.Getenv("SHAPER_LONG") == "1" {
		steps = 40_000
	}
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	p := &play{Rand: rand.New(rand.NewPCG(seed, 1)), now: 1_790_000_000_000_000}
	var level shared.BucketLevel
	seen := map[string]int{}
	for i := range steps {
		switch p.IntN(40) {
		case 0:
			level = p.damaged(level)
			setLevel(t, clock.conn, name, "key", level)
		case 1:
			level = shared.BucketLevel{}
			exec(t, clock.conn, name, "TRUNCATE TBL")
		}
		take := p.take(level)
		clock.set(p.now)
		want, wantTaken := take.Apply(level, p.now)
		taken, err := bucket.Take(t.Context(), take)
		require.NoError(t, err)
		got := levelOf(t, clock.conn, name, "key")
		if want != got || !same(wantTaken, taken) {
			require.FailNowf(t, "not Apply", "step %d: %+v at %+v, now %d:\nwant %+v, %+v\ngot  %+v, %+v", i, take, level, p.now, wantTaken, want, taken, got)
		}
		for what, is := range map[string]bool{
			"ok": taken.OK, "refused": !taken.OK && taken.Other == nil, "cold": taken.Cold, "other": taken.Other != nil,
			"rescaled":      level.At > 0 && !taken.Cold && taken.Other == nil && !sameNumbers(level.Rate, take.Rate),
			"newer version": !taken.Cold && sameNumbers(level.Rate, take.Rate) && level.Rate.Version < take.Rate.Version,
			"older version": !taken.Cold && sameNumbers(level.Rate, take.Rate) && level.Rate.Version > take.Rate.Version, "back": level.At > p.now && !taken.Cold,
			"healed": !taken.Cold && taken.Empty == take.High, "just": taken.OK && taken.Empty.Micros == p.now+take.Ahead.Microseconds()+take.Room().Micros,
		} {
			if is {
				seen[what]++
			}
		}
		level = want
		if taken.OK && p.IntN(10) == 0 {
			end := level.Empty
			switch p.IntN(4) {
			case 0:
				end.Part++
			case 1:
				take.Rate = p.rate()
			}
			want := take.ApplyGiveBack(level, end)
			require.NoError(t, bucket.GiveBack(t.Context(), take, end))
			require.Equalf(t, want, levelOf(t, clock.conn, name, "key"), "step %d: GiveBack of %+v at %+v, %+v", i, take, level, end)
			if want != level {
				seen["given back"]++
			}
			level = want
		}
	}
	for _, what := range []string{"ok", "refused", "cold", "other", "rescaled", "newer version", "older version", "back", "healed", "just", "given back"} {
		require.GreaterOrEqualf(t, seen[what], 5, "the game must have met what it is about: %v", seen)
	}
	t.Log(seen)
}

func sameNumbers(a, b shared.BucketRate) bool {
	a.Version = b.Version
	return a == b
}

// same reports whether two answers are equal.
func same(a, b shared.Taken) bool {
	if a.Other != nil && b.Other != nil && *a.Other == *b.Other {
		a.Other, b.Other = nil, nil
	}
	return a == b
}
