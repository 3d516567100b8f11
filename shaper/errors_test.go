package shaper

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

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

// A shaper's account of its past takes no room in a bucket, a line, or a waiter; there may
// be a million of each. The allocator rounds sizes up: a bucket of 113 bytes takes 128.
// (These are the sizes on 64-bit machines.)
func TestWhatIsToldTakesNoMemoryOfEachBucket(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("the sizes are those of 64-bit machines")
	}
	require.LessOrEqual(t, unsafe.Sizeof(keyedFlow[string]{}), uintptr(112), "a bucket of a Group")
	require.LessOrEqual(t, unsafe.Sizeof(cold{}), uintptr(96), "what a bucket that has refused needs")
	require.LessOrEqual(t, unsafe.Sizeof(line{}), uintptr(112), "the line of a bucket")
	require.LessOrEqual(t, unsafe.Sizeof(waiter{}), uintptr(64), "a request in line")
	require.LessOrEqual(t, unsafe.Sizeof(request{}), uintptr(104), "on the stack of a call that waits: with more, many need 4 KiB in place of 2")
	require.LessOrEqual(t, unsafe.Sizeof(plan{}), uintptr(96), "Limits that some bucket has")
	require.LessOrEqual(t, unsafe.Sizeof(Shaper{}), uintptr(576), "a Shaper")
	require.LessOrEqual(t, unsafe.Sizeof(measures{}), uintptr(4096), "the counts of Histograms")
	require.LessOrEqual(t, unsafe.Sizeof(refusalRing{}), uintptr(2304), "the latest refusals")
	require.LessOrEqual(t, unsafe.Sizeof(refusalStripe{}), uintptr(2688), "those of a processor that refuses without the lock")
	require.LessOrEqual(t, unsafe.Sizeof(publication{}), uintptr(144), "what it refuses by")
}

// A Shaper that refuses now and then has nothing that refusals without the lock need.
func TestFewRefusalsKeepNoStripes(t *testing.T) {
	s, err := New(Limits{Rate: 1. / 3600})
	require.NoError(t, err)
	require.True(t, s.Allow())
	for range publishAfter - 1 {
		require.False(t, s.Allow())
	}
	require.Nil(t, s.stripes)
	require.False(t, s.Allow())
	used := 0
	for i := range s.stripes.all {
		if s.stripes.all[i].Load() != nil {
			used++
		}
	}
	require.Equal(t, 1, used, "no two calls have met")
	require.NotNil(t, s.stripes.all[0].Load())
}

// A Group in which nobody has ever waited or been refused has no counts of waits and refusals.
func TestNothingIsKeptForRequestsThatLeaveAtOnce(t *testing.T) {
	g, err := NewGroup(func(int) (Limits, error) { return Limits{Rate: 1. / 3600, Burst: 2}, nil })
	require.NoError(t, err)
	for key := range 100 {
		require.True(t, g.Allow(key))
	}
	nothingIsKept := func() {
		for _, s := range g.all {
			require.Nil(t, s.measures)
			require.Nil(t, s.refusalRing)
			require.Nil(t, s.refusedKeys)
		}
	}
	nothingIsKept()
	require.Equal(t, uint64(100), g.Histograms().Wait.Count())
	nothingIsKept() // To look at them makes none.
	require.True(t, g.AllowN(0, 1))
	require.False(t, g.AllowN(0, 1))
	s := g.shardOf(0)
	require.NotNil(t, s.refusedKeys)
	require.Nil(t, s.measures)
}

// After a burst, the shards of a Group together keep no more waiters than a Shaper does.
func TestShardsOfAGroupDoNotKeepABurstEach(t *testing.T) {
	const keys, each = 200, 20
	synctest.Test(t, func(t *testing.T) {
		g, err := NewGroup(func(int) (Limits, error) { return Limits{Rate: 1, Depth: each}, nil })
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		for key := range keys {
			require.True(t, g.Allow(key))
			for range each {
				go func() { _ = g.Wait(ctx, key) }()
			}
		}
		synctest.Wait()
		require.Equal(t, keys*each, g.Stats().Waiting)
		cancel()
		synctest.Wait()
		require.Zero(t, g.Stats().Waiting)
		kept := 0
		for _, s := range g.all {
			kept += int(s.waiters.len)
		}
		require.LessOrEqual(t, kept, maxSpares)
		require.Greater(t, kept, maxSpares/2)
	})
}

// A waiter that is used for requests of both kinds, with a context that never ends and with one
// that may, keeps one thing to wait on. So a pool takes no more than maxSpares says.
func TestAWaiterInThePoolDoesNotKeepTwoThingsToWaitOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Limits{Rate: 1, Depth: 1})
		require.NoError(t, err)
		require.True(t, s.Allow())
		require.NoError(t, s.Wait(context.Background()))
		used := s.waiters.head
		require.NotNil(t, used.parker)
		for _, ctx := range []context.Context{t.Context(), context.Background()} {
			require.NoError(t, s.Wait(ctx))
			require.Same(t, used, s.waiters.head)
			require.NotNil(t, used.ready)
			require.Nil(t, used.parker)
		}
	})
}

// Requests in the shadow of a dry run that Close refuses leave nothing behind, settled or not. A settle after
// Close changes nothing, as the shadow has refused the request.
func TestADryRunForgetsWhatCloseHasRefused(t *testing.T) {
	limits := Limits{Rate: 10, Burst: 10, Depth: 9}
	for _, kind := range []string{"Shaper", "Group"} {
		for _, actual := range []int{4, 10, 15, -1} {
			for _, before := range []bool{true, false} {
				t.Run(fmt.Sprint(kind, actual, before), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s, err := New(limits, WithDryRun())
						require.NoError(t, err)
						g, err := NewGroup(func(string) (Limits, error) { return limits, nil }, WithDryRun())
						require.NoError(t, err)
						var in []*reservation
						for range 4 { // The first one leaves.
							v, err := s.reserve(context.Background(), nil, 10, newcomer)
							if kind == "Group" {
								v, err = g.reserve(context.Background(), "a", 10, newcomer)
							}
							require.NoError(t, err)
							in = append(in, v)
						}
						require.Len(t, in[0].of.shadows, 3)
						settle := func() {
							for _, v := range in[1:] {
								v.settle(actual)
							}
						}
						if before {
							settle()
						}
						require.NoError(t, s.Close())
						require.NoError(t, g.Close())
						givenBack := func() uint64 { return s.Stats().GivenBack + g.Stats().GivenBack }
						was := givenBack()
						if !before {
							settle()
							require.Zero(t, givenBack()+s.Stats().Charged+g.Stats().Charged+s.Stats().Forfeited+g.Stats().Forfeited)
						}
						require.Nil(t, in[0].of.shadows)
						in[0].settle(4)
						require.Equal(t, was+6, givenBack(), "it had left")
					})
				})
			}
		}
	}
}
