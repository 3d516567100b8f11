package shaper

import (
	"context"
	"fmt"
	"time"

	"example.com/leakybucket/internal/exact"
)

type blockOption time.Duration

func (o blockOption) apply(to *options) { to.block = time.Duration(o) }

// WithBlock makes a bucket that has refused a request with [ErrQueueFull] refuse all newcomers for a time d, up to
// 365 days; the default is 0. It is for callers that should stay away once they have gone too far, as after too many
// login attempts. The refusals are ErrQueueFull and [ErrBlocked], and [RejectError.RetryAfter] is the rest of d, or
// the usual one if that is longer. A refusal during the block does not extend it, and no other reason begins one.
// ([Shaper.AllowN] gives ErrQueueFull whatever the [Limits.Depth] is.)
//
// Requests that are in line when the block begins leave at their slots, and retries of a [Transport] are not
// refused. In a dry run the [Verdict] takes the block into account. A change of the limits keeps it, except one to
// rate.Inf. In a [Group] each key is blocked by itself, and counts against [WithMaxKeys] until the block ends.
// Buckets that keys share are never blocked: otherwise whoever can make up keys could block all newcomers. A d out
// of range is an error of [New] and [NewGroup].
func WithBlock(d time.Duration) Option { return common{blockOption(d)} }

// validateBlock returns an error if [WithBlock] is invalid. constructor is [New] or [NewGroup].
func (o *options) validateBlock(constructor string) error {
	if o.block < 0 || o.block > horizon {
		return fmt.Errorf("shaper: %s: WithBlock is %v, must be from 0 to 365 days", constructor, o.block)
	}
	return nil
}

// blocks is the gate of [WithBlock]: it keeps newcomers out of a flow for a time after a refusal.
type blocks struct{ span time.Duration }

// refused blocks a flow, unless it is blocked already, or never is. No other reason begins a block.
func (b blocks) refused(f *flow, now int64, why reason) {
	if end := f.keptOutUntil(); why == refusedFull && end != never && end <= now {
		f.keepOut(exact.Sum(now, int64(b.span)))
	}
}

// keepOut blocks a flow until an instant at least, unless it never is blocked.
func (b blocks) keepOut(f *flow, until int64) {
	if end := f.keptOutUntil(); end != never && end < until {
		f.keepOut(until)
	}
}

// judge returns why a newcomer of a flow is refused, if the line and the phase refuse it for why: the flow may
// be blocked, or will be by this refusal. It begins no block.
func (b blocks) judge(f *flow, now int64, why rejection) rejection {
	end := f.keptOutUntil()
	switch {
	case why.reason == refusedClosed || why.reason == refusedCostly:
	case end > now:
		// At the end of the block the request would meet the line as it will be then. What
		// keeps it out now only gets better, so it is admitted at the later of the two instants.
		return rejection{reason: refusedFull, retryAfter: max(time.Duration(end-now), why.retryAfter), also: byBlock}
	case why.reason == refusedFull && end != never:
		why.retryAfter, why.also = max(b.span, why.retryAfter), byBlock
	}
	return why
}

func (blocks) letsAllThrough() bool { return false }

func (blocks) decided(dec decision, _ judgement) (decision, *Verdict) { return dec, nil }

func (blocks) announce(context.Context, Trace, Event) {}
