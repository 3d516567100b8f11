package otelshaper

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

// A family makes the instrument of one name, and a function that tells all its values.
type family func(metric.Meter) (metric.Observable, tell, error)

// A tell gives the values of an instrument to a collection.
type tell func(o observer, r *reading)

// An observer is a collection that observes the source of one rule.
type observer struct {
	metric.Observer
	rule string
}

// with returns the attribute of the rule, followed by more.
func (o observer) with(more ...attribute.KeyValue) metric.ObserveOption {
	return metric.WithAttributeSet(attribute.NewSet(ruleAttributes(o.rule, more...)...))
}

// A sample calls emit for each value, with its attributes beside the rule.
type (
	sample = func(r *reading, emit emit)
	emit   = func(v int64, more ...attribute.KeyValue)
)

// counter returns a family of totals that only grow.
func counter(name, unit, description string, sample sample) family {
	return func(m metric.Meter) (metric.Observable, tell, error) {
		made, err := m.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		return made, telling(made, sample), err
	}
}

// upDownCounter returns a family of numbers that may be added up over processes.
func upDownCounter(name, unit, description string, sample sample) family {
	return func(m metric.Meter) (metric.Observable, tell, error) {
		made, err := m.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		return made, telling(made, sample), err
	}
}

// telling tells the values of a sample.
func telling(of metric.Int64Observable, sample sample) tell {
	return func(o observer, r *reading) {
		sample(r, func(v int64, more ...attribute.KeyValue) { o.ObserveInt64(of, v, o.with(more...)) })
	}
}

