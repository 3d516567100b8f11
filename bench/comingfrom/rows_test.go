package comingfrom

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
