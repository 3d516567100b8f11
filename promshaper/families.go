package promshaper

import (
	"math"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

// A family is the metrics of one name that are no histogram.
type family struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	// sample calls emit for each value, with the values of all labels but the rule.
	sample func(r *reading, emit emit)
}

type emit func(v float64, labels ...string)

func counter(name, help string, sample func(*reading, emit), labels ...string) family {
	return family{newDesc(name, help, labels...), prometheus.CounterValue, sample}
}

func gauge(name, help string, sample func(*reading, emit), labels ...string) family {
	return family{newDesc(name, help, labels...), prometheus.GaugeValue, sample}
}

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("shaper_"+name, help, append([]string{"rule"}, labels...), nil)
}

// families are in the order in which doc.go explains them.
var families = []family{
	counter("requests_total", "Requests by what became of them: departed, refused, or abandoned because the context ended.",
		func(r *reading, emit emit) {
			emit(float64(r.Departed), "departed")
			emit(float64(r.Refused), "refused")
			emit(float64(r.Abandoned), "abandoned")
		}, "result"),
	counter("refusals_total", "Refused requests by the reason.",
		func(r *reading, emit emit) {
			emit(float64(r.QueueFull), "queue_full")
			emit(float64(r.TooLate), "too_late")
			emit(float64(r.TooCostly), "too_costly")
			emit(float64(r.Closed), "closed")
			emit(float64(r.Unavailable), "unavailable")
		}, "reason"),
	counter("missed_units_total", "Cost units lost to wake-ups that were later than the slack allows.",
		func(r *reading, emit emit) { emit(r.Missed) }),
	counter("given_back_units_total", "Cost units that were reserved too much and given back when their requests were settled.",
		func(r *reading, emit emit) { emit(float64(r.GivenBack)) }),
	counter("charged_units_total", "Cost units that were reserved too little and charged when their requests were settled.",
		func(r *reading, emit emit) { emit(float64(r.Charged)) }),
	counter("forfeited_units_total", "Cost units that were reserved too much and had drained when their requests were settled; if it grows, burst is too small for what is in flight.",
		func(r *reading, emit emit) { emit(float64(r.Forfeited)) }),
	gauge("reserved_units", "Cost units of requests that have left with an estimate and are not settled.",
		func(r *reading, emit emit) { emit(float64(r.Reserved)) }),
	gauge("waiting_requests", "Requests that wait in line, or in all lines of a group.",
		func(r *reading, emit emit) { emit(float64(r.Waiting)) }),
	gauge("dry_run", "1 if nobody is held up or refused, and the numbers are what would have been.",
		func(r *reading, emit emit) { emit(truth(r.DryRun)) }),
	gauge("timer_fallback", "1 if no kernel timer could be had when one was last wanted, so that requests leave up to a millisecond late.",
		func(r *reading, emit emit) { emit(truth(r.NoKernelTimer != "")) }),

	gauge("oldest_wait_seconds", "For how long the head of the line has waited; 0 without one.",
		ofShapers(func(r *reading, emit emit) { emit(r.OldestWait.Seconds()) })),
	gauge("waiting_keys", "Keys that have requests in line; 0 without fair queueing.",
		ofShapers(func(r *reading, emit emit) { emit(float64(r.Keys)) })),
	gauge("level_units", "Level of the bucket in cost units.",
		ofShapers(func(r *reading, emit emit) { emit(r.Level) })),
	gauge("in_flight_requests", "Requests that have left and not ended; absent without a cap.",
		ofShapers(func(r *reading, emit emit) {
			if r.Limits.InFlight > 0 || r.Bucket.InFlight > 0 {
				emit(float64(r.InFlight))
			}
		})),
	gauge("hold_seconds", "Time until requests in line may leave again; 0 if the line is not held.",
		ofShapers(func(r *reading, emit emit) { emit(r.until(r.HeldUntil).Seconds()) })),
	gauge("block_seconds", "Time until newcomers are admitted again; 0 if the bucket is not blocked.",
		ofShapers(func(r *reading, emit emit) { emit(r.until(r.BlockedUntil).Seconds()) })),

	gauge("limit_units_per_second", "Limit: the rate at which the bucket leaks.",
		ofShapers(func(r *reading, emit emit) { emit(perSecond(r.Limits.Rate)) })),
	gauge("limit_burst_units", "Limit: the cost that may leave at once.",
		ofShapers(func(r *reading, emit emit) { emit(float64(max(r.Limits.Burst, 1))) })),
	gauge("limit_waiting_requests", "Limit: how many requests may wait in line.",
		ofShapers(func(r *reading, emit emit) { emit(float64(r.Limits.Depth)) })),
	gauge("limit_wait_seconds", "Limit: the longest wait for which a request is admitted; absent if there is none.",
		ofShapers(func(r *reading, emit emit) {
			if r.Limits.MaxWait > 0 {
				emit(r.Limits.MaxWait.Seconds())
			}
		})),
	gauge("limit_in_flight_requests", "Limit: how many requests may be in flight; absent without a cap.",
		ofShapers(func(r *reading, emit emit) {
			if r.Limits.InFlight > 0 {
				emit(float64(r.Limits.InFlight))
			}
		})),

	gauge("meter_level_units", "Level of a meter in cost units.",
		ofMeters(func(m *shaper.MeterStats) float64 { return m.Level }), "meter"),
	gauge("meter_reserved_units", "Cost units that are reserved at a meter and not settled.",
		ofMeters(func(m *shaper.MeterStats) float64 { return float64(m.Reserved) }), "meter"),
	gauge("meter_limit_units_per_second", "Limit: the rate of a meter.",
		ofMeters(func(m *shaper.MeterStats) float64 { return perSecond(m.Rate) }), "meter"),
	gauge("meter_limit_burst_units", "Limit: the cost that may leave at once by a meter.",
		ofMeters(func(m *shaper.MeterStats) float64 { return float64(max(m.Burst, 1)) }), "meter"),
	counter("meter_missed_units_total", "Cost units of a meter lost to wake-ups that were later than the slack allows.",
		ofMeters(func(m *shaper.MeterStats) float64 { return m.Missed }), "meter"),
	counter("meter_given_back_units_total", "Cost units that were reserved too much at a meter and given back.",
		ofMeters(func(m *shaper.MeterStats) float64 { return float64(m.GivenBack) }), "meter"),
	counter("meter_charged_units_total", "Cost units that were reserved too little at a meter and charged.",
		ofMeters(func(m *shaper.MeterStats) float64 { return float64(m.Charged) }), "meter"),
	counter("meter_forfeited_units_total", "Cost units that were reserved too much at a meter and had drained.",
		ofMeters(func(m *shaper.MeterStats) float64 { return float64(m.Forfeited) }), "meter"),

	gauge("adapt_units_per_second", "The rate that a controller has found and put in force; absent if the rate does not adapt.",
		ofAdapting(func(st *adapt.Stats, emit emit) { emit(float64(st.Rate)) })),
	gauge("adapt_min_units_per_second", "The least rate that a controller puts in force.",
		ofAdapting(func(st *adapt.Stats, emit emit) { emit(float64(st.Min)) })),
	gauge("adapt_max_units_per_second", "The highest rate that a controller puts in force.",
		ofAdapting(func(st *adapt.Stats, emit emit) { emit(float64(st.Max)) })),
	counter("adapt_decreases_total", "How often a controller has lowered the rate, by what the upstream answered.",
		ofAdapting(func(st *adapt.Stats, emit emit) {
			emit(float64(st.Refused), "refused")
			emit(float64(st.Failed), "failed")
			emit(float64(st.Slow), "slow")
		}), "reason"),

	gauge("keys", "Keys of a group that have a bucket of their own.",
		ofGroups(func(g *shaper.GroupStats) float64 { return float64(g.Keys) })),
	gauge("refused_keys", "About how many different keys of a group have been refused so far.",
		ofGroups(func(g *shaper.GroupStats) float64 { return float64(g.RefusedKeys) })),
	counter("overflowed_calls_total", "Calls of a group whose key had to share a bucket or found none, as there were too many keys.",
		ofGroups(func(g *shaper.GroupStats) float64 { return float64(g.Overflowed) })),
	counter("limit_errors_total", "How often the limits of a key of a group could not be had.",
		ofGroups(func(g *shaper.GroupStats) float64 { return float64(g.LimitErrors) })),

	gauge("bucket_state", "1 for the state that the shared bucket is in, 0 for the others: shared, or without its server down, local, open.",
		ofBuckets(func(r *reading, emit emit) {
			for _, state := range []shared.State{shared.StateShared, shared.StateDown, shared.StateLocal, shared.StateOpen} {
				emit(truth(r.Bucket.State == state), string(state))
			}
		}), "state"),
	counter("bucket_round_trips_total", "Calls of the server that has the shared bucket.",
		ofBuckets(func(r *reading, emit emit) { emit(float64(r.Bucket.RoundTrips)) })),
	counter("bucket_failures_total", "Calls of the server that has the shared bucket which failed.",
		ofBuckets(func(r *reading, emit emit) { emit(float64(r.Bucket.Failures)) })),
	counter("bucket_leased_units_total", "Cost units that this process has taken from the shared bucket.",
		ofBuckets(func(r *reading, emit emit) { emit(float64(r.Bucket.Leased)) })),
	counter("bucket_dropped_units_total", "Cost units taken from the shared bucket whose slots have passed unused.",
		ofBuckets(func(r *reading, emit emit) { emit(float64(r.Bucket.Dropped)) })),
	counter("bucket_returned_units_total", "Cost units given back to the shared bucket.",
		ofBuckets(func(r *reading, emit emit) { emit(float64(r.Bucket.GivenBack)) })),
	gauge("bucket_held_units", "Cost units taken from the shared bucket and not used yet.",
		ofShapers(ofBuckets(func(r *reading, emit emit) { emit(float64(r.Bucket.Held)) }))),
	gauge("bucket_ahead_units", "The most cost units of the shared bucket that may be taken ahead of their use, as round trips and costs have been so far.",
		ofShapers(ofBuckets(func(r *reading, emit emit) { emit(float64(r.Bucket.Ahead)) }))),
	gauge("bucket_round_trip_seconds", "The shortest round trip of late to the server that has the shared bucket; absent if there was none.",
		ofShapers(ofBuckets(func(r *reading, emit emit) {
			if r.Bucket.RTT > 0 {
				emit(r.Bucket.RTT.Seconds())
			}
		}))),
	gauge("bucket_share_ratio", "The part of the slots of the shared bucket that this process has had of late; absent if not known.",
		ofShapers(ofBuckets(func(r *reading, emit emit) {
			if r.Bucket.Share > 0 {
				emit(r.Bucket.Share)
			}
		}))),
	gauge("bucket_seats", "Seats that this process has of the cap of all processes that share the bucket; absent without such a cap.",
		ofShapers(ofSeats(func(b *shared.Stats) int { return b.Seats }))),
	gauge("bucket_limit_seats", "Limit: how many requests of all processes that share the bucket may be in flight; absent without such a cap.",
		ofShapers(ofSeats(func(b *shared.Stats) int { return b.InFlight }))),
	gauge("bucket_lateness_seconds", "For how long after its instant a slot of the shared bucket may be used.",
		ofShapers(ofBuckets(func(r *reading, emit emit) { emit(r.Bucket.Lateness.Seconds()) }))),
}

