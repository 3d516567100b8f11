package inspect_test

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/shaper"
)

// scene makes an Inspector that shows a Shaper, a Group and a Group in dry run:
//
//	key             waiting  level  fill   departed  refused  called
//	(the Shaper)    0        1     <1/2    1         0        a minute and a half ago
//	send/a          5        1      6/6    1         2        now
//	send/b          2        1      3/6    1         0        now
//	read/c          0        1      1/6    1         0        a minute and a half ago
//	(dry) send/d    0        1      1/1    1         3        now
func scene(t *testing.T, opts ...inspect.Option) *inspect.Inspector {
	s := made.Shaper(t, "1 per 1000000s burst 2")
	g := made.Group[string](t, "1 per 10d depth 5")
	dry := made.Group[string](t, "1 per 10d", shaper.WithDryRun())

	require.True(t, s.Allow())
	require.True(t, g.Allow("read/c"))
	time.Sleep(90 * time.Second)
	lineUp(t, g, "send/a", 8)
	lineUp(t, g, "send/b", 3)
	for range 4 {
		require.True(t, dry.Allow("send/d"))
	}
	i := show(t, "one", inspect.Of(s), opts...)
	i.Add("many", inspect.OfGroup(g))
	i.Add("dry", inspect.OfGroup(dry))
	synctest.Wait() // The first sample is taken.
	return i
}

func TestFilters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := scene(t)
		for _, test := range []struct {
			query string
			want  string
		}{
			{"", "send/d read/c send/a send/b "}, // by source, then by key
			{"source=many", "read/c send/a send/b"},
			{"source=&prefix=&waiting_gt=&level_gt=&fill_gt=&idle_gt=&refused_gt=&refusing=&dry_run=&sort=&limit=&cursor=", "send/d read/c send/a send/b "},
			{"prefix=send", "send/d send/a send/b"},
			{"prefix=send/&source=many", "send/a send/b"},
			{"contains=/", "send/d read/c send/a send/b"},
			{"contains=d/", "send/d read/c send/a send/b"},
			{"contains=ad", "read/c"},
			{"contains=D", "-"},
			{"contains=/a&prefix=send", "send/a"},
			{"waiting_gt=0", "send/a send/b"},
			{"waiting_gt=2", "send/a"},
			{"waiting_gt=5", "-"},
			{"level_gt=0.99", "send/d read/c send/a send/b "},
			{"level_gt=1", "-"},
			{"fill_gt=0.5", "send/d send/a"},
			{"fill_gt=0.49", "send/d send/a send/b "},
			{"fill_gt=0.1", "send/d read/c send/a send/b "},
			{"idle_gt=1m", "read/c "},
			{"idle_gt=90s", "-"},
			{"idle_gt=89.9s", "read/c "},
			{"refused_gt=0", "send/d send/a"},
			{"refused_gt=2", "send/d"},
			{"refusing=true", "send/d send/a"},
			{"refusing=false", "read/c send/b "},
			{"dry_run=true", "send/d"},
			{"dry_run=false", "read/c send/a send/b "},
			{"prefix=send&waiting_gt=0&fill_gt=0.9", "send/a"},
		} {
			want := strings.Split(test.want, " ")
			if test.want == "-" {
				want = []string{}
			}
			l := listOf(t, i, test.query)
			require.Equal(t, want, keysOf(l), test.query)
			require.Equal(t, len(want), l.Matched, test.query)
			require.Nil(t, l.Next)
		}
	})
}

