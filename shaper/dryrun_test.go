package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// This file tests that in a dry run no request waits and none is refused, and tests the verdicts.
// dryrun_test.go tests that the shadow is exact.

// judged returns the verdict of a dry run on one call, in a word.
func judged(t *testing.T, call func(ctx context.Context) error) string {
	t.Helper()
	ctx := shaper.ContextWithVerdict(context.Background())
	begin := time.Now()
	require.NoError(t, call(ctx))
	require.Zero(t, time.Since(begin), "it was kept waiting")
	v, ok := shaper.VerdictOf(ctx)
	require.True(t, ok, "there is no verdict")
	if v.Err != nil {
		return outcome(v.Err)
	}
	return "waits " + v.Wait.String()
}

// limiterCalls are the methods with which a request can enter.
var limiterCalls = map[string]func(l shaper.Limiter, ctx context.Context, n int) error{
	"WaitN": func(l shaper.Limiter, ctx context.Context, n int) error { return l.WaitN(ctx, n) },
	"Acquire": func(l shaper.Limiter, ctx context.Context, n int) error {
		release, err := acquirerOf(l)(ctx, n)
		release()
		return err
	},
}

// dryRuns plays a timeline with a dry run of a Shaper, and with one of a key of a Group.
func dryRuns(t *testing.T, limits string, timeline func(t *testing.T, call func(ctx context.Context, n int) error, end func() error)) {
	for name, ask := range limiterCalls {
		t.Run("Shaper "+name, func(t *testing.T) {
			play(t, limits, func(g *stage) {
				timeline(g.t, func(ctx context.Context, n int) error { return ask(g.Shaper, ctx, n) }, g.Close)
			}, shaper.WithDryRun())
		})
		t.Run("Group "+name, func(t *testing.T) {
			playKeys(t, limits, func(g *groupStage) {
				timeline(g.t, func(ctx context.Context, n int) error { return ask(g.Limiter("a"), ctx, n) }, g.Group.Close)
			}, shaper.WithDryRun())
		})
	}
}

func TestADryRunLetsEverythingThroughAtOnce(t *testing.T) {
	dryRuns(t, "1/s burst 2 depth 2 wait 2s", func(t *testing.T, call func(context.Context, int) error, end func() error) {
		one := func(ctx context.Context) error { return call(ctx, 1) }
		hasty := func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 500*ms)
			defer cancel()
			return call(ctx, 1)
		}
		for _, want := range []string{"waits 0s", "waits 0s", "waits 1s"} {
			require.Equal(t, want, judged(t, one))
		}
		require.Equal(t, "late, retry 1.500000001s", judged(t, hasty))
		require.Equal(t, "late, retry 1s", judged(t, func(ctx context.Context) error { return call(ctx, 9) }))
		require.Equal(t, "waits 2s", judged(t, one))
		require.Equal(t, "full, retry 1s", judged(t, one))
		require.Equal(t, "costly, retry 0s", judged(t, func(ctx context.Context) error { return call(ctx, 1e8) }))
		require.NoError(t, end())
		require.Equal(t, "closed, retry 0s", judged(t, one))
	})
}

func TestADryRunKnowsMistakesAndContextsThatHaveEnded(t *testing.T) {
	dryRuns(t, "1/s", func(t *testing.T, call func(context.Context, int) error, end func() error) {
		require.Equal(t, context.Canceled, call(closedContext(), 1))
		require.Equal(t, context.Canceled, call(closedContext(), 0))
		require.Equal(t, shaper.ErrNegativeCost, call(closedContext(), -1))
		ctx := shaper.ContextWithVerdict(context.Background())
		require.NoError(t, call(ctx, 0))
		_, ok := shaper.VerdictOf(ctx)
		require.False(t, ok, "a cost of 0 counts nothing")
		require.Equal(t, "waits 0s", judged(t, func(ctx context.Context) error { return call(ctx, 1) }), "nothing was taken")
	})
}

