package accesslog_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"github.com/ulikunitz/xz"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
)

// readAll reads files to their end.
func readAll(t testing.TB, o accesslog.Options, names ...string) ([]accesslog.Record, accesslog.Stats) {
	r, err := accesslog.Open(o, names...)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	var all []accesslog.Record
	for {
		record, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all, r.Stats()
		}
		require.NoError(t, err)
		all = append(all, record)
	}
}

// readText reads what stands in a text.
func readText(t testing.TB, o accesslog.Options, text string) ([]accesslog.Record, accesslog.Stats) {
	o.Stdin = strings.NewReader(text)
	return readAll(t, o, "-")
}

// write writes a file to a folder of the test's own, and returns its name.
func write(t testing.TB, name string, text []byte) string {
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, text, 0o600))
	return file
}

func zip(t testing.TB, text string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := io.WriteString(w, text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

// noon is the day of logs whose date does not matter.
var noon = time.Date(2026, time.November, 22, 12, 0, 0, 0, time.UTC)

// common returns a line of the Common Log Format, that many seconds after noon.
func common(seconds int, path string) string {
	at := noon.Add(time.Duration(seconds) * time.Second)
	return fmt.Sprintf("192.0.2.1 - - [%s] \"GET %s HTTP/1.1\" 200 1\n", at.Format("02/Jan/2006:15:04:05 -0700"), path)
}

// ended returns a line of JSON that tells when a request ended and how long it took.
func ended(after, took time.Duration, path string) string {
	return fmt.Sprintf(`{"time":%q,"method":"GET","path":%q,"request_time":%f}`+"\n",
		noon.Add(after).Format(time.RFC3339Nano), path, took.Seconds())
}

// arrivals returns when requests arrived, counted from noon, and their paths.
func arrivals(records []accesslog.Record) (all []string) {
	for _, r := range records {
		all = append(all, fmt.Sprintf("%v %s", r.At.Sub(noon), r.Path))
	}
	return all
}

var update = flag.Bool("update", false, "write what the samples are read as to their .golden files")

// samples are lines as servers write them, and what an operator would have to say of each. The
// first lines are those of the documents that are named; what follows them has what else the
// format may have, and what is broken.
var samples = map[string]accesslog.Options{
	"apache-combined": {},
	"apache-vhost":    {},
	"common":          {},
	"nginx-combined":  {},
	"nginx-timed": {
		Format:   accesslog.Combined,
		Stamp:    accesslog.End,
		Trailing: []string{"client", "duration:s", "-", "time", "host"},
	},
	"nginx-json": {},
	"app-json": {Fields: accesslog.Fields{
		"time": "at.ms", "method": "http.verb", "uri": "http.target", "client": "peer", "status": "http.code", "duration": "http.took",
		"header:x-tenant": "http.tenant",
	}},
	"caddy":        {},
	"traefik":      {},
	"traefik-json": {},

	// https://docs.haproxy.org/2.6/configuration.html#8.2.3, and what HAProxy 2.6 writes
	"haproxy": {},
	// https://docs.aws.amazon.com/elasticloadbalancing/latest/application/load-balancer-access-logs.html#access-log-entry-examples
	"alb": {},
	// https://docs.aws.amazon.com/elasticloadbalancing/latest/classic/access-log-collection.html#access-log-entry-examples
	"elb": {},
	// https://docs.aws.amazon.com/AmazonCloudFront/latest/DeveloperGuide/standard-logging-legacy-s3.html, also without its first lines
	"cloudfront":          {},
	"cloudfront-headless": {},
	// https://learn.microsoft.com/en-us/windows/win32/http/w3c-logging, and with the fields that IIS 10 writes and one of the
	// administrator's own
	"w3c": {},
	"iis": {},
	// https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage#default-format-string
	"envoy": {},
	// What nginx 1.22 writes with these formats.
	"nginx-format": {Format: `$remote_addr [$msec] $request_time $host$request_uri "$request_method" $status ua="$http_user_agent" up=$upstream_response_time`},
	"nginx-json-format": {Format: `log_format js escape=json '{"t":"$time_iso8601","ms":"$msec","client":"$remote_addr","m":"$request_method",'
		'"u":"$request_uri","s":$status,"took":$request_time,"ua":"$http_user_agent"}';`},
}

func TestSamplesOfEachServerAreRead(t *testing.T) {
	logs, err := filepath.Glob("testdata/*.log")
	require.NoError(t, err)
	require.Len(t, logs, len(samples))
	for _, log := range logs {
		name := strings.TrimSuffix(filepath.Base(log), ".log")
		t.Run(name, func(t *testing.T) {
			o, known := samples[name]
			require.True(t, known)
			o.Header = []string{"User-Agent", "x-tenant"}
			got := describe(readAll(t, o, log))
			golden := filepath.Join("testdata", name+".golden")
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), got)
		})
	}
}

