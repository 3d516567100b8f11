package grpcshaper

import (
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// heed holds the line if the error with which a call has ended asks for that.
func (p passage) heed(err error) {
	if err == nil || p.maxHold <= 0 {
		return
	}
	if _, ok := errors.AsType[*refusal](err); ok {
		return // It is not the server's, but that of another interceptor in this process.
	}
	st, ok := status.FromError(err)
	if !ok || st.Code() != codes.ResourceExhausted && st.Code() != codes.Unavailable {
		return
	}
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok && info.GetRetryDelay().CheckValid() == nil {
			if d := info.GetRetryDelay().AsDuration(); d > 0 {
				p.bucket.Hold(min(d, p.maxHold))
				return
			}
		}
	}
}