var families = []family{
	counter("shaper.requests", "{request}", "Requests by what became of them.",
		func(r *reading, emit emit) {
			for what, n := range map[result]uint64{
				acquired: r.Departed, canceled: r.Abandoned,
				queueFull: r.QueueFull, tooLate: r.TooLate, tooCostly: r.TooCostly, closed: r.Closed, unavailable: r.Unavailable,
			} {
				emit(int64(n), resultKey.String(what.String()))
			}
		}),
	upDownCounter("shaper.queued_requests", "{request}", "Requests that are in line now.",
		func(r *reading, emit emit) { emit(int64(r.Waiting)) }),
	upDownCounter("shaper.queued_keys", "{key}", "Keys that have requests in line; 0 without fair queueing.",
		func(r *reading, emit emit) {
			if r.group == nil { // The keys of a Group have a line each.
				emit(int64(r.Keys))
			}
		}),
	upDownCounter("shaper.active_request_leases", "{request}", "Requests that have left and not ended, if there is a cap on them.",
		func(r *reading, emit emit) {
			if r.Limits.InFlight > 0 || r.Bucket.InFlight > 0 {
				emit(int64(r.InFlight))
			}
		}),
	upDownCounter("shaper.reserved_units", "{unit}", "Cost units of requests that have left with an estimate and are not settled.",
		func(r *reading, emit emit) { emit(int64(r.Reserved)) }),
	counter("shaper.given_back_units", "{unit}", "Cost units that were reserved too much and given back when their requests were settled.",
		func(r *reading, emit emit) { emit(int64(r.GivenBack)) }),
	counter("shaper.charged_units", "{unit}", "Cost units that were reserved too little and charged when their requests were settled.",
		func(r *reading, emit emit) { emit(int64(r.Charged)) }),
	counter("shaper.forfeited_units", "{unit}", "Cost units that were reserved too much and had drained when their requests were settled; if it grows, burst is too small for what is in flight.",
		func(r *reading, emit emit) { emit(int64(r.Forfeited)) }),
	upDownCounter("shaper.keys", "{key}", "Keys of a group that have a bucket of their own.",
		ofGroups(func(g *shaper.GroupStats) int64 { return int64(g.Keys) })),
	counter("shaper.overflowed_calls", "{call}", "Calls of a group whose key had to share a bucket or found none, as there were too many keys.",
		ofGroups(func(g *shaper.GroupStats) int64 { return int64(g.Overflowed) })),
	counter("shaper.limit_errors", "{error}", "How often the limits of a key of a group could not be had.",
		ofGroups(func(g *shaper.GroupStats) int64 { return int64(g.LimitErrors) })),
	upDownCounter("shaper.bucket.state", "{bucket}", "1 for the state that the shared bucket is in, 0 for the others.",
		ofBuckets(func(b shared.Stats, emit emit) {
			for _, state := range []shared.State{shared.StateShared, shared.StateDown, shared.StateLocal, shared.StateOpen} {
				var is int64
				if b.State == state {
					is = 1
				}
				emit(is, stateKey.String(string(state)))
			}
		})),
	counter("shaper.bucket.round_trips", "{call}", "Calls of the server that has the shared bucket.",
		ofBuckets(func(b shared.Stats, emit emit) { emit(int64(b.RoundTrips)) })),
	counter("shaper.bucket.failures", "{call}", "Calls of the server that has the shared bucket which failed.",
		ofBuckets(func(b shared.Stats, emit emit) { emit(int64(b.Failures)) })),
	upDownCounter("shaper.bucket.seats", "{seat}", "Seats that this process has of the cap of all processes that share the bucket; absent without such a cap.",
		ofSeats(func(b shared.Stats) int { return b.Seats })),
	upDownCounter("shaper.bucket.limit_seats", "{seat}", "How many requests of all processes that share the bucket may be in flight; absent without such a cap.",
		ofSeats(func(b shared.Stats) int { return b.InFlight })),

	upDownCounter("shaper.meter.reserved_units", "{unit}", "Cost units that are reserved at a meter and not settled.",
		ofMeters(func(m *shaper.MeterStats) int64 { return int64(m.Reserved) })),
	counter("shaper.meter.given_back_units", "{unit}", "Cost units that were reserved too much at a meter and given back.",
		ofMeters(func(m *shaper.MeterStats) int64 { return int64(m.GivenBack) })),
	counter("shaper.meter.charged_units", "{unit}", "Cost units that were reserved too little at a meter and charged.",
		ofMeters(func(m *shaper.MeterStats) int64 { return int64(m.Charged) })),
	counter("shaper.meter.forfeited_units", "{unit}", "Cost units that were reserved too much at a meter and had drained.",
		ofMeters(func(m *shaper.MeterStats) int64 { return int64(m.Forfeited) })),
	meterGauge("shaper.meter.level", "{unit}", "Level of a meter in cost units.", func(m *shaper.MeterStats) float64 { return m.Level }),
	meterGauge("shaper.meter.rate", "{unit}/s", "Rate of a meter; absent if it lets all pass.", func(m *shaper.MeterStats) float64 { return float64(m.Rate) }),
	meterGauge("shaper.meter.burst", "{unit}", "Cost units that may leave at once by a meter.", func(m *shaper.MeterStats) float64 { return float64(max(m.Burst, 1)) }),

	counter("shaper.adapt.decreases", "{decrease}", "How often a controller has lowered the rate, by what the upstream answered.",
		func(r *reading, emit emit) {
			if r.adapt == nil {
				return
			}
			for reason, n := range map[string]uint64{"refused": r.adapt.Refused, "failed": r.adapt.Failed, "slow": r.adapt.Slow} {
				emit(int64(n), adaptReasonKey.String(reason))
			}
		}),
	adaptGauge("shaper.adapt.rate", "The rate that a controller has found and put in force.", func(st *adapt.Stats) float64 { return float64(st.Rate) }),
	adaptGauge("shaper.adapt.min", "The least rate that a controller puts in force.", func(st *adapt.Stats) float64 { return float64(st.Min) }),
	adaptGauge("shaper.adapt.max", "The highest rate that a controller puts in force.", func(st *adapt.Stats) float64 { return float64(st.Max) }),

	// These two are no whole numbers.
	func(m metric.Meter) (metric.Observable, tell, error) {
		made, err := m.Float64ObservableCounter("shaper.missed_units", metric.WithUnit("{unit}"),
			metric.WithDescription("Cost units lost to wake-ups that were later than the slack allows."))
		return made, func(o observer, r *reading) {
			o.ObserveFloat64(made, r.Missed, o.with())
		}, err
	},
	func(m metric.Meter) (metric.Observable, tell, error) {
		made, err := m.Float64ObservableGauge("shaper.oldest_wait", metric.WithUnit("s"),
			metric.WithDescription("For how long the head of the line has waited; 0 without one."))
		return made, func(o observer, r *reading) {
			if r.group == nil { // A Group has many lines, and does not tell.
				o.ObserveFloat64(made, r.OldestWait.Seconds(), o.with())
			}
		}, err
	},
}

