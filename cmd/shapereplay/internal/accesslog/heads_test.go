package accesslog_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
)

// collected are heads as collectors write them, and their names.
var collected = []struct{ head, name string }{
	{`<190>Nov 22 12:00:00 web1 nginx: `, "syslog or journald"},
	{`Nov  2 12:00:00 web1 nginx: `, "syslog or journald"},
	{`Nov 22 2026 12:00:00 web1 nginx: `, "syslog or journald"}, // with the year, as Cisco's devices and some BSDs write it
	{`<190>Nov  2 2026 12:00:00.123 web1 nginx[815]: `, "syslog or journald"},
	{`<13>Nov 22 12:00:00 caddy[17]: `, "syslog or journald"},
	{`2026-11-22T12:00:00.123456+00:00 web1 nginx: `, "syslog or journald"},                    // rsyslog, as Debian sets it up
	{`Nov 22 12:00:00 web1 nginx[815]: `, "syslog or journald"},                                // journalctl -o short
	{`Nov 22 12:00:00.123456 web1 nginx[815]: `, "syslog or journald"},                         // short-precise
	{`2026-11-22T12:00:00+0100 web1 nginx[815]: `, "syslog or journald"},                       // short-iso
	{`2026-11-22T12:00:00.123456+0100 web1 docker-nginx.service[815]: `, "syslog or journald"}, // short-iso-precise
	{`Sun 2026-11-22 12:00:00 UTC web1 nginx[815]: `, "syslog or journald"},                    // short-full
	{`1795348800.123456 web1 nginx[815]: `, "syslog or journald"},                              // short-unix
	{`[ 1234.567890] web1 nginx[815]: `, "syslog or journald"},                                 // short-monotonic
	{`<190>1 2026-11-22T12:00:00.003Z web1.example nginx 815 access - `, "syslog, RFC 5424"},
	{`1 2026-11-22T12:00:00+01:00 web1 nginx - - [a@1 k="x\]\"y" l="]"][b@2] ` + "\ufeff", "syslog, RFC 5424"},
	{`web-1  | `, "docker compose"},
	{"\x1b[36mweb_1      | \x1b[0m", "docker compose"},
	{`web.1.x8@node    | `, "docker compose"},
	{`2026-11-22T12:00:00.003000000Z stdout F `, "Kubernetes CRI"},
	{`2026-11-22T12:00:00.003000000+01:00 stderr P `, "Kubernetes CRI"},
	{`2026-11-22T12:00:00.003000000Z `, "timestamps"}, // docker logs -t, kubectl logs --timestamps
	{`[pod/web-7d4b9/nginx] `, "kubectl logs --prefix"},
	{`[pod/web-7d4b9/nginx] 2026-11-22T12:00:00.003000000Z `, "kubectl logs --prefix, then timestamps"},
	{`web-1  | 2026-11-22T12:00:00.003000000Z `, "docker compose, then timestamps"},
	{`2026-11-22T12:00:00Z stdout F Nov 22 12:00:00 web1 nginx: `, "Kubernetes CRI, then syslog or journald"},
}

// Behind a head the first word of a line is the collector's, and every client had its name:
// Nov.
func TestHeadsOfCollectorsAreSkipped(t *testing.T) {
	for sample, o := range samples {
		text, err := os.ReadFile("testdata/" + sample + ".log")
		require.NoError(t, err)
		o.Header = []string{"User-Agent"}
		want, wantStats := readText(t, o, string(text))
		for _, c := range collected {
			var headed strings.Builder
			for line := range strings.Lines(string(text)) {
				headed.WriteString(c.head + line)
			}
			got, stats := readText(t, o, headed.String())
			require.Equal(t, want, got, "%s: %s", sample, c.head)
			require.Equal(t, map[string]int{c.name: len(want)}, stats.Heads, "%s: %s", sample, c.head)
			require.Equal(t, wantStats.Broken, stats.Broken, "%s: %s", sample, c.head)
			require.Equal(t, wantStats.Lines, stats.Lines, "%s: %s", sample, c.head)
		}
	}
}

// Some loggers write a blank behind the colons of JSON, which looks like the name of a program.
func TestJSONIsNoPartOfAHead(t *testing.T) {
	const object = `{"time": "2026-11-22T12:00:00Z", "method": "GET", "path": "/a"}`
	for _, head := range []string{"2026-11-22T12:00:00.003Z ", "Nov 22 12:00:00 web1 app: ", "app-1  | 2026-11-22T12:00:00.003Z "} {
		records, stats := readText(t, accesslog.Options{}, head+object)
		require.Equal(t, []string{"0s /a"}, arrivals(records), head)
		require.Len(t, stats.Heads, 1)
	}
}

