package httpfield_test

import (
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/httpfield"
)

const (
	day     = 24 * time.Hour
	longest = time.Duration(math.MaxInt64)
)

// headerOf parses the lines of a header.
func headerOf(lines string) http.Header {
	h := http.Header{}
	for line := range strings.Lines(lines) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		h.Add(name, strings.TrimPrefix(value, " "))
	}
	return h
}

// The bubble's clock starts at midnight of 1 January 2000.
func TestRetryAfterIsRead(t *testing.T) {
	for _, tt := range []struct {
		header string
		want   time.Duration
	}{
		{"Retry-After: 5", 5 * time.Second},
		{"Retry-After:5", 5 * time.Second},
		{"Retry-After: \t 007 \t", 7 * time.Second},
		{"Retry-After: 9876543210", longest},
		{"Retry-After: 9223372036", 9223372036 * time.Second},
		{"Retry-After: 9223372037", longest},
		{"Retry-After: 99999999999999999999999999", longest},
		{"Retry-After: 5\nRetry-After: 9", 5 * time.Second},

		// A recipient must accept three forms of dates.
		{"Retry-After: Sat, 01 Jan 2000 00:00:07 GMT", 7 * time.Second},
		{"Retry-After: Saturday, 01-Jan-00 00:00:07 GMT", 7 * time.Second},
		{"Retry-After: Sat Jan  1 00:00:07 2000", 7 * time.Second},
		{"Retry-After: Wed, 01 Jan 9999 00:00:00 GMT", longest},
		// The server's clock counts if the response has a Date.
		{"Date: Sat, 01 Jan 2022 00:00:00 GMT\nRetry-After: Sat, 01 Jan 2022 00:00:07 GMT", 7 * time.Second},
		{"Date: today\nRetry-After: Sat, 01 Jan 2000 00:00:07 GMT", 7 * time.Second},
		{"Date: Sat, 01 Jan 2022 00:00:00 GMT\nRetry-After: 7", 7 * time.Second},
	} {
		t.Run(tt.header, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				require.Equal(t, tt.want, httpfield.RetryAfter(headerOf(tt.header), longest))
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		for _, header := range []string{ // malformed, empty, or in the past; ':' follows '9', and '/' precedes '0'
			"", "Retry-After:", "Retry-After: 0", "Retry-After: -5", "Retry-After: +5", "Retry-After: 5.5",
			"Retry-After: 5s", "Retry-After: x5", "Retry-After: 5x", "Retry-After: 5 5", "Retry-After: 5, 6",
			"Retry-After: 0x5", "Retry-After: 5:", "Retry-After: 5/", "Retry-After: ٥", "Retry-After: soon",
			"Retry-After: Sat, 01 Jan 2000 00:00:00 GMT", "Retry-After: Fri, 31 Dec 1999 23:59:59 GMT",
			"Retry-After: Sat, 01 Jan 2000 00:00:07",
			"Date: Sat, 01 Jan 2022 00:00:00 GMT\nRetry-After: Sat, 01 Jan 2000 00:00:07 GMT",
		} {
			require.Zero(t, httpfield.RetryAfter(headerOf(header), longest), header)
		}
	})
}

// A server must not be able to stop its clients for longer than they allow.
func TestNoFieldReachesFurtherThanItsReaderAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct{ longest, want time.Duration }{
			{8 * time.Second, 7 * time.Second},
			{7 * time.Second, 7 * time.Second},
			{7*time.Second - 1, 7*time.Second - 1},
			{6 * time.Second, 6 * time.Second},
			{1, 1},
		} {
			for _, field := range []string{"7", "007", "Sat, 01 Jan 2000 00:00:07 GMT"} {
				require.Equal(t, tt.want, httpfield.RetryAfter(headerOf("Retry-After: "+field), tt.longest))
			}
			require.Equal(t, tt.want, httpfield.Exhausted(headerOf(`RateLimit: "a";r=0;t=7`), tt.longest))
		}
	})
}

