package otelshaper

import (
	"errors"
	"strings"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// scope names the instrumentation scope of all metrics.
const scope = "example.com/leakybucket/otelshaper"

// Instruments are the metrics of any number of Shapers and Groups.
//
// Make one with [New], usually one for a program. [Instruments.Observe] tells what a Shaper or
// Group counts anyway, and [Instruments.Trace] returns hooks that measure how long its requests
// wait and note that on their spans. Each works without the other.
//
// Instruments are safe for concurrent use.
type Instruments struct {
	meter       metric.Meter
	ints        []metric.Int64Observable   // as in intFamilies
	floats      []metric.Float64Observable // as in floatFamilies
	timeInQueue metric.Float64Histogram

	mu       sync.Mutex
	observed map[string]bool // by rule
}

// An Option changes where [Instruments] report to.
type Option interface{ apply(*options) }

type option func(*options)

func (o option) apply(to *options) { o(to) }

type options struct{ provider metric.MeterProvider }

// WithMeterProvider sets the provider of the metrics. The default is [otel.GetMeterProvider].
// Spans need no provider: they are those of the contexts of requests.
func WithMeterProvider(p metric.MeterProvider) Option {
	return option(func(to *options) { to.provider = p })
}

// New makes [Instruments]. It returns an error if the provider cannot make one of them.
func New(opts ...Option) (*Instruments, error) {
	o := options{provider: otel.GetMeterProvider()}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if o.provider == nil {
		return nil, errors.New("otelshaper: WithMeterProvider got nil")
	}
	i := &Instruments{meter: o.provider.Meter(scope), observed: map[string]bool{}}
	var errs []error
	for _, f := range intFamilies {
		made, err := f.make(i.meter)
		i.ints, errs = append(i.ints, made), append(errs, err)
	}
	for _, f := range floatFamilies {
		made, err := f.make(i.meter)
		i.floats, errs = append(i.floats, made), append(errs, err)
	}
	var err error
	i.timeInQueue, err = i.meter.Float64Histogram("shaper.request.time_in_queue", metric.WithUnit("s"),
		metric.WithDescription("How long requests were in line that did not leave at once."),
		metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 25, 50, 100, 250, 500))
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	return i, nil
}

// ruleAttributes returns the attribute of a rule, or none if it has no name, followed by more.
func ruleAttributes(rule string, more ...attribute.KeyValue) []attribute.KeyValue {
	if rule == "" {
		return more
	}
	// Text that is not valid would make an exporter lose all that it sends with it.
	return append([]attribute.KeyValue{ruleKey.String(strings.ToValidUTF8(rule, "\uFFFD"))}, more...)
}
