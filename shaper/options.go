package shaper

// An Option changes how a Shaper behaves. Its numbers are Limits, which may
// change later; options may not.
type Option interface{ apply(*options) }

type options struct {
	name  string
	trace Trace
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
