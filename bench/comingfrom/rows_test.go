package comingfrom

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sethvargo/go-limiter"
	"github.com/sethvargo/go-limiter/httplimit"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// A row of the document: a call of another limiter, and a test that runs it and ours.
type row struct {
	call string // the first cell, as it is written there
	both func(t *testing.T)
}

// bubbles has the rows that run in a bubble, by the headings of the document.
var bubbles = map[string][]row{
	"golang.org/x/time/rate": xTime,
	"go.uber.org/ratelimit":  uber,
	"sethvargo/go-limiter":   goLimiter,
	"ulule/limiter":          ulule,
	"didip/tollbooth":        tollboothRows,
}

func TestEachRowRunsBoth(t *testing.T) {
	for library, rows := range bubbles {
		for _, r := range rows {
			t.Run(library+" "+r.call, func(t *testing.T) { synctest.Test(t, r.both) })
		}
	}
}

// A row that no test runs may say anything.
func TestTheDocumentHasTheRowsThatAreRun(t *testing.T) {
	text, err := os.ReadFile("../../docs/coming-from.md")
	require.NoError(t, err)
	heading := regexp.MustCompile(`^\[?([^\]]+)`)
	documented := map[string][]string{}
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		title, rest, _ := strings.Cut(section, "\n")
		library := heading.FindStringSubmatch(title)[1]
		if bubbles[library] == nil && library != redisRate {
			continue // It is no library of Go.
		}
		for line := range strings.Lines(rest) {
			if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| `") {
				require.Len(t, cells, 3, line)
				documented[library] = append(documented[library], strings.TrimPrefix(cells[0], "| "))
			}
		}
	}
	run := map[string][]string{redisRate: callsOf(onRedis)}
	for library, rows := range bubbles {
		run[library] = callsOf(rows)
	}
	require.Equal(t, run, documented)
}

// What the tables of the proxies write as limits is limits.
func TestTheLimitsOfTheDocumentAreLimits(t *testing.T) {
	text, err := os.ReadFile("../../docs/coming-from.md")
	require.NoError(t, err)
	found := regexp.MustCompile("`(?:limits |\")(\\d[^`\"]*)\"?`").FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(found), 3)
	for _, m := range found {
		_, err := shaper.ParseLimits(m[1])
		require.NoError(t, err)
	}
}

func callsOf(rows []row) (calls []string) {
	for _, r := range rows {
		calls = append(calls, r.call)
	}
	return calls
}

// must returns what was made without an error.
func must[T any](made T, err error) T {
	if err != nil {
		panic(err)
	}
	return made
}

func newShaper(limits string) *shaper.Shaper {
	return must(shaper.New(must(shaper.ParseLimits(limits))))
}

// newGroup makes a Group whose keys all have the same limits.
func newGroup(t *testing.T, limits string, opts ...shaper.GroupOption) *shaper.Group[string] {
	l := must(shaper.ParseLimits(limits))
	g := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return l, nil }, opts...))
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	return g
}

// departures lets so many callers wait, who come one after the other at this instant, and returns
// for each how long it waited.
func departures(t *testing.T, callers int, wait func() error) []time.Duration {
	t.Helper()
	began := time.Now()
	waited := make([]time.Duration, callers)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			if err := wait(); err != nil {
				t.Errorf("caller %d: %v", i, err)
			}
			waited[i] = time.Since(began)
		})
		synctest.Wait()
	}
	all.Wait()
	return waited
}

// evenly returns the waits of callers of whom some leave at once, and the others one per interval.
func evenly(callers, atOnce int, interval time.Duration) []time.Duration {
	waits := make([]time.Duration, callers)
	for i := range waits {
		waits[i] = time.Duration(max(0, i-atOnce+1)) * interval
	}
	return waits
}

// count returns how many of so many calls are let through.
func count(calls int, allow func() bool) (passed int) {
	for range calls {
		if allow() {
			passed++
		}
	}
	return passed
}