// The whole table, in its order, as a file. TestAnswersAreTheOnesOfTheFile has the cells.
func TestTheTableIsExported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := scene(t)
		const query = "?sort=-waiting&contains=e"
		w := ask(i, "/api/v1/buckets.json"+query)
		require.Equal(t, http.StatusOK, w.Code)
		require.Equal(t, "application/json", w.Header().Get("Content-Type"))
		require.Equal(t, ask(i, "/api/v1/buckets"+query).Body.String(), w.Body.String(), "all fit on one page here")

		w = ask(i, "/api/v1/buckets.csv"+query)
		require.Equal(t, http.StatusOK, w.Code)
		require.Equal(t, "text/csv; charset=utf-8", w.Header().Get("Content-Type"))
		require.Equal(t, `attachment; filename="buckets-20000101T000130Z.csv"`, w.Header().Get("Content-Disposition"))
		require.Equal(t, 1+len(listOf(t, i, query[1:]).Buckets), strings.Count(w.Body.String(), "\n"))
		require.Equal(t, http.StatusBadRequest, ask(i, "/api/v1/buckets.csv?limit=5").Code, "all are told, or it is said that they are not")
		require.Equal(t, http.StatusNotFound, ask(i, "/api/v1/buckets.json?source=x").Code)
	})
}

// A reader that takes nothing keeps a scan in memory, and others from their exports.
func TestAnExportThatNobodyReadsIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := scene(t)
		client, server := net.Pipe()
		defer client.Close()
		ended := make(chan any)
		go func() {
			defer func() { ended <- recover() }()
			i.ServeHTTP(streamWriter{server, &reader{header: http.Header{}}}, request(http.MethodGet, "/api/v1/buckets.json"))
		}()
		synctest.Wait()
		began := time.Now()
		require.Equal(t, http.StatusOK, ask(i, "/api/v1/buckets.csv").Code)
		require.Equal(t, 10*time.Second, time.Since(began))
		require.Equal(t, http.ErrAbortHandler, <-ended, "it must not take a part for the whole")
	})
}

