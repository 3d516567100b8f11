package grpcshaper

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/leakybucket/shaper"
)

// A refusal is the error of a call that was not admitted: a status of gRPC which wraps the
// error of the Limiter.
type refusal struct {
	status     *status.Status
	err        error
	retryAfter time.Duration // 0: trying again does not help, or it is unknown when
}

// Error returns the Limiter's error. What a server sends to a client is the message of the
// status.
func (r *refusal) Error() string { return r.err.Error() }

// Unwrap returns the Limiter's error.
func (r *refusal) Unwrap() error { return r.err }

// GRPCStatus returns what gRPC makes of the error.
func (r *refusal) GRPCStatus() *status.Status { return r.status }

// An ownFault is the failure of a function of the program, for keys or limits.
type ownFault struct {
	what string
	err  error
}

func (f *ownFault) Error() string { return "grpcshaper: " + f.what + ": " + f.err.Error() }
func (f *ownFault) Unwrap() error { return f.err }

// refused returns the error with which a call ends that a Limiter has not admitted. An error
// that carries a status is returned as it is. spread is the most that is added to the time
// after which a client may try again.
func refused(ctx context.Context, err error, spread time.Duration) error {
	if _, ok := errors.AsType[*ownFault](err); !ok {
		if _, ok := status.FromError(err); ok {
			return err
		}
	}
	code, message := answerTo(ctx, err)
	r := &refusal{status: status.New(code, message), err: err}
	if e, ok := errors.AsType[*shaper.RejectError](err); ok && e.RetryAfter > 0 && code != codes.Internal {
		r.retryAfter = e.RetryAfter + min(rand.N(spread+1), math.MaxInt64-e.RetryAfter)
		// It fails only for the code OK.
		r.status, _ = r.status.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(r.retryAfter)})
	}
	return r
}

// A said is the code and the message of a call that a Limiter has not admitted.
type said struct {
	code    codes.Code
	message string
}

// saidOf has them for each reason that is not the end of a context.
var saidOf = map[string]said{
	"negative-cost": {codes.Internal, "the cost of the call could not be determined"},
	"blocked":       {codes.ResourceExhausted, "calls are refused for a time, because too many have come"},
	"no-line":       {codes.ResourceExhausted, "more calls have come than the limit allows"},
	"queue-full":    {codes.ResourceExhausted, "too many calls are waiting already"},
	"too-late":      {codes.ResourceExhausted, "the call would have to wait too long, or has waited too long"},
	"too-costly":    {codes.ResourceExhausted, "the call costs more than can ever fit: trying again does not help"},
	"unavailable":   {codes.Unavailable, "the shared rate limit cannot be asked now"},
	"closed":        {codes.Unavailable, "no more calls are taken"},
}

// answerTo returns the code and the message of a call that a Limiter has not admitted. It
// looks for refusals first, because a refusal of a call that would have missed its deadline
// is [context.DeadlineExceeded] too.
func answerTo(ctx context.Context, err error) (codes.Code, string) {
	_, ownFault := errors.AsType[*ownFault](err)
	refusal, rejected := errors.AsType[*shaper.RejectError](err)
	known, ok := saidOf[shaper.Reason(err)]
	switch {
	case ownFault:
		return codes.Internal, "the limits of the call could not be determined"
	case rejected && refusal.Timeout(): // It is no timeout if a Bucket did not answer in time.
		return codes.DeadlineExceeded, "the call would have to wait beyond its deadline"
	case ok:
		return known.code, known.message
	case ctx.Err() == context.Canceled:
		return codes.Canceled, "the call was cancelled while it waited"
	case ctx.Err() != nil:
		return codes.DeadlineExceeded, "the deadline of the call passed while it waited"
	}
	// The context errors of a Limiter whose own context has ended are here as well: this
	// call is still there.
	return codes.Unavailable, "the call could not be admitted"
}

// pushback returns the trailer that tells a client when the retries of its service config
// may try again (gRFC A6). A negative number forbids that. It is nil if the error says
// nothing about it.
func pushback(err error) metadata.MD {
	const trailer = "grpc-retry-pushback-ms"
	r, ok := errors.AsType[*refusal](err)
	switch {
	case !ok:
		return nil
	case r.retryAfter > 0:
		ms := min((r.retryAfter-1)/time.Millisecond+1, math.MaxInt32) // gRFC A6 has 32 bits, which are 24 days.
		return metadata.Pairs(trailer, strconv.FormatInt(int64(ms), 10))
	case shaper.Reason(err) == "too-costly":
		return metadata.Pairs(trailer, "-1")
	}
	return nil
}
