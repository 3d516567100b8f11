package otelshaper_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// call waits with a span of the name that is given.
func call(ctx context.Context, tracer trace.Tracer, name string, l shaper.Limiter) {
	ctx, span := tracer.Start(ctx, name)
	defer span.End()
	l.WaitN(ctx, 1)
}

// events returns the events of all spans that have ended, by the name of the span: the time
// since start, the event's name and its attributes, one event in each line.
func events(recorder *tracetest.SpanRecorder, start time.Time) map[string]string {
	texts := map[string]string{}
	for _, span := range recorder.Ended() {
		text := ""
		for _, e := range span.Events() {
			text += fmt.Sprintf("%v %s", e.Time.Sub(start), e.Name)
			for _, a := range e.Attributes {
				text += fmt.Sprintf(" %s=%s", a.Key, a.Value.String())
			}
			text += "\n"
		}
		texts[span.Name()] = text
	}
	return texts
}

// Each span says how many were ahead, how long its request waited, or why it was refused, and
// when. The histogram has the same waits, and no others.
func TestASpanTellsOfItsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		tracer, recorder := newTracer(t)
		s := made.Shaper(t, "2/s depth 3", shaper.WithTrace(b.Trace("api")))
		start := time.Now()
		impatient, giveUp := context.WithTimeout(context.Background(), time.Hour)
		for _, name := range []string{"first", "second", "third", "impatient", "refused"} {
			ctx := t.Context()
			if name == "impatient" {
				ctx = impatient
			}
			go call(ctx, tracer, name, s)
			synctest.Wait()
		}
		time.Sleep(700 * time.Millisecond)
		giveUp()
		synctest.Wait()
		time.Sleep(time.Second)
		go call(t.Context(), tracer, "late", s)
		synctest.Wait()
		go call(t.Context(), tracer, "closed", s)
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, s.Close())
		synctest.Wait()

		require.Equal(t, map[string]string{
			"first": "",
			"second": "0s shaper.queued shaper.rule=api shaper.ahead=0 shaper.cost=1\n" +
				"500ms shaper.acquired shaper.rule=api shaper.time_in_queue=0.5 shaper.ahead=0\n",
			"third": "0s shaper.queued shaper.rule=api shaper.ahead=1 shaper.cost=1\n" +
				"1s shaper.acquired shaper.rule=api shaper.time_in_queue=1 shaper.ahead=1\n",
			"impatient": "0s shaper.queued shaper.rule=api shaper.ahead=2 shaper.cost=1\n" +
				"700ms shaper.request_canceled shaper.rule=api shaper.time_in_queue=0.7 shaper.ahead=2\n",
			"refused": "0s shaper.refused shaper.rule=api shaper.result=queue_full shaper.retry_after=0.5\n",
			"late":    "",
			"closed": "1.7s shaper.queued shaper.rule=api shaper.ahead=0 shaper.cost=1\n" +
				"1.8s shaper.refused shaper.rule=api shaper.time_in_queue=0.1 shaper.ahead=0 shaper.result=closed\n",
		}, events(recorder, start))

		waits := b.waits(t)
		require.Len(t, waits, 3)
		require.EqualValues(t, 2, waits["acquired,api"].Count, "second and third; others did not wait")
		require.Equal(t, 1.5, waits["acquired,api"].Sum)
		require.EqualValues(t, 1, waits["request_canceled,api"].Count)
		require.Equal(t, 0.7, waits["request_canceled,api"].Sum)
		require.EqualValues(t, 1, waits["closed,api"].Count)
		require.Equal(t, 0.1, waits["closed,api"].Sum)
		require.Equal(t, []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 25, 50, 100, 250, 500}, waits["acquired,api"].Bounds)
		require.Equal(t, "s", b.metrics(t)["shaper.request.time_in_queue"].Unit)
	})
}

// What an outage of a shared bucket makes of a wait is in its span and in the histogram.
func TestASpanTellsOfAWaitThatAnOutageEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		tracer, recorder := newTracer(t)
		memory := buckettest.NewMemory()
		memory.Fail(func(int, string) buckettest.Fault { return buckettest.FailBefore })
		s := made.Shaper(t, "2/s depth 3", shaper.WithTrace(b.Trace("api")), shaper.WithBucket(memory, "key", shared.Options{Patience: 2 * time.Second}))
		start := time.Now()
		call(context.Background(), tracer, "call", s)
		require.Regexp(t, `^0s shaper.queued shaper.rule=api shaper.ahead=0 shaper.cost=1
2s shaper.refused shaper.rule=api shaper.time_in_queue=2 shaper.ahead=0 shaper.result=unavailable shaper.retry_after=[0-9.e-]+
$`, events(recorder, start)["call"])
		waits := b.waits(t)
		require.Len(t, waits, 1)
		require.EqualValues(t, 1, waits["unavailable,api"].Count)
		require.Equal(t, 2., waits["unavailable,api"].Sum)
	})
}