func TestAllowAndDoOfADryRun(t *testing.T) {
	failure := errors.New("its own")
	fails := func(context.Context) error { return failure }
	play(t, "1/s inflight 1", func(g *stage) {
		for range 3 {
			require.True(t, g.Allow())
		}
		require.False(t, g.AllowN(-1))
		require.Equal(t, failure, g.Do(context.Background(), 1, fails))
		require.NoError(t, g.Close())
		require.True(t, g.Allow())
		require.Equal(t, failure, g.Do(context.Background(), 1, fails))
		st := g.Stats()
		require.Equal(t, []uint64{1, 3, 2}, []uint64{st.Departed, st.QueueFull, st.Closed})
		require.True(t, st.DryRun)
		require.Zero(t, st.InFlight)
	}, shaper.WithDryRun())
	playKeys(t, "1/s inflight 1", func(g *groupStage) {
		for range 3 {
			require.True(t, g.Allow("a"))
		}
		require.False(t, g.AllowN("a", -1))
		require.Equal(t, failure, g.Do(context.Background(), "a", 1, fails))
		g.says("bad", func() (shaper.Limits, error) { return shaper.Limits{}, failure })
		require.True(t, g.Allow("bad"))
		require.NoError(t, g.Group.Close())
		require.True(t, g.Allow("a"))
		require.Equal(t, failure, g.Do(context.Background(), "a", 1, fails))
		st := g.Group.Stats()
		require.Equal(t, []uint64{1, 3, 2, 1}, []uint64{st.Departed, st.QueueFull, st.Closed, st.LimitErrors})
		require.True(t, st.DryRun)
	}, shaper.WithDryRun())
}

// The hook runs once for each call, when the call passes.
func TestHooksOfADryRunGetTheVerdict(t *testing.T) {
	var mu sync.Mutex
	var events []shaper.Event
	wrong := func(context.Context, shaper.Event) { t.Error("nothing of that kind happens") }
	trace := shaper.WithTrace(&shaper.Trace{Enqueued: wrong, Refused: wrong, Abandoned: wrong,
		Departed: func(_ context.Context, e shaper.Event) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e)
		}})
	expect := func(key any, start time.Time) {
		t.Helper()
		full := &shaper.RejectError{Reason: shaper.ErrQueueFull, RetryAfter: time.Second}
		event := func(waiting int, v shaper.Verdict) shaper.Event {
			return shaper.Event{Name: "new", Key: key, Cost: 1, Waiting: waiting, At: start, Verdict: &v}
		}
		require.Equal(t, []shaper.Event{
			event(0, shaper.Verdict{}), event(1, shaper.Verdict{Wait: time.Second}), event(1, shaper.Verdict{Err: full}),
		}, events)
		events = nil
	}
	play(t, "1/s depth 1", func(g *stage) {
		for range 3 {
			require.NoError(t, g.Wait(context.Background()))
		}
		expect(nil, g.start)
		g.at(time.Minute)
		require.EqualValues(t, 2, g.Stats().Departed)
		require.Empty(t, events, "the end of a shadow is nobody's call")
	}, shaper.WithDryRun(), shaper.WithName("new"), trace)
	playKeys(t, "1/s depth 1", func(g *groupStage) {
		for range 3 {
			require.NoError(t, g.Wait(context.Background(), "a"))
		}
		expect("a", g.start)
		g.says("bad", func() (shaper.Limits, error) { return shaper.Limits{}, errors.New("no such user") })
		require.NoError(t, g.Wait(context.Background(), "bad"))
		require.Len(t, events, 1)
		require.Equal(t, "bad", events[0].Key)
		require.ErrorContains(t, events[0].Verdict.Err, "no such user")
	}, shaper.WithDryRun(), shaper.WithName("new"), trace)
}

