package shaper

// A plan is Limits in the form in which a bucket needs them. They never change;
// all buckets of a Group that have the same Limits share one.
type plan struct {
	limits   Limits // as given
	interval interval
	burst    int64
	slack    int64 // lateness that may be made up, in nanoseconds
	users    int   // of a Group's: buckets that have it; its lock guards it
}

func planOf(l Limits) *plan {
	return &plan{limits: l, interval: intervalOf(l.Rate), burst: l.burst(), slack: l.slack()}
}