// ofMeters returns a sample of each meter of a Shaper.
func ofMeters(value func(*shaper.MeterStats) int64) sample {
	return func(r *reading, emit emit) {
		for i := range r.meters {
			emit(value(&r.meters[i]), attributeOf(&r.meters[i]))
		}
	}
}

// attributeOf returns the attribute that names a meter.
func attributeOf(m *shaper.MeterStats) attribute.KeyValue {
	return meterKey.String(strings.ToValidUTF8(m.Name, "\uFFFD"))
}

// meterGauge returns a family of numbers of meters that need not be whole.
func meterGauge(name, unit, description string, value func(*shaper.MeterStats) float64) family {
	return func(m metric.Meter) (metric.Observable, tell, error) {
		made, err := m.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
		return made, func(o observer, r *reading) {
			for i := range r.meters {
				if v := value(&r.meters[i]); v < math.MaxFloat64 { // A backend has no infinity, which rate.Inf stands for.
					o.ObserveFloat64(made, v, o.with(attributeOf(&r.meters[i])))
				}
			}
		}, err
	}
}

// adaptGauge returns a family of rates of Controllers.
func adaptGauge(name, description string, of func(*adapt.Stats) float64) family {
	return func(m metric.Meter) (metric.Observable, tell, error) {
		made, err := m.Float64ObservableGauge(name, metric.WithUnit("{unit}/s"), metric.WithDescription(description))
		return made, func(o observer, r *reading) {
			if r.adapt != nil {
				o.ObserveFloat64(made, of(r.adapt), o.with())
			}
		}, err
	}
}

// ofGroups returns a sample for Groups alone.
func ofGroups(value func(*shaper.GroupStats) int64) sample {
	return func(r *reading, emit emit) {
		if r.group != nil {
			emit(value(r.group))
		}
	}
}

// ofBuckets returns a sample for sources whose level is in a [shared.Bucket].
func ofBuckets(sample func(shared.Stats, emit)) sample {
	return func(r *reading, emit emit) {
		if r.Bucket.State != "" {
			sample(r.Bucket, emit)
		}
	}
}

// ofSeats returns a sample for Shapers whose [shared.Bucket] caps the requests in flight of all processes.
func ofSeats(value func(shared.Stats) int) sample {
	return func(r *reading, emit emit) {
		if r.group == nil && r.Bucket.InFlight > 0 {
			emit(int64(value(r.Bucket)))
		}
	}
}

// scope names the instrumentation scope of all metrics.
const scope = "example.com/leakybucket/otelshaper"

