package otelshaper

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"

	"example.com/leakybucket/shaper"
)

// Attributes of metrics and of span events.
const (
	ruleKey        = attribute.Key("shaper.rule")
	resultKey      = attribute.Key("shaper.result")
	stateKey       = attribute.Key("shaper.bucket.state")
	costKey        = attribute.Key("shaper.cost")
	aheadKey       = attribute.Key("shaper.ahead")
	timeInQueueKey = attribute.Key("shaper.time_in_queue")
	retryAfterKey  = attribute.Key("shaper.retry_after")
	dryRunKey      = attribute.Key("shaper.dry_run")
)

// A result says what became of a request. It is an index of what is made once for each.
type result int

const (
	acquired result = iota
	queueFull
	tooLate
	tooCostly
	closed
	unavailable
	canceled
	otherError // a Group has no limits for the key
	results    // how many there are
)

var resultWords = [results]string{
	acquired:    "acquired",
	queueFull:   "queue_full",
	tooLate:     "too_late",
	tooCostly:   "too_costly",
	closed:      "closed",
	unavailable: "unavailable",
	canceled:    "request_canceled",
	otherError:  "no_limits",
}

func (r result) String() string { return resultWords[r] }

// resultOf returns the result of a call that has returned err. A refusal is never wrapped,
// unless another shaper's is the reason why a Group has no limits for a key.
func resultOf(err error) result {
	refused, isRefusal := err.(*shaper.RejectError)
	switch {
	case err == nil:
		return acquired
	case isRefusal:
		return resultOfReason(refused.Reason)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return canceled
	}
	return otherError
}

func resultOfReason(reason error) result {
	switch reason {
	case shaper.ErrQueueFull:
		return queueFull
	case shaper.ErrTooLate:
		return tooLate
	case shaper.ErrTooCostly:
		return tooCostly
	case shaper.ErrClosed:
		return closed
	case shaper.ErrUnavailable:
		return unavailable
	}
	return otherError
}