// A key comes from a client. A spreadsheet must not run it.
func TestAKeyIsNoFormula(t *testing.T) {
	i := blank(t)
	g := made.Group[string](t, "1 per 10d depth 5")
	keys := []string{"=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "a=1", `say "hi", you`}
	for _, key := range keys {
		require.True(t, g.Allow(key))
	}
	i.Add("=cmd", inspect.OfGroup(g))
	lines, err := csv.NewReader(ask(i, "/api/v1/buckets.csv").Body).ReadAll()
	require.NoError(t, err)
	var got []string
	column := slices.Index(lines[0], "key")
	for _, line := range lines[1:] {
		require.Equal(t, "'=cmd", line[slices.Index(lines[0], "source")])
		require.NotContains(t, "=+-@", line[slices.Index(lines[0], "id")][:1])
		got = append(got, line[column])
	}
	require.ElementsMatch(t, []string{"'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\t=1", "'\r=1", "a=1", `say "hi", you`}, got)
}

func TestAWrongParameterIsNamed(t *testing.T) {
	i := show(t, "one", inspect.OfGroup(made.Group[string](t, "1/s")))
	long := strings.Repeat("x", 1000)
	for _, test := range []struct {
		target, parameter, value, message string
		status                            int
	}{
		{"/api/buckets?limit=0", "limit", "0", "must be a whole number from 1 to 1000", 400},
		{"/api/buckets?limit=1001", "limit", "1001", "must be a whole number from 1 to 1000", 400},
		{"/api/buckets?limit=1e3", "limit", "1e3", "must be a whole number", 400},
		{"/api/buckets?waiting_gt=-1", "waiting_gt", "-1", "must be a whole number of at least 0", 400},
		{"/api/buckets?refused_gt=1.5", "refused_gt", "1.5", "must be a whole number", 400},
		{"/api/buckets?level_gt=NaN", "level_gt", "NaN", "must be a number of at least 0", 400},
		{"/api/buckets?fill_gt=inf", "fill_gt", "inf", "must be a number", 400},
		{"/api/buckets?fill_gt=50%25", "fill_gt", "50%", "must be a number", 400},
		{"/api/buckets?idle_gt=1", "idle_gt", "1", "must be a duration", 400},
		{"/api/buckets?idle_gt=-1m", "idle_gt", "-1m", "must be a duration", 400},
		{"/api/buckets?dry_run=1", "dry_run", "1", "must be true or false", 400},
		{"/api/buckets?refusing=yes", "refusing", "yes", "must be true or false", 400},
		{"/api/buckets?sort=colour", "sort", "colour", "must be one of abandoned, departed, fill, idle, key,", 400},
		{"/api/buckets?sort=--key", "sort", "--key", "must be one of", 400},
		{"/api/buckets?cursor=x", "cursor", "x", "not a cursor that was given here", 400},
		{"/api/buckets?colour=red", "colour", "red", "not a parameter here", 400},
		{"/api/buckets?Limit=5", "Limit", "5", "not a parameter here", 400},
		{"/api/buckets?limit=1&limit=2", "limit", "2", "more than once", 400},
		{"/api/buckets?limit=" + long, "limit", long[:100] + "…", "must be a whole number", 400},
		{"/api/buckets?" + long + "=1", long[:100] + "…", "1", "not a parameter", 400},
		{"/api/buckets?source=two", "source", "two", "not the name of a source", 404},
		{"/api/buckets/two/x", "source", "two", "not the name of a source", 404},
		{"/api/buckets/one/x", "key", "x", `has no bucket in "one" now`, 404},
		{"/api/buckets/one/x?limit=1", "limit", "1", "not a parameter here", 400},
		{"/api/buckets/one/x/y", "id", "x/y", "must be sent as %2F", 400},
		{"/api/line/one/x", "key", "x", `has no bucket in "one" now`, 404},
		{"/api/line/one/x?max=1001", "max", "1001", "from 0 to 1000", 400},
		{"/api/top?n=0", "n", "0", "from 1 to 1024", 400},
		{"/api/top?source=two", "source", "two", "not the name of a source", 404},
		{"/api/events?source=two", "source", "two", "not the name of a source", 404},
		{"/api/events?sauce=one", "sauce", "one", "not a parameter here", 400},
		{"/api/nothing", "path", "/api/nothing", "not served here", 404},
		{"/web/nothing.js", "path", "/web/nothing.js", "not served here", 404},
		{"/api/buckets?source=a&limit=%zz", "limit", "%zz", "invalid URL escape", 400},
		{"/api/buckets?limit=1;a=b", "limit", "1;a=b", "semicolon", 400},
		{"/api/buckets?%zz=1", "%zz", "1", "invalid URL escape", 400},
		{"/web/../inspector.go", "path", "/web/../inspector.go", "not served here", 404},
		{"/api/what-if?source=one&limits=1/s", "path", "/api/what-if", "shapereplay computes it", 404},
		{"/web/index.html", "path", "/web/index.html", "not served here", 404},
		{"/web/", "path", "/web/", "not served here", 404},
	} {
		w := ask(i, test.target)
		require.Equal(t, test.status, w.Code, test.target)
		require.Equal(t, "application/json", w.Header().Get("Content-Type"))
		var answer struct {
			Error struct{ Parameter, Value, Message string }
		}
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
		require.Equal(t, test.parameter, answer.Error.Parameter, test.target)
		require.Equal(t, test.value, answer.Error.Value, test.target)
		require.Contains(t, answer.Error.Message, test.message)
		require.Contains(t, answer.Error.Message, test.parameter)
	}
}

func TestAnotherMethodIsNotAllowed(t *testing.T) {
	i := blank(t)
	for _, target := range []string{"/", "/web/x", "/api/buckets", "/api/buckets/a/b", "/api/line/a/b", "/api/top", "/api/events"} {
		for _, method := range []string{http.MethodPost, http.MethodDelete, http.MethodOptions, "BREW"} {
			w := recorded(i, request(method, target))
			require.Equal(t, http.StatusMethodNotAllowed, w.Code, target)
			require.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
		}
	}
}

// While the list is not fresh, going by time alone must not put a full bucket below an empty one.
func TestAStaleListIsInTheOrderOfWhatItShows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.GroupBy(t, func(key string) (shaper.Limits, error) {
			if strings.HasPrefix(key, "fast") {
				return shaper.Limits{Rate: 1000, Burst: 100}, nil
			}
			return shaper.Limits{Rate: 1e-3, Burst: 1000}, nil
		})
		for k, n := range []int{98, 50, 2} {
			require.True(t, g.AllowN(fmt.Sprint("fast ", k), n))
			require.True(t, g.AllowN(fmt.Sprint("slow ", k), n))
		}
		i := show(t, "one", inspect.OfGroup(g))
		for range 9 { // The scan of the first time is shown for a second.
			for _, sort := range []string{"-fill", "fill", "-level", "level"} {
				shown := listOf(t, i, "sort="+sort).Buckets
				require.Len(t, shown, 6)
				for k, b := range shown {
					require.GreaterOrEqual(t, b.Level, 0.0)
					of := values[strings.TrimPrefix(sort, "-")]
					if k > 0 && sort[0] == '-' {
						require.LessOrEqual(t, of(b), of(shown[k-1]), sort)
					} else if k > 0 {
						require.GreaterOrEqual(t, of(b), of(shown[k-1]), sort)
					}
				}
			}
			require.Equal(t, "fast 0", listOf(t, i, "sort=-fill&limit=1").Buckets[0].Key)
			time.Sleep(100 * time.Millisecond)
		}
	})
}

