package grpcshaper

import (
	"context"
	"strings"
	"time"
)

// An Option changes the interceptors of this package. One that does not concern an
// interceptor changes nothing there, so a client or server can use the same for both kinds.
type Option func(*options)

type options struct {
	cost         func(ctx context.Context, fullMethod string, message any) int
	skip         func(fullMethod string) bool
	eachReceived bool
	eachSent     bool
	retrySpread  time.Duration
	maxHold      time.Duration
}

const defaultMaxHold = time.Minute

func newOptions(opts []Option) options {
	o := options{maxHold: defaultMaxHold}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	if o.cost == nil {
		o.cost = func(context.Context, string, any) int { return 1 }
	}
	if o.skip == nil {
		o.skip = func(string) bool { return false }
	}
	return o
}

// eachMessage reports whether the messages of a stream wait, instead of its opening.
func (o options) eachMessage() bool { return o.eachReceived || o.eachSent }

// WithCost sets the function that returns the cost of a call. By default, or with nil, a
// call costs 1. fullMethod is like "/package.Service/Method". message is the request of a
// unary call, the message of a stream ([WithEachReceived], [WithEachSent]), and nil at the
// opening of a stream.
//
// A cost of 0 lets the call or message pass untouched. If the cost comes from the message,
// bound it: all calls behind it wait for cost / Rate. A negative cost is a mistake, which is
// answered with the code Internal.
func WithCost(cost func(ctx context.Context, fullMethod string, message any) int) Option {
	return func(o *options) { o.cost = cost }
}

// WithSkip sets a function that reports whether calls of a method pass untouched. By
// default, or with nil, none do. fullMethod is like "/package.Service/Method". The function
// [HealthChecks] is one.
func WithSkip(skip func(fullMethod string) bool) Option {
	return func(o *options) { o.skip = skip }
}

// HealthChecks reports whether a method is one of the standard health service,
// grpc.health.v1.Health. It is for [WithSkip]: a health check that waits behind the load
// looks like a failure.
func HealthChecks(fullMethod string) bool {
	return strings.HasPrefix(fullMethod, "/grpc.health.v1.Health/")
}

// WithEachReceived lets each message that a stream receives wait before it is handed on,
// and the opening of the stream pass. While a message waits, the stream receives no other,
// so that gRPC's flow control slows the sender down. A stream thus has one message at most
// in the line: with a [shaper.Limits.Depth] of the number of streams, and without a MaxWait,
// no message is refused. A message that is refused ends its stream.
//
// With [shaper.Limits.InFlight] set, a message is in flight until the next one is asked for,
// or the stream has ended. Together with [WithEachSent] a received message is in flight only
// until the stream sends one, because a stream that waits for a seat must not hold another.
// Unary calls wait as always.
func WithEachReceived() Option { return func(o *options) { o.eachReceived = true } }

// WithEachSent lets each message that a stream sends wait before it is sent, and the opening
// of the stream pass. A message that is refused ends its stream.
//
// With [shaper.Limits.InFlight] set, a message is in flight until SendMsg has returned.
// Unary calls wait as always. Together with [WithEachReceived] each message waits, whatever
// its direction.
func WithEachSent() Option { return func(o *options) { o.eachSent = true } }

// WithRetrySpread adds a random time from 0 to d to the RetryInfo of each refusal of a
// server, so that clients which were refused together do not come back together. The
// [shaper.RejectError] stays exact. The default is 0. A d above 365 days
// counts as 365 days.
func WithRetrySpread(d time.Duration) Option {
	return func(o *options) { o.retrySpread = min(max(0, d), 365*24*time.Hour) }
}

// WithMaxHold sets the longest time for which the RetryInfo of a server's refusal holds the
// line of a client. The default is one minute. With 0 or less, refusals hold nothing.
//
// The bucket that is held is the one for which the call has waited. Within a [shaper.Chain]
// or [shaper.Priced] a [PerKey] is not held; use two interceptors instead of such a Chain.
func WithMaxHold(d time.Duration) Option { return func(o *options) { o.maxHold = d } }