// describe returns one line for each request and for each broken line.
func describe(records []accesslog.Record, s accesslog.Stats) string {
	var b strings.Builder
	for _, r := range records {
		fmt.Fprintf(&b, "%s %s host=%q path=%q client=%q status=%d took=%v header=%q\n",
			r.At.Format(time.RFC3339Nano), r.Method, r.Host, r.Path, r.Client, r.Status, r.Duration, r.Header)
	}
	for _, broken := range s.Examples {
		fmt.Fprintf(&b, "line %d: %s: %s\n", broken.Line, broken.Reason, broken.Excerpt)
	}
	fmt.Fprintf(&b, "%d lines, %d requests, %d coarse, %d undated, %d redacted\n", s.Lines, s.Records, s.Coarse, s.Undated, s.Redacted)
	return b.String()
}

// Below each line of a file stands what it is read as: times, requests, addresses and lists of them, and durations in every
// form that logs have.
func TestLinesAreReadAsIsShownBelowThem(t *testing.T) {
	for name, o := range map[string]accesslog.Options{
		"combined":     {Format: accesslog.Combined},
		"trailing":     {Format: accesslog.Combined, Stamp: accesslog.Arrival, Trailing: []string{"duration:s", "time"}},
		"json":         {Format: accesslog.JSON},
		"pasted":       {Format: `$remote_addr - $remote_user [$time_local] "$request" $status`},
		"pasted-pair":  {Format: `$remote_addr $server_addr - $remote_user [$time_local] "$request" $status`},
		"haproxy":      {Format: accesslog.HAProxy},
		"envoy":        {Format: accesslog.Envoy},
		"traefik":      {Format: accesslog.Traefik},
		"json-uri":     {Fields: accesslog.Fields{"uri": "where"}},
		"bare-times":   {Format: "$time_local $remote_addr $time_local $msec $request_method $request_uri $status $time_local"},
		"bare-time":    {Format: `$remote_addr "$request" $status $time_local`},
		"milliseconds": {Fields: accesslog.Fields{"duration": "ms", "unit": "ms"}},
	} {
		file := filepath.Join("testdata", "lines", name+".txt")
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		got := ""
		for line := range strings.Lines(string(text)) {
			if line[0] == '\t' {
				continue
			}
			records, stats := readText(t, o, line)
			got += line + "\t"
			for _, r := range records {
				got += fmt.Sprintf("%s %s host=%q path=%q client=%q status=%d took=%v\n",
					r.At.Format(time.RFC3339Nano), r.Method, r.Host, r.Path, r.Client, r.Status, r.Duration)
				got += map[int]string{1: "\tin whole seconds\n"}[stats.Coarse] + map[int]string{1: "\tof a list\n"}[stats.Lists] +
					map[int]string{1: "\tof several addresses\n"}[stats.Pairs]
			}
			for _, broken := range stats.Examples {
				got += fmt.Sprintln("broken:", broken.Reason)
			}
		}
		if *update {
			require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
			continue
		}
		require.Equal(t, string(text), got)
	}
}

func TestAFormatThatIsNoneIsAnError(t *testing.T) {
	for text, begins := range map[string]string{
		"time,method,path\n1,GET,/\n":            `time,method,path`,
		"\x1b[31m\x9b\u202e":                     `\x1b[31m\x9b\u202e`,
		strings.Repeat("ä", 100_000):             strings.Repeat("ä", 119) + "…",
		`{"time":"2026-11-22T12:00:00Z"}` + "\n": `{"time":"2026-11-22T12:00:00Z"}`,
	} {
		_, err := accesslog.Open(accesslog.Options{Stdin: strings.NewReader(text)}, "-")
		require.EqualError(t, err, `-: the format is none of alb, caddy, cloudfront, combined, elb, envoy, haproxy, json, traefik, usage or w3c; it begins with `+begins)
		records, _ := readText(t, accesslog.Options{Format: accesslog.Combined}, text)
		require.Empty(t, records, "a format that is named is not doubted")
	}
}

