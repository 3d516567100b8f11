// Package promshaper tells Prometheus about Shapers and Groups:
//
//	c := promshaper.New()
//	prometheus.MustRegister(c)
//	remove, err := c.Add("upstream", promshaper.Of(s)) // or promshaper.OfGroup(g)
//	if err != nil {
//		return err // another one has that name
//	}
//	defer remove() // when s is no longer used
//	http.Handle("/metrics", promhttp.Handler())
//
// A [Collector] asks its sources only when it is scraped, for figures that they count anyway. So a
// request costs nothing more than without it.
//
// # Metrics
//
// All have the label rule, which is the name given to [Collector.Add]. None has a key: a
// Group is told as a whole, as Prometheus would keep a time series for each key for ever.
// Units are cost units; a request whose cost is not set has one.
//
// Counters of Shapers and Groups. They never go back: the counters of a Group outlive the buckets of
// its keys, and a closed Shaper keeps its own.
//
//	shaper_requests_total{result}   departed, refused, abandoned
//	shaper_refusals_total{reason}   queue_full, too_late, too_costly, closed, unavailable
//	shaper_missed_units_total       lost to wake-ups later than Limits.Slack
//	shaper_given_back_units_total   reserved too much, and given back when settled (Shaper.Reserve)
//	shaper_charged_units_total      reserved too little, and charged when settled
//	shaper_forfeited_units_total    reserved too much, and drained when settled
//
// Histograms of both:
//
//	shaper_wait_seconds             waits of the requests that departed
//	shaper_spacing_intervals        time between departures out of a line, 1 is on schedule
//
// Gauges of both:
//
//	shaper_waiting_requests         in line now
//	shaper_reserved_units           of requests that have left and are not settled
//	shaper_dry_run                  1: nobody is held up, the numbers are what would have been
//	shaper_timer_fallback           1: no kernel timer could be had
//
// Of a Shaper alone, whose one bucket they describe:
//
//	shaper_oldest_wait_seconds      of the head of the line
//	shaper_waiting_keys             that have requests in line (shaper.WithFairQueue)
//	shaper_level_units              of the bucket
//	shaper_in_flight_requests       if there is a cap
//	shaper_hold_seconds             until the line goes on, 0: it is not held
//	shaper_block_seconds            until newcomers are admitted, 0: they are
//	shaper_limit_units_per_second   Limits.Rate
//	shaper_limit_burst_units        Limits.Burst
//	shaper_limit_waiting_requests   Limits.Depth
//	shaper_limit_wait_seconds       Limits.MaxWait, if it is set
//	shaper_limit_in_flight_requests Limits.InFlight, if it is set
//
// Of each of its meters (shaper.WithMeters), as above:
//
//	shaper_meter_level_units{meter}
//	shaper_meter_reserved_units{meter}
//	shaper_meter_limit_units_per_second{meter}
//	shaper_meter_limit_burst_units{meter}
//	shaper_meter_missed_units_total{meter}
//	shaper_meter_given_back_units_total{meter}
//	shaper_meter_charged_units_total{meter}
//	shaper_meter_forfeited_units_total{meter}
//
// Of a Shaper whose rate adapts (OfAdaptive):
//
//	shaper_adapt_units_per_second   the rate that was found
//	shaper_adapt_min_units_per_second
//	shaper_adapt_max_units_per_second
//	shaper_adapt_decreases_total{reason}  refused, failed, slow
//
// Of a Group alone:
//
//	shaper_keys                     that have a bucket of their own
//	shaper_refused_keys             about how many different ones so far
//	shaper_overflowed_calls_total   for whose key there was no bucket left
//	shaper_limit_errors_total       no limits could be had for a key
//
// Of those whose level is in a [shared.Bucket]; the last seven of a Shaper alone:
//
//	shaper_bucket_state{state}      1 for one of shared, down, local, open
//	shaper_bucket_round_trips_total
//	shaper_bucket_failures_total
//	shaper_bucket_leased_units_total
//	shaper_bucket_dropped_units_total
//	shaper_bucket_returned_units_total
//	shaper_bucket_held_units
//	shaper_bucket_ahead_units
//	shaper_bucket_round_trip_seconds
//	shaper_bucket_share_ratio
//	shaper_bucket_seats             that this process has, if all processes have a cap
//	shaper_bucket_limit_seats       shared.Options.InFlight, if it is set
//	shaper_bucket_lateness_seconds
//
// A level in a [shared.Bucket] leaks on the clock of the Bucket's server, so there
// shaper_spacing_intervals stays empty and shaper_missed_units_total 0; units whose slots have
// passed unused are in shaper_bucket_dropped_units_total.
//
// # Histograms
//
// Both histograms are native and classic at once, and Prometheus takes the form that it is
// configured for.
//
// The native one has schema 4. A bucket of [watch.Histogram], which is 9 % wide, is exactly two
// buckets of that schema, and each of the two gets half of its count. So counts up to a
// bound of a watch.Histogram are exact, and a quantile is in the bucket of the true one, at most
// 9 % away. If Prometheus merges buckets to a coarser schema, because of
// native_histogram_bucket_limit, the two halves go to different buckets, which moves a
// quantile by up to 4.4 % more. A wait below a microsecond counts as a microsecond, and a spacing
// below 1/256 or above 256 as that.
//
// The classic buckets end at bounds of a watch.Histogram, so their counts are exact too. These
// bounds are not round: there is le="1.0442737824274138" and not le="1", which is in the middle of
// a bucket. The bucket with le="0" has the requests that left at once. [WithWaitBuckets] sets
// other bounds.
//
// # Rules
//
// The file deploy/rules.yml of the repository has recording rules and alerts to begin with, and docs/operating.md
// says for each alert what to do then.
package promshaper
