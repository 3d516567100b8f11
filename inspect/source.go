package inspect

import (
	"errors"
	"time"

	"example.com/leakybucket/shaper"
)

// A Source is what an [Inspector] can show. [Of] makes one of a Shaper, [OfGroup] of a
// Group.
type Source interface{ open() source }

// A source is a [Source] as one [Inspector] sees it. Its methods may be called from several
// goroutines at once, except scan. They call functions of the program only where that is
// said, and then outside all locks.
type source interface {
	kind() string // "shaper" or "group"

	// read returns gauges and totals of the whole source.
	read() reading

	// scan appends all buckets to rows. It may call methods of keys, to make text of them.
	scan(rows []row) []row

	// forget forgets what scans remember of buckets. It is not called while one runs.
	forget()

	// find returns the bucket of a key, which need not be in use. It reports false if no
	// key has that text. Of keys that are not strings only those are known that the latest
	// scan has met.
	find(key string) (bucketRef, bool)

	// knowsAll reports whether find knows all keys that there are.
	knowsAll() bool

	// top returns the keys that met their limits most.
	top(n int) []keyCount

	// histograms returns those of all buckets together.
	histograms() shaper.Histograms
}

// A bucketRef is one bucket of a source. It remains right while the bucket of its key
// comes and goes. Only limitsNow and putBack of the [changer], and explain, may call functions of
// the program.
type bucketRef interface {
	changer
	recorder

	// stats returns the Stats of the bucket; ok reports whether it is in use.
	stats() (st shaper.Stats, ok bool)

	// line returns the first waiters of its line; none if it is not in use.
	line(max int) []shaper.Waiter

	// refusals returns those of the latest refusals of its source that are its own, the
	// oldest first.
	refusals() []shaper.Refusal

	// explain returns where its limits come from, or nil. It calls the function of
	// [WithExplain].
	explain() *rule
}

// A rule says where the limits of a bucket come from.
type rule struct {
	Rule string `json:"rule"`
	File string `json:"file"`
	Line int    `json:"line"`
}

type keyCount struct {
	key          string
	count, error uint64
}

// A reading is the state of a bucket or of a whole source at one instant. A nil gauge is
// not known, or has no meaning for it.
type reading struct {
	keys                         int
	waiting                      int
	level                        *float64
	inFlight                     *int
	rate                         *float64
	depth                        *int
	held, dryRun, closed         bool
	departed, refused, abandoned uint64

	overflowed, refusedKeys, limitErrors uint64 // of a Group

	shared *shaper.BucketStats // nil: levels are the process's own
}

// readingOf returns the reading of one bucket.
func readingOf(st shaper.Stats, now time.Time) reading {
	r := reading{
		keys:    1,
		waiting: st.Waiting, level: &st.Level, inFlight: &st.InFlight,
		held: st.HeldUntil.After(now), dryRun: st.DryRun, closed: st.Closed > 0,
		departed: st.Departed, refused: st.Refused, abandoned: st.Abandoned,
		shared: sharedBucket(st.Bucket),
	}
	if l := st.Limits; l.Rate > 0 {
		r.rate, r.depth = finite(l.Rate), &l.Depth
	}
	return r
}

// Of makes a [Source] of a Shaper: one bucket, whose key is "".
func Of(s *shaper.Shaper) Source { return shaperSource{s} }

type shaperSource struct{ s *shaper.Shaper }

func (s shaperSource) open() source { return &openShaper{shaperSource: s, limits: limitsTable{}} }

// An openShaper is a Shaper as one [Inspector] sees it. It is its own only bucket.
type openShaper struct {
	shaperSource

	limits limitsTable // used by scan
}

func (s *openShaper) kind() string { return "shaper" }

func (s *openShaper) read() reading {
	r := readingOf(s.s.Stats(), time.Now())
	r.closed = s.isClosed()
	return r
}

// isClosed reports whether the Shaper refuses everything, as it does from Close or
// Shutdown on.
func (s *openShaper) isClosed() bool {
	_, err := s.s.Forecast(1)
	return errors.Is(err, shaper.ErrClosed)
}

func (s *openShaper) scan(rows []row) []row {
	now, st := time.Now(), s.s.Stats()
	return append(rows, newRow("", st, s.limits.of(st.Limits), now))
}

func (s *openShaper) forget() {}

func (s *openShaper) find(key string) (bucketRef, bool) { return s, key == "" }

func (s *openShaper) knowsAll() bool { return true }

func (s *openShaper) stats() (shaper.Stats, bool) { return s.s.Stats(), true }

func (s *openShaper) line(max int) []shaper.Waiter { return s.s.Line(max) }

func (s *openShaper) refusals() []shaper.Refusal { return s.s.Refusals() }

func (s *openShaper) histograms() shaper.Histograms { return s.s.Histograms() }

func (s *openShaper) explain() *rule { return nil }

func (s *openShaper) top(int) []keyCount { return nil }
