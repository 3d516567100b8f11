package httpfield_test

import (
	"math"
	"net/http"
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