func TestAFileWithoutLinesHasNoFormat(t *testing.T) {
	for _, text := range []string{"", "\n", "\r\n\r\n", "\xef\xbb\xbf"} {
		records, stats := readText(t, accesslog.Options{}, text)
		require.Empty(t, records)
		require.Zero(t, stats.Lines)
	}
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

func TestACompressionIsRecognisedWhateverTheName(t *testing.T) {
	const text, bzip2 = 2, "QlpoOTFBWSZTWblzYmIAAClfgEAQUAvxMALBRAowAIEAIABwUAAAZMgKqmGo1BoaZPIlnZ+TnlZwosxiGbuPRNou6VQrk9pN6pvimVFEJQbIbN1WjRm5WeUJJzS4XfVlm66TCrCHLp/F3JFOFCQuXNiYgA=="
	packed := map[string]func(string) []byte{
		"gzip": func(text string) []byte { return zip(t, text) },
		"zstd": func(text string) []byte {
			w, err := zstd.NewWriter(nil)
			require.NoError(t, err)
			return w.EncodeAll([]byte(text), nil)
		},
		"xz": func(text string) []byte {
			var b bytes.Buffer
			w, err := xz.NewWriter(&b)
			require.NoError(t, err)
			_, err = io.WriteString(w, text)
			require.NoError(t, errors.Join(err, w.Close()))
			return b.Bytes()
		},
	}
	for name, pack := range packed {
		// Each part is compressed by itself, as when logs are compressed and appended.
		parts := slices.Concat(pack(common(0, "/a")), pack(common(1, "/b")+common(2, "/c")))
		records, _ := readAll(t, accesslog.Options{}, write(t, "access.log", parts))
		require.Equal(t, []string{"0s /a", "1s /b", "2s /c"}, arrivals(records), name)
		records, _ = readText(t, accesslog.Options{}, string(parts))
		require.Equal(t, []string{"0s /a", "1s /b", "2s /c"}, arrivals(records), name)

		var long strings.Builder
		for i := range 4_000 {
			long.WriteString(common(i, fmt.Sprintf("/%d", i*7919%4_000)))
		}
		whole := pack(long.String())
		file := write(t, "access.log.1", whole[:len(whole)/2])
		r, err := accesslog.Open(accesslog.Options{}, file)
		for err == nil {
			_, err = r.Next()
		}
		require.EqualError(t, err, file+": ends in the middle: unexpected EOF", name)
		if r != nil {
			_, again := r.Next()
			require.Equal(t, err, again)
			require.NoError(t, r.Close())
		}
	}
	of, err := base64.StdEncoding.DecodeString(bzip2)
	require.NoError(t, err)
	records, _ := readText(t, accesslog.Options{}, string(of))
	require.Len(t, records, text)
}

func TestLinesMayEndLikeOnWindows(t *testing.T) {
	text := "\xef\xbb\xbf" + strings.ReplaceAll(common(0, "/a")+"\n"+common(1, "/b"), "\n", "\r\n")
	records, stats := readText(t, accesslog.Options{}, strings.TrimSuffix(text, "\r\n"))
	require.Equal(t, []string{"0s /a", "1s /b"}, arrivals(records))
	require.Equal(t, 2, stats.Lines, "empty lines do not count")
}

func TestALineThatIsTooLongIsBrokenAndNotHeld(t *testing.T) {
	// 32 MiB on one line. Were it held, the heap would grow by as much.
	endless := io.LimitReader(&generated{line: func() string { return "xxxxxxxx" }}, 32<<20)
	text := io.MultiReader(strings.NewReader(common(0, "/a")+"start of the line "), endless, strings.NewReader("\n"+common(1, "/b")))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	records, stats := readAll(t, accesslog.Options{Stdin: text}, "-")
	runtime.ReadMemStats(&after)
	require.Equal(t, []string{"0s /a", "1s /b"}, arrivals(records))
	require.Equal(t, map[accesslog.Reason]int{accesslog.TooLong: 1}, stats.Broken)
	require.Equal(t, 2, stats.Examples[0].Line)
	require.True(t, strings.HasPrefix(stats.Examples[0].Excerpt, "start of the line xxx"), stats.Examples[0].Excerpt)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20), "bytes allocated")
}