// The shadow of a dry run grows to Depth at most, even if nobody looks at its state.
func TestADryRunTakesLittleMemory(t *testing.T) {
	s := must(shaper.New(limitsOf(t, "1 per 1h depth 50"), shaper.WithDryRun()))
	call := func() {
		if err := s.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 60 {
		call()
	}
	require.Equal(t, 50, s.Stats().Waiting)
	full := heapInUse()
	for range 100_000 {
		call()
	}
	require.Less(t, heapInUse()-full, int64(100_000), "after as many calls, in bytes")
	require.Equal(t, 50, s.Stats().Waiting)
	runtime.KeepAlive(s)
}

// In a dry run no request waits, so Shutdown need not wait for the shadow.
func TestTheEndOfADryRun(t *testing.T) {
	type ending interface {
		Shutdown(context.Context) error
		Close() error
	}
	for name, end := range map[string]func(e ending) error{
		"Shutdown": func(e ending) error { return e.Shutdown(context.Background()) },
		"Close":    func(e ending) error { return e.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			play(t, "1/s depth 5", func(g *stage) {
				for range 3 {
					require.NoError(t, g.Wait(context.Background()))
				}
				g.at(time.Second)
				require.NoError(t, end(g.Shaper))
				require.Equal(t, time.Second, time.Since(g.start))
				st := g.Stats()
				require.Equal(t, []uint64{2, 1}, []uint64{st.Departed, st.Closed})
				require.Zero(t, st.Waiting)
			}, shaper.WithDryRun())
			playKeys(t, "1/s depth 5", func(g *groupStage) {
				for range 3 {
					require.NoError(t, g.Wait(context.Background(), "a"))
				}
				g.at(time.Second)
				require.NoError(t, end(g.Group))
				require.Equal(t, time.Second, time.Since(g.start))
				st := g.Group.Stats()
				require.Equal(t, []uint64{2, 1}, []uint64{st.Departed, st.Closed})
				require.Zero(t, st.Waiting)
				synctest.Wait()
				g.alone()
			}, shaper.WithDryRun())
		})
	}
}

// The cap is not part of the shadow. A guess of when a seat becomes free must not make a dry
// run predict another wait, or tell another RetryAfter, than without the cap.
func TestTheCapDoesNotChangeWhatADryRunPredicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		predicted := func(inFlight int) (waits []time.Duration) {
			limits := shaper.Limits{Rate: 20000, Depth: 3, InFlight: inFlight}
			s := must(shaper.New(limits, shaper.WithDryRun()))
			limits.Rate = 10000
			require.NoError(t, s.SetLimits(limits))
			g := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return limits, nil }, shaper.WithDryRun()))
			for range 5 { // One leaves at once, three would wait, and one would be refused.
				wait, _ := s.Forecast(1)
				ofKey, _ := g.Limiter("key").Forecast(1)
				require.Equal(t, wait, ofKey)
				_, err := s.Acquire(t.Context(), 1)
				require.NoError(t, err)
				_, err = g.Acquire(t.Context(), "key", 1)
				require.NoError(t, err)
				waits = append(waits, wait)
			}
			for _, w := range s.Line(9) {
				waits = append(waits, time.Until(w.Leaves))
			}
			require.Equal(t, s.Line(9), g.Limiter("key").Line(9))
			return append(waits, s.Refusals()[0].RetryAfter, g.Refusals()[0].RetryAfter)
		}
		step := 100 * time.Microsecond
		want := []time.Duration{0, step, 2 * step, 3 * step, 0, step, 2 * step, 3 * step, step, step}
		require.Equal(t, want, predicted(0))
		require.Equal(t, want, predicted(1))
	})
}

// verdictTeller is a handler that answers with the verdict that it sees.
var verdictTeller = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	v, ok := shaper.VerdictOf(r.Context())
	if ok {
		fmt.Fprint(w, v)
	}
})

// verdictFrom returns the status of a GET, the verdict in the header field of its answer,
// and the verdict that the handler saw.
func verdictFrom(h http.Handler, ctx context.Context) string {
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
	return strings.TrimSpace(fmt.Sprint(rec.Code, " ", strings.Join(rec.Header().Values("X-Verdict"), ","), " ", rec.Body))
}

