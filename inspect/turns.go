package inspect

import (
	"cmp"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/watch"
)

const (
	turnSeconds = 60  // for how long back departures are told by key
	turnKeys    = 64  // keys that are told by name: in line, and among the departures of each second
	turnsShown  = 24  // keys that a stream tells of
	turnsAhead  = 256 // requests in line that are looked at, to tell when keys leave

	// maxTurnKey is how many bytes of a key are told. Keys may be made up by clients, and a
	// stream tells of them every second.
	maxTurnKey = 256
)

// turns watch the keys of a [shaper.Shaper] that share its rate. Their cost does not grow with the
// number of keys or of requests in line. While nobody looks they cost nothing.
type turns struct {
	s *shaper.Shaper

	mu      sync.Mutex
	isSeen  bool         // somebody has looked of late
	ended   bool         // the source is shown no longer, and departures need not be asked for
	askedAt time.Time    // when somebody has last looked
	noted   uint64       // departures that are in seconds
	seconds []turnSecond // the latest, the oldest first
}

// A turnSecond tells whose requests have left within a second.
type turnSecond struct {
	left   map[string]taken // by key, of at most turnKeys keys
	others taken
}

// taken counts departures: so many requests, and their cost.
type taken struct{ requests, cost int }

func (t *taken) add(o taken) {
	t.requests += o.requests
	t.cost += o.cost
}

// turnsOf returns the turns of a Shaper WithFairQueue, and nil of any other.
func turnsOf(s *shaper.Shaper) *turns {
	if s.Keys(0, watch.ByLength) == nil {
		return nil
	}
	return &turns{s: s}
}

// look begins to watch departures if nobody has looked of late.
func (t *turns) look(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.askedAt = now
	if !t.isSeen && !t.ended {
		t.isSeen = true
		_, t.noted = t.s.Departures(math.MaxUint64)
	}
}

// sample notes whose requests have left since the sample before, about a second ago.
func (t *turns) sample(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case !t.isSeen:
		return
	case now.Sub(t.askedAt) > keepUnseen:
		t.forgetLocked()
		return
	}
	left, all := t.s.Departures(t.noted)
	second := secondOf(left, int(all-t.noted)-len(left))
	t.noted = all
	if len(t.seconds) == turnSeconds {
		t.seconds = slices.Delete(t.seconds, 0, 1)
	}
	t.seconds = append(t.seconds, second)
}

// secondOf returns the departures within a second. The keys of missed further ones are unknown.
func secondOf(left []watch.Departure, missed int) turnSecond {
	second := turnSecond{left: map[string]taken{}, others: taken{requests: missed}}
	for _, d := range left {
		sum := second.left[d.Key]
		sum.add(taken{1, d.Cost})
		second.left[d.Key] = sum
	}
	if len(second.left) <= turnKeys {
		return second
	}
	keys := slices.SortedFunc(maps.Keys(second.left), func(a, b string) int {
		return cmp.Or(cmp.Compare(second.left[b].requests, second.left[a].requests), cmp.Compare(a, b))
	})
	for _, key := range keys[turnKeys:] {
		second.others.add(second.left[key])
		delete(second.left, key)
	}
	return second
}

// end ends the watch for good.
func (t *turns) end() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	t.forgetLocked()
}

func (t *turns) forgetLocked() { t.isSeen, t.seconds = false, nil }

// turnsView tells of the keys of a Shaper WithFairQueue in the form of the API.
type turnsView struct {
	At      time.Time    `json:"at"`
	Keys    int          `json:"keys"` // that have requests in line
	Waiting int          `json:"waiting"`
	Rows    []turnView   `json:"rows"`
	Others  othersOfTurn `json:"others"` // keys that are not in rows
	StepS   float64      `json:"step_s"` // of departed
}

// A turnView is a key in the form of the API. nil stands for unknown: the weight of a key counts
// while it has a line, and its next departure is not looked for behind turnsAhead others.
type turnView struct {
	Key          string     `json:"key"`
	ID           string     `json:"id"`
	Cut          bool       `json:"cut"` // Key and ID are only the beginning of the key
	Weight       *int       `json:"weight"`
	Waiting      int        `json:"waiting"`
	Cost         int        `json:"cost"`
	OldestWaitS  *float64   `json:"oldest_wait_s"`
	Leaves       *time.Time `json:"leaves"`
	LeavesInS    *float64   `json:"leaves_in_s"`
	Departed     []int      `json:"departed"` // in each of the latest seconds, at most a minute of them, the oldest first
	DepartedSum  int        `json:"departed_sum"`
	DepartedCost int        `json:"departed_cost"`

	raw string
}

// othersOfTurn are all other keys together.
type othersOfTurn struct {
	Keys         int   `json:"keys"` // that have requests in line
	Waiting      int   `json:"waiting"`
	Departed     []int `json:"departed"`
	DepartedSum  int   `json:"departed_sum"`
	DepartedCost int   `json:"departed_cost"`
}

