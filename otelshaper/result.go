package otelshaper

import (
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
	otherError // a Group has no key or no limits for the request
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

// resultOf returns the result of a request that was refused with err. A refusal is never wrapped.
// What is wrapped is the reason why a Group has no key or no limits for a request, even if that is
// another shaper's refusal, or the end of a context.
func resultOf(err error) result {
	refused, ok := err.(*shaper.RejectError)
	if !ok {
		return otherError
	}
	switch reason := refused.Reason; {
	case errors.Is(reason, shaper.ErrQueueFull):
		return queueFull
	case errors.Is(reason, shaper.ErrTooLate):
		return tooLate
	case errors.Is(reason, shaper.ErrTooCostly):
		return tooCostly
	case errors.Is(reason, shaper.ErrClosed):
		return closed
	case errors.Is(reason, shaper.ErrUnavailable):
		return unavailable
	}
	return otherError
}
