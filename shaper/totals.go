package shaper

// totals are what the lanes of a Group count together, which outlives them. A
// Shaper's one lane has it all.
type totals struct {
	departed, abandoned uint64
	refused             [reasons]uint64
	wait                int64   // of those that departed, in nanoseconds
	missed              float64 // in cost units
}

// countDeparture counts a request that has left a lane, entered at that instant
// and waited for so long.
func (e *lanes) countDeparture(l *lane, entered, waited int64) {
	l.entered = max(l.entered, entered)
	l.departed++
	l.wait = sum(l.wait, waited)
	if e.many {
		e.totals.departed++
		e.totals.wait = sum(e.totals.wait, waited)
	}
}

// countRefusal counts a request that was refused, for that reason.
func (e *lanes) countRefusal(l *lane, entered int64, why reason) {
	l.entered = max(l.entered, entered)
	l.bucket.uncommon().refused[why]++
	if e.many {
		e.totals.refused[why]++
	}
}

// countAbandonment counts a request whose context ended.
func (e *lanes) countAbandonment(l *lane, entered int64) {
	l.entered = max(l.entered, entered)
	l.bucket.uncommon().abandoned++
	if e.many {
		e.totals.abandoned++
	}
}