// view tells of at most so many keys: first the keys with most requests in line, and if there are
// more, in the last third the keys with most departures within the last minute.
func (t *turns) view(most int) *turnsView {
	now := time.Now()
	t.look(now)
	st := t.s.Stats()
	lines := t.s.Keys(turnKeys, watch.ByLength)
	head := t.s.Line(turnsAhead)
	if st.Keys > len(lines) {
		// There are others. The ones that leave next are of interest too: a key of great weight leaves soon, so
		// its line need not be among the longest, however many requests are in it.
		lines = append(lines, t.s.Keys(min(keysIn(head), turnKeys), watch.ByTurn)...)
	}
	rows := map[string]*turnView{}
	for _, l := range lines {
		key := cutKey(l.Key)
		if rows[key] == nil {
			rows[key] = newTurn(key, l)
		}
	}
	for _, w := range head {
		if row := rows[cutKey(w.Key)]; row != nil && row.Leaves == nil {
			leaves, in := w.Leaves.UTC(), max(w.Leaves.Sub(now), 0).Seconds()
			row.Leaves, row.LeavesInS = &leaves, &in
		}
	}
	v := &turnsView{At: now.UTC(), Keys: st.Keys, Waiting: st.Waiting, Rows: []turnView{}, StepS: (perSecond * step).Seconds()}
	t.mu.Lock()
	seconds := slices.Clone(t.seconds)
	t.mu.Unlock()
	v.fill(rows, seconds, most)
	return v
}

// fill sets rows and others.
func (v *turnsView) fill(rows map[string]*turnView, seconds []turnSecond, most int) {
	sums := map[string]taken{}
	for _, second := range seconds {
		for key, left := range second.left {
			if rows[key] == nil {
				rows[key] = newTurn(key, watch.KeyLine{})
			}
			sum := sums[key]
			sum.add(left)
			sums[key] = sum
		}
	}
	ranked := make([]*turnView, 0, len(rows))
	for key, row := range rows {
		row.DepartedSum, row.DepartedCost = sums[key].requests, sums[key].cost
		ranked = append(ranked, row)
	}
	slices.SortFunc(ranked, func(a, b *turnView) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(b.DepartedSum, a.DepartedSum), cmp.Compare(a.raw, b.raw))
	})
	if len(ranked) > most {
		slices.SortFunc(ranked[most-most/3:], func(a, b *turnView) int {
			return cmp.Or(cmp.Compare(b.DepartedSum, a.DepartedSum), cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(a.raw, b.raw))
		})
	}
	shown, others := ranked[:min(most, len(ranked))], &v.Others
	others.Keys, others.Waiting, others.Departed = v.Keys, v.Waiting, []int{}
	for _, row := range shown {
		if row.Waiting > 0 {
			others.Keys--
			others.Waiting -= row.Waiting
		}
	}
	// The parts were looked at one after the other, and requests came and left meanwhile.
	others.Keys, others.Waiting = max(others.Keys, 0), max(others.Waiting, 0)
	for _, second := range seconds {
		all := second.others
		for _, left := range second.left {
			all.add(left)
		}
		for _, row := range shown {
			left := second.left[row.raw]
			row.Departed = append(row.Departed, left.requests)
			all.requests -= left.requests
			all.cost -= left.cost
		}
		others.Departed = append(others.Departed, all.requests)
		others.DepartedSum += all.requests
		others.DepartedCost += all.cost
	}
	for _, row := range shown {
		v.Rows = append(v.Rows, *row)
	}
}

// newTurn returns the row of a key. The line is zero if the key has none.
func newTurn(key string, l watch.KeyLine) *turnView {
	row := &turnView{
		Key: *keyText(key), ID: idOf(key), Cut: len(key) == maxTurnKey, raw: key,
		Waiting: l.Waiting, Cost: l.Cost, Departed: []int{},
	}
	if l.Waiting > 0 {
		waited := l.OldestWait.Seconds()
		row.Weight, row.OldestWaitS = &l.Weight, &waited
	}
	return row
}

// cutKey returns the part of a key that is told.
func cutKey(key string) string { return key[:min(len(key), maxTurnKey)] }

// keyText returns a key as it is told.
func keyText(key string) *string {
	text := strings.ToValidUTF8(cutKey(key), "\uFFFD")
	return &text
}

// keysIn returns how many keys the requests of a line have.
func keysIn(line []watch.Waiter) int {
	keys := map[string]bool{}
	for _, w := range line {
		keys[w.Key] = true
	}
	return len(keys)
}

func (i *Inspector) serveKeys(w http.ResponseWriter, r *http.Request, q query) error {
	most := turnsShown
	if err := q.whole("max", &most, 0, turnKeys); err != nil {
		return err
	}
	of, _, err := i.bucketNamed(r.Context(), q.source, q.key)
	switch {
	case err != nil:
		return err
	case of.turns == nil:
		return unknown("source", q.source, "whose requests have no keys that take turns")
	}
	writeJSON(w, http.StatusOK, of.turns.view(most))
	return nil
}
