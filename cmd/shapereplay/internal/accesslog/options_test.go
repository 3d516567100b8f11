package accesslog_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
)

func TestWrongOptionsAreNamed(t *testing.T) {
	for want, o := range map[string]accesslog.Options{
		`Format: "clf", must be auto, combined, json, caddy or traefik`:                                       {Format: "clf"},
		`Stamp: "start", must be arrival or end`:                                                              {Stamp: "start"},
		`Window: -1s, must not be negative`:                                                                   {Window: -time.Second},
		`Examples: -1, must not be negative`:                                                                  {Examples: -1},
		`Fields.DurationUnit: 1m0s, must be from 1ns to 1s`:                                                   {Fields: accesslog.Fields{DurationUnit: time.Minute}},
		`Fields: of the format json, and Trailing is of combined: must not both be given`:                     {Fields: accesslog.Fields{Time: "ts"}, Trailing: []string{"time"}},
		`Header: "", must be the name of a header field`:                                                      {Header: []string{""}},
		`Trailing: "size", must be -, time, duration:UNIT (s, ms, us, ns), host, client or header:NAME`:       {Trailing: []string{"-", "size"}},
		`Trailing: "duration:h", must be -, time, duration:UNIT (s, ms, us, ns), host, client or header:NAME`: {Trailing: []string{"duration:h"}, Stamp: accesslog.End},
		`Trailing: "header:", must be -, time, duration:UNIT (s, ms, us, ns), host, client or header:NAME`:    {Trailing: []string{"header:"}},
		`Trailing: "host:port", must be -, time, duration:UNIT (s, ms, us, ns), host, client or header:NAME`:  {Trailing: []string{"host:port"}},
		`Trailing: "duration:s", so Stamp must say what the time is: arrival (Apache) or end (nginx)`:         {Trailing: []string{"duration:s"}},
	} {
		o.Stdin = strings.NewReader(common(0, "/a"))
		_, err := accesslog.Open(o, "-")
		require.EqualError(t, err, want)
	}
}

// Caddy's logs have fields of their own, which would be read instead of those that are
// given, and nobody would know.
func TestWhatIsSaidOfAFormatDecidesWhichItIs(t *testing.T) {
	caddy := `{"ts":1795348800.5,"request":{"remote_ip":"192.0.2.1","method":"GET","uri":"/a"},"duration":0.1,"began":1795348800}` + "\n"
	records, _ := readText(t, accesslog.Options{}, caddy)
	require.Equal(t, []string{"400ms /a"}, arrivals(records))
	fields := accesslog.Fields{Time: "began"}
	records, _ = readText(t, accesslog.Options{Fields: fields, Stamp: accesslog.Arrival}, caddy)
	require.Equal(t, []string{"0s /a"}, arrivals(records))
	_, stats := readText(t, accesslog.Options{Fields: accesslog.Fields{Time: "begun"}}, caddy)
	require.Equal(t, map[accesslog.Reason]int{accesslog.NoTime: 1}, stats.Broken)
	_, stats = readText(t, accesslog.Options{Trailing: []string{"time"}}, caddy)
	require.Equal(t, map[accesslog.Reason]int{accesslog.NotFormat: 1}, stats.Broken)
}

func TestAFormatThatIsNoneIsAnError(t *testing.T) {
	for text, begins := range map[string]string{
		"time,method,path\n1,GET,/\n":            `time,method,path`,
		"\x1b[31m\x9b\u202e":                     `\x1b[31m\x9b\u202e`,
		strings.Repeat("ä", 100_000):             strings.Repeat("ä", 119) + "…",
		`{"time":"2026-11-22T12:00:00Z"}` + "\n": `{"time":"2026-11-22T12:00:00Z"}`,
	} {
		_, err := accesslog.Open(accesslog.Options{Stdin: strings.NewReader(text)}, "-")
		require.EqualError(t, err, `-: the format is none of combined, json, caddy and traefik; it begins with `+begins)
	}
}

func TestAFileWithoutLinesHasNoFormat(t *testing.T) {
	for _, text := range []string{"", "\n", "\r\n\r\n", "\xef\xbb\xbf"} {
		records, stats := readText(t, accesslog.Options{}, text)
		require.Empty(t, records)
		require.Zero(t, stats.Lines)
	}
}

func TestAFormatThatIsNamedIsNotDoubted(t *testing.T) {
	records, stats := readText(t, accesslog.Options{Format: accesslog.Caddy}, common(0, "/a"))
	require.Empty(t, records)
	require.Equal(t, map[accesslog.Reason]int{accesslog.NotFormat: 1}, stats.Broken)
}

func TestTheFirstBrokenLinesOfEachReasonAreKept(t *testing.T) {
	broken := strings.Repeat("\x1b]0;title\x07\n", 5)
	_, stats := readText(t, accesslog.Options{}, common(0, "/a")+broken+`192.0.2.1 - - [then] "GET / HTTP/1.1" 200 1`+"\n"+broken)
	require.Equal(t, map[accesslog.Reason]int{accesslog.NotFormat: 10, accesslog.NoTime: 1}, stats.Broken)
	require.Equal(t, []accesslog.Broken{
		{File: "-", Line: 2, Reason: accesslog.NotFormat, Excerpt: `\x1b]0;title\a`},
		{File: "-", Line: 3, Reason: accesslog.NotFormat, Excerpt: `\x1b]0;title\a`},
		{File: "-", Line: 4, Reason: accesslog.NotFormat, Excerpt: `\x1b]0;title\a`},
		{File: "-", Line: 7, Reason: accesslog.NoTime, Excerpt: `192.0.2.1 - - [then] "GET / HTTP/1.1" 200 1`},
	}, stats.Examples)
}
