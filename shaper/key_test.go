package shaper_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

var joins = []struct {
	parts []string
	want  string
}{
	{nil, ""},
	{[]string{""}, "-"},
	{[]string{"-"}, "%2D"},
	{[]string{"--"}, "--"},
	{[]string{"%2D"}, "%252D"},
	{[]string{"", ""}, "-/-"},
	{[]string{"login", ""}, "login/-"},
	{[]string{"login", "192.0.2.1"}, "login/192.0.2.1"},
	{[]string{"login", "2001:db8::/64"}, "login/2001:db8::%2F64"},
	{[]string{"login/192.0.2.1"}, "login%2F192.0.2.1"},
	{[]string{"login%2F192.0.2.1"}, "login%252F192.0.2.1"},
	{[]string{"POST /login", "../premium"}, "POST %2Flogin/..%2Fpremium"},
	{[]string{"/", "%", "\x00\xff\n"}, "%2F/%25/\x00\xff\n"},
}

func TestJoin(t *testing.T) {
	for _, test := range joins {
		require.Equal(t, test.want, shaper.Join(test.parts...), "%q", test.parts)
	}
}

// shortened returns the text that the documentation promises for a part that is too long.
func shortened(part string) string {
	if len(part) <= 256 {
		return part
	}
	return fmt.Sprintf("%s~%x", part[:192], sha256.Sum256([]byte(part)))
}

// A client can send a megabyte. Its key stays small, and differs from all others.
func TestLongPartsOfAKeyAreCutAndStayDistinct(t *testing.T) {
	long := strings.Repeat("a", 256)
	require.Equal(t, long, shaper.Join(long), "256 bytes are kept")
	megabyte := strings.Repeat("/", 1<<20)
	require.Len(t, shaper.Join(megabyte), 3*192+1+64)

	parts := []string{long, long + "a", long + "b", "b" + long, megabyte, shortened(long + "a"), shortened(long + "a")[:256]}
	byJoin, byHeader := map[string]bool{}, map[string]bool{}
	for _, part := range parts {
		byJoin[shaper.Join(part)] = true
		key := keyOf(t, shaper.ByHeader("X-User"), withHeader("X-User", part))
		require.Equal(t, shortened(part), key)
		byHeader[key] = true
	}
	require.Len(t, byJoin, len(parts))
	require.Len(t, byHeader, len(parts))
}

// The parts of a key can be read back from it. So no two different lists of parts make the
// same key, even if an attacker chooses them.
func FuzzJoin(f *testing.F) {
	for _, test := range joins {
		f.Add(strings.Join(test.parts, "\n"))
	}
	f.Add(strings.Repeat("/", 257) + "\n" + strings.Repeat("%", 256))
	f.Fuzz(func(t *testing.T, text string) {
		parts := strings.Split(text, "\n")
		key := shaper.Join(parts...)
		levels := strings.Split(key, "/")
		require.Len(t, levels, len(parts))
		for i, level := range levels {
			part, err := url.PathUnescape(level)
			require.NoError(t, err)
			if level == "-" {
				part = ""
			}
			require.Equal(t, shortened(parts[i]), part)
		}
		other := strings.Split(strings.Join(parts, "/"), "/") // what a reader that knows no escaping would find
		require.Equal(t, slices.Equal(parts, other), key == shaper.Join(other...))
	})
}

func TestByJoinsWhatItsKeysSay(t *testing.T) {
	word := func(word string) shaper.KeyFunc {
		return func(*http.Request) (string, error) { return word, nil }
	}
	keys := []shaper.KeyFunc{word("a/b"), word(""), word("-"), shaper.ByHeader("X-User")}
	by := shaper.By(keys...)
	keys[0] = nil // By has copied the slice
	require.Equal(t, "a%2Fb/-/%2D/eve%2F..", keyOf(t, by, withHeader("X-User", "eve/..")))
	require.Equal(t, "a%2Fb/-/%2D/-", keyOf(t, by, withHeader("X-Other", "eve")))
	require.Equal(t, "", keyOf(t, shaper.By(), withHeader("X-User", "eve")))
}

func TestByEndsAtTheFirstError(t *testing.T) {
	first, asked := errors.New("first"), 0
	fails := func(err error) shaper.KeyFunc {
		return func(*http.Request) (string, error) { asked++; return "lost", err }
	}
	key, err := shaper.By(shaper.ByClientIP(), fails(first), fails(errors.New("second")))(httptest.NewRequest("GET", "/", nil))
	require.Equal(t, first, err)
	require.Empty(t, key)
	require.Equal(t, 1, asked)

	key, err = shaper.By(fails(first), nil)(httptest.NewRequest("GET", "/", nil))
	require.EqualError(t, err, "shaper: By: keys[1] is nil, must be a function")
	require.Empty(t, key)
	require.Equal(t, 1, asked)
}

func TestByHeader(t *testing.T) {
	for _, test := range []struct {
		name   string
		header http.Header
		want   string
	}{
		{"X-User", http.Header{"X-User": {"eve"}}, "eve"},
		{"x-uSER", http.Header{"X-User": {"eve"}}, "eve"},
		{"X-User", http.Header{"X-User": {"a/b%-"}}, "a/b%-"},
		{"X-User", http.Header{"X-User": {"-"}}, "-"},
		{"X-User", http.Header{"X-User": {""}}, ""},
		{"X-User", http.Header{"X-User": {}}, ""},
		{"X-User", http.Header{"X-Users": {"eve"}}, ""},
		{"X-User", nil, ""},
		{"X-User", http.Header{"X-User": {"eve, adam"}}, "eve, adam"},
		{"Host", http.Header{"Host": {"never set by net/http"}}, "example.com"},
		{"host", nil, "example.com"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header = test.header
		require.Equal(t, test.want, keyOf(t, shaper.ByHeader(test.name), r), "%s of %v", test.name, test.header)
	}
}

// A client adds lines of the same field before and after the one that identifies it.
// Whichever line the handler reads, all these requests have one key.
func TestAFieldInSeveralLinesIsNoWayToFreshKeys(t *testing.T) {
	r := httptest.NewRequest("GET", "/", nil)
	for _, lines := range [][]string{{"eve", "x1"}, {"x2", "eve"}, {"eve", "eve"}, {"", "x3"}, {"x4", "eve", "x5"}} {
		r.Header["X-User"] = lines
		require.Equal(t, "", keyOf(t, shaper.ByHeader("X-User"), r), "%q", lines)
	}
}

func TestByHeaderNeedsTheNameOfAField(t *testing.T) {
	for _, name := range []string{"", "X User", "X-User:", "X/User", "(", "[", "@", "{", "Ä", "X\n"} {
		key, err := shaper.ByHeader(name)(httptest.NewRequest("GET", "/", nil))
		require.EqualError(t, err, fmt.Sprintf("shaper: ByHeader: name is %q, must be that of a header field", name))
		require.Empty(t, key)
	}
	require.Equal(t, "v", keyOf(t, shaper.ByHeader("az09!#$%&'*+-.^_`|~"), withHeader("az09!#$%&'*+-.^_`|~", "v")))
}

// withHeader returns a request with one field, in one line.
func withHeader(name, value string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set(name, value)
	return r
}

func keyOf(t *testing.T, key shaper.KeyFunc, r *http.Request) string {
	t.Helper()
	k, err := key(r)
	require.NoError(t, err)
	return k
}
