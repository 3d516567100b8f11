package inspect

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// listParameters are the parameters of a list of buckets.
var listParameters = []string{"source", "prefix", "contains", "waiting_gt", "level_gt", "fill_gt", "idle_gt",
	"refused_gt", "refusing", "dry_run", "sort", "limit", "cursor"}

const (
	defaultLimit = 50
	maxLimit     = 1000
)

// A listing says which buckets are wanted, and in which order.
type listing struct {
	source     string // empty: all
	prefix     string
	contains   string
	waitingGT  int // negative: any; so are the next four
	levelGT    float64
	fillGT     float64
	idleGT     time.Duration
	refusedGT  int
	refusing   *bool
	dryRun     *bool
	sort       string
	rank       ranking
	descending bool
	limit      int
	after      *position // of the last row of the page before; nil: from the beginning
	at         time.Time // the instant of the levels that are shown
	epoch      time.Time // the same, of the first page
}

// readListing returns the listing that a query asks for.
func readListing(q query) (listing, error) {
	l := listing{
		source: q.text("source"), prefix: q.text("prefix"), contains: q.text("contains"),
		waitingGT: -1, levelGT: -1, fillGT: -1, idleGT: -1, refusedGT: -1,
		sort: cmp.Or(q.text("sort"), "key"), limit: defaultLimit,
	}
	if err := cmp.Or(
		q.whole("waiting_gt", &l.waitingGT, 0, math.MaxInt),
		q.number("level_gt", &l.levelGT),
		q.number("fill_gt", &l.fillGT),
		q.duration("idle_gt", &l.idleGT),
		q.whole("refused_gt", &l.refusedGT, 0, math.MaxInt),
		q.truth("refusing", &l.refusing),
		q.truth("dry_run", &l.dryRun),
		q.whole("limit", &l.limit, 1, maxLimit),
	); err != nil {
		return l, err
	}
	name, descending := strings.CutPrefix(l.sort, "-")
	by, ok := rankings[name]
	if !ok {
		names := slices.Sorted(maps.Keys(rankings))
		return l, wrong("sort", l.sort, "must be one of %s, or one of them after a minus sign", strings.Join(names, ", "))
	}
	l.rank, l.descending = by, descending
	if cursor := q.text("cursor"); cursor != "" {
		if err := l.setCursor(cursor); err != nil {
			return l, err
		}
	}
	return l, nil
}

// matches reports whether a row is wanted, whatever its source.
func (l *listing) matches(r *row) bool {
	return strings.HasPrefix(r.key, l.prefix) && strings.Contains(r.key, l.contains) &&
		int(r.waiting) > l.waitingGT &&
		(l.levelGT < 0 || r.levelAt(l.at) > l.levelGT) &&
		(l.fillGT < 0 || r.fillOf(r.levelAt(l.at)) > l.fillGT) &&
		(l.idleGT < 0 || r.idle() > l.idleGT) &&
		(l.refusedGT < 0 || r.refused > uint64(l.refusedGT)) &&
		(l.refusing == nil || r.refusing() == *l.refusing) &&
		(l.dryRun == nil || r.dryRun == *l.dryRun)
}

// A list is the answer to a listing.
type list struct {
	At      time.Time    `json:"at"`
	Sources []sourceView `json:"sources"`
	Matched int          `json:"matched"`
	Buckets []bucket     `json:"buckets"`
	Next    *string      `json:"next"`
}

// A sourceView is a source in the form of the API.
type sourceView struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	Health    string `json:"health"`
	DryRun    bool   `json:"dry_run"`
	Keys      int    `json:"keys"`
	Closed    bool   `json:"closed"`
	Waiting   int    `json:"waiting"`
	Departed  uint64 `json:"departed"`
	Refused   uint64 `json:"refused"`
	Abandoned uint64 `json:"abandoned"`

	// As in shaper.GroupStats; 0 for a Shaper.
	Overflowed  uint64 `json:"overflowed"`
	RefusedKeys uint64 `json:"refused_keys"`
	LimitErrors uint64 `json:"limit_errors"`

	Shared *sharedView `json:"shared"`
}