// ofShapers is sample for Shapers alone, as a Group has no one bucket.
func ofShapers(sample func(*reading, emit)) func(*reading, emit) {
	return func(r *reading, emit emit) {
		if r.group == nil {
			sample(r, emit)
		}
	}
}

// ofMeters returns a sample of each meter of a Shaper.
func ofMeters(value func(*shaper.MeterStats) float64) func(*reading, emit) {
	return func(r *reading, emit emit) {
		for i := range r.meters {
			emit(value(&r.meters[i]), strings.ToValidUTF8(r.meters[i].Name, "\uFFFD"))
		}
	}
}

// ofAdapting returns a sample of the Controller of a Shaper.
func ofAdapting(sample func(*adapt.Stats, emit)) func(*reading, emit) {
	return func(r *reading, emit emit) {
		if r.adapt != nil {
			sample(r.adapt, emit)
		}
	}
}

// ofGroups returns a sample for Groups alone.
func ofGroups(value func(*shaper.GroupStats) float64) func(*reading, emit) {
	return func(r *reading, emit emit) {
		if r.group != nil {
			emit(value(r.group))
		}
	}
}

// ofBuckets is sample for sources whose level is in a [shared.Bucket].
func ofBuckets(sample func(*reading, emit)) func(*reading, emit) {
	return func(r *reading, emit emit) {
		if r.Bucket.State != "" {
			sample(r, emit)
		}
	}
}

// ofSeats returns a sample for sources whose [shared.Bucket] caps the requests in flight of all processes.
func ofSeats(value func(*shared.Stats) int) func(*reading, emit) {
	return ofBuckets(func(r *reading, emit emit) {
		if r.Bucket.InFlight > 0 {
			emit(float64(value(&r.Bucket)))
		}
	})
}

// until returns the time from the reading to an instant, or 0 if that has passed or is zero.
func (r *reading) until(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return max(0, t.Sub(r.at))
}

// perSecond returns a rate. [rate.Inf] is the greatest number, and becomes infinity.
func perSecond(r rate.Limit) float64 {
	if r == rate.Inf {
		return math.Inf(1)
	}
	return float64(r)
}

// truth returns 1 for true and 0 for false.
func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