// Parts of a second count as a second, because clients would otherwise come back too early.
func TestSecondsAreRoundedUp(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		math.MinInt64:     1,
		-time.Second:      1,
		0:                 1,
		1:                 1,
		time.Second - 1:   1,
		time.Second:       1,
		time.Second + 1:   2,
		2 * time.Second:   2,
		2*time.Second - 1: 2,
		math.MaxInt64:     9223372037,
	} {
		require.Equal(t, want, httpfield.Seconds(d), d)
	}
}

func TestRetryAfterIsWritten(t *testing.T) {
	values := [...]string{"no-store", "", "kept"}
	h := http.Header{"Cache-Control": values[0:1:1], "Retry-After": {"1", "2"}}
	httpfield.SetRetryAfter(h, 86_400, values[1:])
	require.Equal(t, http.Header{"Cache-Control": {"no-store"}, "Retry-After": {"86400"}}, h)
	require.Equal(t, 24*time.Hour, httpfield.RetryAfter(h, 48*time.Hour))
	h.Add("Retry-After", "3")
	require.Equal(t, "kept", values[2], "what is added does not overwrite the values of other fields")
}

func TestExhaustedIsTheLongestResetOfWhatHasNothingLeft(t *testing.T) {
	for _, tt := range []struct {
		lines string
		want  time.Duration
	}{
		{`RateLimit: "default";r=0;t=30`, 30 * time.Second},
		{`RateLimit: "a";r=0;t=3, "b";r=0;t=9, "c";r=0;t=5`, 9 * time.Second},
		{`RateLimit: "a";r=0;t=3` + "\n" + `RateLimit: "b";r=0;t=9`, 9 * time.Second},
		{`RateLimit: "a";r=5;t=30, "b";r=0;t=9`, 9 * time.Second},
		{`RateLimit: "a";t=9;r=0;pk=:cHsdsRa894==:`, 9 * time.Second},
		{`RateLimit: default;r=0;t=9`, 9 * time.Second}, // as in older drafts
		{`RateLimit: "a";r=0;t=1`, time.Second},
		{`RateLimit: "a";r=1;r=0;t=1;t=9`, 9 * time.Second}, // the last value of a parameter counts
		{`RateLimit: "a";r=0;t=9;rr=1;tt=0;x=0`, 9 * time.Second},
		{`RateLimit: "a";r=0;t=999999999999999`, longest},
	} {
		require.Equal(t, tt.want, httpfield.Exhausted(headerOf(tt.lines), longest), tt.lines)
	}
	for _, lines := range []string{
		// The field does not say that nothing remains, or has no t above 0.
		`RateLimit: "a";r=0;r=1;t=9`, `RateLimit: "a";r=0;t=9;r`, `RateLimit: "a";r=0;t=9;R=1`,
		`RateLimit: "a";r=1;t=30`, `RateLimit: "a";r=0`, `RateLimit: "a";t=30`, `RateLimit: "a"`,
		`RateLimit: "a";r=0;t=0`, `RateLimit: "a";r=0;t=-5`, `RateLimit: "a";r=-1;t=5`, `RateLimit: "a";r=0;t=5.0`,
		`RateLimit: "a";r=0.0;t=5`, `RateLimit: "a";r;t=5`, `RateLimit: "a";r=0;t`, `RateLimit: "a";r="0";t=5`,
		`RateLimit: "a";r=?0;t=5`, `RateLimit: "a";r=@0;t=5`, `RateLimit: "a";r=0;t=@5`, `RateLimit: "a";r=0;t=%"5"`,
		`RateLimit: "a";r=0;t=:5555:`, `RateLimit: "a";r=0;t=b`,
		// The field is a list, but its items are no names.
		`RateLimit: 5;r=0;t=30`, `RateLimit: ?1;r=0;t=30`, `RateLimit: :QQ==:;r=0;t=30`, `RateLimit: @5;r=0;t=30`,
		`RateLimit: %"a";r=0;t=30`, `RateLimit: ("a");r=0;t=30`, `RateLimit: "b";r=0;t=30, ("a")`,
		// These are forms of older drafts, and no field at all.
		`RateLimit: r=0;t=30`, `RateLimit: limit=10, remaining=0, reset=30`,
		"RateLimit-Limit: 10\nRateLimit-Remaining: 0\nRateLimit-Reset: 30",
		"X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 30", `RateLimit-Policy: "a";r=0;t=30`, "",
	} {
		require.Zero(t, httpfield.Exhausted(headerOf(lines), longest), lines)
	}
}

