// Package shaper smooths bursts of requests to a fragile upstream. A [Shaper] is a leaky
// bucket used as a queue: requests enter at any moment, wait in a bounded first-in
// first-out line, and leave at a fixed rate. When the line is full a newcomer is refused
// at once. A request whose caller gave up leaves the line at once, and all behind it
// move up.
//
//	s, err := shaper.New(shaper.Limits{Rate: 50, Depth: 100}) // 50/s, 100 may wait
//	...
//	err = s.Do(ctx, 1, callTheUpstream) // refused: *shaper.RejectError; given up: ctx.Err()
//
// # Start here
//
//   - Your program calls something fragile, from workers, queues or jobs: a [Shaper], by [Shaper.Do];
//     by [Shaper.Spend] where the cost is known only when the call has ended
//   - You serve HTTP: [Middleware], in front of a [net/http.Handler]
//   - You call an API: a [Transport], in a [net/http.Client]
//   - You limit each client, route or tenant: a [Group]; or [WithFairQueue], if they share one rate
//   - A request has several limits: [Chain]; several processes have one: [WithBucket], [WithBuckets]
//
// With these, [Limits] and [RejectError] most programs are written. Package watch
// is for programs that show shapers to people, and package shared for the authors of stores.
//
// # Limits
//
// Without [Limits.Depth] no request waits: with a Burst of 1 the second request within an
// interval is refused. In front of a [net/http.Handler] use [Middleware], which answers
// refused requests with 429 and a Retry-After in whole seconds, computed from the line and
// rounded up. For calls to an API use a [Transport], which holds the whole line when the
// API answers 429 and says for how long. If it allows so many requests in any rolling minute, [Window]
// returns the Limits that keep to it.
//
// To bound how many requests are upstream at the same time as well, set
// [Limits.InFlight]. A request then leaves only when both the bucket and the cap allow
// it. It is in flight, and has one of that many seats, until its release function is
// called or [Shaper.Do] returns. Unless seats are free for a request and for all ahead of
// it, [RejectError.RetryAfter] and [Shaper.Forecast] are estimates. Time during which a
// [Shaper.Hold] or the cap kept the line waiting does not count as lateness.
//
// A [Group] keeps one bucket per key, for example one per client. Everything said here
// about a Shaper holds for each of its buckets, which are created and deleted as their
// keys are used. A [Chain] applies several limiters to one request. It charges each of
// them the same cost, unless [Priced] gives one another cost. [WithDryRun] shows
// which requests a limit would delay or refuse, before it is enforced.
//
// Several processes share the level of a bucket, and so its rate and burst, with
// [WithBucket] and [WithBuckets], while each has a line of its own. The level is in a
// [shared.Bucket], such as the modules redisbucket and pgbucket have; docs/shared-guarantees.md states the
// guarantees of all processes together.
//
// # The one rule
//
// A bucket has a level, in cost units, which is never below 0. It leaks at [Limits.Rate]
// units per second. When it is empty, [Limits.Burst] units can leave at once.
//
//	A request of cost n leaves as soon as it is at the head of the line and
//	the level is at most max(0, Burst − n). Leaving raises the level by n.
//
// From this follow the kinds of limiter that are known elsewhere:
//
//	Burst 1, Depth d   departures at least 1/Rate apart, up to d wait: the leaky
//	                   bucket as a queue; nginx limit_req with burst=d
//	Burst b, Depth 0   up to b at once, then one per 1/Rate, the rest refused: the
//	                   leaky bucket as a meter; GCRA; nginx burst with nodelay
//	Burst b, Depth d   b at once, then a line; nginx burst with delay
//	cost n > Burst     waits for an empty bucket, which is empty again n/Rate later
//
// There are three exceptions. With Depth 0 a cost above Burst is refused, even by
// an empty bucket. No wait, burst or cost may extend more than 365 days ahead. At rate.Inf
// the level is always 0, and a request of any cost leaves at once, except while the line is
// held or all seats are taken.
//
// # Guarantees
//
//  1. Pace. Departures are counted at their slots. No window of length W holds more
//     than Burst + Rate × (W + Slack) cost units. If a request costs more than Burst, the
//     largest cost takes the place of Burst. Across a change of limits the larger
//     Burst counts, and each rate for the time in which it was in force.
//     The schedule is absolute and exact: 7 per second are 604,800 in 24 hours, give or
//     take one. A wake-up that is late by no more than [Limits.Slack] makes no later
//     departure late. Of more lateness only Slack is made up: the schedule goes on from
//     now − Slack, and the cost that is lost is counted in [Stats.Missed]. So while requests
//     wait, cost departed + Missed is Rate × time, to within Burst + Rate × Slack. Slack is
//     only for a request that was in line when its slot came: an idle bucket earns
//     nothing beyond Burst. In virtual time nothing is late.
//  2. Order. Requests leave in the order in which they were admitted. A cheap request
//     does not overtake a dear one, and a newcomer does not overtake the line. A
//     request that a [Transport] retries was admitted before, so it enters at the
//     head of the line: ahead of all newcomers, and behind retries that came back
//     earlier.
//  3. Bound. At most Depth requests wait. The next is refused at once, without
//     blocking, whatever the state of the ticker. A request that a Transport
//     retries was admitted before, so it waits even beyond Depth, and enters the
//     line even during [Shaper.Shutdown]. With a [shared.Bucket] up to Burst requests that its
//     room covers need no place ([WithBucket]).
//  4. Abandonment. When the context of a waiting request ends, its place is free and
//     its slot belongs to the next request before its call returns. No departure is
//     spent on a request whose caller has gone, except in the one case that
//     guarantee 5 names.
//  5. Exactly one outcome. Every call ends in exactly one of: left, refused,
//     abandoned, closed. If the context has ended before the call, or is found to have
//     ended before the call returns, the call returns the context's error: a call that has
//     waited and been given its slot asks ctx.Err() once more. The slot of such a call goes
//     to the next request that may leave. If there is none, the bucket is as if the request had
//     not left. The slot is lost only if a later request has left since it was given, or if the
//     level has been raised by a charge, [Shaper.AtMost] or [Shaper.Restore]. No slot is used twice.
//  6. Prediction. When a request comes, its departure is predicted as if all requests ahead
//     stayed. If that is at or after its context's deadline, or if the wait is longer than
//     [Limits.MaxWait], the request is refused at once. A wait of exactly MaxWait is admitted. A
//     request whose deadline has passed while ctx.Err() is still nil is refused, and counted.
//     Without [WithLineTimeout], no request that was admitted is refused later because the rate
//     has changed: it waits until its context ends. With it, a request is refused when its
//     bound comes. An outage of a [shared.Bucket] refuses requests in line, too, after their patience
//     ([shared.Options.Patience]). With a cap it is unknown when requests will end. So the
//     prediction assumes that a seat becomes free at once, which refuses no request
//     that might still leave in time; RetryAfter and Forecast are then estimates, from how
//     long requests have been in flight of late. A request that a Transport retries is
//     bound by its deadline and by WithLineTimeout, but not by MaxWait.
//  7. Change. [Shaper.SetLimits] takes effect at once on the requests in line: they are
//     re-timed, in their order. Level and line are kept. A smaller Depth refuses
//     newcomers and removes no request from the line.
//  8. Rest. At most a second after its line emptied a Shaper has no goroutine,
//     timer or file; at the end of a [testing/synctest] bubble it has none.
//     Forgetting a Shaper leaks nothing. A Group keeps timers, but no goroutine,
//     until the last of its buckets is drained, and at most a second longer.
//  9. End. Close refuses all waiting requests and returns when the ticker goroutine
//     has ended. With a [shared.Bucket] it first tries to give back the leased slots. Shutdown admits no more
//     requests, lets the line leave at its rate, and then closes; sooner if bounds come ([WithLineTimeout]). If its context ends first, Shutdown returns
//     that error while the line goes on leaving; only [Shaper.Close] stops it then. With an empty line
//     Shutdown returns nil even if its context is done, and so does a Shutdown that is waiting when Close is
//     called. Both can be called many times, at once, and from anywhere, hooks included. On a closed Shaper
//     SetLimits, [Shaper.Limits] and [Shaper.Stats] still work.
//  10. One instant. Whatever a call does, it first lets all requests leave that are due by
//     then. So of an arrival, a change of limits, an end or a look at the instant of a
//     departure, the departure comes first. The end of a context counts from the moment at
//     which its call sees it. If that is the instant of the departure either may win,
//     but only one does.
//  11. No licence by absence. Nothing that is missing or malformed means
//     "unlimited". NaN, a rate of 0 and text that can't be parsed are errors. A
//     clock that goes backwards is treated as standing still. A missing key is a
//     key like any other. Keys that do not fit the table share buckets.
//
// ARCHITECTURE.md names the test that holds each.
//
// # Costs that are known afterwards
//
// [Shaper.Reserve] lets a request leave with an estimate of its cost, and is told the actual cost later. It
// promises:
//
//  1. As if known. After settle(actual), with an actual of at most the estimate, the level is what it would be if the
//     request had left with the cost actual: exactly that, or higher if requests were charged
//     meanwhile, and never lower. So guarantee 1 holds for the costs that were settled. It follows that
//     only that comes back which has not drained since the request left: of the difference as much as the
//     least level since then, which is the least of the levels just before each later departure and of the
//     present one. To give back the whole difference would let more leave in some windows than guarantee 1 allows.
//  2. Charge. With an actual above the estimate the difference raises the level at once. The requests that have left
//     since then left sooner than they should have. So a window may hold more than guarantee 1
//     allows, by what its requests were charged, and by no more. No request in line is refused for it.
//  3. Order. A settle changes when requests leave, but neither their order nor which are in line.
//  4. Bound. Of more than 4,096 reservations of one bucket that are not settled the oldest gets nothing
//     back. A reservation takes memory only until it is settled or has nothing to get back.
//
// Keep Burst as large as the estimates that are unsettled at a time: with a Burst of 1 the next request
// leaves when the level is 0, and then nothing is left to be given back. [Stats.Forfeited] counts such
// losses.
//
// # Many keys, one rate
//
// [WithFairQueue] makes the keys of a Shaper share its rate: the line has a line for each key, and each departure goes
// to the key whose turn it is. [Shaper.For] says which key a request has, and [WithKey] and Transport.Key
// do so for requests of HTTP. At equal costs requests depart at the same instants as without the option; only
// which request leaves differs. So a burst of one key delays the others by little, and no slot is lost, while
// a Group would have to split the rate beforehand. WithFairQueue states what it promises.
//
// # Precision
//
// On Linux (amd64, arm64, 386, arm), at intervals up to 20 ms, a kernel timer wakes the
// ticker. In an idle process requests then leave within tens of microseconds of their
// slots, and at intervals up to 1 ms mostly within a few. The timer needs a file while a
// request waits, and for a tenth of a second longer. On other systems, at longer intervals,
// and if no file can be had, the ticker uses a Go timer, which on Linux is up to a
// millisecond late. [Stats] says which timer is used, and why. With both the rate is
// kept: lateness is made up, within [Limits.Slack]. Above 20,000 per second, without
// [WithCoarseTimer], the ticker hardly sleeps between slots. It lets other goroutines run
// until the next slot, and takes as much of a processor as they leave.
//
// # Testing with it
//
// A Shaper schedules only by package time, so in a [testing/synctest] bubble it
// runs on the bubble's clock, exactly to the nanosecond. Make the Shaper inside the
// bubble. For one made outside, the bubble's clock lies in the past, so the Shaper's clock
// stands still, and no request that waits leaves.
package shaper