// Sources are scanned at different instants. Their buckets are compared as they were at one.
func TestBucketsOfSeveralSourcesAreComparedAtOneInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		early, late := made.Shaper(t, "10/s burst 100"), made.Shaper(t, "10/s burst 100")
		require.True(t, early.AllowN(50))
		require.True(t, late.AllowN(51))
		i := show(t, "early", inspect.Of(early))
		i.Add("late", inspect.Of(late))
		listOf(t, i, "source=early")
		time.Sleep(900 * time.Millisecond)
		l := listOf(t, i, "sort=-level")
		require.Equal(t, []float64{51, 50}, []float64{l.Buckets[0].Level, l.Buckets[1].Level})
		require.Equal(t, "late", l.Buckets[0].Source)
	})
}

// values are the values that the orders sort by, read from the API, in the words of its document.
var values = map[string]func(b bucket) float64{
	"key":         func(bucket) float64 { return 0 },
	"waiting":     func(b bucket) float64 { return float64(b.Waiting) },
	"level":       func(b bucket) float64 { return b.Level },
	"fill":        func(b bucket) float64 { return b.Fill },
	"idle":        func(b bucket) float64 { return *b.IdleS },
	"last_call":   func(b bucket) float64 { return -*b.IdleS },
	"refused":     func(b bucket) float64 { return float64(b.Refused) },
	"departed":    func(b bucket) float64 { return float64(b.Departed) },
	"abandoned":   func(b bucket) float64 { return float64(b.Abandoned) },
	"oldest_wait": func(b bucket) float64 { return b.OldestWaitS },
}

// naive sorts buckets, slowly and obviously.
func naive(buckets []bucket, sort string) []bucket {
	sorted := slices.Clone(buckets)
	name, descending := strings.CutPrefix(sort, "-")
	slices.SortFunc(sorted, func(a, b bucket) int {
		by := cmp.Compare(values[name](a), values[name](b))
		byKey := cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Key, b.Key))
		if descending {
			by = -by
			if name == "key" {
				byKey = -byKey
			}
		}
		return cmp.Or(by, byKey)
	})
	return sorted
}

// A herd is a Group with buckets of all kinds. Those whose keys begin with "stays" are
// not touched any more once they are made, and leak so slowly that they stay.
type herd struct {
	t      *testing.T
	random *rand.Rand
	g      *shaper.Group[string]
	came   int
}

func newHerd(t *testing.T, seed uint64) *herd {
	h := &herd{t: t, random: rand.New(rand.NewPCG(seed, 14))}
	g := made.GroupBy(t, func(key string) (shaper.Limits, error) {
		if strings.HasPrefix(key, "goes") {
			return shaper.Limits{Rate: 2}, nil // It is drained and deleted in half a second.
		}
		rates := []rate.Limit{1e-3, 3e-4, 1e-4}
		return shaper.Limits{Rate: rates[len(key)%3], Burst: 1 + len(key)%5, Depth: 3}, nil
	})
	h.g = g
	for k := range 60 {
		key := fmt.Sprintf("stays %d%s", k, strings.Repeat("x", h.random.IntN(7)))
		for range 1 + h.random.IntN(9) {
			h.g.AllowN(key, 1+h.random.IntN(2))
		}
		if k%4 == 0 {
			lineUp(t, g, key, h.random.IntN(4))
		}
		if k%3 == 0 {
			time.Sleep(time.Duration(h.random.IntN(3)) * time.Second)
		}
	}
	return h
}

