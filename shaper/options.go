package shaper

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper/shared"
)

// An Option changes how a [Shaper] behaves. Options cannot change later, as [Limits] can.
// Every Option is a [GroupOption] too.
type Option interface {
	GroupOption
	appliesToShapers()
}

// A GroupOption changes how a [Group] behaves.
type GroupOption interface{ apply(*options) }

type options struct {
	name    string
	trace   Trace
	coarse  bool
	dryRun  bool
	block   time.Duration
	maxKeys int
	shared  sharedOptions
	fair    *fairQueue // nil: WithFairQueue is not set
	meters  []Meter

	lineTimeout lineTimeout
}

// validate returns which option of a [Shaper] is wrong, or does not go together with another or the limits.
func (o *options) validate(l Limits) error {
	if err := o.validateShared("New"); err != nil {
		return err
	}
	switch {
	case o.shared.asked && o.shared.key == "":
		return errors.New("shaper: New: the key of WithBucket is empty")
	case o.shared.asked && l.Rate == rate.Inf:
		return errSharedInf
	}
	if err := o.validateBlock("New"); err != nil {
		return err
	}
	if err := o.validateLineTimeout("New"); err != nil {
		return err
	}
	if err := o.validateMeters(); err != nil {
		return err
	}
	return o.validateFair()
}

// validateMeters returns why WithMeters can't be used; nil if it can, or is not set.
func (o *options) validateMeters() error {
	switch {
	case len(o.meters) == 0:
		return nil
	case o.shared.asked:
		return errors.New("shaper: New: WithMeters and WithBucket don't go together: all levels of a decision are in one process")
	case o.dryRun:
		return errors.New("shaper: New: WithMeters and WithDryRun don't go together")
	case o.block > 0:
		return errors.New("shaper: New: WithMeters and WithBlock don't go together")
	}
	return validateMeters(o.meters)
}

// newGate returns the gate of a dispatcher; nil: it needs none.
func (o *options) newGate() (g gate) {
	if o.block > 0 {
		g = blocks{o.block}
	}
	if o.dryRun {
		g = dryRun{g}
	}
	return g
}

// common makes an [Option] of a [GroupOption].
type common struct{ GroupOption }

func (common) appliesToShapers() {}

type nameOption string

func (o nameOption) apply(to *options) { to.name = string(o) }

// WithName sets the name of the [Shaper] or [Group] in its [Stats] and in each [Event].
// The default is "".
func WithName(name string) Option { return common{nameOption(name)} }

type traceOption struct{ trace *Trace }

func (o traceOption) apply(to *options) {
	if o.trace != nil {
		to.trace = *o.trace
	}
}

// WithTrace sets the hooks that run for each request. [New] and [NewGroup] copy the
// [Trace]; a nil one sets no hook.
func WithTrace(t *Trace) Option { return common{traceOption{t}} }

type coarseTimerOption struct{}

func (coarseTimerOption) apply(to *options) { to.coarse = true }

// WithCoarseTimer makes the ticker wake at most once a millisecond. Above 1,000/s that takes less CPU time (at
// 10,000/s, less than half), and requests leave in batches, up to a millisecond late. The rate is kept if
// [Limits.Slack] is at least a millisecond; but a single caller in a loop leaves at most 1,000 times a second. With
// Go's timers ([Stats.Precise]) it changes nothing.
func WithCoarseTimer() Option { return common{coarseTimerOption{}} }

type maxKeysOption int

func (o maxKeysOption) apply(to *options) { to.maxKeys = int(o) }

// DefaultMaxKeys is how many keys of a [Group] may have a bucket of their own at once,
// unless [WithMaxKeys] sets another number.
const DefaultMaxKeys = 100_000

// WithMaxKeys bounds how many keys of a [Group] have a bucket of their own at once, from 1 on; the default is
// [DefaultMaxKeys]. A key that comes when n keys have one shares a bucket with others (see [Group]).
func WithMaxKeys(n int) GroupOption { return maxKeysOption(n) }

// A Trace is a set of hooks; any of them may be nil. A hook runs on the goroutine of the call that it reports, outside
// the lock and before that call returns, so a slow hook delays its own call alone. It may call any method of the
// [Shaper]. The context is the call's; [Shaper.AllowN], which has none, passes [context.Background]. The order of events
// of different calls is that of [Event.At], not the order in which hooks run.
type Trace struct {
	Enqueued  func(ctx context.Context, e Event) // a request has entered the line, which one that leaves at once never does
	Departed  func(ctx context.Context, e Event) // a request has left
	Refused   func(ctx context.Context, e Event) // a request was refused, at entry or in line
	Abandoned func(ctx context.Context, e Event) // the context of a request ended before its call returned

	// Bucket reports that the state of a [shared.Bucket] has changed. It runs on a goroutine of the shaper's, for which
	// [Shaper.Close] does not wait, with [context.Background].
	Bucket func(ctx context.Context, e shared.Event)
}

// An Event is the report of a hook.
type Event struct {
	Name    string        // of the Shaper or Group
	Key     any           // the request's key in a Group, or in a Shaper WithFairQueue (a string); nil in another Shaper
	Cost    int           // of the request
	Waiting int           // requests in the line just after the event
	Ahead   int           // requests that were in line when this one entered it; 0 if it never was in line, and in a dry run
	At      time.Time     // of the admission, refusal or abandonment; of a departure when its slot was given, never before it was due
	Waited  time.Duration // since admission; 0 at entry
	Err     error         // the result of the call; nil for Enqueued and Departed
	Verdict *Verdict      // of a dry run on the request; nil if it is no dry run
}

// A Verdict is the decision upon a request that a dry run ([WithDryRun]) let through.
type Verdict struct {
	Wait time.Duration // how long it would have waited; 0: it would have left at once, or been refused
	Err  error         // with which it would have been refused, or the error of its key or limits function; nil: it would have been admitted
}

// runHook runs a hook, unless it is nil.
func runHook(hook func(context.Context, Event), ctx context.Context, e Event) {
	if hook != nil {
		hook(withoutClaim(ctx), e)
	}
}
