package shaper

// departures are the lines in which somebody waits, as a binary heap by the
// instants at which their heads may leave: d[0] is the next. The lock of the
// flows guards it.
type departures []*line

// update puts a line where it belongs after its head, its bucket or its places
// have changed: out of the heap, if nobody waits in it any more.
func (d *departures) update(ln *line) {
	switch {
	case ln.head == nil:
		if ln.index >= 0 {
			d.remove(ln)
		}
		return
	case ln.index < 0:
		ln.index = len(*d)
		*d = append(*d, ln)
	}
	ln.slot = ln.flow.headMayLeave()
	if !d.up(ln.index) {
		d.down(ln.index)
	}
}

// remove takes a line out.
func (d *departures) remove(ln *line) {
	h := *d
	last := len(h) - 1
	i := ln.index
	h[i] = h[last]
	h[i].index = i
	h[last] = nil
	*d = h[:last]
	ln.index = -1
	if i < last && !d.up(i) {
		d.down(i)
	}
}

// up moves the line at i towards the top, and says whether it moved.
func (d departures) up(i int) (moved bool) {
	for i > 0 {
		parent := (i - 1) / 2
		if d[parent].slot <= d[i].slot {
			break
		}
		d.swap(i, parent)
		i, moved = parent, true
	}
	return moved
}

// down moves the line at i away from the top.
func (d departures) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(d) {
			return
		}
		if right := child + 1; right < len(d) && d[right].slot < d[child].slot {
			child = right
		}
		if d[i].slot <= d[child].slot {
			return
		}
		d.swap(i, child)
		i = child
	}
}

func (d departures) swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i, j
}