func TestMiddlewareTellsTheVerdict(t *testing.T) {
	play(t, "1/s depth 1", func(g *stage) {
		group := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return g.Limits(), nil }, shaper.WithDryRun()))
		defer group.Close()
		told := shaper.WithVerdictHeader("X-Verdict")
		asked := 0
		inside := ownWait{mustDryRun(t, "1/s depth 1"), &asked}
		for name, middleware := range map[string]func(...shaper.MiddlewareOption) http.Handler{
			"Shaper": func(opts ...shaper.MiddlewareOption) http.Handler {
				return shaper.Middleware(g.Shaper, opts...)(verdictTeller)
			},
			"Group": func(opts ...shaper.MiddlewareOption) http.Handler {
				return group.Middleware(shaper.ByClientIP(), opts...)(verdictTeller)
			},
			"Shaper inside": func(opts ...shaper.MiddlewareOption) http.Handler {
				return shaper.Middleware(inside, opts...)(verdictTeller)
			},
		} {
			h := middleware(told)
			for _, want := range []string{"leave", "wait;seconds=1.000", "refuse;reason=queue-full"} {
				require.Equal(t, "200 "+want+" "+want, verdictFrom(h, context.Background()), name)
			}
			require.Equal(t, "200  refuse;reason=queue-full", verdictFrom(middleware(), context.Background()), name)
			require.Equal(t, "499", verdictFrom(h, closedContext()), name)
			negative := middleware(shaper.WithCost(func(*http.Request) int { return -1 }))
			require.Regexp(t, "^500 ", verdictFrom(negative, context.Background()), name)
		}
		require.Zero(t, time.Since(g.start), "nobody was kept")
		require.GreaterOrEqual(t, asked, 4, "calls of the WaitN that is about the Shaper's")
	}, shaper.WithDryRun())
	without := shaper.Middleware(mustMake(t, limitsOf(t, "inf")), shaper.WithVerdictHeader("X-Verdict"))(verdictTeller)
	require.Equal(t, "200", verdictFrom(without, t.Context()))
}

// A dry run also tries a new key function or limits function, so its errors refuse nothing.
func TestADryRunLetsRequestsWithoutAKeyThrough(t *testing.T) {
	failure := fmt.Errorf("set up wrongly: %w", shaper.ErrQueueFull) // That is no refusal of the Group.
	var events []shaper.Event
	trace := shaper.WithTrace(&shaper.Trace{Departed: func(_ context.Context, e shaper.Event) { events = append(events, e) }})
	playKeys(t, "1/s", func(g *groupStage) {
		g.says("bad", func() (shaper.Limits, error) { return shaper.Limits{}, failure })
		told := shaper.WithVerdictHeader("X-Verdict")
		noKey := g.Middleware(func(*http.Request) (string, error) { return "", failure }, told)(verdictTeller)
		noLimits := g.Middleware(func(*http.Request) (string, error) { return "bad", nil }, told)(verdictTeller)
		require.Equal(t, "200 refuse;reason=no-key refuse;reason=no-key", verdictFrom(noKey, context.Background()))
		require.Equal(t, "200 refuse;reason=no-limits refuse;reason=no-limits", verdictFrom(noLimits, context.Background()))
		require.Equal(t, "499", verdictFrom(noKey, closedContext()))
		require.Len(t, events, 2)
		require.Nil(t, events[0].Key)
		require.ErrorIs(t, events[0].Verdict.Err, failure)
		require.Equal(t, "bad", events[1].Key)
	}, shaper.WithDryRun(), trace)
}

// If a candidate comes before the live limit, the live limit's refusals carry the
// candidate's verdict too.
func TestVerdictsBesideALiveLimit(t *testing.T) {
	play(t, "1/s burst 2", func(g *stage) {
		candidate := mustDryRun(g.t, "1/s")
		told := shaper.WithVerdictHeader("X-Verdict")
		after := shaper.Middleware(shaper.Chain(g.Shaper, candidate), told)(verdictTeller)
		before := shaper.Middleware(shaper.Chain(candidate, g.Shaper), told)(verdictTeller)
		require.Equal(t, "200 leave leave", verdictFrom(after, context.Background()))
		require.Equal(t, "200 refuse;reason=queue-full refuse;reason=queue-full", verdictFrom(before, context.Background()))
		require.Contains(t, verdictFrom(before, context.Background()), "429 refuse;reason=queue-full {")
		require.Contains(t, verdictFrom(after, context.Background()), "429  {", "the candidate was not asked")
	})
}

// With one middleware behind another, each of them and a handler around both see one
// verdict, the harshest.
func TestVerdictsOfNestedMiddlewares(t *testing.T) {
	for _, swapped := range []bool{false, true} {
		outer, inner := mustDryRun(t, "1 per 1h"), mustDryRun(t, "inf")
		if swapped {
			outer, inner = inner, outer
		}
		h := shaper.Middleware(outer)(shaper.Middleware(inner)(verdictTeller))
		require.Equal(t, "200  leave", verdictFrom(h, t.Context()))
		ctx := shaper.ContextWithVerdict(t.Context())
		require.Equal(t, "200  refuse;reason=queue-full", verdictFrom(h, ctx))
		v, ok := shaper.VerdictOf(ctx)
		require.True(t, ok)
		require.Equal(t, "refuse;reason=queue-full", v.String())
	}
}

