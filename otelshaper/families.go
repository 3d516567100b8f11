package otelshaper

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"example.com/leakybucket/shaper"
)

// A family is what is observed under one name. sample calls emit for each value, with its
// attributes beside the rule.
type family[N int64 | float64, Observable any] struct {
	make   func(metric.Meter) (Observable, error)
	sample func(r *reading, emit func(v N, more ...attribute.KeyValue))
}

type (
	intFamily   = family[int64, metric.Int64Observable]
	floatFamily = family[float64, metric.Float64Observable]

	emitInt   = func(v int64, more ...attribute.KeyValue)
	emitFloat = func(v float64, more ...attribute.KeyValue)
)

// counter returns a family of totals that only grow.
func counter(name, unit, description string, sample func(*reading, emitInt)) intFamily {
	return intFamily{func(m metric.Meter) (metric.Int64Observable, error) {
		return m.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	}, sample}
}

// upDownCounter returns a family of numbers that may be added up over processes.
func upDownCounter(name, unit, description string, sample func(*reading, emitInt)) intFamily {
	return intFamily{func(m metric.Meter) (metric.Int64Observable, error) {
		return m.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	}, sample}
}

var intFamilies = []intFamily{
	counter("shaper.requests", "{request}", "Requests by what became of them.",
		func(r *reading, emit emitInt) {
			for what, n := range map[result]uint64{
				acquired: r.Departed, canceled: r.Abandoned,
				queueFull: r.QueueFull, tooLate: r.TooLate, tooCostly: r.TooCostly, closed: r.Closed, unavailable: r.Unavailable,
			} {
				emit(int64(n), resultKey.String(what.String()))
			}
		}),
	upDownCounter("shaper.queued_requests", "{request}", "Requests that are in line now.",
		func(r *reading, emit emitInt) { emit(int64(r.Waiting)) }),
	upDownCounter("shaper.active_request_leases", "{request}", "Requests that have left and not ended, if there is a cap on them.",
		func(r *reading, emit emitInt) {
			if r.Limits.InFlight > 0 {
				emit(int64(r.InFlight))
			}
		}),
	upDownCounter("shaper.keys", "{key}", "Keys of a group that have a bucket of their own.",
		ofGroups(func(g *shaper.GroupStats) int64 { return int64(g.Keys) })),
	counter("shaper.overflowed_calls", "{call}", "Calls of a group whose key had to share a bucket or found none, as there were too many keys.",
		ofGroups(func(g *shaper.GroupStats) int64 { return int64(g.Overflowed) })),
	counter("shaper.limit_errors", "{error}", "How often the limits of a key of a group could not be had.",
		ofGroups(func(g *shaper.GroupStats) int64 { return int64(g.LimitErrors) })),
	upDownCounter("shaper.bucket.state", "{bucket}", "1 for the state that the shared bucket is in, 0 for the others.",
		ofBuckets(func(b shaper.BucketStats, emit emitInt) {
			for _, state := range []shaper.BucketState{shaper.BucketShared, shaper.BucketDown, shaper.BucketLocal, shaper.BucketOpen} {
				var is int64
				if b.State == state {
					is = 1
				}
				emit(is, stateKey.String(string(state)))
			}
		})),
	counter("shaper.bucket.round_trips", "{call}", "Calls of the server that has the shared bucket.",
		ofBuckets(func(b shaper.BucketStats, emit emitInt) { emit(int64(b.RoundTrips)) })),
	counter("shaper.bucket.failures", "{call}", "Calls of the server that has the shared bucket which failed.",
		ofBuckets(func(b shaper.BucketStats, emit emitInt) { emit(int64(b.Failures)) })),
}

var floatFamilies = []floatFamily{
	{
		func(m metric.Meter) (metric.Float64Observable, error) {
			return m.Float64ObservableCounter("shaper.missed_units", metric.WithUnit("{unit}"),
				metric.WithDescription("Cost units lost to wake-ups that were later than the slack allows."))
		},
		func(r *reading, emit emitFloat) { emit(r.Missed) },
	},
	{
		func(m metric.Meter) (metric.Float64Observable, error) {
			return m.Float64ObservableGauge("shaper.oldest_wait", metric.WithUnit("s"),
				metric.WithDescription("For how long the head of the line has waited; 0 without one."))
		},
		func(r *reading, emit emitFloat) {
			if r.group == nil { // A Group has many lines, and does not tell.
				emit(r.OldestWait.Seconds())
			}
		},
	},
}

// ofGroups returns a sample for Groups alone.
func ofGroups(value func(*shaper.GroupStats) int64) func(*reading, emitInt) {
	return func(r *reading, emit emitInt) {
		if r.group != nil {
			emit(value(r.group))
		}
	}
}

// ofBuckets returns a sample for sources whose level is in a [shaper.Bucket].
func ofBuckets(sample func(shaper.BucketStats, emitInt)) func(*reading, emitInt) {
	return func(r *reading, emit emitInt) {
		if r.Bucket.State != "" {
			sample(r.Bucket, emit)
		}
	}
}