// What is a head in one line is one in all of the file.
func TestALineWithoutTheHeadOfTheOthersIsBroken(t *testing.T) {
	const head = "web-1  | "
	text := "Attaching to web-1\n" + head + "\n" + head + common(0, "/a") + head + "ready\n" + common(1, "/b") + head + common(2, "/c")
	records, stats := readText(t, accesslog.Options{}, text)
	require.Equal(t, []string{"0s /a", "2s /c"}, arrivals(records))
	require.Equal(t, map[accesslog.Reason]int{accesslog.NoHead: 2, accesslog.NotFormat: 1}, stats.Broken)
	require.Equal(t, 5, stats.Lines, "a line with only a head is empty")

	// A few lines of another service make no heads of the beginnings of all others.
	records, stats = readText(t, accesslog.Options{}, common(0, "/a")+common(1, "/b")+"Nov 22 12:00:00 web1 sshd[3]: session opened\n"+common(2, "/c"))
	require.Equal(t, []string{"0s /a", "1s /b", "2s /c"}, arrivals(records))
	require.Empty(t, stats.Heads)
	require.Equal(t, map[accesslog.Reason]int{accesslog.NotFormat: 1}, stats.Broken)
}

func TestLinesThatAreWholeHaveNoHead(t *testing.T) {
	for sample, o := range samples {
		_, stats := readAll(t, o, "testdata/"+sample+".log")
		require.Empty(t, stats.Heads, sample)
	}
	for who, client := range map[string]string{
		"shop.example 192.0.2.1 - -": "192.0.2.1", "pc.example - -": "pc.example", "192.0.2.1 - Jane Doe": "192.0.2.1",
		"2001:db8::1 - a | b": "2001:db8::1", "192.0.2.1 - user: x": "192.0.2.1",
	} {
		records, stats := readText(t, accesslog.Options{}, who+` [22/Nov/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 1`)
		require.Equal(t, client, records[0].Client)
		require.Empty(t, stats.Heads, who)
	}
}

// The last address of such a list is the proxy, so all clients would be one.
func TestOfAListOfAddressesTheClientIsTheLastThatIsNotPrivate(t *testing.T) {
	for list, want := range map[string]string{
		"192.0.2.1, 10.0.0.1":                     "192.0.2.1",
		"192.0.2.1,10.0.0.1":                      "192.0.2.1",
		"198.51.100.66, 192.0.2.1":                "192.0.2.1",
		"198.51.100.66, 192.0.2.1, 10.1.1.1, ::1": "192.0.2.1",
		"2001:db8::1, fd00::1":                    "2001:db8::1",
		"unknown, 10.0.0.1":                       "10.0.0.1",
		"10.0.0.2, 10.0.0.1":                      "10.0.0.1",
		"192.0.2.1:4711, 10.0.0.1:80, 127.0.0.1":  "192.0.2.1",
		"203.0.113.9, evil, 10.0.0.1":             "10.0.0.1",
	} {
		object := fmt.Sprintf(`{"time":1795348800,"method":"GET","path":"/","client_ip":%q}`, list)
		who := list + " - -"
		quoted := `"` + list + `" - -`
		host := "shop.example " + list + " - -"
		for _, line := range []string{object, who, quoted, host} {
			if line != object {
				line += ` [22/Nov/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 1`
			}
			if line[0] != '{' && strings.HasPrefix(line, "shop.example unknown") {
				continue // Both are names.
			}
			records, stats := readText(t, accesslog.Options{}, line)
			require.Len(t, records, 1, line)
			require.Equal(t, want, records[0].Client, line)
			require.Equal(t, 1, stats.Lists, line)
		}
	}
}

// Advice that can't help costs more time than none.
func TestLogsThatAreNotReadAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"\x04\x22\x4d\x18": "compressed with lz4, which is not unpacked here: lz4 -dc FILE |",
		"PK\x03\x04":       "compressed with zip, which is not unpacked here: unzip -p FILE |",
		`[{"time":1795348800,"method":"GET","path":"/"},` + "\n":                                     "JSON array",
		`{"log":"192.0.2.1 - - \n","stream":"stdout","time":"2026-11-22T12:00:00.003Z"}` + "\n":      "docker logs NAME",
		`{"MESSAGE":"192.0.2.1 - -","__REALTIME_TIMESTAMP":"1795348800000000"}` + "\n":               "journalctl -o cat",
		"[\n  {\n    \"time\": 1795348800\n":                                                         "JSON array",
		"{\n  \"time\": 1795348800,\n":                                                               "take several lines",
		`192.0.2.1:33317 [06/Feb/2026:12:14:14.655] fe be/srv1 1/0/5007 212 -- 0/0/0/0/3 0/0`:        `"option httplog"`,
		`Feb  6 12:14:14 lb haproxy[14389]: 192.0.2.1:33317 [06/Feb/2026:12:14:14.655] fe be/s 1/0/`: `"option httplog"`,
		"time,method,path\n1,GET,/\n":                                                                "the format is none of ",
	} {
		for _, format := range []accesslog.Format{accesslog.Auto, accesslog.Combined, accesslog.JSON} {
			r, err := accesslog.Open(accesslog.Options{Format: format, Stdin: strings.NewReader(text)}, "-")
			if format != accesslog.Auto && strings.Contains(want, "none of") {
				require.NoError(t, err, "a format that is named is not doubted")
				require.NoError(t, r.Close())
				continue
			}
			_, ok := errors.AsType[*accesslog.FormatError](err)
			require.True(t, ok, "%q: %v", text, err)
			require.ErrorContains(t, err, want)
			require.NotContains(t, err.Error(), "-fields")
			require.NotContains(t, err.Error(), "-trailing")
		}
	}
}

