// Package find finds, for each rule, the smallest rate that would have kept to a [Goal]
// with the requests of a log, and the smallest depth that does at this rate.
//
// # Why bisection is right
//
// Every key has a bucket of its own, with the burst of the rule, the longest wait of the
// goal, and a line of any length. No request waits longer than the goal says, because one
// that would is refused. So the only question is how many are refused, and that number never
// grows with the rate:
//
// Let the buckets b and B see the same arrivals, of cost 1, and let B leak faster. Of a
// bucket with rate r, a request is refused exactly if the level that it finds is above
// burst − 1 + wait·r, which is higher for B. (The level counts all that were let through,
// also those that still wait.) Claim: at no time has B let through fewer than b. Assume
// that some request is the first after which it has. Before it both had let through the
// same number, then b took it, and B refused it. So B's level was above B's threshold,
// and therefore above b's level. But let u be the last instant at which B was empty. From
// u on B has leaked at its full rate, and b has leaked no more than at its own, which is
// smaller. And by the choice of the request B had let through no fewer than b at u, and
// just as many now, so no more since u. Then B's level is at most b's: a contradiction.
//
// With a depth the threshold is burst − 1 + min(wait·r, depth). So the same argument, with
// equal rates, says that the number that is refused never grows with the depth either.
//
// It would not hold for other measures. The 99th percentile of the waits, for example, can
// grow with the rate, because requests with long waits are let through that were refused
// before.
package find