// Of a dry run a span says what would have been. Nobody was in line, so no wait is recorded.
func TestASpanTellsWhatADryRunWouldHaveDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		tracer, recorder := newTracer(t)
		s := made.Shaper(t, "2/s depth 1", shaper.WithTrace(b.Trace("trial")), shaper.WithDryRun())
		start := time.Now()
		for _, name := range []string{"first", "second", "third"} {
			call(t.Context(), tracer, name, s)
		}
		require.Equal(t, map[string]string{
			"first":  "",
			"second": "0s shaper.acquired shaper.rule=trial shaper.time_in_queue=0.5 shaper.ahead=0 shaper.dry_run=true\n",
			"third":  "0s shaper.refused shaper.rule=trial shaper.dry_run=true shaper.result=queue_full shaper.retry_after=0.5\n",
		}, events(recorder, start))
		require.Empty(t, b.waits(t))
	})
}

func TestEachReasonHasItsWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		full := &shaper.RejectError{Reason: shaper.ErrQueueFull}
		noLimits := made.GroupBy(t, func(string) (shaper.Limits, error) { return shaper.Limits{}, full }).Wait(t.Context(), "key")
		require.ErrorIs(t, noLimits, shaper.ErrQueueFull)
		for want, err := range map[string]error{
			"queue_full": full, "too_late": &shaper.RejectError{Reason: shaper.ErrTooLate},
			"too_costly": &shaper.RejectError{Reason: shaper.ErrTooCostly}, "closed": &shaper.RejectError{Reason: shaper.ErrClosed},
			// The error of an outage may say more than ErrUnavailable.
			"unavailable": &shaper.RejectError{Reason: fmt.Errorf("%w: too slow", shaper.ErrUnavailable)}, "no_limits": noLimits,
		} {
			tracer, recorder := newTracer(t)
			ctx, span := tracer.Start(t.Context(), "call")
			b.Trace("").Refused(ctx, shaper.Event{Err: err})
			span.End()
			require.Equal(t, map[string]string{"call": "0s shaper.refused shaper.result=" + want + "\n"},
				events(recorder, time.Now()), "%v", err)
		}
	})
}

// The function for limits may ask a database, whose timeout is not the end of the request.
func TestALimitsFunctionThatTimesOutIsNoRequestThatGaveUp(t *testing.T) {
	b := newBackend(t)
	tracer, recorder := newTracer(t)
	g := made.GroupBy(t, func(string) (shaper.Limits, error) { return shaper.Limits{}, context.DeadlineExceeded },
		shaper.WithTrace(b.Trace("")), shaper.WithDryRun())
	ctx, span := tracer.Start(t.Context(), "call")
	require.NoError(t, g.Wait(ctx, "key"))
	span.End()
	require.Regexp(t, `shaper.refused shaper.dry_run=true shaper.result=no_limits\n$`, events(recorder, time.Now())["call"])
}

// A program's own hooks run too, after ours, and those that are not there are no trouble.
func TestHooksOfTheProgramRunAsWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		var told []string
		tell := func(what string) func(context.Context, shaper.Event) {
			return func(_ context.Context, e shaper.Event) { told = append(told, what) }
		}
		own := &shaper.Trace{
			Enqueued: tell("enqueued"), Departed: tell("departed"), Refused: tell("refused"), Abandoned: tell("abandoned"),
			Bucket: func(context.Context, shared.Event) { told = append(told, "bucket") },
		}
		joined := b.Trace("x", nil, own, &shaper.Trace{Departed: tell("departed again")})
		s := made.Shaper(t, "1/s depth 1", shaper.WithTrace(joined))
		require.NoError(t, s.Wait(t.Context()))
		require.NoError(t, s.Wait(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		require.ErrorIs(t, s.Wait(ctx), context.Canceled)
		require.NoError(t, s.Close())
		require.ErrorIs(t, s.Wait(t.Context()), shaper.ErrClosed)
		joined.Bucket(t.Context(), shared.Event{Err: errors.New("away")})
		require.Equal(t, []string{"departed", "departed again", "enqueued", "departed", "departed again", "enqueued", "abandoned", "refused", "bucket"}, told)
		require.Len(t, b.waits(t), 2, "ours have run as well")
		require.Nil(t, b.Trace("x").Bucket)
	})
}

// A call that leaves at once must cost no more than without hooks, whatever its context.
func TestACallThatLeavesAtOnceAllocatesNothing(t *testing.T) {
	b := newBackend(t)
	s := made.Shaper(t, "inf", shaper.WithTrace(b.Trace("api")))
	for name, ctx := range map[string]context.Context{
		"no span":              context.Background(),
		"span is not recorded": trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}})),
	} {
		require.Zero(t, testing.AllocsPerRun(1000, func() { s.Wait(ctx) }), name)
	}
	refusing := made.Shaper(t, "1/h", shaper.WithTrace(b.Trace("api")))
	require.True(t, refusing.Allow())
	plain := made.Shaper(t, "1/h")
	require.True(t, plain.Allow())
	require.LessOrEqual(t,
		testing.AllocsPerRun(1600, func() { refusing.Wait(context.Background()) }),
		testing.AllocsPerRun(1600, func() { plain.Wait(context.Background()) }), "a refusal costs no more either")
}
