package accesslog

import (
	"errors"
	"io"
	"math"
	"slices"
	"time"
)

// A merger reads several sources side by side, and returns their entries by the stamps.
//
// It always reads the source that lags, so it holds the entries of one window, and one further
// entry of each source.
type merger struct {
	o     *Options
	stats *Stats

	sources []*source // those that have more lines

	window  time.Duration // how far back times may go from one line to a later one of the same file
	held    sorter
	most    int   // bytes of entries that held holds
	fresh   entry // the one that was read last
	low     int64 // no stamp that was returned is later
	seconds spread
}

// maxHeld is how many bytes of entries a sorter holds, but for the last.
const maxHeld = 256 << 20

// tieBits are the bits of a tie that count lines; those above are the rank of the source.
const tieBits = 40

func newMerger(o *Options, stats *Stats) *merger {
	m := &merger{o: o, stats: stats, window: time.Minute, most: maxHeld, low: math.MinInt64, seconds: spread{}}
	if o.Format == Usage {
		m.window = time.Hour
	}
	return m
}

// add reads the first entries of the sources, and ranks the sources by them: entries of one instant
// are returned in the order of the ranks.
func (m *merger) add(sources []*source) error {
	var firsts sorter
	for i, s := range sources {
		s.newest = math.MinInt64
		switch err := m.read(s); {
		case err == nil:
			firsts.push(s.newest, uint64(i), &m.fresh)
		case !errors.Is(err, io.EOF):
			return err
		}
	}
	for rank := uint64(0); firsts.size > 0; rank++ {
		var e entry
		s := sources[firsts.pop(&e).tie]
		s.rank = rank
		m.sources = append(m.sources, s)
		m.hold(s, &e)
	}
	return nil
}

// next writes the next entry to e. The error is [io.EOF] after the last one.
func (m *merger) next(e *entry) (ticket, error) {
	for {
		first, ok := m.held.first()
		if len(m.sources) == 0 {
			if !ok {
				return ticket{}, io.EOF
			}
			return m.release(e), nil
		}
		s := m.sources[0]
		for _, other := range m.sources[1:] {
			if other.newest < s.newest {
				s = other // It lags.
			}
		}
		if ok && (s.newest-first >= int64(m.window) || m.held.size > m.most) {
			return m.release(e), nil
		}
		switch err := m.read(s); {
		case err == nil:
			m.hold(s, &m.fresh)
		case errors.Is(err, io.EOF):
			m.sources = slices.DeleteFunc(m.sources, func(other *source) bool { return other == s })
		default:
			return ticket{}, err
		}
	}
}

func (m *merger) release(e *entry) ticket {
	t := m.held.pop(e)
	m.low = t.at
	return t
}

// read reads the next entry of a source.
func (m *merger) read(s *source) error {
	err := s.next(&m.fresh, m.stats, func(e *entry) Reason {
		if stamp := e.stamp.ns; stamp < m.low || s.newest != math.MinInt64 && s.newest-stamp >= int64(m.window) {
			return OutOfOrder
		}
		if e.isEnd && e.Duration >= m.window {
			return TookLong
		}
		return ""
	})
	if err == nil {
		s.newest = max(s.newest, m.fresh.stamp.ns)
	}
	return err
}

// hold keeps an entry until its turn comes.
func (m *merger) hold(s *source, e *entry) {
	m.stats.count(e)
	if m.o.Spread && e.stamp.coarse {
		m.seconds.count(second{s.rank, e.stamp.ns})
	}
	m.held.push(e.stamp.ns, s.rank<<tieBits|uint64(s.line), e)
}

// offset returns the time from the second of an entry's stamp to its arrival.
func (m *merger) offset(t ticket, e *entry) int64 {
	if !m.o.Spread || !e.stamp.coarse {
		return 0
	}
	return int64(m.seconds.next(second{t.tie >> tieBits, t.at}))
}

// A sorter holds entries and gives them back by their time, and entries of one time by
// their tie. Most come in that order, and stand in a queue. The others are in a binary heap
// of tickets, which are small, beside the entries, which are not. container/heap would
// allocate for each of the millions of tickets.
type sorter struct {
	queue   []ticket // in order, from head on
	head    int
	tickets []ticket // the heap
	entries []entry
	free    []int32 // places in entries
	size    int     // bytes held, see [entry.held]
}

type ticket struct {
	at    int64
	tie   uint64
	place int32 // in entries
}

func (t ticket) before(u ticket) bool { return t.at < u.at || t.at == u.at && t.tie < u.tie }

func (s *sorter) push(at int64, tie uint64, e *entry) {
	place := int32(len(s.entries))
	if n := len(s.free); n > 0 {
		place, s.free = s.free[n-1], s.free[:n-1]
		s.entries[place] = *e
	} else {
		s.entries = append(s.entries, *e)
	}
	s.size += e.held()

	t := ticket{at, tie, place}
	if n := len(s.queue); n == s.head || s.queue[n-1].before(t) {
		if n == cap(s.queue) && s.head > n/2 {
			s.queue, s.head = append(s.queue[:0], s.queue[s.head:]...), 0
		}
		s.queue = append(s.queue, t)
		return
	}
	s.tickets = append(s.tickets, t)
	i := len(s.tickets) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !t.before(s.tickets[parent]) {
			break
		}
		s.tickets[i] = s.tickets[parent]
		i = parent
	}
	s.tickets[i] = t
}

// first returns the time of the entry that pop would return, and reports whether there is one.
func (s *sorter) first() (at int64, ok bool) {
	switch {
	case s.queueIsFirst():
		return s.queue[s.head].at, true
	case len(s.tickets) > 0:
		return s.tickets[0].at, true
	}
	return 0, false
}

// queueIsFirst reports whether the first entry is the first of the queue.
func (s *sorter) queueIsFirst() bool {
	return s.head < len(s.queue) && (len(s.tickets) == 0 || s.queue[s.head].before(s.tickets[0]))
}

// pop moves the first entry to e. There must be one.
func (s *sorter) pop(e *entry) (first ticket) {
	if s.queueIsFirst() {
		first = s.queue[s.head]
		s.head++
	} else {
		first = s.popHeap()
	}
	*e = s.entries[first.place]
	s.entries[first.place] = entry{} // Its strings can go.
	s.free = append(s.free, first.place)
	s.size -= e.held()
	return first
}

// popHeap takes the first ticket from the heap.
func (s *sorter) popHeap() ticket {
	first := s.tickets[0]
	last := len(s.tickets) - 1
	t := s.tickets[last]
	s.tickets = s.tickets[:last]
	for i := 0; last > 0; {
		child := 2*i + 1
		if child+1 < last && s.tickets[child+1].before(s.tickets[child]) {
			child++
		}
		if child >= last || !s.tickets[child].before(t) {
			s.tickets[i] = t
			break
		}
		s.tickets[i] = s.tickets[child]
		i = child
	}
	return first
}

// A spread counts the requests of each whole second of a source, to spread them over it. All of a
// second have been counted when the first leaves, as they are held for a window.
type spread map[second]spreadCount

type second struct {
	rank uint64 // of the source
	at   int64
}

type spreadCount struct{ counted, gone int }

func (s spread) count(of second) {
	c := s[of]
	c.counted++
	s[of] = c
}

// next returns the next request's offset from its second.
func (s spread) next(of second) time.Duration {
	c := s[of]
	offset := time.Duration(float64(time.Second) * float64(c.gone) / float64(c.counted))
	if c.gone++; c.gone == c.counted {
		delete(s, of)
	} else {
		s[of] = c
	}
	return offset
}
