// Package quota tells how the calls of a gateway of language models would have fared under a quota:
// which teams would have waited, how long, and how much of the quota would have been used.
//
// The decisions are those of the gateway, in virtual time: a call waits for the cost of its
// estimate ([llm.Quota.Cost]), teams take turns by their weights, and when a call has ended it settles with the cost of
// what it has taken. Package internal/replay of the root module computes them, and its tests
// hold it to a Shaper. What a usage log does not tell is not simulated:
//
//   - A call takes as long as it took then, from when it leaves the line, and the bucket is full at the
//     beginning of the log.
//   - A call that was refused then, or whose client went, did not run: nobody knows how long it would
//     have taken. It is replayed with its estimate, and ends at once, so its estimate stands.
//   - No client gives up, and none that is refused comes again; a log may have the retries of then.
//   - Holds, and what the provider said was left, are of then. They are left out.
package quota
