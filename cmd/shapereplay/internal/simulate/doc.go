// Package simulate tells how the requests of a log would have fared under rules: which would
// have waited, how long, and which would have been refused.
//
// Every key has a bucket of its own, in virtual time, with the limits that the rules give
// it. The buckets do exactly the same as the buckets of a [shaper.Group]; package
// internal/replay of the root module computes them, and its tests hold it to a Group. What a
// log does not tell is not simulated:
//
//   - No client gives up. One that has waited long enough to leave would have made room
//     for those behind it.
//   - No client comes again. One that was refused would have tried once more; one that was
//     not answered well when the log was written may have done so, in the log.
//   - Caps on requests in flight (inflight) hold no request up. How long a request takes that
//     leaves at another instant, beside other requests, is not in the log: the durations
//     there are the upstream's under the load that it had.
//   - A Group has so many buckets at most ([shaper.WithMaxKeys]), and shares some of them if
//     there are more keys. Here every key has its own.
//   - Every request costs 1.
package simulate
