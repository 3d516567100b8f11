package inspect

import (
	"container/heap"
	"encoding/base64"
	"encoding/json"
	"slices"
	"time"
)

// A selection keeps the first rows of an order, of all that it is offered.
type selection struct {
	l       *listing
	kept    []placed // a heap with the last of them at its head
	more    bool     // there are others behind them
	matched int      // how many rows are wanted, on all pages
}

// placed is a row with its place in the order.
type placed struct {
	position
	row *row
}

func newSelection(l *listing) *selection {
	return &selection{l: l, kept: make([]placed, 0, min(l.limit, defaultLimit)+1)}
}

// offer takes a row if it is wanted, comes behind the cursor and may be among the first.
func (s *selection) offer(r *row) {
	if !s.l.matches(r) {
		return
	}
	s.matched++
	p := placed{position{s.l.rank(s.l, r), r.source.name, r.key}, r}
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

// sorted returns what was kept, in order.
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

// A cursor is the position of the last row of a page, and of which order.
type cursor struct {
	Sort   string
	Epoch  time.Time
	Value  float64
	Source []byte // not strings, in which JSON would replace what is not UTF-8
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
