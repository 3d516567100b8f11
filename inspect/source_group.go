package inspect

import (
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"time"

	"example.com/leakybucket/shaper"
)

// A SourceOption tells more of a Group.
type SourceOption[K comparable] interface{ apply(*groupSource[K]) }

type sourceOption[K comparable] func(*groupSource[K])

func (f sourceOption[K]) apply(s *groupSource[K]) { f(s) }

// WithExplain sets a function that returns where the limits of a key come from: the name
// of a rule, and the file and line where it stands (0: not known). It is called only
// when somebody looks at one bucket, outside all locks, and must be safe for concurrent
// use.
func WithExplain[K comparable](explain func(key K) (rule, file string, line int)) SourceOption[K] {
	return sourceOption[K](func(s *groupSource[K]) { s.explain = explain })
}

// OfGroup makes a [Source] of a Group. A key that is not a string is shown as fmt.Sprint
// writes it.
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
	return &openGroup[K]{groupSource: s, limits: limitsTable{}, known: map[K]*seen{}, keys: map[string]K{},
		isText: reflect.TypeFor[K]().Kind() == reflect.String}
}

// An openGroup is a Group as one Inspector sees it.
type openGroup[K comparable] struct {
	groupSource[K]
	isText bool // K is a string, so a key and its text are each other's conversion

	// These are used by scan and forget alone, which do not run at the same time.
	limits limitsTable
	known  map[K]*seen // of the keys that the latest scan has met
	round  uint64      // counts scans

	mu   sync.Mutex
	keys map[string]K // what the texts of known stand for, unless isText
	sums sums
}

// sums are the gauges of all buckets together, which only a scan can tell.
type sums struct {
	at       time.Time
	level    float64
	inFlight int
}

// keysPerTurn is after how many keys a scan lets other goroutines go first. Each takes the
// lock of the Group for itself, and a goroutine that takes it over and over again keeps
// others from it for a millisecond at a time.
const keysPerTurn = 64

// maxSumsAge is the age at which sums no longer say how things are.
const maxSumsAge = 2 * time.Second

func (s *openGroup[K]) kind() string { return "group" }

func (s *openGroup[K]) read() reading {
	st := s.g.Stats()
	r := reading{
		keys: st.Keys, waiting: st.Waiting, dryRun: st.DryRun, closed: s.isClosed(),
		departed: st.Departed, refused: st.Refused, abandoned: st.Abandoned,
		overflowed: st.Overflowed, refusedKeys: st.RefusedKeys, limitErrors: st.LimitErrors,
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
	total := sums{at: time.Now()}
	for key, st := range s.g.All() {
		now := time.Now()
		if len(rows)%keysPerTurn == 0 {
			runtime.Gosched()
		}
		k := s.known[key]
		if k == nil {
			k = &seen{text: s.textFor(key)}
			s.known[key] = k
		}
		k.round = s.round
		k.note(st, now)
		rows = append(rows, newRow(k.text, st, s.limits.of(st.Limits), k.grew, now))
		total.level += st.Level
		total.inFlight += st.InFlight
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

// textFor returns the text of a key that has just been met for the first time. Different
// keys may print alike, such as the elements 1 and "1" of a Group[any]; then the later
// one is told apart by its Go syntax, or by a number.
func (s *openGroup[K]) textFor(key K) string {
	if s.isText {
		return reflect.ValueOf(key).String()
	}
	text := fmt.Sprint(key)
	s.mu.Lock()
	_, taken := s.keys[text]
	s.mu.Unlock()
	if taken { // It stays so: scan alone adds keys and takes them away.
		text = fmt.Sprintf("%#v", key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, unnumbered := 2, text; ; n++ {
		if _, taken := s.keys[text]; !taken {
			s.keys[text] = key
			return text
		}
		text = fmt.Sprintf("%s #%d", unnumbered, n)
	}
}

// forgetKey takes away what is known of a key whose bucket has gone.
func (s *openGroup[K]) forgetKey(key K, text string) {
	delete(s.known, key)
	if !s.isText {
		s.mu.Lock()
		defer s.mu.Unlock()
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
	return fmt.Sprint(key)
}

func (s *openGroup[K]) ref(key K) bucketRef {
	of, _ := s.g.Limiter(key).(interface{ OwnStats() (shaper.Stats, bool) })
	return &groupBucket[K]{s, key, of.OwnStats}
}

func (s *openGroup[K]) isClosed() bool {
	var key K
	of, _ := s.g.Limiter(key).(interface{ IsClosed() bool })
	return of.IsClosed()
}

func (s *openGroup[K]) histograms() shaper.Histograms { return s.g.Histograms() }

// A groupBucket is the bucket of one key of a Group.
type groupBucket[K comparable] struct {
	group *openGroup[K]
	key   K
	own   func() (shaper.Stats, bool)
}

func (b *groupBucket[K]) stats() (shaper.Stats, bool) { return b.own() }

func (b *groupBucket[K]) line(max int) []shaper.Waiter { return b.group.g.Line(b.key, max) }

func (b *groupBucket[K]) refusals() (own []shaper.Refusal, all bool) {
	latest := b.group.g.Refusals()
	for _, r := range latest {
		if r.Key == any(b.key) {
			own = append(own, r)
		}
	}
	return own, len(latest) < keptRefusals
}

func (b *groupBucket[K]) explain() *rule {
	if b.group.groupSource.explain == nil {
		return nil
	}
	name, file, line := b.group.groupSource.explain(b.key)
	return &rule{name, file, line}
}