// In a dry run no request waits for the end of a hold, so a request that is sent again
// must itself wait for as long as it was asked to.
func TestARetryThroughADryRunWaitsAsItWasAskedTo(t *testing.T) {
	limits := shaper.Limits{Rate: 100, Depth: 9}
	for name, limiter := range map[string]func(dry *shaper.Shaper) shaper.Limiter{
		"alone":      func(dry *shaper.Shaper) shaper.Limiter { return dry },
		"in a chain": func(dry *shaper.Shaper) shaper.Limiter { return shaper.Chain(dry, rate.NewLimiter(rate.Inf, 1)) },
		"embedded":   func(dry *shaper.Shaper) shaper.Limiter { return ownWait{dry, new(int)} },
		"as a key":   func(dry *shaper.Shaper) shaper.Limiter { return struct{ *shaper.KeyLimiter }{dry.For("")} },
	} {
		bubble(t, name, func(t *testing.T) {
			dry := must(shaper.New(limits, shaper.WithDryRun()))
			begun := time.Now()
			var sent []time.Duration
			transport := &shaper.Transport{Limiter: limiter(dry), Retry: true, Base: roundTripFunc(func(*http.Request) (*http.Response, error) {
				sent = append(sent, time.Since(begun))
				return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"5"}}, Body: http.NoBody}, nil
			})}
			answer, err := transport.RoundTrip(httptest.NewRequest("GET", "http://api.example/", nil))
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			require.Equal(t, []time.Duration{0, 5 * time.Second}, sent)
		})
	}
}

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
	s := must(shaper.New(limitsOf(t, "1 per 1h depth 1"), shaper.WithDryRun()))
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
	s := must(shaper.New(limitsOf(t, limits), shaper.WithDryRun()))
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

// This file holds the shadow of a dry run to a real line, to the nanosecond. Whatever comes
// to a real Group comes to a dry run at the same instant, and the dry run's verdict on each
// request must be what becomes of it in the real one. Each key has the line of a Shaper.

// A fate is what became of one request, or would have.
type fate struct {
	Wait time.Duration
	Err  error
}

// A comparison is of a real limiter and a dry run with the same limits.
type comparison struct {
	t      *testing.T
	random *rand.Rand

	mu   sync.Mutex
	real []fate
	dry  []fate
}

// comes sends one request to both limiters.
func (c *comparison) comes(real, dry shaper.Limiter, n int, patience time.Duration) {
	i := len(c.dry)
	c.real = append(c.real, fate{})
	go func() {
		ctx, cancel := inTime(context.Background(), patience)
		defer cancel()
		begin := time.Now()
		err := real.WaitN(ctx, n)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.real[i] = fate{time.Since(begin), err}
	}()
	synctest.Wait()
	ctx, cancel := inTime(shaper.ContextWithVerdict(context.Background()), patience)
	defer cancel()
	require.NoError(c.t, dry.WaitN(ctx, n))
	v, ok := shaper.VerdictOf(ctx)
	require.True(c.t, ok)
	c.dry = append(c.dry, fate(v))
}

// inTime returns a context with a deadline, or without one if it is 0.
func inTime(ctx context.Context, patience time.Duration) (context.Context, context.CancelFunc) {
	if patience == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, patience)
}

// limits returns random limits with which many requests are refused, for each reason.
func (c *comparison) limits() shaper.Limits {
	rates := []rate.Limit{7, 1, 0.3, 20. / 60, rate.Every(3 * time.Second), rate.Inf}
	return shaper.Limits{
		Rate:    rates[c.random.IntN(len(rates))],
		Burst:   c.random.IntN(4),
		Depth:   c.random.IntN(6),
		MaxWait: time.Duration(c.random.IntN(2)) * time.Duration(c.random.Int64N(int64(20*time.Second))),
	}
}

