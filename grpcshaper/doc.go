// Package grpcshaper lets calls of gRPC wait for a [shaper.Limiter]: on a server before
// their handlers run, on a client before they are sent. It delays instead of rejecting.
//
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(grpcshaper.UnaryServerInterceptor(s)),
//		grpc.ChainStreamInterceptor(grpcshaper.StreamServerInterceptor(s)),
//	)
//
// s is a [*shaper.Shaper], one bucket for all calls. [PerKey] gives each client, method or
// tenant a bucket of its own. A [shaper.Chain] asks several Limiters, one after the other,
// and so do several interceptors.
//
// # What waits
//
// A call costs 1, unless [WithCost] says otherwise, and waits until its context ends at
// most. When a client cancels its call, or its deadline passes, the call leaves the line at
// once and costs nothing. Of a stream the opening waits, as if it were one call;
// [WithEachReceived] and [WithEachSent] let its messages wait instead. [WithSkip] lets
// methods pass, such as health checks.
//
// With [shaper.Limits.InFlight] set, a unary call is in flight until its handler has
// returned, and on a client until its answer has come. A stream is in flight until its
// handler has returned, and on a client until it has ended, in whichever of the ways that
// [grpc.ClientConn.NewStream] names. A client that does none of these things leaks the
// stream, and the seat with it.
//
// # What a refused call gets
//
//   - ResourceExhausted with a RetryInfo if the line is full or the call would leave too
//     late ([shaper.Limits.MaxWait]); without a RetryInfo if it can never fit.
//   - Unavailable with a RetryInfo if the shared bucket can't be asked, or if the Shaper is
//     closed and its line still leaves; without a RetryInfo once the line is empty. Errors of
//     other Limiters are Unavailable too, unless they carry a status.
//   - DeadlineExceeded if its deadline has passed; with a RetryInfo, and at once, if it would
//     pass while the call waits.
//   - Canceled if it has been cancelled.
//   - Internal if the cost is negative, or if the key function of a [PerKey] or the limits
//     function of its Group returned an error. The message does not repeat that error. A
//     status that the key function has returned is passed on.
//
// The RetryDelay of the RetryInfo is the RetryAfter of the [shaper.RejectError]. A server
// also sets the trailer grpc-retry-pushback-ms, which the retries of a client's service
// config obey; if trying again does not help, it forbids them. The errors also wrap the
// Limiter's, so that interceptors around these see it by [errors.Is] and [errors.As].
//
// # A server that refuses
//
// The client interceptors hold the line for the time that a server's RetryInfo asks for, if
// the status is ResourceExhausted or Unavailable: all calls behind it wait too ([WithMaxHold]).
// Retries of the service config happen beneath the interceptors. They are not paced, and
// only the answer to the last of them holds the line.
//
// # Stopping a server
//
// GracefulStop first: it takes no more calls and waits for those in line, which leave at their
// rate. Then Close the Shaper or Group, and of several the outermost first. If the Shaper is shut
// down first, newcomers are refused as Unavailable while the line leaves. GracefulStop has no time
// limit: when yours is over, Close refuses those that are left, and GracefulStop returns.
//
// # Dry runs
//
// In a dry run ([shaper.WithDryRun]) no call waits or is refused. A call leaves its Verdict
// in its context, if an interceptor in front has made room there by
// [shaper.ContextWithVerdict].
package grpcshaper
