package inspect

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"
)

// listParameters are the parameters of a list of buckets.
var listParameters = []string{"source", "prefix", "waiting_gt", "level_gt", "fill_gt", "idle_gt",
	"refused_gt", "refusing", "dry_run", "sort", "limit", "cursor"}

const (
	defaultLimit = 50
	maxLimit     = 1000
)

// A listing is which buckets are wanted, and in what order.
type listing struct {
	source     string // empty: all
	prefix     string
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
	at         time.Time // of which the levels are that are shown
	epoch      time.Time // the same, of the first page
}

// readListing returns what a query asks for.
func readListing(q query) (l listing, err error) {
	l.source, l.prefix = q.text("source"), q.text("prefix")
	if l.waitingGT, err = q.whole("waiting_gt", 0, math.MaxInt, -1); err != nil {
		return l, err
	}
	if l.levelGT, err = q.number("level_gt"); err != nil {
		return l, err
	}
	if l.fillGT, err = q.number("fill_gt"); err != nil {
		return l, err
	}
	if l.idleGT, err = q.duration("idle_gt"); err != nil {
		return l, err
	}
	if l.refusedGT, err = q.whole("refused_gt", 0, math.MaxInt, -1); err != nil {
		return l, err
	}
	if l.refusing, err = q.truth("refusing"); err != nil {
		return l, err
	}
	if l.dryRun, err = q.truth("dry_run"); err != nil {
		return l, err
	}
	if l.limit, err = q.whole("limit", 1, maxLimit, defaultLimit); err != nil {
		return l, err
	}
	l.sort = cmp.Or(q.text("sort"), "key")
	name, descending := strings.CutPrefix(l.sort, "-")
	by, ok := rankings[name]
	if !ok {
		return l, wrong("sort", l.sort, "must be one of %s, or one of them after a minus sign", strings.Join(rankingNames(), ", "))
	}
	l.rank, l.descending = by, descending
	if cursor := q.text("cursor"); cursor != "" {
		if err = l.setCursor(cursor); err != nil {
			return l, err
		}
	}
	return l, nil
}

// matches reports whether a row is wanted, whatever its source.
func (l *listing) matches(r *row) bool {
	return strings.HasPrefix(r.key, l.prefix) &&
		r.waiting > l.waitingGT &&
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
	return sourceView{Name: w.name, Kind: w.source.kind(), DryRun: r.dryRun, Keys: r.keys, Closed: r.closed,
		Waiting: r.waiting, Departed: r.departed, Refused: r.refused, Abandoned: r.abandoned,
		Overflowed: r.overflowed, RefusedKeys: r.refusedKeys, LimitErrors: r.limitErrors,
		Shared: newSharedView(r.shared)}
}

func (c *core) sourceViews() []sourceView {
	views := []sourceView{}
	for _, w := range c.all() {
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
	sources := c.all()
	if l.source != "" {
		w, err := c.sourceNamed(l.source)
		if err != nil {
			return nil, err
		}
		sources = []*watched{w}
	}
	answer := &list{At: time.Now().UTC(), Sources: c.sourceViews(), Buckets: []bucket{}}
	var snapshots []*snapshot
	for _, w := range sources {
		s, err := w.scan(ctx)
		if err != nil {
			return nil, err
		}
		defer s.release()
		snapshots = append(snapshots, s)
		if s.at.Before(answer.At) {
			answer.At = s.at.UTC()
		}
	}
	l.at = answer.At
	if l.after == nil {
		l.epoch = l.at
	}
	first := newSelection(&l)
	if err := c.sift(ctx, snapshots, first); err != nil {
		return nil, err
	}
	answer.Matched = first.matched
	page := first.sorted()
	for _, p := range page {
		answer.Buckets = append(answer.Buckets, c.withOverride(p.row.view(l.at)))
	}
	if first.more {
		next := l.cursorAfter(page[len(page)-1].position)
		answer.Next = &next
	}
	return answer, nil
}

// rowsPerTurn is after how many rows other goroutines go first. It takes less than a
// millisecond, and the runtime lets a goroutine run for ten.
const rowsPerTurn = 4096

// sift offers the rows that are wanted. However many pages look on, that is done for so
// many at once as keeps half of the processors free for what the program is there for.
func (c *core) sift(ctx context.Context, snapshots []*snapshot, first *selection) error {
	select {
	case c.sifting <- struct{}{}:
		defer func() { <-c.sifting }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, s := range snapshots {
		for k := range s.rows {
			if first.offer(&s.rows[k]); k%rowsPerTurn == rowsPerTurn-1 {
				runtime.Gosched()
			}
		}
	}
	return nil
}

func rankingNames() []string {
	names := make([]string, 0, len(rankings))
	for name := range rankings {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
