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
//   - You call an API: a [Transport], in a [net/http.Client]; many hosts: [Group.Transport]
//   - You limit each client, route or tenant: a [Group]; or [WithFairQueue], if they share one rate
//   - A request has several limits: [WithMeters] or [Chain]; several processes have one: [WithBucket]
//
// With these, [Limits] and [RejectError] most programs are written. Without [Limits.Depth] no request
// waits. [WithDryRun] shows which requests a limit would delay or refuse, before it is enforced. Package
// shaper/watch has what programs show of shapers to people, and package shaper/shared what goes with a
// level that several processes have.
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
// held or all seats are taken ([Limits.InFlight]).
//
// # Guarantees
//
//  1. Pace. No window of length W holds more than Burst + Rate × (W + Slack) cost units,
//     counted at their slots (a cost above Burst stands in its place). The schedule is absolute
//     and exact: 7 per second are 604,800 in 24 hours, give or take one ([Limits.Slack]).
//  2. Order. Requests leave in the order in which they were admitted: a cheap one does not
//     overtake a dear one, nor a newcomer the line. A request that a [Transport] retries was
//     admitted before, so it enters at the head, behind retries that came back earlier.
//  3. Bound. At most Depth requests wait. The next is refused at once, without blocking,
//     whatever the state of the ticker. Only retries wait beyond Depth, and with a shared
//     level requests that its room covers ([WithBucket]).
//  4. Abandonment. When the context of a waiting request ends, its place is free and
//     its slot belongs to the next request before its call returns. No departure is
//     spent on a caller that has gone, except in the one case that guarantee 5 names.
//  5. Exactly one outcome. Every call ends in exactly one of: left, refused, abandoned,
//     closed. A context that is done before the call returns wins: the slot goes to the next
//     request or back to the bucket. It is lost only if another has left since ([Shaper.WaitN]).
//  6. Prediction. A request that, with all ahead staying, would leave at or after its
//     deadline, or later than [Limits.MaxWait] allows, is refused when it comes. No change of
//     the rate refuses it later: only [WithLineTimeout], Close, or a shared level's outage.
//  7. Change. [Shaper.SetLimits] takes effect at once on the requests in line: they are
//     re-timed, in their order. Level and line are kept. A smaller Depth refuses
//     newcomers and removes no request from the line.
//  8. Rest. At most a second after its line emptied a Shaper has no goroutine, timer or file;
//     at the end of a [testing/synctest] bubble it has none. Forgetting a Shaper leaks nothing.
//     A Group keeps timers, but no goroutine, until its last bucket is drained.
//  9. End. [Shaper.Close] refuses all waiting requests, and returns when the ticker goroutine
//     has ended. [Shaper.Shutdown] admits no more, and lets the line leave at its rate. Both can
//     be called many times, at once, and from anywhere, hooks included.
//  10. One instant. Whatever a call does, it first lets all requests leave that are due by
//     then. The end of a context counts from the moment at which its call sees it. If that
//     is the instant of the departure either may win, but only one does.
//  11. No licence by absence. Nothing that is missing or malformed means "unlimited": NaN,
//     a rate of 0 and bad text are errors, a clock that goes back stands still, a missing
//     key is a key like any other, and keys that do not fit the table share buckets.
//
// ARCHITECTURE.md names the test that holds each. What [Shaper.Reserve], [WithFairQueue], [WithMeters] and
// [WithBucket] promise beside them, they say.
//
// # Precision
//
// On Linux (amd64, arm64, 386, arm), at intervals up to 20 ms, a kernel timer wakes the
// ticker: in an idle process requests leave within tens of microseconds of their slots. It
// needs a file while a request waits. Elsewhere it is a Go timer, on Linux up to a millisecond
// late; [Stats] says which, and why. Both keep the rate. Above 20,000 per second, without
// [WithCoarseTimer], the ticker takes as much of a processor as other goroutines leave.
//
// # Testing with it
//
// A Shaper schedules only by package time, so in a [testing/synctest] bubble it runs on the
// bubble's clock, exactly to the nanosecond. Make the Shaper inside the bubble: for one made
// outside, the bubble's clock lies in the past, and no request that waits leaves.
package shaper
