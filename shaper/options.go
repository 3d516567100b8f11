package shaper

// An Option changes how a Shaper behaves. Its numbers are Limits, which may
// change later; options may not. Each is a GroupOption too.
type Option interface {
	GroupOption
	appliesToShapers()
}

// A GroupOption changes how a Group behaves.
type GroupOption interface{ apply(*options) }

type options struct {
	name    string
	trace   Trace
	coarse  bool
	dry     bool
	maxKeys int
}

// common makes an Option of a GroupOption.
type common struct{ GroupOption }

func (common) appliesToShapers() {}

type nameOption string

func (o nameOption) apply(to *options) { to.name = string(o) }

// WithName names the Shaper or Group in its Stats and Events. The default is "".
func WithName(name string) Option { return common{nameOption(name)} }

type traceOption struct{ trace *Trace }

func (o traceOption) apply(to *options) {
	if o.trace != nil {
		to.trace = *o.trace
	}
}

// WithTrace sets the hooks that are told of each request. The Trace is copied
// by New and NewGroup; a nil one sets no hook.
func WithTrace(t *Trace) Option { return common{traceOption{t}} }

type coarseTimerOption struct{}

func (coarseTimerOption) apply(to *options) { to.coarse = true }

// WithCoarseTimer makes the ticker wake no more than once a millisecond. It takes
// less of the processor above 1,000/s, at 10,000/s a seventh. The price is that
// departures are up to a millisecond late there, and those of one millisecond
// leave in a batch; up to 1,000/s nothing changes. A line keeps its rate, if Slack
// is a millisecond or more; a single caller who comes again and again has no line,
// and leaves a thousand times a second at most. Where Go's timers are in use (see
// Stats.Precise) it changes nothing: they are as coarse.
func WithCoarseTimer() Option { return common{coarseTimerOption{}} }

type maxKeysOption int

func (o maxKeysOption) apply(to *options) { to.maxKeys = int(o) }

// DefaultMaxKeys is how many buckets a Group keeps for keys of their own, if
// WithMaxKeys does not say otherwise.
const DefaultMaxKeys = 100_000

// WithMaxKeys bounds how many keys of a [Group] have a bucket of their own at once; n
// must be at least 1. A key that comes when there are so many shares a bucket with
// others (see Group). The place of a drained bucket is free within a second. The
// default is [DefaultMaxKeys].
func WithMaxKeys(n int) GroupOption { return maxKeysOption(n) }