// change lets time go by, in which buckets come and go.
func (h *herd) change() {
	for range h.random.IntN(10) {
		h.came++
		for range 1 + h.random.IntN(5) {
			h.g.Allow(fmt.Sprintf("%s %d", []string{"goes", "comes", "a comes"}[h.random.IntN(3)], h.came))
		}
	}
	time.Sleep(time.Duration(h.random.IntN(3000)) * time.Millisecond)
}

// While keys come and go, a bucket that is not touched is on exactly one page, in its
// order, and none is there twice.
func TestPagingIsRightWhileKeysComeAndGo(t *testing.T) {
	for n, column := range slices.Sorted(maps.Keys(values)) {
		for seed, sort := range []string{column, "-" + column} {
			if testing.Short() && seed != n%2 {
				continue
			}
			t.Run(sort, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { pageThrough(t, newHerd(t, uint64(seed)), sort) })
			})
		}
	}
}

func pageThrough(t *testing.T, h *herd, sort string) {
	i := blank(t)
	s := made.Shaper(t, "1 per 10000s burst 5")
	require.True(t, s.AllowN(3))
	i.Add("stays too", inspect.Of(s))
	i.Add("herd", inspect.OfGroup(h.g))
	h.change()
	time.Sleep(time.Second)

	stays := func(b bucket) bool { return b.Source == "stays too" || strings.HasPrefix(b.Key, "stays") }
	var want, got []string
	for _, b := range naive(listOf(t, i, "limit=1000").Buckets, sort) {
		if stays(b) {
			want = append(want, b.Source+b.ID)
		}
	}
	require.Len(t, want, 61)
	met := map[string]bool{}
	for cursor := ""; ; h.change() {
		l := listOf(t, i, url.Values{"sort": {sort}, "cursor": {cursor}, "limit": {fmt.Sprint(1 + h.random.IntN(12))}}.Encode())
		for _, b := range l.Buckets {
			require.Falsef(t, met[b.Source+b.ID], "%q is there twice", b.Key)
			met[b.Source+b.ID] = true
			if stays(b) {
				got = append(got, b.Source+b.ID)
			}
		}
		if l.Next == nil {
			break
		}
		cursor = *l.Next
	}
	require.Equal(t, want, got)
}

func TestACursorOfAnotherOrderIsRefused(t *testing.T) {
	g := made.Group[string](t, "1/d")
	g.Allow("a")
	g.Allow("b")
	i := show(t, "one", inspect.OfGroup(g))
	first := listOf(t, i, "sort=key&limit=1")
	require.NotNil(t, first.Next)
	require.Equal(t, []string{"b"}, keysOf(listOf(t, i, "sort=key&limit=1&cursor="+*first.Next)))
	for _, sort := range []string{"-key", "waiting", "-waiting"} {
		w := ask(i, "/api/buckets?sort="+sort+"&cursor="+*first.Next)
		require.Equal(t, 400, w.Code)
		require.Contains(t, w.Body.String(), `of a list sorted by \"key\", not by \"`+sort+`\"`)
	}
}

// Without a rate a cap alone makes requests wait, and their line may be full.
func TestALineWithoutARateIsFilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "inf depth 3 inflight 1")
		i := show(t, "one", inspect.Of(s))
		release, err := s.Acquire(t.Context(), 1)
		require.NoError(t, err)
		for range 3 {
			go func() {
				if release, err := s.Acquire(t.Context(), 1); err == nil {
					release()
				}
			}()
		}
		synctest.Wait()
		require.Equal(t, 0.75, listOf(t, i, "fill_gt=0.5").Buckets[0].Fill)
		release()
		synctest.Wait()
		time.Sleep(time.Second)
		require.Empty(t, listOf(t, i, "fill_gt=0").Buckets)
	})
}

