package shaper_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// firstLetter is the key of a path: the path /a1 has the key a, and / the empty one.
func firstLetter(r *http.Request) (string, error) { return r.URL.Path[1:min(2, len(r.URL.Path))], nil }

// siteOf puts a Group in front of a handler that notes that it runs.
func siteOf(g *groupStage, opts ...shaper.MiddlewareOption) *site {
	opts = append([]shaper.MiddlewareOption{shaper.WithCost(costInQuery)}, opts...)
	return &site{g.stage, g.Middleware(firstLetter, opts...)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		g.note(r.URL.Path[1:] + " runs")
	}))}
}

func TestEachKeysRequestsWaitInTheirOwnLine(t *testing.T) {
	playKeys(t, "1/s depth 1", func(g *groupStage) {
		v := siteOf(g)
		for _, path := range []string{"a1", "a2", "a3", "b1", "b2", "", ""} {
			v.visit(path)
		}
		g.at(300 * ms)
		v.cancel("b2")
		g.at(time.Minute)
		g.saw("0s a1 runs", "0s a1 200", "0s a3 429, retry 1", "1s a2 runs", "1s a2 200",
			"0s b1 runs", "0s b1 200", "300ms b2 499, close",
			"0s  runs", "0s  200", "1s  runs", "1s  200") // An empty key is like any other.
		require.NoError(t, g.Group.Close())
		v.visit("c1")
		g.saw("1m0s c1 503, retry 1")
	})
}

func TestCost0PassesWithoutItsKey(t *testing.T) {
	playKeys(t, "1/s", func(g *groupStage) {
		asked := 0
		h := g.Middleware(func(*http.Request) (string, error) {
			asked++
			return "", errors.New("not to be asked")
		}, shaper.WithCost(costInQuery))(http.NotFoundHandler())
		require.Equal(t, "404", statusLine(answerOf(h, context.Background(), "?cost=0")))
		require.Zero(t, asked)
		require.Equal(t, "500", statusLine(answerOf(h, context.Background(), "")))
		require.Equal(t, 1, asked)
	})
}

func TestAGroupsMiddlewareNeedsAKey(t *testing.T) {
	g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 1}, nil })
	require.NoError(t, err)
	require.PanicsWithValue(t, "shaper: Group.Middleware needs a function that tells the key of a request",
		func() { g.Middleware(nil) })
}

// What is the program's own fault is answered with 500, whatever is in the error, and
// can be found in a log.
func TestErrorsOfKeyAndLimitsAreAnsweredWith500(t *testing.T) {
	for _, failure := range []error{errors.New("no such tenant"), context.Canceled, shaper.ErrQueueFull,
		&shaper.RejectError{Reason: shaper.ErrTooLate, RetryAfter: time.Hour}} {
		for name, row := range map[string]struct {
			key func(*http.Request) (string, error)
			log string
		}{
			"key":    {func(*http.Request) (string, error) { return "a", failure }, "shaper: key of a request: "},
			"limits": {func(*http.Request) (string, error) { return "bad", nil }, "shaper: limits of a key: "},
		} {
			t.Run(name+" "+failure.Error(), func(t *testing.T) {
				playKeys(t, "1/s", func(g *groupStage) {
					g.says("bad", func() (shaper.Limits, error) { return shaper.Limits{}, failure })
					var lines bytes.Buffer
					h := g.Middleware(row.key, shaper.WithLogger(newLog(&lines, slog.LevelInfo)), shaper.WithRateLimitHeaders())(http.NotFoundHandler())
					answer := answerOf(h, context.Background(), "")
					require.Equal(t, "500", statusLine(answer))
					require.Empty(t, answer.Header.Values("RateLimit"))
					require.Contains(t, lines.String(), "status=500")
					if _, ok := errors.AsType[*shaper.RejectError](failure); !ok {
						require.Contains(t, lines.String(), row.log+failure.Error())
					}
					var got error
					h = g.Middleware(row.key, shaper.WithErrorHandler(func(_ http.ResponseWriter, _ *http.Request, err error) { got = err }))(http.NotFoundHandler())
					answerOf(h, context.Background(), "")
					require.ErrorIs(t, got, failure)
					require.Equal(t, 0, g.Group.Stats().Keys)
				})
			})
		}
	}
}

