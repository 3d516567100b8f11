package inspect

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
	"example.com/leakybucket/shaper/watch"
)

// A Source is a limiter that an [Inspector] can show. [Of] makes one of a Shaper, [OfAdaptive] of one whose
// rate adapts, [OfGroup] of a Group.
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

	// forget drops the memory that scans have of buckets. It is not called while one runs.
	forget()

	// find returns the bucket of a key, which need not be in use. It reports false if no
	// key has that text. Keys that are not strings are known only if the latest scan has met
	// them.
	find(key string) (bucketRef, bool)

	// knowsAll reports whether find knows all keys that there are.
	knowsAll() bool

	// top returns the keys that met their limits most.
	top(n int) []keyCount

	// histograms returns the histograms of all buckets together.
	histograms() watch.Histograms
}

// A bucketRef is one bucket of a source. It remains right while the bucket of its key
// comes and goes. Only limitsNow and putBack of the [changer], and explain, may call functions of
// the program.
type bucketRef interface {
	changer

	// stats returns the Stats of the bucket; ok reports whether it is in use.
	stats() (st shaper.Stats, ok bool)

	// meters returns its further levels; none if it has one level.
	meters() []shaper.MeterStats

	// adaptation returns how its rate adapts; nil if it does not.
	adaptation() *adaptView

	// line returns the first waiters of its line; none if it is not in use.
	line(max int) []watch.Waiter

	// refusals returns the bucket's own ones among the latest refusals of its source, the oldest
	// first.
	refusals() []watch.Refusal

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

	shared *shared.Stats // nil: levels are the process's own
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

// OfAdaptive is [Of] for a Shaper whose rate a Controller changes: the page says why it was lowered last, and a change for
// a time is one of the ceiling. It panics if one of them is nil.
func OfAdaptive(s *shaper.Shaper, a *adapt.Controller) Source {
	a.Stats()
	return adaptiveSource{shaperSource{s}, a}
}

type adaptiveSource struct {
	shaperSource
	a *adapt.Controller
}

func (s adaptiveSource) open() source {
	return &openShaper{shaperSource: s.shaperSource, limits: limitsTable{}, adapts: s.a}
}

// An openShaper is a Shaper as one [Inspector] sees it. It is its own only bucket.
type openShaper struct {
	shaperSource

	limits limitsTable       // used by scan
	quota  *quotaOf          // nil: no quota is known
	adapts *adapt.Controller // of the rate; nil: it does not adapt
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

func (s *openShaper) meters() []shaper.MeterStats { return s.s.Meters() }

func (s *openShaper) adaptation() *adaptView {
	if s.adapts == nil {
		return nil
	}
	return viewAdaptation(s.adapts.Stats())
}

func (s *openShaper) line(max int) []watch.Waiter { return s.s.Line(max) }

func (s *openShaper) refusals() []watch.Refusal { return s.s.Refusals() }

func (s *openShaper) histograms() watch.Histograms { return s.s.Histograms() }

func (s *openShaper) explain() *rule { return nil }

func (s *openShaper) top(int) []keyCount { return nil }

// A SourceOption tells more of a Group.
type SourceOption[K comparable] interface{ apply(*groupSource[K]) }

type sourceOption[K comparable] func(*groupSource[K])

func (f sourceOption[K]) apply(s *groupSource[K]) { f(s) }

// WithExplain sets a function that returns where the limits of a key come from: the name
// of a rule, and the file and line where it stands (0: not known). Where neither name nor
// file is known, nothing is shown. It is called only when somebody looks at one bucket,
// outside all locks, and must be safe for concurrent use.
func WithExplain[K comparable](explain func(key K) (rule, file string, line int)) SourceOption[K] {
	return sourceOption[K](func(s *groupSource[K]) { s.explain = explain })
}

// OfGroup makes a [Source] of a Group. A key that is not a string is shown as fmt.Sprint
// writes it, and with its type in Go syntax if another key is written alike.
func OfGroup[K comparable](g *shaper.Group[K], opts ...SourceOption[K]) Source {
	s := groupSource[K]{g: g}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&s)
		}
	}
	return s
}