func TestRateLimitIsWritten(t *testing.T) {
	const most = "999999999999999" // 15 digits are the limit of RFC 9651
	for _, tt := range []struct {
		give          httpfield.RateLimit
		policy, state string
	}{
		{httpfield.RateLimit{}, `"default";q=0;w=0`, `"default";r=0;t=0`},
		{httpfield.RateLimit{"per user", 1, 2, 3, 4}, `"per user";q=1;w=2`, `"per user";r=3;t=4`},
		{httpfield.RateLimit{`a"b\c`, 1, 2, 3, 4}, `"a\"b\\c";q=1;w=2`, `"a\"b\\c";r=3;t=4`},
		{httpfield.RateLimit{"Zürich\t→\r\nX: y\x7f", 0, 0, 0, 0}, `"Z?rich????X: y?";q=0;w=0`, `"Z?rich????X: y?";r=0;t=0`},
		{httpfield.RateLimit{"\x1f ~\xff", 0, 0, 0, 0}, `"? ~?";q=0;w=0`, `"? ~?";r=0;t=0`},
		{httpfield.RateLimit{"a", httpfield.MaxInteger, httpfield.MaxInteger + 1, math.MaxInt64, httpfield.MaxInteger - 1},
			`"a";q=` + most + `;w=` + most, `"a";r=` + most + `;t=999999999999998`},
	} {
		h := http.Header{}
		tt.give.AddTo(h)
		require.Equal(t, http.Header{"Ratelimit-Policy": {tt.policy}, "Ratelimit": {tt.state}}, h)
		tt.give.AddTo(h)
		require.Equal(t, []string{tt.state, tt.state}, h.Values("RateLimit"), "another limiter's are kept")
		require.Equal(t, []string{tt.policy, tt.policy}, h.Values("RateLimit-Policy"))
	}
}

func TestXRateLimitIsOfWhatHasLeast(t *testing.T) {
	fieldsOf := func(h http.Header) [3]string {
		require.Len(t, h, 3)
		return [3]string{h.Get("X-RateLimit-Limit"), h.Get("X-RateLimit-Remaining"), h.Get("X-RateLimit-Reset")}
	}
	now := time.Unix(1_000_000_000, 0)
	h := http.Header{}
	httpfield.RateLimit{Quota: 10, Remaining: 7, Reset: 3}.SetX(h, now.Add(1)) // A client that comes a moment too early is refused.
	require.Equal(t, [3]string{"10", "7", "1000000004"}, fieldsOf(h))
	for more, reset := range map[int64]int64{7: 4, 8: 9} {
		httpfield.RateLimit{Quota: 99, Remaining: more, Reset: reset}.SetX(h, now)
		require.Equal(t, [3]string{"10", "7", "1000000004"}, fieldsOf(h))
	}
	httpfield.RateLimit{Quota: 15, Remaining: 7, Reset: 5}.SetX(h, now)
	require.Equal(t, [3]string{"15", "7", "1000000005"}, fieldsOf(h))
	httpfield.RateLimit{Quota: 20, Remaining: 6, Reset: 3}.SetX(h, now)
	require.Equal(t, [3]string{"20", "6", "1000000003"}, fieldsOf(h))
	httpfield.RateLimit{}.SetX(h, now)
	require.Equal(t, [3]string{"0", "0", "1000000000"}, fieldsOf(h))
	h = http.Header{"X-Ratelimit-Remaining": {"many"}}
	httpfield.RateLimit{Quota: math.MaxInt64, Remaining: math.MaxInt64, Reset: math.MaxInt64}.SetX(h, now)
	require.Equal(t, [3]string{"999999999999999", "999999999999999", "1000000999999999"}, fieldsOf(h))
}

// Whatever the name, the field that is written can be read.
func TestAFieldThatIsWrittenCanBeRead(t *testing.T) {
	for b := range 256 {
		h := http.Header{}
		httpfield.RateLimit{Name: "x" + string([]byte{byte(b)}) + "y", Reset: 7}.AddTo(h)
		require.Equal(t, 7*time.Second, httpfield.Exhausted(h, longest), h)
		require.Regexp(t, `^"x(\\"|\\\\|[ -~])y";r=0;t=7$`, h.Get("RateLimit"))
	}
}

