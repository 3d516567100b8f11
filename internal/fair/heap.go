package fair

import "math/bits"

// A heap is a binary heap of the lines of an [Order].
type heap[T any] struct {
	lines   []*line[T]
	longest bool // the longest line is at the top, and not the line whose head leaves next
}

// before reports whether a line is to be nearer to the top than another.
func (h *heap[T]) before(a, b *line[T]) bool {
	if h.longest {
		// Of two lines that end at one tag, the one has more to pay until then that begins at the lower.
		c := b.end.compare(a.end.wide)
		if c == 0 {
			c = a.start.compare(b.start.wide)
		}
		return c < 0 || c == 0 && a.last.number > b.last.number
	}
	c := a.tag.compare(b.tag)
	return c < 0 || c == 0 && a.head < b.head
}

// place returns where a line keeps its place in the heap.
func (h *heap[T]) place(ln *line[T]) *int32 {
	if h.longest {
		return &ln.places[1]
	}
	return &ln.places[0]
}

// update moves a line to its place. It adds one that is not there yet.
func (h *heap[T]) update(ln *line[T]) {
	place := h.place(ln)
	if *place < 0 {
		*place = int32(len(h.lines))
		h.lines = append(h.lines, ln)
	}
	if !h.up(int(*place)) {
		h.down(int(*place))
	}
}

// remove takes a line out.
func (h *heap[T]) remove(ln *line[T]) {
	last := len(h.lines) - 1
	i := int(*h.place(ln))
	h.swap(i, last)
	h.lines[last] = nil
	h.lines = h.lines[:last]
	*h.place(ln) = -1
	if i < last && !h.up(i) {
		h.down(i)
	}
}

// up moves the line at a place towards the top, and reports whether it moved.
func (h *heap[T]) up(i int) (moved bool) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h.before(h.lines[i], h.lines[parent]) {
			break
		}
		h.swap(i, parent)
		i, moved = parent, true
	}
	return moved
}

// down moves the line at a place away from the top.
func (h *heap[T]) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h.lines) {
			return
		}
		if right := child + 1; right < len(h.lines) && h.before(h.lines[right], h.lines[child]) {
			child = right
		}
		if !h.before(h.lines[child], h.lines[i]) {
			return
		}
		h.swap(i, child)
		i = child
	}
}

func (h *heap[T]) swap(i, j int) {
	h.lines[i], h.lines[j] = h.lines[j], h.lines[i]
	*h.place(h.lines[i]), *h.place(h.lines[j]) = int32(i), int32(j)
}

// candidates is a binary heap of the requests that may be the next of a walk.
type candidates[T any] []candidate[T]

func (h *candidates[T]) push(c candidate[T]) {
	*h = append(*h, c)
	s := *h
	for i := len(s) - 1; i > 0; {
		parent := (i - 1) / 2
		if !s[i].before(s[parent]) {
			return
		}
		s[i], s[parent] = s[parent], s[i]
		i = parent
	}
}

func (h *candidates[T]) pop() candidate[T] {
	s := *h
	top, last := s[0], len(s)-1
	s[0] = s[last]
	s = s[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(s) {
			break
		}
		if right := child + 1; right < len(s) && s[right].before(s[child]) {
			child = right
		}
		if !s[child].before(s[i]) {
			break
		}
		s[i], s[child] = s[child], s[i]
		i = child
	}
	*h = s
	return top
}

// wide is a number from 0 to 2¹²⁸ − 1.
type wide struct{ high, low uint64 }

func (a wide) plus(b wide) wide {
	low, carry := bits.Add64(a.low, b.low, 0)
	return wide{a.high + b.high + carry, low}
}

func (a wide) minus(b wide) wide {
	low, borrow := bits.Sub64(a.low, b.low, 0)
	return wide{a.high - b.high - borrow, low}
}

func (a wide) less(b wide) bool { return a.high < b.high || a.high == b.high && a.low < b.low }

func (a wide) compare(b wide) int {
	switch {
	case a.less(b):
		return -1
	case a == b:
		return 0
	}
	return 1
}

// saturated returns the number, or the greatest int64.
func (a wide) saturated() int64 {
	if a.high > 0 || a.low > 1<<63-1 {
		return 1<<63 - 1
	}
	return int64(a.low)
}

// A mark is a sum of a key's payments: a multiple of 2⁻³², and a remainder in units of
// 2⁻³²/weight.
type mark struct {
	wide
	rest uint32 // below the weight
}

// plus returns the mark after a payment of cost/weight.
func (m mark) plus(cost int64, weight uint32) mark {
	paid, rest := share(cost, weight)
	m.wide, m.rest = m.wide.plus(paid), m.rest+rest
	if m.rest >= weight {
		m.wide, m.rest = m.wide.plus(wide{low: 1}), m.rest-weight
	}
	return m
}

// minus undoes plus.
func (m mark) minus(cost int64, weight uint32) mark {
	paid, rest := share(cost, weight)
	m.wide = m.wide.minus(paid)
	if m.rest < rest {
		m.wide, m.rest = m.wide.minus(wide{low: 1}), m.rest+weight
	}
	m.rest -= rest
	return m
}

// share returns cost/weight in multiples of 2⁻³², and the remainder.
func share(cost int64, weight uint32) (paid wide, rest uint32) {
	high, low, w := uint64(cost)>>32, uint64(cost)<<32, uint64(weight)
	if w == 1 {
		return wide{high, low}, 0
	}
	quotient, left := bits.Div64(high%w, low, w)
	return wide{high / w, quotient}, uint32(left)
}