type groupSource[K comparable] struct {
	g       *shaper.Group[K]
	explain func(K) (rule, file string, line int)
}

func (s groupSource[K]) open() source {
	return &openGroup[K]{groupSource: s, limits: limitsTable{}, known: map[K]*seen{}, keys: map[string]K{}, shared: map[string]bool{},
		isText: reflect.TypeFor[K]().Kind() == reflect.String}
}

// An openGroup is a Group as one [Inspector] sees it.
type openGroup[K comparable] struct {
	groupSource[K]
	isText bool // K is a string, so a key and its text are each other's conversion

	// These are used by scan and forget alone, which do not run at the same time.
	limits limitsTable
	known  map[K]*seen // of the keys that the latest scan has met, unless isText
	round  uint64      // counts scans

	mu     sync.Mutex
	keys   map[string]K    // the keys of the texts of known, unless isText
	shared map[string]bool // texts that more than one key has had: they stand for none, also later on
	sums   sums
}

// seen is the memory of a key from one scan to the next.
type seen struct {
	text  string
	round uint64 // the latest scan that met it
}

// sums are the gauges of all buckets together, which only a scan can tell.
type sums struct {
	at       time.Time
	level    float64
	inFlight int
}

// keysPerTurn is the number of keys after which a scan yields. Each takes the lock of its
// shard, and a goroutine that takes a lock over and over again keeps others from it for a
// millisecond at a time.
const keysPerTurn = 64

// maxShared bounds the memory of texts that are shared.
const maxShared = 10_000

// maxSumsAge is the age at which sums are too old to be shown.
const maxSumsAge = 2 * time.Second

func (s *openGroup[K]) kind() string { return "group" }

func (s *openGroup[K]) read() reading {
	st := s.g.Stats()
	r := reading{
		keys: st.Keys, waiting: st.Waiting, dryRun: st.DryRun, closed: s.g.Closed(),
		departed: st.Departed, refused: st.Refused, abandoned: st.Abandoned,
		overflowed: st.Overflowed, refusedKeys: st.RefusedKeys, limitErrors: st.LimitErrors,
		shared: sharedBucket(st.Bucket),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.sums.at) < maxSumsAge {
		level, inFlight := s.sums.level, s.sums.inFlight
		r.level, r.inFlight = &level, &inFlight
	}
	return r
}

