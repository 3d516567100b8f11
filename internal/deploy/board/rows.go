package board

import "fmt"

// of is the selector of all panels, and over the time of a rate.
const (
	of   = `rule=~"$rule"`
	over = `[$__rate_interval]`
)

// perSecond returns the sum of the rates of a counter.
func perSecond(by, metric, labels string) string {
	if labels != "" {
		labels = ", " + labels
	}
	return fmt.Sprintf("sum by (%s) (rate(%s{%s%s}%s))", by, metric, of, labels, over)
}

// gauge returns the sum or another aggregate of a gauge.
func gauge(aggregate, by, metric string) string {
	return fmt.Sprintf("%s by (%s) (%s{%s})", aggregate, by, metric, of)
}

// quantile returns a quantile of a classic histogram, which every Prometheus has.
func quantile(q, metric string) string {
	return fmt.Sprintf("histogram_quantile(%s, %s)", q, perSecond("rule, le", metric+"_bucket", ""))
}

// rows are the board. What is a sum is so over all processes, which share a limit or have
// one each; a limit is shown as it is, once.
var rows = []row{
	{"Traffic", []panel{
		{
			title: "Let through", unit: "reqps",
			help: "Requests that left, of all processes. The limit is in units; it is that of one process, unless they share it. The buckets of single keys have no line here.",
			queries: []query{
				{"{{rule}}", perSecond("rule", "shaper_requests_total", `result="departed"`)},
				{"{{rule}}" + limitSuffix, gauge("max", "rule", "shaper_limit_units_per_second")},
			},
		},
		{
			title: "Refused, by reason", unit: "reqps", stacked: true,
			help:    "queue_full: too many waited. too_late: the wait would have been too long. too_costly: it can never fit. closed: the process ends. unavailable: the server of the shared buckets can't be asked.",
			queries: []query{{"{{rule}} {{reason}}", perSecond("rule, reason", "shaper_refusals_total", "") + " > 0"}},
		},
		{
			title: "Gave up", unit: "percentunit",
			help: "The part of the requests whose clients went while they waited. If it grows, the line is longer than their patience.",
			queries: []query{{"{{rule}}", perSecond("rule", "shaper_requests_total", `result="abandoned"`) +
				" / " + perSecond("rule", "shaper_requests_total", "")}},
		},
	}},
	{"The line", []panel{
		{
			title: "Waiting", unit: "short",
			help: "Requests in line now.",
			queries: []query{
				{"{{rule}}", gauge("sum", "rule", "shaper_waiting_requests")},
				{"{{rule}}" + limitSuffix, gauge("max", "rule", "shaper_limit_waiting_requests")},
			},
		},
		{
			title: "Wait", unit: "s",
			help: "How long the requests waited that left: half of them less than p50, all but one in a hundred less than p99.",
			queries: []query{
				{"{{rule}} p50", quantile("0.5", "shaper_wait_seconds")},
				{"{{rule}} p99", quantile("0.99", "shaper_wait_seconds")},
				{"{{rule}}" + limitSuffix, gauge("max", "rule", "shaper_limit_wait_seconds")},
			},
		},
		{
			title: "Head of the line", unit: "s",
			help: "For how long the request has waited that is next, and for how long the line is held or newcomers are blocked.",
			queries: []query{
				{"{{rule}} waits", gauge("max", "rule", "shaper_oldest_wait_seconds")},
				{"{{rule}} held", gauge("max", "rule", "shaper_hold_seconds") + " > 0"},
				{"{{rule}} blocked", gauge("max", "rule", "shaper_block_seconds") + " > 0"},
			},
		},
		{
			title: "In flight", unit: "short",
			help: "Requests that have left and not ended, if there is a cap.",
			queries: []query{
				{"{{rule}}", gauge("sum", "rule", "shaper_in_flight_requests")},
				{"{{rule}}" + limitSuffix, gauge("max", "rule", "shaper_limit_in_flight_requests")},
			},
		},
		{
			title: "Level", unit: "short",
			help: "Level of the bucket, in units. At the limit, which is the burst, requests wait.",
			queries: []query{
				{"{{rule}}", gauge("max", "rule", "shaper_level_units")},
				{"{{rule}}" + limitSuffix, gauge("max", "rule", "shaper_limit_burst_units")},
			},
		},
		{
			title: "Spacing", unit: "short",
			help: "Time between two departures out of a line, as a part of what it should be: 1 is on schedule.",
			queries: []query{
				{"{{rule}} p50", quantile("0.5", "shaper_spacing_intervals")},
				{"{{rule}} p99", quantile("0.99", "shaper_spacing_intervals")},
			},
		},
	}},
	{"Keys", []panel{
		{
			title: "Keys", unit: "short",
			help:    "Keys that have a bucket of their own now, in all processes.",
			queries: []query{{"{{rule}}", gauge("sum", "rule", "shaper_keys")}},
		},
		{
			title: "Refused keys", unit: "short",
			help:    "About how many different keys have been refused since the process began.",
			queries: []query{{"{{rule}}", gauge("max", "rule", "shaper_refused_keys")}},
		},
		{
			title: "Keys without a bucket or without limits", unit: "reqps",
			help: "Calls of keys that had to share a bucket, as there were too many keys, and of keys for which no limits could be had. Both should be 0.",
			queries: []query{
				{"{{rule}} overflowed", perSecond("rule", "shaper_overflowed_calls_total", "")},
				{"{{rule}} no limits", perSecond("rule", "shaper_limit_errors_total", "")},
			},
		},
	}},
	{"Shared buckets", []panel{
		{
			title: "State", unit: "short", stacked: true,
			help:    "How many processes are in which state: shared, or without the server down, local or open.",
			queries: []query{{"{{rule}} {{state}}", gauge("sum", "rule, state", "shaper_bucket_state") + " > 0"}},
		},
		{
			title: "Round trips", unit: "reqps",
			help: "Calls of the server that has the levels, and those which failed.",
			queries: []query{
				{"{{rule}}", perSecond("rule", "shaper_bucket_round_trips_total", "")},
				{"{{rule}} failed", perSecond("rule", "shaper_bucket_failures_total", "")},
			},
		},
		{
			title: "Round trip", unit: "s",
			help: "The shortest of late, and for how long after its instant a slot may be used. If the first comes near the second, slots are lost.",
			queries: []query{
				{"{{rule}} {{instance}}", gauge("max", "rule, instance", "shaper_bucket_round_trip_seconds")},
				{"{{rule}} lateness", gauge("min", "rule", "shaper_bucket_lateness_seconds")},
			},
		},
		{
			title: "Share of each process", unit: "percentunit", stacked: true,
			help:    "The part of the slots that each process has had of late.",
			queries: []query{{"{{rule}} {{instance}}", gauge("max", "rule, instance", "shaper_bucket_share_ratio")}},
		},
		{
			title: "Units taken", unit: "short",
			help: "Units a second that were taken from the shared bucket; those whose slots passed unused, and those given back.",
			queries: []query{
				{"{{rule}} taken", perSecond("rule", "shaper_bucket_leased_units_total", "")},
				{"{{rule}} passed unused", perSecond("rule", "shaper_bucket_dropped_units_total", "")},
				{"{{rule}} given back", perSecond("rule", "shaper_bucket_returned_units_total", "")},
			},
		},
		{
			title: "Units held", unit: "short",
			help:    "Units that were taken and not used yet.",
			queries: []query{{"{{rule}} {{instance}}", gauge("max", "rule, instance", "shaper_bucket_held_units")}},
		},
	}},
	{"The process", []panel{
		{
			title: "Missed slots", unit: "short",
			help:    "Units a second that were lost because the process woke up too late. It gets too little processor time.",
			queries: []query{{"{{rule}}", perSecond("rule", "shaper_missed_units_total", "")}},
		},
		{
			title: "Coarse timer", unit: "short",
			help:    "Processes without a kernel timer, whose requests leave up to a millisecond late.",
			queries: []query{{"{{rule}}", gauge("sum", "rule", "shaper_timer_fallback")}},
		},
		{
			title: "Dry run", unit: "short",
			help:    "Processes in which these limits hold nobody up, and the numbers are what would have been.",
			queries: []query{{"{{rule}}", gauge("sum", "rule", "shaper_dry_run")}},
		},
	}},
}