func (w *watched) view() sourceView {
	r := w.source.read()
	return sourceView{Name: w.name, Kind: w.source.kind(), Health: w.health.Load().(string), DryRun: r.dryRun, Keys: r.keys, Closed: r.closed,
		Waiting: r.waiting, Departed: r.departed, Refused: r.refused, Abandoned: r.abandoned,
		Overflowed: r.overflowed, RefusedKeys: r.refusedKeys, LimitErrors: r.limitErrors,
		Shared: newSharedView(r.shared)}
}

func viewsOf(sources []*watched) []sourceView {
	views := []sourceView{}
	for _, w := range sources {
		views = append(views, w.view())
	}
	return views
}

func (i *Inspector) serveBuckets(w http.ResponseWriter, r *http.Request, q query) error {
	l, err := readListing(q)
	if err != nil {
		return err
	}
	answer, err := i.list(r.Context(), l)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// list returns the buckets that are wanted.
func (c *core) list(ctx context.Context, l listing) (*list, error) {
	chosen, err := c.choose(ctx, l)
	if err != nil {
		return nil, err
	}
	defer chosen.release()
	for _, p := range chosen.rows {
		chosen.Buckets = append(chosen.Buckets, c.withOverride(p.row.view(p.of, chosen.At)))
	}
	if chosen.more {
		l.epoch = chosen.epoch
		next := l.cursorAfter(chosen.rows[len(chosen.rows)-1].position)
		chosen.Next = &next
	}
	return &chosen.list, nil
}

// choice is the rows of a listing, in their order, with the other figures of a [list]. It must be
// released.
type choice struct {
	list
	rows      []placed
	more      bool // there are others behind them
	epoch     time.Time
	snapshots []*snapshot
}

func (f *choice) release() {
	for _, s := range f.snapshots {
		s.release()
	}
}

// choose returns the rows that are wanted.
func (c *core) choose(ctx context.Context, l listing) (*choice, error) {
	sources, err := c.sourcesNamed(l.source)
	if err != nil {
		return nil, err
	}
	chosen := &choice{list: list{At: time.Now().UTC(), Sources: viewsOf(c.all()), Buckets: []bucket{}}}
	for _, w := range sources {
		s, err := w.scan(ctx)
		if err != nil {
			chosen.release()
			return nil, err
		}
		chosen.snapshots = append(chosen.snapshots, s)
		if s.at.Before(chosen.At) {
			chosen.At = s.at.UTC()
		}
	}
	l.at = chosen.At
	if l.after == nil {
		l.epoch = l.at
	}
	chosen.epoch = l.epoch
	first := newSelection(&l)
	if err := c.sift(ctx, chosen.snapshots, first); err != nil {
		chosen.release()
		return nil, err
	}
	chosen.Matched, chosen.rows, chosen.more = first.matched, first.sorted(), first.more
	return chosen, nil
}

// rowsPerTurn is the number of rows after which sift yields. They take less than a
// millisecond; the runtime lets a goroutine run for ten.
const rowsPerTurn = 4096

// sift offers the rows that are wanted. However many pages look on, sift works for a few at a time,
// so that half of the processors are free for the program's own work.
func (c *core) sift(ctx context.Context, snapshots []*snapshot, first *selection) error {
	select {
	case c.sifting <- struct{}{}:
		defer func() { <-c.sifting }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, s := range snapshots {
		for k := range s.rows {
			if first.offer(s.of, &s.rows[k]); k%rowsPerTurn == rowsPerTurn-1 {
				runtime.Gosched()
			}
		}
	}
	return nil
}

// A query is the parameters of a request, each given once at most.
type query struct {
	values map[string]string
	source string // of the path
	key    string // of the path
}

// readQuery reads the query of a URL. Parameters that known does not name are wrong, so
// that a misspelt one is noticed.
func readQuery(r *http.Request, known []string) (query, error) {
	q := query{values: map[string]string{}}
	for pair := range strings.SplitSeq(r.URL.RawQuery, "&") {
		if pair == "" {
			continue
		}
		name, value, err := readPair(pair)
		_, given := q.values[name]
		switch {
		case err != nil:
			return q, wrong(name, value, "which can't be read: %v", err)
		case !slices.Contains(known, name):
			return q, wrong(name, value, "which is not a parameter here")
		case given:
			return q, wrong(name, value, "but it is given more than once")
		}
		q.values[name] = value
	}
	return q, nil
}

// readPair reads one parameter. A text that can't be read is returned as it stands.
func readPair(pair string) (name, value string, err error) {
	rawName, rawValue, _ := strings.Cut(pair, "=")
	name, err = url.QueryUnescape(rawName)
	if err != nil {
		return rawName, rawValue, err
	}
	if strings.Contains(pair, ";") { // Some take it for "&".
		return name, rawValue, errors.New("a semicolon must be sent as %3B")
	}
	if value, err = url.QueryUnescape(rawValue); err != nil {
		return name, rawValue, err
	}
	return name, value, nil
}

// maxKeptKey is the length, in bytes, up to which the [Inspector] keeps a history of a key.
// Each is kept for a time, with its key, whether or not the key has a bucket.
const maxKeptKey = 8 << 10

// keeps returns nil if a key is short enough to be kept.
func keeps(key string) error {
	if len(key) > maxKeptKey {
		return wrong("key", key, "but here it must be at most %d bytes", maxKeptKey)
	}
	return nil
}

// text returns a parameter; "" if it is not given.
func (q query) text(name string) string { return q.values[name] }

// has reports whether a parameter is given, if only as empty.
func (q query) has(name string) bool {
	_, ok := q.values[name]
	return ok
}

// readParameter sets a variable to a parameter, and leaves it as it is if the parameter is empty or
// not given. The words say how the parameter must be.
func readParameter[T any](q query, name string, to *T, parse func(string) (T, error), right func(T) bool, words string) error {
	text := q.values[name]
	if text == "" {
		return nil
	}
	value, err := parse(text)
	if err != nil || !right(value) {
		return wrong(name, text, "%s", words)
	}
	*to = value
	return nil
}

// whole reads a parameter that is a whole number from low to high.
func (q query) whole(name string, to *int, low, high int) error {
	words := fmt.Sprintf("must be a whole number from %d to %d", low, high)
	if high == math.MaxInt {
		words = fmt.Sprintf("must be a whole number of at least %d", low)
	}
	return readParameter(q, name, to, strconv.Atoi, func(n int) bool { return n >= low && n <= high }, words)
}

// milliseconds reads a parameter that is an instant, in milliseconds since 1970.
func (q query) milliseconds(name string, to *int64) error {
	parse := func(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) }
	return readParameter(q, name, to, parse, func(n int64) bool { return n >= 0 }, "must be a whole number of at least 0")
}

// number reads a parameter that is a number of at least 0.
func (q query) number(name string, to *float64) error {
	parse := func(text string) (float64, error) { return strconv.ParseFloat(text, 64) }
	return readParameter(q, name, to, parse, func(f float64) bool { return f >= 0 && !math.IsInf(f, 0) }, "must be a number of at least 0")
}

// duration reads a parameter that is a duration of at least 0.
func (q query) duration(name string, to *time.Duration) error {
	return readParameter(q, name, to, time.ParseDuration, func(d time.Duration) bool { return d >= 0 }, `must be a duration such as "90s" or "1h30m"`)
}

// truth reads a parameter that is true or false.
func (q query) truth(name string, to **bool) error {
	parse := func(text string) (*bool, error) {
		if text == "true" || text == "false" {
			return new(text == "true"), nil
		}
		return nil, strconv.ErrSyntax
	}
	return readParameter(q, name, to, parse, func(*bool) bool { return true }, "must be true or false")
}

// A ranking returns the value of a row by which rows are sorted; rows with the same value
// are sorted by source and key. Time alone must not change the value, or buckets would move
// from one page to another. That is why waits are instants, and why a level, which leaks, is
// taken at the instant of the first page.
type ranking func(l *listing, r *row) float64

var rankings = map[string]ranking{
	"key":         func(*listing, *row) float64 { return 0 },
	"waiting":     func(_ *listing, r *row) float64 { return float64(r.waiting) },
	"level":       func(l *listing, r *row) float64 { return round(l.levelThen(r)) },
	"fill":        func(l *listing, r *row) float64 { return round(r.fillOf(l.levelThen(r))) },
	"idle":        func(_ *listing, r *row) float64 { return -float64(r.lastCall) },
	"refused":     func(_ *listing, r *row) float64 { return float64(r.refused) },
	"departed":    func(_ *listing, r *row) float64 { return float64(r.departed) },
	"abandoned":   func(_ *listing, r *row) float64 { return float64(r.abandoned) },
	"oldest_wait": func(_ *listing, r *row) float64 { return r.waitOrder() },
	"last_call":   func(_ *listing, r *row) float64 { return float64(r.lastCall) },
}

// levelThen returns the level of a bucket as the first page showed it, if the bucket has only leaked
// since.
func (l *listing) levelThen(r *row) float64 {
	level := r.levelAt(l.at)
	if level > 0 && r.limits.rate != nil {
		level += *r.limits.rate * max(l.at.Sub(l.epoch), 0).Seconds()
	}
	return level
}

// waitOrder returns a number that is larger the longer the head of the line has waited. It
// counts whole milliseconds, as the instant of the row is not exactly the instant of its
// numbers. Without a line it is the smallest.
func (r *row) waitOrder() float64 {
	if r.waiting == 0 {
		return -math.MaxFloat64
	}
	return -float64(time.Unix(0, r.at-int64(r.oldestWait)).Round(time.Millisecond).UnixMilli())
}

// A position is the place of a row in an order.
type position struct {
	value       float64
	source, key string
}

// compare compares two positions. Equal values are sorted by source and key, upwards; only the
// order by key alone may be downwards.
func (l *listing) compare(p, q position) int {
	byKey := cmp.Or(strings.Compare(p.source, q.source), strings.Compare(p.key, q.key))
	if l.sort == "-key" {
		return -byKey
	}
	by := cmp.Compare(p.value, q.value)
	if l.descending {
		by = -by
	}
	return cmp.Or(by, byKey)
}

// A selection keeps the first rows of an order among all rows that it is offered.
type selection struct {
	l       *listing
	kept    []placed // a heap with the last of them at its head
	more    bool     // there are others behind them
	matched int      // how many rows are wanted, on all pages
}

// placed is a row with its place in the order.
type placed struct {
	position
	of  *watched
	row *row
}

func newSelection(l *listing) *selection {
	return &selection{l: l, kept: make([]placed, 0, min(l.limit, defaultLimit)+1)}
}

// offer takes a row if it is wanted, comes behind the cursor and may be among the first.
func (s *selection) offer(of *watched, r *row) {
	if !s.l.matches(r) {
		return
	}
	s.matched++
	p := placed{position{s.l.rank(s.l, r), of.name, r.key}, of, r}
	if s.l.after != nil && s.l.compare(p.position, *s.l.after) <= 0 {
		return
	}
	if len(s.kept) < s.l.limit {
		heap.Push(s, p)
		return
	}
	s.more = true
	if s.l.compare(p.position, s.kept[0].position) < 0 {
		s.kept[0] = p
		heap.Fix(s, 0)
	}
}

// sorted returns the rows kept, in order.
func (s *selection) sorted() []placed {
	slices.SortFunc(s.kept, func(a, b placed) int { return s.l.compare(a.position, b.position) })
	return s.kept
}

// The methods of heap.Interface.
func (s *selection) Len() int { return len(s.kept) }
func (s *selection) Less(a, b int) bool {
	return s.l.compare(s.kept[a].position, s.kept[b].position) > 0
}
func (s *selection) Swap(a, b int) { s.kept[a], s.kept[b] = s.kept[b], s.kept[a] }
func (s *selection) Push(x any)    { s.kept = append(s.kept, x.(placed)) }
func (s *selection) Pop() any      { panic("inspect: nothing is taken from a selection") }

// A cursor is the position of the last row of a page, in the order that the cursor names.
type cursor struct {
	Sort   string
	Epoch  time.Time
	Value  float64
	Source []byte // not strings, in which JSON would replace bytes that are not UTF-8
	Key    []byte
}

// cursorAfter returns the cursor for the page behind p.
func (l *listing) cursorAfter(p position) string {
	text, err := json.Marshal(cursor{l.sort, l.epoch.UTC(), p.value, []byte(p.source), []byte(p.key)})
	if err != nil {
		panic(err) // All of it can be encoded: values are finite.
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// setCursor lets a listing begin behind a cursor.
func (l *listing) setCursor(text string) error {
	var c cursor
	decoded, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(decoded, &c)
	}
	if err != nil {
		return wrong("cursor", text, "which is not a cursor that was given here")
	}
	if c.Sort != l.sort {
		return wrong("cursor", text, "which is of a list sorted by %q, not by %q", c.Sort, l.sort)
	}
	l.after, l.epoch = &position{c.Value, string(c.Source), string(c.Key)}, c.Epoch
	return nil
}
