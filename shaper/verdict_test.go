package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

func TestVerdictInWords(t *testing.T) {
	for _, row := range []struct {
		v    shaper.Verdict
		want string
	}{
		{shaper.Verdict{}, "leave"},
		{shaper.Verdict{Wait: 1300 * ms}, "wait;seconds=1.300"},
		{shaper.Verdict{Wait: 1}, "wait;seconds=0.000"},
		{shaper.Verdict{Wait: 100 * time.Hour}, "wait;seconds=360000.000"},
		{shaper.Verdict{Err: &shaper.RejectError{Reason: shaper.ErrQueueFull, RetryAfter: time.Hour}}, "refuse;reason=queue-full"},
		{shaper.Verdict{Err: &shaper.RejectError{Reason: shaper.ErrTooLate}}, "refuse;reason=too-late"},
		{shaper.Verdict{Err: fmt.Errorf("of a key: %w", shaper.ErrTooCostly)}, "refuse;reason=too-costly"},
		{shaper.Verdict{Err: shaper.ErrClosed, Wait: time.Second}, "refuse;reason=closed"},
		{shaper.Verdict{Err: errors.New("\r\nSet-Cookie: a")}, "refuse;reason=no-limits"},
	} {
		require.Equal(t, row.want, row.v.String())
	}
}

func TestAVerdictIsLeftWhereItIsWanted(t *testing.T) {
	s, err := shaper.New(limitsOf(t, "1 per 1h depth 1"), shaper.WithDryRun())
	require.NoError(t, err)
	require.NoError(t, s.Wait(t.Context()))
	_, ok := shaper.VerdictOf(t.Context())
	require.False(t, ok)
	ctx := shaper.ContextWithVerdict(t.Context())
	_, ok = shaper.VerdictOf(ctx)
	require.False(t, ok, "nobody has judged yet")
	within, cancel := context.WithCancel(context.WithValue(ctx, traceKey{}, "x"))
	defer cancel()
	require.NoError(t, s.Wait(within))
	for _, c := range []context.Context{ctx, within} {
		v, ok := shaper.VerdictOf(c)
		require.True(t, ok)
		require.Greater(t, v.Wait, 59*time.Minute)
	}
}

func TestOnlyADryRunLeavesAVerdict(t *testing.T) {
	s, err := shaper.New(limitsOf(t, "1 per 1h"))
	require.NoError(t, err)
	ctx := shaper.ContextWithVerdict(t.Context())
	require.NoError(t, s.Wait(ctx))
	require.ErrorIs(t, s.Wait(ctx), shaper.ErrQueueFull)
	_, ok := shaper.VerdictOf(ctx)
	require.False(t, ok)
}

// Of several verdicts the harshest counts, whatever their order.
func TestTheHarshestOfSeveralVerdictsCounts(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) { // g.Shaper is a dry run in which the next request would wait
		leaves := mustDryRun(g.t, "inf")
		longer := mustDryRun(g.t, "1 per 10s depth 9")
		refuses := mustDryRun(g.t, "1/s")
		for _, s := range []*shaper.Shaper{g.Shaper, longer, refuses} {
			require.True(t, s.Allow())
		}
		for _, row := range []struct {
			links []shaper.Limiter
			want  string
		}{
			{[]shaper.Limiter{leaves}, "leave"},
			{[]shaper.Limiter{leaves, g.Shaper, leaves}, "wait;seconds=1.000"},
			{[]shaper.Limiter{longer, g.Shaper}, "wait;seconds=10.000"},
			{[]shaper.Limiter{g.Shaper, longer}, "wait;seconds=20.000"},
			{[]shaper.Limiter{refuses, longer}, "refuse;reason=queue-full"},
			{[]shaper.Limiter{longer, refuses, leaves}, "refuse;reason=queue-full"},
		} {
			ctx := shaper.ContextWithVerdict(context.Background())
			require.NoError(t, shaper.Chain(row.links...).WaitN(ctx, 1))
			v, _ := shaper.VerdictOf(ctx)
			require.Equal(t, row.want, v.String())
		}
	}, shaper.WithDryRun())
}

// mustDryRun makes a dry run of a Shaper.
func mustDryRun(t testing.TB, limits string) *shaper.Shaper {
	t.Helper()
	s, err := shaper.New(limitsOf(t, limits), shaper.WithDryRun())
	require.NoError(t, err)
	return s
}

func TestVerdictsAreSafeForConcurrentUse(t *testing.T) {
	s := mustDryRun(t, "1 per 1h depth 9")
	ctx := shaper.ContextWithVerdict(t.Context())
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			_ = s.Wait(ctx)
			shaper.VerdictOf(ctx)
		})
	}
	callers.Wait()
	v, _ := shaper.VerdictOf(ctx)
	require.ErrorIs(t, v.Err, shaper.ErrQueueFull)
}

// With a candidate beside the live limit, the same requests leave at the same instants as
// without it, however low the candidate's rate. The candidate judges the requests that
// come to it.
func TestACandidateBesideALiveLimit(t *testing.T) {
	play(t, "2/s depth 3", func(g *stage) {
		candidate := mustDryRun(g.t, "1/s depth 1")
		c := shaper.Chain(g.Shaper, candidate)
		arrive := func(name string) {
			ctx := shaper.ContextWithVerdict(context.Background())
			go func() {
				word := outcome(c.WaitN(ctx, 1))
				if v, ok := shaper.VerdictOf(ctx); ok {
					word += ", " + v.String()
				}
				g.note(name + " " + word)
			}()
			g.at(time.Since(g.start))
		}
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			arrive(name)
		}
		wait, err := c.Forecast(1)
		require.Equal(t, "0s full, retry 500ms", fmt.Sprint(wait, " ", outcome(err)), "that of the live one")
		g.at(time.Minute)
		g.saw("0s e full, retry 500ms",
			"0s a left, leave", "500ms b left, wait;seconds=0.500",
			"1s c left, wait;seconds=1.000", "1.5s d left, refuse;reason=queue-full")
		require.True(t, candidate.Allow())
		wait, err = c.Forecast(1)
		require.NoError(t, err)
		require.Zero(t, wait, "the candidate keeps nobody")
		require.NoError(t, candidate.Close())
		arrive("f")
		g.saw("1m0s f left, refuse;reason=closed")
	})
}