// These expressions are the grammar of a RateLimit field, as a slow and obvious parser.
var (
	sfString    = `"(?:[ !#-\[\]-~]|\\["\\])*"`
	sfToken     = "[A-Za-z*][-!#$%&'*+.^_`|~0-9A-Za-z:/]*"
	sfBinary    = `:(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?:`
	sfUTF8      = `(?:[ !#-$&-~]|%(?:[0-7][0-9a-f]|c[2-9a-f]%[89ab][0-9a-f]|d[0-9a-f]%[89ab][0-9a-f]|e0%[ab][0-9a-f]%[89ab][0-9a-f]|e[1-9a-cef]%[89ab][0-9a-f]%[89ab][0-9a-f]|ed%[89][0-9a-f]%[89ab][0-9a-f]|f0%[9ab][0-9a-f]%[89ab][0-9a-f]%[89ab][0-9a-f]|f[1-3]%[89ab][0-9a-f]%[89ab][0-9a-f]%[89ab][0-9a-f]|f4%8[0-9a-f]%[89ab][0-9a-f]%[89ab][0-9a-f]))`
	sfValue     = `(?:-?[0-9]{1,12}\.[0-9]{1,3}|@?-?[0-9]{1,15}|` + sfString + `|%"` + sfUTF8 + `*"|` + sfBinary + `|\?[01]|` + sfToken + `)`
	sfParameter = `; *([a-z*][-a-z0-9_.*]*)(?:=(` + sfValue + `))?`
	sfItem      = `(?:` + sfString + `|` + sfToken + `)(?:` + sfParameter + `)*`
	sfList      = regexp.MustCompile(`^ *` + sfItem + `(?:[ \t]*,[ \t]*` + sfItem + `)*[ \t]*$`)
	sfItems     = regexp.MustCompile(sfItem)
	sfName      = regexp.MustCompile(`^(?:` + sfString + `|` + sfToken + `)`)
	sfParams    = regexp.MustCompile(sfParameter)
)

func exhaustedByGrammar(field string, longest time.Duration) (hold time.Duration) {
	if !sfList.MatchString(field) {
		return 0
	}
	for _, item := range sfItems.FindAllString(field, -1) {
		values := map[string]string{}
		for _, p := range sfParams.FindAllStringSubmatch(item[len(sfName.FindString(item)):], -1) {
			values[p[1]] = p[2]
		}
		r, errR := strconv.ParseInt(values["r"], 10, 64)
		t, errT := strconv.ParseInt(values["t"], 10, 64)
		if errR == nil && errT == nil && r == 0 && t > 0 {
			hold = max(hold, min(time.Duration(t), longest/time.Second)*time.Second)
		}
	}
	return hold
}

func FuzzARateLimitFieldIsReadAsItsGrammarHasIt(f *testing.F) {
	for _, field := range []string{
		`"default";r=0;t=30`, `"a";r=0;t=3, b;t=9;r=-0;pk=:cHsdsRa894==:`, `"a\"b";r=5; t=1;x="\\",	c;r=0;t=007`,
		`"a";r=0;t=30;x=?1;y=1.25;z=wo/rd`, `a=b`, `"a";r=0;t=30,`, `";r=0;t=5";r=0;t=6`, ` "a";r=0;t=1 `, `*;*=1;r=0;t=4`,
		`a;r=0;t=1;x=@-5;y=%"f%c3%bc%22r"`, "a;r=0;t=1\t", `a;r=0;t=1;x=:QQ:`, `a;r=0;t=1;x=%"%f0%9f%98%80%ed%a0%80"`,
	} {
		f.Add(field)
	}
	f.Fuzz(func(t *testing.T, field string) {
		got := httpfield.Exhausted(http.Header{"Ratelimit": {field}}, time.Hour)
		require.Equal(t, exhaustedByGrammar(field, time.Hour), got, strings.ToValidUTF8(field, "?"))
	})
}
