// Package otelshaper tells OpenTelemetry about Shapers and Groups, and the spans of requests
// about their waits:
//
//	i, err := otelshaper.New()
//	…
//	s, err := shaper.New(limits, shaper.WithTrace(i.Trace("upstream")))
//	…
//	observed, err := i.Observe("upstream", otelshaper.Of(s))
//	…
//	defer observed.Unregister()
//
// # Metrics
//
// The semantic conventions of OpenTelemetry have a stable set of metrics for rate limiting,
// aspnetcore.rate_limiting.*. The metrics here have the same kinds of instruments, units and
// meanings, but their names begin with "shaper.". The names of that set would say that the program
// is one of ASP.NET Core, and two of its four results ("endpoint_limiter" and "global_limiter") are
// parts of its middleware. A dashboard for those names shows a shaper once they are replaced.
//
//	aspnetcore.rate_limiting.requests              shaper.requests               counter          {request}
//	aspnetcore.rate_limiting.queued_requests       shaper.queued_requests        up-down counter  {request}
//	aspnetcore.rate_limiting.request.time_in_queue shaper.request.time_in_queue  histogram        s
//	aspnetcore.rate_limiting.active_request_leases shaper.active_request_leases  up-down counter  {request}
//	attribute aspnetcore.rate_limiting.policy      shaper.rule                   the name that is given
//	attribute aspnetcore.rate_limiting.result      shaper.result                 see below
//
// Of request_lease.duration there is no counterpart, as a shaper does not tell how long a
// request was in flight; http.server.request.duration usually says it. There are leases only for a
// Shaper with a cap ([shaper.Limits].InFlight, or [shared.Options].InFlight).
//
// The results are "acquired" (it left), "request_canceled" (its context ended), and the reasons
// of refusals: "queue_full", "too_late", "too_costly", "closed", "unavailable".
//
// The histogram has only requests that were in line, as in ASP.NET Core: one that leaves at once
// has not queued. Its bounds are the conventions' up to 10 s, and five more up to 500 s,
// because lines are often longer than 10 s.
//
// These have no counterpart there:
//
//	shaper.oldest_wait         gauge            s           a Shaper
//	shaper.queued_keys         up-down counter  {key}       a Shaper: keys in line (shaper.WithFairQueue)
//	shaper.missed_units        counter          {unit}      lost to late wake-ups
//	shaper.reserved_units      up-down counter  {unit}      of requests that have left and are not settled
//	shaper.given_back_units    counter          {unit}      reserved too much, and given back when settled
//	shaper.charged_units       counter          {unit}      reserved too little, and charged when settled
//	shaper.forfeited_units     counter          {unit}      reserved too much, and drained when settled
//	shaper.meter.level         gauge            {unit}      of a meter of a Shaper (shaper.WithMeters), named by
//	                                                        the attribute shaper.meter, as those below
//	shaper.meter.rate          gauge            {unit}/s    unless it lets all pass
//	shaper.meter.burst         gauge            {unit}
//	shaper.meter.reserved_units    up-down counter  {unit}
//	shaper.meter.given_back_units  counter          {unit}
//	shaper.meter.charged_units     counter          {unit}
//	shaper.meter.forfeited_units   counter          {unit}
//	shaper.adapt.rate          gauge            {unit}/s    a Shaper whose rate adapts (OfAdaptive), as those below
//	shaper.adapt.min           gauge            {unit}/s
//	shaper.adapt.max           gauge            {unit}/s
//	shaper.adapt.decreases     counter          {decrease}  with the attribute shaper.adapt.reason: refused, failed, slow
//	shaper.keys                up-down counter  {key}       a Group
//	shaper.overflowed_calls    counter          {call}      a Group
//	shaper.limit_errors        counter          {error}     a Group
//	shaper.bucket.state        up-down counter  {bucket}    1 for one value of the attribute
//	                                                        shaper.bucket.state: shared, down, local, open
//	shaper.bucket.round_trips  counter          {call}      shared buckets
//	shaper.bucket.failures     counter          {call}      shared buckets
//	shaper.bucket.seats        up-down counter  {seat}      a Shaper: its seats of a cap of all processes
//	shaper.bucket.limit_seats  up-down counter  {seat}      a Shaper: that cap
//
// No metric has a key as an attribute.
//
// # Spans
//
// [Instruments.Trace] adds events to the span of a request's context, if it is recording. None
// is added for a request that leaves at once.
//
//	shaper.queued            shaper.ahead: how many were in line before it; shaper.cost
//	shaper.acquired          shaper.time_in_queue: for how many seconds it waited; shaper.ahead
//	shaper.request_canceled  shaper.time_in_queue; shaper.ahead
//	shaper.refused           shaper.result; shaper.retry_after in seconds, if trying again helps;
//	                         shaper.time_in_queue and shaper.ahead, if Close ended its wait
//
// All have shaper.rule, if it has a name. A request that waits has two events, one when it enters
// the line and one when its wait ends, so that their distance shows in the trace. shaper.ahead is
// the same in both: the number when it entered. A retry of a [shaper.Transport] goes to the head of
// the line, so fewer requests are before it than shaper.ahead says. A dry run notes what would have
// become of a request, with shaper.dry_run set, and measures no wait. The result is "no_limits"
// there for a request of a Group whose key or limits could not be had.
//
// # Cost
//
// What is observed costs nothing between two collections. The hooks add some tens of nanoseconds
// to a call that leaves at once, and allocate nothing. Those of a Group need its key as an
// interface, which is one allocation for keys such as strings.
package otelshaper
