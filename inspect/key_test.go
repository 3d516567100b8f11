package inspect_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
)

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