// get sends a request from an address, with header fields, and returns the response.
func get(h http.Handler, path, from string, fields ...string) *http.Response {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.RemoteAddr = from + ":1234"
	for pair := range slices.Chunk(fields, 2) {
		r.Header.Set(pair[0], pair[1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// served counts the requests of so many that are answered with 200.
func served(requests int, h http.Handler, path, from string, fields ...string) int {
	return count(requests, func() bool { return get(h, path, from, fields...).StatusCode == http.StatusOK })
}

var site = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

var ctx = context.Background()

func newStore(t *testing.T, tokens uint64, interval time.Duration) limiter.Store {
	store := must(memorystore.New(&memorystore.Config{Tokens: tokens, Interval: interval}))
	t.Cleanup(func() { require.NoError(t, store.Close(ctx)) })
	return store
}

// takes is Take as Allow.
func takes(store limiter.Store, key string) func() bool {
	return func() bool {
		_, _, _, ok, err := store.Take(ctx, key)
		return err == nil && ok
	}
}

// allows is Allow of a key.
func allows(g *shaper.Group[string], key string) func() bool {
	return func() bool { return g.Allow(key) }
}

// Its clock is the kernel's, and stands still for a bubble.
func TestGoLimiterHasWindows(t *testing.T) {
	take := takes(newStore(t, 5, 400*time.Millisecond), "a")
	require.GreaterOrEqual(t, count(9, take), 5)
	for !take() {
		time.Sleep(time.Millisecond)
	}
	require.GreaterOrEqual(t, count(9, take), 4, "all tokens come back together")
}

var goLimiter = []row{
	{"`memorystore.New(&Config{Tokens: n, Interval: d})`", func(t *testing.T) {
		theirs, ours := newStore(t, 5, 5*time.Second), newGroup(t, "5 per 5s burst 5")
		require.Equal(t, 5, count(9, takes(theirs, "a")))
		require.Equal(t, 5, count(9, allows(ours, "a")))
		time.Sleep(2 * time.Second)
		require.Equal(t, 2, count(9, allows(ours, "a"))) // Theirs all come back together: TestGoLimiterHasWindows.
	}},
	{"`Take(ctx, key)`", func(t *testing.T) {
		theirs, ours := newStore(t, 3, 3*time.Hour), newGroup(t, "3 per 3h burst 3")
		_, _, end, _, err := theirs.Take(ctx, "a")
		require.NoError(t, err)
		require.True(t, ours.Allow("a"))
		for left := 1; left >= 0; left-- {
			tokens, remaining, reset, ok, err := theirs.Take(ctx, "a")
			require.NoError(t, err)
			require.Equal(t, ok, ours.Allow("a"))
			st := ours.Limiter("a").Stats()
			require.EqualValues(t, tokens, st.Limits.Burst)
			require.EqualValues(t, left, remaining)
			require.Equal(t, left, st.Free)
			require.Equal(t, end, reset, "the end of the interval")
			require.Equal(t, time.Now().Add(time.Duration(3-left)*time.Hour), st.EmptyAt, "when no unit is used any more")
		}
		require.False(t, takes(theirs, "a")())
		require.False(t, ours.Allow("a"))
	}},
	{"`Get(ctx, key)`", func(t *testing.T) {
		theirs, ours := newStore(t, 3, time.Second), newGroup(t, "3/s burst 3")
		tokens, remaining, err := theirs.Get(ctx, "new")
		require.NoError(t, err)
		require.Zero(t, tokens)
		require.Zero(t, remaining)
		require.Equal(t, 3, ours.Limiter("new").Stats().Free)
		takes(theirs, "a")()
		ours.Allow("a")
		tokens, remaining, err = theirs.Get(ctx, "a")
		require.NoError(t, err)
		st := ours.Limiter("a").Stats()
		require.EqualValues(t, tokens, st.Limits.Burst)
		require.EqualValues(t, remaining, st.Free)
	}},
	{"`Set(ctx, key, n, d)`", func(t *testing.T) {
		theirs, ours := newStore(t, 3, 3*time.Second), newGroup(t, "3 per 3s burst 3")
		require.Equal(t, 3, count(9, takes(theirs, "a")))
		require.Equal(t, 3, count(9, allows(ours, "a")))
		require.NoError(t, theirs.Set(ctx, "a", 7, 7*time.Second))
		require.NoError(t, ours.SetLimits("a", must(shaper.ParseLimits("7 per 7s burst 7"))))
		require.Equal(t, 7, count(9, takes(theirs, "a")), "it begins anew")
		require.Equal(t, 4, count(9, allows(ours, "a")), "the level stays")
	}},
	{"`httplimit.NewMiddleware(store, httplimit.IPKeyFunc())`", func(t *testing.T) {
		theirs := must(httplimit.NewMiddleware(newStore(t, 2, 2*time.Second), httplimit.IPKeyFunc())).Handle(site)
		ours := newGroup(t, "2 per 2s burst 2").Middleware(shaper.ByClientIP(), shaper.WithHeaders(shaper.HeaderXRateLimit))(site)
		for _, want := range []struct {
			status    int
			remaining string
		}{{200, "1"}, {200, "0"}, {429, "0"}} {
			a, b := get(theirs, "/", "192.0.2.1"), get(ours, "/", "192.0.2.1")
			require.Equal(t, want.status, a.StatusCode)
			require.Equal(t, want.status, b.StatusCode)
			for field, value := range map[string]string{"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": want.remaining} {
				require.Equal(t, value, a.Header.Get(field))
				require.Equal(t, value, b.Header.Get(field))
			}
			_, err := time.Parse(time.RFC1123, a.Header.Get("X-RateLimit-Reset"))
			require.NoError(t, err, "a date there")
			_, err = strconv.ParseInt(b.Header.Get("X-RateLimit-Reset"), 10, 64)
			require.NoError(t, err, "seconds here")
			if want.status == http.StatusTooManyRequests {
				_, err = time.Parse(time.RFC1123, a.Header.Get("Retry-After"))
				require.NoError(t, err)
				require.Equal(t, "1", b.Header.Get("Retry-After"))
			}
		}
		require.Equal(t, http.StatusOK, get(ours, "/", "192.0.2.2").StatusCode)
		require.Equal(t, http.StatusOK, get(theirs, "/", "192.0.2.2").StatusCode)
	}},
}
