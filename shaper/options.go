package shaper

import "time"

// An Option changes how a [Shaper] behaves. Options cannot change later, as [Limits] can.
// Every Option is a [GroupOption] too.
type Option interface {
	GroupOption
	appliesToShapers()
}

// A GroupOption changes how a [Group] behaves.
type GroupOption interface{ apply(*options) }

type options struct {
	name    string
	trace   Trace
	coarse  bool
	mode    mode
	block   time.Duration
	maxKeys int
	shared  sharedOptions
}

// common makes an [Option] of a [GroupOption].
type common struct{ GroupOption }

func (common) appliesToShapers() {}

type nameOption string

func (o nameOption) apply(to *options) { to.name = string(o) }

// WithName sets the name of the [Shaper] or [Group] in its [Stats] and in each [Event].
// The default is "".
func WithName(name string) Option { return common{nameOption(name)} }

type traceOption struct{ trace *Trace }

func (o traceOption) apply(to *options) {
	if o.trace != nil {
		to.trace = *o.trace
	}
}

// WithTrace sets the hooks that run for each request. [New] and [NewGroup] copy the
// [Trace]; a nil one sets no hook.
func WithTrace(t *Trace) Option { return common{traceOption{t}} }

type coarseTimerOption struct{}

func (coarseTimerOption) apply(to *options) { to.coarse = true }

// WithCoarseTimer makes the ticker wake at most once a millisecond. Above 1,000/s that
// takes less CPU time (at 10,000/s, less than half), and requests leave in batches, up to a
// millisecond late. Up to 1,000/s nothing changes. The rate is kept if [Limits.Slack] is
// at least a millisecond. But a single caller in a loop never has a second request in
// line, so its requests leave at most 1,000 times a second. Where Go's timers are in use
// (see [Stats.Precise]) the option changes nothing, because they are as coarse.
func WithCoarseTimer() Option { return common{coarseTimerOption{}} }

type maxKeysOption int

func (o maxKeysOption) apply(to *options) { to.maxKeys = int(o) }

// DefaultMaxKeys is how many keys of a [Group] may have a bucket of their own at once,
// unless [WithMaxKeys] sets another number.
const DefaultMaxKeys = 100_000

// WithMaxKeys bounds how many keys of a [Group] have a bucket of their own at once; n
// must be at least 1. A key that comes when n keys have one shares a bucket with other
// keys (see [Group]). A drained bucket is removed within a second. The default is
// [DefaultMaxKeys].
func WithMaxKeys(n int) GroupOption { return maxKeysOption(n) }