// hostile are keys that somebody might send to break what shows them.
var hostile = []string{
	"", " ", ".", "..", "...", "/", "//", "../..", "a/../b", "/etc/passwd", "%", "%2F", "%2e%2e", "%zz", "=", "=.", "=..",
	"?a=b&c=d", "#x", "a+b", "a b", "a;b", ":", "@", "\\", "\x00", "\n", "\r\nSet-Cookie: a=b", "\t\x7f", "\u2028\u2029",
	"</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", `"'><svg onload=alert(1)>`, "javascript:alert(1)",
	"{{.}}", "${x}", "\xff\xfe", "a\x80b", "\ufeff", "é", "e\u0301", "\U0001f600", "\u202eevil", strings.Repeat("long ", 10_000),
}

func TestHostileKeysAreTextEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.Group[string](t, "1 per 10d depth 2")
		for _, key := range hostile {
			lineUp(t, g, key, 4)
		}
		i := show(t, "a/../source %", inspect.OfGroup(g))

		l := listOf(t, i, "limit=1000")
		require.Len(t, l.Buckets, len(hostile))
		base, err := url.Parse("http://localhost/")
		require.NoError(t, err)
		ids := map[string]bool{}
		for _, b := range l.Buckets {
			ids[b.ID] = true
			require.NotContains(t, b.ID, "/")
			require.True(t, utf8.ValidString(b.Key))
			// A browser takes the segments "." and ".." out of a path, even if they are encoded.
			// Every id must come through as Go's own reading of references does it.
			u, err := base.Parse("api/buckets/one/" + b.ID)
			require.NoError(t, err)
			require.Equal(t, "/api/buckets/one/"+b.ID, u.EscapedPath())
		}
		require.Len(t, ids, len(hostile))
		body := ask(i, "/api/buckets?limit=1000").Body.String()
		require.NotContains(t, body, "<")
		require.NotContains(t, body, "\u2028")

		for _, key := range hostile {
			var found []bucket
			for _, b := range l.Buckets {
				if b.Key == strings.ToValidUTF8(key, "\ufffd") {
					found = append(found, b)
				}
			}
			require.Lenf(t, found, 1, "%q", key)
			for _, path := range []string{"buckets", "line"} {
				target := "/api/" + path + "/" + url.PathEscape("a/../source %") + "/" + found[0].ID
				require.NotContains(t, ask(i, target).Body.String(), "<")
				var answer struct {
					Bucket  bucket
					Waiting int
				}
				told(t, i, target, &answer)
				require.Equal(t, 2, max(answer.Waiting, answer.Bucket.Waiting))
				if path == "buckets" {
					require.Equal(t, found[0], answer.Bucket)
				}
			}
			listed := listOf(t, i, url.Values{"prefix": {key}}.Encode())
			require.Containsf(t, keysOf(listed), found[0].Key, "prefix %q", key)
		}
	})
}

// The key of a history is kept for minutes, and anybody may send one.
func TestAHugeKeyIsNotKept(t *testing.T) {
	i := show(t, "one", inspect.OfGroup(made.Group[string](t, "1/d")))
	ended, cancel := context.WithCancel(t.Context())
	cancel() // A stream ends with its beginning.
	for length, status := range map[int]int{8 << 10: http.StatusOK, 8<<10 + 1: http.StatusBadRequest} {
		w := recorded(i, request(http.MethodGet, "/api/events?source=one&key="+strings.Repeat("k", length)).WithContext(ended))
		require.Equal(t, status, w.Code)
		require.Equal(t, status != http.StatusOK, strings.Contains(w.Body.String(), `"parameter":"key"`))
	}
}

type point struct{ X, Y int }