// cost returns a random cost, which is sometimes too high for any limits.
func (c *comparison) cost() int {
	if c.random.IntN(20) == 0 {
		return 1e9
	}
	return 1 + c.random.IntN(5)
}

// passes lets a random time pass, which is often 0.
func (c *comparison) passes() {
	time.Sleep(time.Duration(c.random.IntN(2)) * time.Duration(c.random.Int64N(int64(2*time.Second))))
	synctest.Wait()
}

// After a verdict the line may be held or its limits may change. The verdict then remains
// the prediction at entry, as a prediction does without a dry run, and the counts and the
// state of the shadow must still be exact.
func TestTheShadowsOfAGroupAreExact(t *testing.T) {
	t.Parallel()
	words := map[string]int{}
	for seed := range rounds(64, 600, 600) {
		synctest.Test(t, func(t *testing.T) {
			c := &comparison{t: t, random: rand.New(rand.NewPCG(uint64(seed), 7))}
			defer func() {
				if t.Failed() {
					t.Log("seed", seed)
				}
			}()
			c.compare(seed%2 == 0)
			for _, f := range c.dry {
				word, _, _ := strings.Cut(outcome(f.Err), ",")
				if f.Err == nil && f.Wait > 0 {
					word = "waited"
				}
				words[word]++
			}
		})
	}
	for _, word := range []string{"left", "waited", "full", "late", "costly"} {
		require.Greater(t, words[word], 100, "%s of %v", word, words)
	}
}

// compare lets the same calls come to both Groups, and changes their lines if it may.
func (c *comparison) compare(reTimed bool) {
	byKey := map[string]shaper.Limits{}
	limits := func(key string) (shaper.Limits, error) { return byKey[key], nil }
	keys := []string{"a", "b", "c", "d"}
	for _, key := range keys {
		byKey[key] = c.limits()
	}
	real, err := shaper.NewGroup(limits)
	require.NoError(c.t, err)
	defer real.Close()
	dry, err := shaper.NewGroup(limits, shaper.WithDryRun())
	require.NoError(c.t, err)
	defer dry.Close()
	shaper.HashAlike(dry, real) // When a drained bucket is deleted depends on the others in its shard.
	same := func() {
		c.t.Helper()
		synctest.Wait()
		want, got := real.Stats(), dry.Stats()
		require.InDelta(c.t, want.RefusedKeys, got.RefusedKeys, 1, "an estimate, by a hash of its own")
		got.DryRun, got.RefusedKeys = false, want.RefusedKeys
		require.Equal(c.t, want, got)
		shadows := map[string]shaper.Stats{}
		for key, st := range dry.All() {
			st.DryRun = false
			shadows[key] = st
		}
		require.Equal(c.t, maps.Collect(real.All()), shadows)
	}
	for range 40 {
		c.passes()
		same()
		key, n := keys[c.random.IntN(len(keys))], c.cost()
		switch kind := c.random.IntN(10); {
		case kind == 0:
			real.AllowN(key, n)
			require.True(c.t, dry.AllowN(key, n))
		case kind == 1:
			wait, err := real.Limiter(key).Forecast(n)
			dryWait, dryErr := dry.Limiter(key).Forecast(n)
			require.Equal(c.t, fate{wait, err}, fate{dryWait, dryErr})
		case kind == 2 && reTimed:
			byKey[key] = c.limits()
			real.Reload()
			dry.Reload()
		case kind == 3 && reTimed:
			d := time.Duration(c.random.IntN(3)) * time.Second // 0 ends the hold
			real.Limiter(key).Hold(d)
			dry.Limiter(key).Hold(d)
		case kind == 3:
			c.comes(real.Limiter(key), dry.Limiter(key), n, time.Duration(1+c.random.Int64N(int64(9*time.Second))))
		default:
			c.comes(real.Limiter(key), dry.Limiter(key), n, 0)
		}
		same()
	}
	require.Equal(c.t, real.Top(9), dry.Top(9))
	if reTimed {
		require.NoError(c.t, real.Close())
		require.NoError(c.t, dry.Close())
		same()
		return
	}
	time.Sleep(time.Hour) // until all have left
	synctest.Wait()
	require.Equal(c.t, c.real, c.dry)
}