// When a log is rotated by copying and truncating, its writer may go on where it was, and what is before that reads as NULs. The
// first client would have them in its name, and if they were held, a log of gigabytes would take gigabytes.
func TestNULsOfARotationAreSkippedAndNotHeld(t *testing.T) {
	const many = 64 << 20
	head := strings.Repeat("\x00", 100_000)
	nuls := func(n int64) io.Reader {
		return io.LimitReader(&generated{line: func() string { return head }}, n)
	}
	text := io.MultiReader(nuls(many), strings.NewReader(common(0, "/a")+common(1, "/b")), nuls(many), strings.NewReader(common(2, "/c")+"\x00\r\n"), nuls(7))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	records, stats := readAll(t, accesslog.Options{Stdin: text}, "-")
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20), "bytes allocated")
	require.Equal(t, []string{"0s /a", "1s /b", "2s /c"}, arrivals(records))
	require.Equal(t, "192.0.2.1", records[0].Client)
	require.Empty(t, stats.Broken)
	require.Equal(t, 3, stats.Lines)
	require.Equal(t, int64(2*many+8), stats.NULs)

	for sample, o := range samples {
		text, err := os.ReadFile("testdata/" + sample + ".log")
		require.NoError(t, err)
		want, wantStats := readText(t, o, string(text))
		for _, log := range []string{head + string(text), string(zip(t, head+string(text)))} {
			got, stats := readText(t, o, log)
			require.Equal(t, want, got, sample)
			require.Equal(t, int64(len(head)), stats.NULs)
			stats.NULs = 0
			require.Equal(t, wantStats, stats, sample)
		}
	}

	_, stats = readText(t, accesslog.Options{}, head)
	require.Equal(t, int64(len(head)), stats.NULs)
	require.Zero(t, stats.Lines, "a log of nothing else is empty")
	_, err := accesslog.Open(accesslog.Options{Stdin: strings.NewReader(head + "default: 2/s")}, "-")
	require.ErrorContains(t, err, "it begins with default: 2/s")
}

func TestTheLongestLineIsAMebibyte(t *testing.T) {
	line := strings.TrimSuffix(common(0, "/a"), "\n") + ` "-" "`
	fits := line + strings.Repeat("x", 1<<20-len(line)-1) + `"`
	require.Len(t, fits, 1<<20)
	for _, end := range []string{"\n", "\r\n", ""} {
		records, stats := readText(t, accesslog.Options{Format: accesslog.Combined}, fits+end)
		require.Len(t, records, 1)
		require.Empty(t, stats.Broken)
		_, stats = readText(t, accesslog.Options{Format: accesslog.Combined}, fits+"x"+end)
		require.Equal(t, map[accesslog.Reason]int{accesslog.TooLong: 1}, stats.Broken)
	}
}

func TestProgressCountsTheBytesOfTheFiles(t *testing.T) {
	text := strings.Repeat(common(0, "/a"), 5000)
	packed := zip(t, text)
	plain := write(t, "access.log", []byte(text))
	r, err := accesslog.Open(accesslog.Options{}, plain, write(t, "access.log.1.gz", packed))
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	all := int64(len(text) + len(packed))
	first, total := r.Progress()
	require.Equal(t, all, total)
	require.Less(t, first, all/2)
	for last := first; err == nil; {
		_, err = r.Next()
		read, _ := r.Progress()
		require.GreaterOrEqual(t, read, last)
		last = read
	}
	require.ErrorIs(t, err, io.EOF)
	read, _ := r.Progress()
	require.Equal(t, all, read)

	pipe, err := accesslog.Open(accesslog.Options{Stdin: strings.NewReader(text)}, "-", plain)
	require.NoError(t, err)
	defer func() { require.NoError(t, pipe.Close()) }()
	_, total = pipe.Progress()
	require.Zero(t, total, "of a pipe it is not known")
}

func TestErrorsOfReadingNameTheFile(t *testing.T) {
	_, err := accesslog.Open(accesslog.Options{}, "testdata/none.log")
	require.ErrorContains(t, err, "open testdata/none.log: ")
	_, err = accesslog.Open(accesslog.Options{}, "testdata")
	require.ErrorContains(t, err, "read testdata: ")
	broken := errors.New("the cable is out")
	text := io.MultiReader(strings.NewReader(strings.Repeat(common(0, "/a"), 2000)), iotest.ErrReader(broken))
	r, err := accesslog.Open(accesslog.Options{Stdin: text}, "-")
	require.NoError(t, err)
	for err == nil {
		_, err = r.Next()
	}
	require.ErrorIs(t, err, broken)
	require.EqualError(t, err, "-: the cable is out")
	require.NoError(t, r.Close())
}

