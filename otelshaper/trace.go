package otelshaper

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"example.com/leakybucket/shaper"
)

// Trace returns hooks for [shaper.WithTrace]. They record how long requests were in line, in
// shaper.request.time_in_queue, and add events to the span of the context of a request that
// waits, gives up or is refused. A request that leaves at once is neither recorded nor noted,
// and costs no allocation. rule is as for [Instruments.Observe]; several Shapers may have the
// same.
//
// The hooks of next run after these, in their order; any of them may be nil.
func (i *Instruments) Trace(rule string, next ...*shaper.Trace) *shaper.Trace {
	h := &hooks{histogram: i.timeInQueue, rule: rule}
	for r := range results {
		set := attribute.NewSet(ruleAttributes(rule, resultKey.String(r.String()))...)
		h.recorded[r] = []metric.RecordOption{metric.WithAttributeSet(set)}
	}
	joined := &shaper.Trace{Enqueued: h.enqueued, Departed: h.departed, Refused: h.refused, Abandoned: h.abandoned}
	for _, t := range next {
		if t == nil {
			continue
		}
		joined.Enqueued = inTurn(joined.Enqueued, t.Enqueued)
		joined.Departed = inTurn(joined.Departed, t.Departed)
		joined.Refused = inTurn(joined.Refused, t.Refused)
		joined.Abandoned = inTurn(joined.Abandoned, t.Abandoned)
		joined.Bucket = inTurn(joined.Bucket, t.Bucket)
	}
	return joined
}

// inTurn returns a hook that runs two hooks; any of them may be nil.
func inTurn[E any](first, second func(context.Context, E)) func(context.Context, E) {
	switch {
	case first == nil:
		return second
	case second == nil:
		return first
	}
	return func(ctx context.Context, e E) {
		first(ctx, e)
		second(ctx, e)
	}
}

// hooks belong to one rule.
type hooks struct {
	histogram metric.Float64Histogram
	rule      string
	recorded  [results][]metric.RecordOption // made once, so that to record allocates nothing
}

func (h *hooks) enqueued(ctx context.Context, e shaper.Event) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		h.note(span, "shaper.queued", aheadKey.Int(e.Ahead), costKey.Int(e.Cost))
	}
}

func (h *hooks) departed(ctx context.Context, e shaper.Event) {
	switch {
	case e.Verdict != nil:
		h.verdict(ctx, e)
	case e.Waited > 0:
		h.record(ctx, e.Waited, acquired)
		if span := trace.SpanFromContext(ctx); span.IsRecording() {
			h.note(span, "shaper.acquired", waitOf(e)...)
		}
	}
}

func (h *hooks) refused(ctx context.Context, e shaper.Event) {
	if e.Waited > 0 { // Close has refused it, or an outage of its Bucket.
		h.record(ctx, e.Waited, resultOf(e.Err))
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		var wait []attribute.KeyValue
		if e.Waited > 0 {
			wait = waitOf(e)
		}
		h.noteRefusal(span, "shaper.refused", e.Err, wait...)
	}
}

func (h *hooks) abandoned(ctx context.Context, e shaper.Event) {
	if e.Waited > 0 { // Else it was never in line.
		h.record(ctx, e.Waited, canceled)
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		h.note(span, "shaper.request_canceled", waitOf(e)...)
	}
}

// waitOf returns for how long a request was in line, and how many were in line before it.
func waitOf(e shaper.Event) []attribute.KeyValue {
	return []attribute.KeyValue{timeInQueueKey.Float64(e.Waited.Seconds()), aheadKey.Int(e.Ahead)}
}

// verdict notes the verdict of a dry run on a request, unless the request would have left at
// once.
func (h *hooks) verdict(ctx context.Context, e shaper.Event) {
	v := *e.Verdict
	if v.Wait == 0 && v.Err == nil {
		return
	}
	span := trace.SpanFromContext(ctx)
	switch {
	case !span.IsRecording():
	case v.Err != nil:
		h.noteRefusal(span, "shaper.refused", v.Err, dryRunKey.Bool(true))
	default: // It is the last one in the shadow of the line.
		h.note(span, "shaper.acquired", timeInQueueKey.Float64(v.Wait.Seconds()), aheadKey.Int(e.Waiting-1), dryRunKey.Bool(true))
	}
}

func (h *hooks) record(ctx context.Context, waited time.Duration, r result) {
	h.histogram.Record(ctx, waited.Seconds(), h.recorded[r]...)
}

// noteRefusal adds an event that says why a request was refused, and when it would be
// admitted.
func (h *hooks) noteRefusal(span trace.Span, name string, err error, more ...attribute.KeyValue) {
	more = append(more, resultKey.String(resultOf(err).String()))
	if refused, ok := err.(*shaper.RejectError); ok && refused.RetryAfter > 0 {
		more = append(more, retryAfterKey.Float64(refused.RetryAfter.Seconds()))
	}
	h.note(span, name, more...)
}

// note adds an event to a span. Its time is now, by the clock of the span: the clock of the shaper
// stands still while a machine sleeps.
func (h *hooks) note(span trace.Span, name string, attributes ...attribute.KeyValue) {
	span.AddEvent(name, trace.WithAttributes(ruleAttributes(h.rule, attributes...)...))
}

// Attributes of metrics and of span events.
const (
	ruleKey        = attribute.Key("shaper.rule")
	resultKey      = attribute.Key("shaper.result")
	stateKey       = attribute.Key("shaper.bucket.state")
	meterKey       = attribute.Key("shaper.meter")
	adaptReasonKey = attribute.Key("shaper.adapt.reason")
	costKey        = attribute.Key("shaper.cost")
	aheadKey       = attribute.Key("shaper.ahead")
	timeInQueueKey = attribute.Key("shaper.time_in_queue")
	retryAfterKey  = attribute.Key("shaper.retry_after")
	dryRunKey      = attribute.Key("shaper.dry_run")
)

// A result is the end of a request. It is an index of values that are made once for each.
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

// resultOfReason has the result for each reason; otherError is for any other.
var resultOfReason = map[string]result{
	"blocked": queueFull, "no-line": queueFull, "queue-full": queueFull, "too-late": tooLate, "too-costly": tooCostly,
	"closed": closed, "unavailable": unavailable,
}

// resultOf returns the result of a request that was refused with err. A refusal is never wrapped.
// What is wrapped is the reason why a Group has no key or no limits for a request, even if that is
// another shaper's refusal, or the end of a context.
func resultOf(err error) result {
	if known, ok := resultOfReason[shaper.Reason(err)]; ok {
		return known
	}
	return otherError
}
