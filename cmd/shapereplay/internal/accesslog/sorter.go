package accesslog

// A sorter holds entries and gives them back by their time, and those of one time by
// their tie. It is a binary heap of tickets, which are small, beside the entries, which
// are not. container/heap would allocate for each of the millions of tickets.
type sorter struct {
	tickets []ticket
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

// first returns when the entry is that pop would return, and reports whether there is one.
func (s *sorter) first() (at int64, ok bool) {
	if len(s.tickets) == 0 {
		return 0, false
	}
	return s.tickets[0].at, true
}

// pop moves the first entry to e. There must be one.
func (s *sorter) pop(e *entry) ticket {
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
	*e = s.entries[first.place]
	s.entries[first.place] = entry{} // Its strings can go.
	s.free = append(s.free, first.place)
	s.size -= e.held()
	return first
}