// Instruments are the metrics of any number of Shapers and Groups.
//
// Make one with [New], usually one for a program. [Instruments.Observe] tells the counts of a Shaper or
// Group counts anyway, and [Instruments.Trace] returns hooks that measure how long its requests
// wait and note that on their spans. Each works without the other.
//
// Instruments are safe for concurrent use.
type Instruments struct {
	meter       metric.Meter
	observables []metric.Observable // as in families
	tells       []tell              // the same
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
// Spans need no provider: they come with the contexts of requests.
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
	for _, of := range families {
		made, tell, err := of(i.meter)
		i.observables, i.tells, errs = append(i.observables, made), append(i.tells, tell), append(errs, err)
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

// Observe reports a source from now on. rule is the value of the attribute shaper.rule: which
// limits these are, such as "login", and never a key, because a backend keeps a time series for
// each value. If it is empty there is no such attribute.
//
// At each collection the source is asked once for its Stats; nothing happens in between.
// Unregister of what Observe returns takes the source away again.
//
// Observe returns an error if there is no source, if another source has the rule already,
// or if the provider refuses the callback.
func (i *Instruments) Observe(rule string, source Source) (metric.Registration, error) {
	if source == nil {
		return nil, fmt.Errorf("otelshaper: the source of rule %q is nil", rule)
	}
	if !i.take(rule) {
		return nil, fmt.Errorf("otelshaper: a source of rule %q is observed already", rule)
	}
	registered, err := i.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		r := source.read()
		for _, tell := range i.tells {
			tell(observer{o, rule}, r)
		}
		return nil
	}, i.observables...)
	if err != nil {
		i.release(rule)
		return nil, err
	}
	return &registration{Registration: registered, release: sync.OnceFunc(func() { i.release(rule) })}, nil
}

// A registration is one of the provider's that frees its rule as well.
type registration struct {
	metric.Registration
	release func()
}

// Unregister takes the source away. It may be called several times.
func (r *registration) Unregister() error {
	defer r.release()
	return r.Registration.Unregister()
}

// take reserves a rule, and reports whether it was free.
func (i *Instruments) take(rule string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.observed[rule] {
		return false
	}
	i.observed[rule] = true
	return true
}

func (i *Instruments) release(rule string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.observed, rule)
}

// A Source is what [Instruments.Observe] can report. [Of] makes one of a Shaper, [OfAdaptive] of one
// whose rate adapts, and [OfGroup] of a Group.
type Source interface{ read() *reading }

// A reading is the state of a source at one instant.
type reading struct {
	// Stats are from a Shaper. For a Group only the fields are set that its own Stats
	// have too.
	shaper.Stats
	group  *shaper.GroupStats  // nil for a Shaper
	meters []shaper.MeterStats // of a Shaper
	adapt  *adapt.Stats        // of a Shaper whose rate adapts; nil: it does not
}

// Of makes a [Source] of a Shaper. A closed one goes on telling its totals. Of panics if s is nil
// or was not made by [shaper.New], as the Shaper's methods do.
func Of(s *shaper.Shaper) Source {
	s.Limits() // A panic is better here than in the middle of a collection.
	return ofShaper{s}
}

type ofShaper struct{ s *shaper.Shaper }

func (s ofShaper) read() *reading { return &reading{Stats: s.s.Stats(), meters: s.s.Meters()} }

// OfAdaptive is [Of] for a Shaper whose rate a Controller changes, and tells about the Controller too. It panics if one of
// them is nil.
func OfAdaptive(s *shaper.Shaper, a *adapt.Controller) Source {
	a.Stats()
	return ofAdaptive{Of(s), a}
}

type ofAdaptive struct {
	Source
	a *adapt.Controller
}

func (o ofAdaptive) read() *reading {
	r, st := o.Source.read(), o.a.Stats()
	r.adapt = &st
	return r
}

// OfGroup makes a [Source] of a Group, of all its keys together. It panics if g is nil or was not
// made by [shaper.NewGroup].
func OfGroup[K comparable](g *shaper.Group[K]) Source {
	g.Stats()
	return ofGroup[K]{g}
}

type ofGroup[K comparable] struct{ g *shaper.Group[K] }

func (g ofGroup[K]) read() *reading {
	st := g.g.Stats()
	return &reading{group: &st, Stats: shaper.Stats{
		Waiting: st.Waiting, Departed: st.Departed, Abandoned: st.Abandoned,
		QueueFull: st.QueueFull, TooLate: st.TooLate, TooCostly: st.TooCostly, Closed: st.Closed, Unavailable: st.Unavailable,
		Missed: st.Missed, Bucket: st.Bucket,
		Reserved: st.Reserved, GivenBack: st.GivenBack, Charged: st.Charged, Forfeited: st.Forfeited,
	}}
}