func TestRateLimitFieldsAreThoseOfTheKey(t *testing.T) {
	playKeys(t, "1 per 10s burst 3", func(g *groupStage) {
		g.limit("p", "10/s burst 100")
		v := siteOf(g, shaper.WithRateLimitHeaders())
		for _, row := range []struct{ path, status, policy, state string }{
			{"a?cost=2", "200", `"api";q=3;w=30`, `"api";r=1;t=20`},
			{"b", "200", `"api";q=3;w=30`, `"api";r=2;t=10`},
			{"p?cost=60", "200", `"api";q=100;w=10`, `"api";r=40;t=6`},
			{"a?cost=2", "429, retry 10", `"api";q=3;w=30`, `"api";r=1;t=10`},
			{"a?cost=4", "429", `"api";q=3;w=30`, `"api";r=1;t=20`},
		} {
			answer := answerOf(v, context.Background(), row.path)
			require.Equal(t, row.status, statusLine(answer), row.path)
			require.Equal(t, row.policy, answer.Header.Get("RateLimit-Policy"), row.path)
			require.Equal(t, row.state, answer.Header.Get("RateLimit"), row.path)
		}
	}, shaper.WithName("api"))
}

// Each key has seats of its own, which its handlers give back, or those who hijack.
func TestCapsPerKey(t *testing.T) {
	playKeys(t, "inf depth 1 inflight 1", func(g *groupStage) {
		ends := map[string]chan struct{}{"/a1": make(chan struct{}), "/a2": make(chan struct{}), "/b1": make(chan struct{})}
		v := &site{g.stage, g.Middleware(firstLetter)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			g.note(r.URL.Path[1:] + " runs")
			<-ends[r.URL.Path]
		}))}
		for _, path := range []string{"a1", "a2", "a3", "b1"} {
			v.visit(path)
		}
		g.saw("0s a1 runs", "0s a3 429, retry 1", "0s b1 runs")
		g.at(time.Second)
		close(ends["/a1"])
		g.saw("1s a1 200", "1s a2 runs")
		close(ends["/a2"])
		close(ends["/b1"])
		g.saw("1s a2 200", "1s b1 200")

		h := g.Middleware(firstLetter)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			require.False(t, fits(g, "a"), "it has the only seat")
			_, _, err := w.(http.Hijacker).Hijack()
			require.NoError(t, err)
			require.True(t, fits(g, "a"))
		}))
		h.ServeHTTP(struct {
			http.ResponseWriter
			http.Hijacker
		}{httptest.NewRecorder(), hijackerFunc(func() error { return nil })}, httptest.NewRequest("GET", "/a", nil))
	})
}

// fits says whether a request of a key would leave at once.
func fits(g *groupStage, key string) bool {
	wait, err := g.Forecast(key, 1)
	return wait == 0 && err == nil
}

// Whether the request will wait is told by the bucket: of one that is not there yet
// the limits are asked for once, when it is made.
func TestReadingAheadAsksForLimitsOnce(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 99)
	group, err := shaper.NewGroup(func(key string) (shaper.Limits, error) {
		asked <- key
		return shaper.Limits{Rate: 1. / 3600}, nil
	})
	require.NoError(t, err)
	defer group.Close()
	h := group.Middleware(firstLetter)(http.HandlerFunc(echo))
	e := newBlindEntrance(t, 0)
	e.Config.ReadTimeout = time.Minute
	e.admit("inf")
	e.outer = func(http.Handler) http.Handler { return h }
	e.open()
	require.Equal(t, "HELLO", e.visit(post("/a", "hello")).reads(200))
	e.visit(post("/a", "he")).reads(429) // Without waiting for the rest.
	require.Len(t, asked, 1)
}