func TestHeaderFieldsAreThoseThatAreWanted(t *testing.T) {
	const text = `192.0.2.1 - - [22/Nov/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 1 "https://a.example/" "say \"hi\"" "acme" REDACTED` + "\n"
	o := accesslog.Options{
		Header:   []string{"user-agent", "Referer", "X-Tenant", "Cookie", "Accept"},
		Trailing: []string{"header:x-tenant", "header:Cookie"},
	}
	records, stats := readText(t, o, text)
	require.Equal(t, []string{`say "hi"`, "https://a.example/", "acme", "", ""}, records[0].Header)
	require.Equal(t, 1, stats.Redacted)

	const object = `{"time":1795348800,"method":"GET","path":"/","http_referer":"a","user_agent":"b","headers":{"x-tenant":"c","Cookie":["d"],"Accept":["e","f"]}}`
	records, _ = readText(t, accesslog.Options{Header: o.Header}, object)
	require.Equal(t, []string{"b", "a", "c", "d", ""}, records[0].Header)

	records, _ = readText(t, accesslog.Options{}, text)
	require.Nil(t, records[0].Header)
}

func TestLogsWithManyClientsAndPathsDoNotFillTheMemory(t *testing.T) {
	const clients = 50_000
	long, lines := strings.Repeat("x", 400), 0
	text := &generated{line: func() string {
		if lines++; lines > clients {
			return ""
		}
		return fmt.Sprintf("2001:db8::%x:%x - - [22/Nov/2026:12:%02d:%02d +0000] \"GET /%d%s HTTP/1.1\" 200 1\n",
			lines>>16, lines&0xffff, lines*59/clients, lines*3000/clients%60, lines, long)
	}}
	r, err := accesslog.Open(accesslog.Options{Stdin: text}, "-")
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	for err == nil {
		_, err = r.Next()
	}
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	require.Less(t, m.HeapAlloc, uint64(30<<20), "bytes in use")
	require.Equal(t, clients, r.Stats().Lines)
}

// generated is a reader of lines until one is empty.
type generated struct {
	line func() string
	rest string
}

func (g *generated) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if g.rest == "" {
			g.rest = g.line()
		}
		if g.rest == "" {
			return n, io.EOF
		}
		taken := copy(p[n:], g.rest)
		n, g.rest = n+taken, g.rest[taken:]
	}
	return n, nil
}

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
	{`2026/11/22 12:00:00 `, "Go's log"},
	{`2026/11/22 12:00:00.123456 `, "Go's log"},           // Lmicroseconds
	{`2026/11/22 12:00:00 main.go:23: `, "Go's log"},      // Lshortfile
	{`web: 2026/11/22 12:00:00 `, "Go's log"},             // with a prefix
	{`[web]2026/11/22 12:00:00 `, "Go's log"},             //
	{`2026/11/22 12:00:00 web: `, "Go's log"},             // Lmsgprefix
	{`2026/11/22 12:00:00 INFO `, "Go's log"},             // log/slog, before it is set up
	{`2026/11/22 12:00:00 DEBUG-4 `, "Go's log"},          //
	{`2026-11-22 12:00:00,123 `, "Python's logging"},      // %(asctime)s %(message)s
	{`2026-11-22 12:00:00,123 INFO `, "Python's logging"}, // with %(levelname)s
	{`2026-11-22 12:00:00 INFO `, "Python's logging"},     // with a datefmt
	{`2026-11-22 12:00:00,123 - web.access - INFO - `, "Python's logging"},
	{`2026-11-22 12:00:00,123 | INFO | `, "Python's logging"},
	{`2026-11-22 12:00:00,123 INFO web.access: `, "Python's logging"},
	{`2026-11-22 12:00:00,123 web.access INFO: `, "Python's logging"},
	{`2026-11-22 12:00:00,123 [INFO] web.access: `, "Python's logging"},
	{`[2026-11-22 12:00:00,123] INFO in app: `, "Python's logging"}, // Flask
	{`[2026-11-22 12:00:00,123] [INFO] `, "Python's logging"},
	{`INFO:web.access:`, "Python's logging"}, // without a format
	{`web-1  | 2026/11/22 12:00:00 `, "docker compose, then Go's log"},
	{`Nov 22 12:00:00 web1 app[815]: 2026-11-22 12:00:00,123 INFO `, "syslog or journald, then Python's logging"},
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
		consoleOfCaddy:                                                                               "console format of Caddy",
		strings.ReplaceAll(consoleOfCaddy, "INFO", "\x1b[34mINFO\x1b[0m"):                            "console format of Caddy",
		"Jun 12 17:13:59 web1 caddy[815]: " + strings.Split(consoleOfCaddy, "\n")[1]:                 "console format of Caddy",
		strings.Replace(consoleOfCaddy, "2026/11/22 12:00:00.012", "1795348800.012", 1):              "console format of Caddy", // with another time_format
		`192.0.2.1:33317 [06/Feb/2026:12:14:14.655] fe be/srv1 1/0/5007 212 -- 0/0/0/0/3 0/0`:        `"option httplog"`,
		`Feb  6 12:14:14 lb haproxy[14389]: 192.0.2.1:33317 [06/Feb/2026:12:14:14.655] fe be/s 1/0/`: `"option httplog"`,
	} {
		for _, format := range []accesslog.Format{accesslog.Auto, accesslog.Combined, accesslog.JSON} {
			_, err := accesslog.Open(accesslog.Options{Format: format, Stdin: strings.NewReader(text)}, "-")
			_, ok := errors.AsType[*accesslog.FormatError](err)
			require.True(t, ok, "%q: %v", text, err)
			require.ErrorContains(t, err, want)
			require.NotContains(t, err.Error(), "-fields")
			require.NotContains(t, err.Error(), "-trailing")
		}
	}
}

