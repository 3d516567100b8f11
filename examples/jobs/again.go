package main

import (
	"errors"
	"math/rand/v2"
	"time"

	"example.com/leakybucket/shaper"
)

// The rate is that of all processes together, the line each process's own. A process has more workers than places in
// line: the others are free for jobs that call somebody else.
var limits = shaper.Limits{Rate: 50, Depth: 40, MaxWait: 3 * time.Second}

const workers = 50

// again reports whether a job was refused a place in line, and when it is to come back. What can never fit is not to
// come back: it fails as any job. Jobs that are refused together are told the same time, and must not come back
// together.
func again(err error) (in time.Duration, refused bool) {
	var reject *shaper.RejectError
	if !errors.As(err, &reject) || errors.Is(err, shaper.ErrTooCostly) {
		return 0, false
	}
	return reject.RetryAfter + rand.N(time.Second), true
}
