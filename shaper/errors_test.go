package shaper

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// One function says why a request was not admitted, so verdicts and answers can't disagree. A refusal counts before
// everything else that its error is, and a failure of a caller's function before what that wraps.
func TestReasonIsTheFinestWord(t *testing.T) {
	refusal := func(why reason, also *alsoError) error {
		err := rejection{reason: why, retryAfter: time.Second, also: also}.value()
		return &err
	}
	cause := func(err error) *alsoError { return &alsoError{err, true} }
	for _, c := range []struct {
		err     error
		want    string
		verdict string // of a dry run; "": as want
		status  int
	}{
		{nil, "", "no-limits", 503},
		{errors.New("other"), "", "no-limits", 503},
		{&RejectError{}, "", "no-limits", 503},
		{refusal(refusedFull, nil), "queue-full", "", 429},
		{refusal(refusedFull, withoutLine), "no-line", "queue-full", 429},
		{refusal(refusedFull, byBlock), "blocked", "queue-full", 429},
		{refusal(refusedLate, nil), "too-late", "", 429},
		{refusal(refusedLate, missedDeadline), "too-late", "", 429},
		{refusal(refusedLate, waitedTooLong), "too-late", "", 429},
		{refusal(refusedCostly, nil), "too-costly", "", 429},
		{refusal(refusedClosed, nil), "closed", "", 503},
		{refusal(refusedUnavailable, nil), "unavailable", "", 503},
		{refusal(refusedUnavailable, cause(context.DeadlineExceeded)), "unavailable", "", 503},
		{refusal(refusedUnavailable, cause(ErrQueueFull)), "unavailable", "", 503},
		{refusal(refusedUnavailable, cause(ErrBlocked)), "unavailable", "", 503},
		{&limitsError{ErrClosed}, "no-limits", "", 500},
		{&limitsError{refusal(refusedFull, nil)}, "no-limits", "", 500},
		{&keyError{context.Canceled}, "no-key", "", 500},
		{fmt.Errorf("%w: read", ErrBody), "no-body", "", 408},
		{ErrNegativeCost, "negative-cost", "", 500},
		{context.Canceled, "gone", "", 499},
		{context.DeadlineExceeded, "deadline", "", 503},
		{ErrQueueFull, "queue-full", "", 429},
		{fmt.Errorf("foreign: %w", ErrTooLate), "too-late", "", 429},
		{errors.Join(context.Canceled, ErrClosed), "closed", "", 503},
	} {
		for _, err := range []error{c.err, &url.Error{Op: "Get", URL: "http://a/", Err: c.err}} {
			if c.err == nil {
				err = nil
			}
			t.Run(fmt.Sprint(err), func(t *testing.T) {
				require.Equal(t, c.want, Reason(err))
				a := responseTo(err)
				require.Equal(t, c.status, a.Status)
				require.Equal(t, c.status == 500 || c.status == 408 || c.status == 499 || c.want == "too-costly", a.RetryAfter == 0)
				if verdict := c.verdict; err != nil {
					if verdict == "" {
						verdict = c.want
					}
					require.Equal(t, "refuse;reason="+verdict, Verdict{Err: err}.String())
				}
			})
		}
	}
	require.Len(t, problems, len(reasonWords)+2, "each word has an answer")
}