// Keys that are not strings are shown as text, and found by their text, even without a list before.
func TestKeysThatAreNotStrings(t *testing.T) {
	g := made.Group[any](t, "1 per 10000s")
	keys := []any{1, "1", int64(1), point{1, 2}, "{1 2}", nil, "<nil>", true, 0.5}
	for _, key := range keys {
		require.True(t, g.Allow(key))
	}
	i := show(t, "one", inspect.OfGroup(g, inspect.WithExplain(func(key any) (string, string, int) {
		return fmt.Sprintf("%T", key), "limits.yaml", 7
	})))
	require.Equal(t, http.StatusOK, ask(i, "/api/buckets/one/true").Code)
	require.Equal(t, http.StatusNotFound, ask(i, "/api/buckets/one/false").Code)

	l := listOf(t, i, "")
	require.Len(t, l.Buckets, len(keys))
	types := map[string]int{}
	for _, b := range l.Buckets {
		var answer struct {
			Bucket bucket
			Rule   struct {
				Rule, File string
				Line       int
			}
		}
		told(t, i, "/api/buckets/one/"+b.ID, &answer)
		require.Equal(t, b.Key, answer.Bucket.Key)
		types[answer.Rule.Rule]++
		require.Equal(t, "limits.yaml", answer.Rule.File)
		require.Equal(t, 7, answer.Rule.Line)
	}
	require.Equal(t, map[string]int{"int": 1, "int64": 1, "string": 3, "inspect_test.point": 1, "<nil>": 1, "bool": 1, "float64": 1}, types)
}

// The text of one key must not become the text of another, or a change meant for one bucket changes
// the other.
func TestKeysThatPrintAlikeAreNeverTakenForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.Group[any](t, "1 per 10000s burst 9")
		i := show(t, "one", inspect.OfGroup(g))
		require.True(t, g.Allow(1))
		require.Equal(t, http.StatusOK, ask(i, "/api/buckets/one/1").Code)
		for range 3 {
			require.True(t, g.Allow("1"))
		}
		time.Sleep(time.Second)
		for range 5 {
			departed := map[string]uint64{}
			for _, b := range listOf(t, i, "").Buckets {
				departed[b.Key] = b.Departed
			}
			require.Equal(t, map[string]uint64{"int 1": 1, `string "1"`: 3}, departed)
			var answer struct{ Bucket bucket }
			told(t, i, "/api/buckets/one/int%201", &answer)
			require.Equal(t, uint64(1), answer.Bucket.Departed)
			require.Equal(t, http.StatusNotFound, ask(i, "/api/buckets/one/1").Code)
			time.Sleep(2 * time.Minute) // What scans have met is forgotten meanwhile.
		}
	})
}

// A likeKey prints like all others, also in Go syntax.
type likeKey int

func (likeKey) String() string   { return "same" }
func (likeKey) GoString() string { return "same" }

func TestKeysThatNothingTellsApartAreListedOnly(t *testing.T) {
	g := made.Group[likeKey](t, "1 per 10000s")
	for k := range likeKey(3) {
		require.True(t, g.Allow(k))
	}
	i := show(t, "one", inspect.OfGroup(g))
	const text = "inspect_test.likeKey same"
	require.Equal(t, []string{text, text, text}, keysOf(listOf(t, i, "")))
	require.Equal(t, http.StatusNotFound, ask(i, "/api/buckets/one/"+url.PathEscape(text)).Code)
}

type name string

func TestAKindOfStringIsAString(t *testing.T) {
	g := made.Group[name](t, "1 per 10000s")
	require.True(t, g.Allow("a\xff"))
	i := show(t, "one", inspect.OfGroup(g))
	require.Equal(t, http.StatusOK, ask(i, "/api/buckets/one/a%FF").Code)
	require.Equal(t, http.StatusNotFound, ask(i, "/api/buckets/one/a%FE").Code)
}

// A list that was made a moment ago does not know a key that has come since.
func TestALiveKeyOfAnyTypeIsFoundAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.Group[int](t, "1 per 10000s")
		i := show(t, "n", inspect.OfGroup(g))
		for key := range 9 {
			require.NotContains(t, keysOf(listOf(t, i, "")), fmt.Sprint(key))
			path := fmt.Sprint("/api/buckets/n/", key)
			require.Equal(t, http.StatusNotFound, ask(i, path).Code)
			require.True(t, g.Allow(key))
			require.Equal(t, http.StatusOK, ask(i, path).Code)
			if key == 0 {
				time.Sleep(time.Second)
			}
			time.Sleep(time.Millisecond)
		}
	})
}
