package shaper_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

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
		group, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return g.Limits(), nil }, shaper.WithDryRun())
		require.NoError(t, err)
		defer group.Close()
		told := shaper.WithVerdictHeader("X-Verdict")
		for name, middleware := range map[string]func(...shaper.MiddlewareOption) http.Handler{
			"Shaper": func(opts ...shaper.MiddlewareOption) http.Handler {
				return shaper.Middleware(g.Shaper, opts...)(verdictTeller)
			},
			"Group": func(opts ...shaper.MiddlewareOption) http.Handler {
				return group.Middleware(shaper.ByClientIP(), opts...)(verdictTeller)
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
	}, shaper.WithDryRun())
	without := shaper.Middleware(mustMake(t, limitsOf(t, "inf")), shaper.WithVerdictHeader("X-Verdict"))(verdictTeller)
	require.Equal(t, "200", verdictFrom(without, t.Context()))
}

// A dry run also tries a new key function or limits function, so its errors refuse nothing.
func TestADryRunLetsRequestsWithoutAKeyThrough(t *testing.T) {
	failure := errors.New("set up wrongly")
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

// In a dry run no request waits, so no body is read before the handler runs.
func TestADryRunReadsNothingAhead(t *testing.T) {
	group, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 1}, nil }, shaper.WithDryRun())
	require.NoError(t, err)
	defer group.Close()
	s := mustDryRun(t, "1 per 1h depth 9")
	for name, l := range map[string]shaper.Limiter{"Shaper": s, "Group": group.Limiter("a"), "Chain": shaper.Chain(s, group.Limiter("a"))} {
		t.Run(name, func(t *testing.T) {
			e := newBlindEntrance(t, 0)
			e.Config.ReadTimeout = time.Minute
			e.limiter, e.handler = l, echo
			e.open()
			v := e.visit(post("/a", "he"))
			require.Equal(t, "/a", realtime.Next(t, e.ran))
			v.send("llo")
			require.Equal(t, "HELLO", v.reads(200))
		})
	}
}

// A candidate that would refuse must not keep the live limit from seeing that a
// client has gone.
func TestACandidateDoesNotHinderReadingAhead(t *testing.T) {
	candidate := mustDryRun(t, "1 per 1h")
	require.True(t, candidate.Allow())
	e := newBlindEntrance(t, 1)
	e.limiter = shaper.Chain(e.Shaper, candidate)
	e.open()
	v := e.visit(post("/", "hello"))
	e.waiting(1)
	v.leave()
	e.abandoned(1)
}

// The handler gets a copy of the request with another context. What outer handlers and
// net/http look for in the original must be there all the same.
func TestADryRunHandsBackWhatIsLookedForOutside(t *testing.T) {
	for _, hook := range []bool{true, false} {
		t.Run(fmt.Sprint(hook), func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("TMPDIR", dir)
			live := mustMake(t, limitsOf(t, "inf"))
			mux := http.NewServeMux()
			files := 0
			mux.HandleFunc("POST /{x}", func(w http.ResponseWriter, r *http.Request) {
				_ = r.ParseMultipartForm(1)
				d, _ := os.ReadDir(dir)
				files = len(d)
			})
			inner := shaper.Middleware(shaper.Chain(live, mustDryRun(t, "1 per 1h")))(mux)
			patterns := make(chan string, 1)
			addr := openServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				inner.ServeHTTP(w, r)
				patterns <- r.Pattern
			}), func(s *http.Server) {
				if hook {
					hooked(s)
				}
			})
			var b bytes.Buffer
			m := multipart.NewWriter(&b)
			f, _ := m.CreateFormFile("f", "f")
			_, _ = f.Write(make([]byte, 20<<10))
			require.NoError(t, m.Close())
			a, err := http.Post("http://"+addr+"/a", m.FormDataContentType(), &b)
			require.NoError(t, err)
			require.NoError(t, a.Body.Close())
			require.Equal(t, "POST /{x}", realtime.Next(t, patterns))
			require.Equal(t, 1, files, "the handler sees its file")
			realtime.Until(t, func() bool {
				d, err := os.ReadDir(dir)
				return err == nil && len(d) == 0
			}, "the file is removed")
		})
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
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dry, err := shaper.New(limits, shaper.WithDryRun())
				require.NoError(t, err)
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
		})
	}
}