func (s *openGroup[K]) scan(rows []row) []row {
	s.round++
	rows = slices.Grow(rows, s.g.Stats().Keys) // append would make room for a quarter more
	first := len(rows)
	renamed := map[string]string{}
	total := sums{at: time.Now()}
	for key, st := range s.g.All() {
		now := time.Now()
		if len(rows)%keysPerTurn == 0 {
			runtime.Gosched()
		}
		rows = append(rows, newRow(s.seenText(key, renamed), st, s.limits.of(st.Limits), now))
		total.level += st.Level
		total.inFlight += st.InFlight
	}
	for k := range rows[first:] {
		if len(renamed) == 0 {
			break
		}
		if text, ok := renamed[rows[first+k].key]; ok {
			rows[first+k].key = text
		}
	}
	for key, k := range s.known {
		if k.round != s.round {
			s.forgetKey(key, k.text)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sums = total
	return rows
}

// seenText returns the text of a key that a scan has met.
func (s *openGroup[K]) seenText(key K, renamed map[string]string) string {
	if s.isText {
		return reflect.ValueOf(key).String()
	}
	k := s.known[key]
	if k == nil {
		k = &seen{text: s.textFor(key, renamed)}
		s.known[key] = k
	}
	k.round = s.round
	return k.text
}

// textFor returns the text of a key that has just been met for the first time. Different
// keys may print alike, such as the elements 1 and "1" of a Group[any]: then each is told
// by its type and its Go syntax, whichever came first, and the shared text stands for
// none of them. Keys whose types and Go syntax are the same too cannot be found by their
// text. If the text of an earlier key changes, textFor enters the new one into renamed.
func (s *openGroup[K]) textFor(key K, renamed map[string]string) string {
	text := fmt.Sprint(key)
	if s.take(text, key) {
		return text
	}
	if earlier, ok := s.share(text); ok {
		if k := s.known[earlier]; k != nil {
			k.text = s.exactText(earlier)
			renamed[text] = k.text
		}
	}
	return s.exactText(key)
}

// exactText returns the text of a key whose printed form is shared. Scan alone calls it and the
// functions that it calls, so nothing changes between its steps.
func (s *openGroup[K]) exactText(key K) string {
	text := fmt.Sprintf("%T %#v", key, key)
	if !s.take(text, key) {
		s.share(text)
	}
	return text
}

// take lets a text stand for a key, and reports whether it does.
func (s *openGroup[K]) take(text string, key K) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	other, taken := s.keys[text]
	if s.shared[text] || taken && other != key {
		return false
	}
	s.keys[text] = key
	return true
}

// share lets a text stand for no key from now on, and returns the one for which it stood.
func (s *openGroup[K]) share(text string) (earlier K, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	earlier, ok = s.keys[text]
	delete(s.keys, text)
	if len(s.shared) >= maxShared {
		clear(s.shared)
	}
	s.shared[text] = true
	return earlier, ok
}

// forgetKey takes away the memory of a key whose bucket has gone.
func (s *openGroup[K]) forgetKey(key K, text string) {
	delete(s.known, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys[text] == key {
		delete(s.keys, text)
	}
}

func (s *openGroup[K]) forget() {
	s.limits, s.known = limitsTable{}, map[K]*seen{}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = map[string]K{}
}

func (s *openGroup[K]) find(text string) (bucketRef, bool) {
	if s.isText {
		var key K
		reflect.ValueOf(&key).Elem().SetString(text)
		return s.ref(key), true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key, ok := s.keys[text]
	if !ok {
		return nil, false
	}
	return s.ref(key), true
}

func (s *openGroup[K]) knowsAll() bool { return s.isText }

func (s *openGroup[K]) top(n int) (counts []keyCount) {
	for _, c := range s.g.Top(n) {
		counts = append(counts, keyCount{s.textOf(c.Key), c.Count, c.Error})
	}
	return counts
}

// textOf returns the text of a key that need not have a bucket.
func (s *openGroup[K]) textOf(key K) string {
	if s.isText {
		return reflect.ValueOf(key).String()
	}
	text := fmt.Sprint(key)
	s.mu.Lock()
	shared := s.shared[text]
	s.mu.Unlock()
	if shared {
		return fmt.Sprintf("%T %#v", key, key)
	}
	return text
}

func (s *openGroup[K]) ref(key K) bucketRef { return &groupBucket[K]{s, key} }

func (s *openGroup[K]) histograms() watch.Histograms { return s.g.Histograms() }

// A groupBucket is the bucket of one key of a Group.
type groupBucket[K comparable] struct {
	group *openGroup[K]
	key   K
}

// stats is [shaper.Group.StatsOf], save that no key of a closed Group has the bucket which refuses
// everything: its Limits would say that every request leaves at once.
func (b *groupBucket[K]) stats() (shaper.Stats, bool) {
	st, ok := b.group.g.StatsOf(b.key)
	if st.Limits == (shaper.Limits{Rate: rate.Inf}) && b.group.g.Closed() {
		return shaper.Stats{}, false
	}
	return st, ok
}

func (b *groupBucket[K]) line(max int) []watch.Waiter { return b.group.g.LineOf(b.key, max) }

func (b *groupBucket[K]) meters() []shaper.MeterStats { return nil }

func (b *groupBucket[K]) adaptation() *adaptView { return nil }

func (b *groupBucket[K]) refusals() (own []watch.Refusal) {
	for _, r := range b.group.g.Refusals() {
		if r.Key == any(b.key) {
			own = append(own, r)
		}
	}
	return own
}

func (b *groupBucket[K]) explain() *rule {
	if b.group.groupSource.explain == nil {
		return nil
	}
	name, file, line := b.group.groupSource.explain(b.key)
	if name == "" && file == "" {
		return nil
	}
	return &rule{name, file, line}
}
