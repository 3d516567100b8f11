package shaper

import (
	"context"
	"time"
)

// A Trace is a set of hooks. Nil ones are skipped.
//
// A hook runs on the goroutine of the call that it tells of, outside the lock
// and before that call returns, so that a slow hook delays its own call alone.
// It may call any method of the Shaper. The context is that of the call;
// AllowN, which has none, passes context.Background(). The order of events
// across calls is that of Event.At, not that in which hooks run.
type Trace struct {
	// Enqueued tells of a request that enters the line. One that leaves at
	// once never enters it.
	Enqueued func(ctx context.Context, e Event)
	// Departed tells of a request that left.
	Departed func(ctx context.Context, e Event)
	// Refused tells of a request that was refused, at entry or by Close.
	Refused func(ctx context.Context, e Event)
	// Abandoned tells of a request whose context ended before its call
	// returned.
	Abandoned func(ctx context.Context, e Event)
}

// An Event is what a hook is told.
type Event struct {
	Name string // of the Shaper or Group
	Key  any    // of a Group: the request's key; nil of a Shaper
	Cost int
	// Waiting counts the requests in the line just after the event.
	Waiting int
	// At is the instant of the admission, refusal or abandonment. That of a
	// departure is when its slot was handed out: never before it was due.
	At time.Time
	// Waited is the time since admission; 0 at entry.
	Waited time.Duration
	// Err is what the call returns; nil for Enqueued and Departed.
	Err error
	// Verdict is what a dry run says of the request; nil: it was none.
	Verdict *Verdict
}

// tell runs a hook if there is one.
func runHook(hook func(context.Context, Event), ctx context.Context, e Event) {
	if hook != nil {
		hook(ctx, e)
	}
}
