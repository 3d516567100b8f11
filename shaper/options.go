package shaper

// An Option changes how a Shaper behaves. Its numbers are Limits, which may
// change later; options may not.
type Option interface{ apply(*options) }

type options struct {
	name   string
	trace  Trace
	coarse bool
}

type nameOption string

func (o nameOption) apply(to *options) { to.name = string(o) }

// WithName names the shaper in its Stats and Events. The default is "".
func WithName(name string) Option { return nameOption(name) }

type traceOption struct{ trace *Trace }

func (o traceOption) apply(to *options) {
	if o.trace != nil {
		to.trace = *o.trace
	}
}

// WithTrace sets the hooks that are told of each request. The Trace is copied
// by New; a nil one sets no hook.
func WithTrace(t *Trace) Option { return traceOption{t} }

type coarseTimerOption struct{}

func (coarseTimerOption) apply(to *options) { to.coarse = true }

// WithCoarseTimer makes the line leave by Go's own timers at every rate, as it
// does on systems other than Linux. It takes less of the processor at high
// rates, and no file. The price, on Linux, is that departures are up to a
// millisecond late, and above 1,000/s leave in small batches; the rate is kept.
func WithCoarseTimer() Option { return coarseTimerOption{} }
