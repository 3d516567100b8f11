package shaper

// departures is a binary heap of the lines in which requests wait, ordered by the
// slots of their heads: the head of d[0] is the next to leave. The lock of the
// dispatcher guards it.
type departures []*line

// update moves a line to its place in the heap after its slot has changed. It removes an
// empty line.
func (d *departures) update(ln *line) {
	switch {
	case ln.head == nil:
		if ln.index >= 0 {
			d.remove(ln)
		}
		return
	case ln.index < 0:
		ln.index = int32(len(*d)) // It fits: 2³¹ lines would take 240 GB.
		*d = append(*d, ln)
	}
	if !d.up(int(ln.index)) {
		d.down(int(ln.index))
	}
}

// reorder puts all lines in their places after the slots of many have changed.
func (d departures) reorder() {
	for i := len(d)/2 - 1; i >= 0; i-- {
		d.down(i)
	}
}

// remove takes a line out of the heap.
func (d *departures) remove(ln *line) {
	h := *d
	last := len(h) - 1
	i := int(ln.index)
	h[i] = h[last]
	h[i].index = int32(i)
	h[last] = nil
	*d = h[:last]
	ln.index = -1
	if i < last && !d.up(i) {
		d.down(i)
	}
}

// up moves the line at index i towards the top, and reports whether it moved.
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

// down moves the line at index i away from the top.
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

// swap exchanges the lines at two indexes.
func (d departures) swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = int32(i), int32(j)
}