// consoleOfCaddy is what Caddy 2.6 writes to a terminal, but for the colours.
const consoleOfCaddy = "2026/11/22 12:00:00.001\tINFO\tusing adjacent Caddyfile\n" +
	"2026/11/22 12:00:00.012\tINFO\thttp.log.access\thandled request\t" +
	`{"request": {"remote_ip": "192.0.2.1", "remote_port": "5000", "proto": "HTTP/1.1", "method": "GET", "host": "localhost", "uri": "/a", "headers": {"User-Agent": ["curl/7.88.1"]}}, ` +
	`"user_id": "", "duration": 0.002, "size": 5, "status": 200, "resp_headers": {"Server": ["Caddy"]}}` + "\n"

// Whoever has such a log has no other, so the command that the error names must make one of it.
func TestTheAdviceForCaddysConsoleFormatHelps(t *testing.T) {
	for _, text := range []string{
		consoleOfCaddy, strings.ReplaceAll(consoleOfCaddy, "INFO", "\x1b[34mINFO\x1b[0m"),
		strings.ReplaceAll(consoleOfCaddy, "2026/", "Jun 12 17:13:59 web1 caddy[815]: 2026/"), strings.ReplaceAll(consoleOfCaddy, "\t", "    "),
		strings.Replace(consoleOfCaddy, "curl/7.88.1", "2020/01/02 03:04:05 handled request {", 1),
	} {
		_, err := accesslog.Open(accesslog.Options{Stdin: strings.NewReader(text)}, "-")
		_, script, found := strings.Cut(fmt.Sprint(err), "sed -nE '")
		require.True(t, found, "%v", err)
		script, _, _ = strings.Cut(script, "'")
		sed := exec.CommandContext(t.Context(), "sed", "-nE", script)
		sed.Stdin = strings.NewReader(text)
		made, err := sed.Output()
		require.NoError(t, err)
		records, stats := readText(t, accesslog.Options{}, string(made))
		require.Equal(t, []string{"10ms /a"}, arrivals(records), "%s", made)
		require.Equal(t, "192.0.2.1", records[0].Client)
		require.Empty(t, stats.Broken)
	}
}

// Keys often differ only at their ends, and two of them that look like one would be taken for one.
func TestALongNameKeepsBothEnds(t *testing.T) {
	for name, want := range map[string]string{
		"": "", "192.0.2.1": "192.0.2.1", "\x1b[2J\xff": "\x1b[2J\xff",
		strings.Repeat("x", 72):         strings.Repeat("x", 72),
		strings.Repeat("x", 72) + "1":   strings.Repeat("x", 45) + "…" + strings.Repeat("x", 23) + "1",
		strings.Repeat("ä", 40) + "b":   strings.Repeat("ä", 22) + "…" + strings.Repeat("ä", 11) + "b",
		strings.Repeat("\x00", 18):      strings.Repeat("\x00", 18), // of which a terminal is shown 4 bytes each
		strings.Repeat("\x00", 19):      strings.Repeat("\x00", 11) + "…" + strings.Repeat("\x00", 6),
		strings.Repeat("\xff", 60_000):  strings.Repeat("\xff", 11) + "…" + strings.Repeat("\xff", 6),
		"a b" + strings.Repeat("c", 70): "a b" + strings.Repeat("c", 42) + "…" + strings.Repeat("c", 24),
	} {
		require.Equal(t, want, accesslog.ShortName(name))
	}
}