func TestTimesAreReadInEveryUsualForm(t *testing.T) {
	exact := noon.Add(123456789)
	for text, want := range map[string]time.Time{
		`"2026-11-22T12:00:00Z"`:           noon,
		`"2026-11-22T13:30:00+01:30"`:      noon,
		`"2026-11-22T12:00:00.123456789Z"`: exact,
		`"2026-11-22T12:00:00.123+0000"`:   noon.Add(123e6),
		`"2026-11-22 12:00:00,123"`:        noon.Add(123e6),
		`"2026-11-22 12:00:00.123456789"`:  exact,
		`"2026-11-22 07:00:00 -0500"`:      noon,
		`"2026-11-22T12:00:00"`:            noon,
		`"2026/11/22 12:00:00"`:            noon,
		`"22/Nov/2026:12:00:00 +0000"`:     noon,
		`"22/Nov/2026:11:29:60 -0030"`:     noon, // a leap second
		`1795348800`:                       noon,
		`"1795348800"`:                     noon,
		`1795348800.123456789`:             exact,
		`1795348800.1234567891`:            exact,
		`1.7953488e9`:                      noon,
		`1795348800123`:                    noon.Add(123e6),
		`1795348800123.456789`:             exact,
		`1795348800123456`:                 noon.Add(123456e3),
		`1795348800123456789`:              exact,
	} {
		records, stats := readText(t, accesslog.Options{}, fmt.Sprintf(`{"time":%s,"method":"GET","path":"/"}`, text))
		require.Len(t, records, 1, text)
		require.Equal(t, want, records[0].At, text)
		require.Equal(t, want.Nanosecond() == 0 && text != "1.7953488e9", stats.Coarse == 1, text)
	}
	for _, text := range []string{
		`""`, `"now"`, `"22/nov/2026:12:00:00 +0000"`, `"22/Nov/2026:24:00:00 +0000"`, `"22/Nov/2026:12:00:61 +0000"`,
		`"31/Nov/2026:12:00:00 +0000"`, `"00/Nov/2026:12:00:00 +0000"`, `"22/Nov/2026:12:00:00 00000"`, `"22/Nov/20x6:12:00:00 +0000"`,
		`"22/Nov/2026 12:00:00 +00:00"`, `"2026-11-32T12:00:00Z"`, `"2026-11-22"`, `"1969-12-31T23:59:59Z"`, `"2263-01-01T00:00:00Z"`,
		`-1795348800`, `9300000000`, `99999999999999999999`, `1e30`, `"1795348800."`, `"1795348800 s"`, `null`, `true`, `{}`, `12`,
	} {
		_, stats := readText(t, accesslog.Options{Format: accesslog.JSON}, fmt.Sprintf(`{"time":%s,"method":"GET","path":"/"}`, text))
		require.Equal(t, map[accesslog.Reason]int{accesslog.NoTime: 1}, stats.Broken, text)
	}
}

func TestDurationsAreReadInTheirUnit(t *testing.T) {
	for text, want := range map[string]time.Duration{
		`12`: 12 * time.Millisecond, `"12"`: 12 * time.Millisecond, `0.000001`: time.Nanosecond, `1e-3`: time.Microsecond,
		`"1.5s"`: 1500 * time.Millisecond, `"15µs"`: 15 * time.Microsecond, `-3`: 0, `"-3s"`: 0, `"-"`: 0, `null`: 0, `1e40`: 0, `9e15`: 0,
	} {
		line := fmt.Sprintf(`{"time":1795348800,"method":"GET","path":"/","ms":%s}`, text)
		fields := accesslog.Fields{Duration: "ms", DurationUnit: time.Millisecond}
		records, _ := readText(t, accesslog.Options{Fields: fields}, line)
		require.Len(t, records, 1, text)
		require.Equal(t, want, records[0].Duration, text)
	}
}
