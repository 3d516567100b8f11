package accesslog_test

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
)

func TestRequestLinesAreTakenApart(t *testing.T) {
	for line, want := range map[string]string{
		`GET / HTTP/1.1`:                               `GET "" "/"`,
		`GET /a%2Fb?c=d HTTP/1.1`:                      `GET "" "/a%2Fb"`,
		`GET /a#b HTTP/1.1`:                            `GET "" "/a"`,
		`GET /two words HTTP/1.1`:                      `GET "" "/two words"`,
		`GET /old`:                                     `GET "" "/old"`,
		`GET //evil.example/ HTTP/1.1`:                 `GET "" "//evil.example/"`,
		`GET http://Shop.Example:80/a?b HTTP/1.1`:      `GET "Shop.Example:80" "/a"`,
		`GET http://shop.example HTTP/1.1`:             `GET "shop.example" "/"`,
		`GET http://[2001:db8::1]:8080/ HTTP/1.1`:      `GET "[2001:db8::1]:8080" "/"`,
		`OPTIONS * HTTP/1.1`:                           `OPTIONS "" "*"`,
		`CONNECT db.example:5432 HTTP/1.1`:             `CONNECT "db.example:5432" ""`,
		`VERSION-CONTROL /x HTTP/1.1`:                  `VERSION-CONTROL "" "/x"`,
		`GET /tab\there\n\r\\\"\x41\q\x4\xzz HTTP/1.1`: `GET "" "/tab\there\n\r\\\"A\\q\\x4\\xzz"`,
		`GET /a\`:                               ``, // The quote after it is escaped.
		`GET`:                                   ``,
		`GET ?`:                                 ``,
		`GET a HTTP/1.1`:                        ``,
		`GET http:///a HTTP/1.1`:                ``,
		`G\x00T / HTTP/1.1`:                     ``,
		` / HTTP/1.1`:                           ``,
		strings.Repeat("G", 33) + ` / HTTP/1.1`: ``,
		``:                                      ``,
	} {
		records, stats := readText(t, accesslog.Options{Format: accesslog.Combined},
			fmt.Sprintf("192.0.2.1 - - [22/Nov/2026:12:00:00 +0000] \"%s\" 200 1\n", line))
		got := ""
		for _, r := range records {
			got = fmt.Sprintf("%s %q %q", r.Method, r.Host, r.Path)
		}
		require.Equal(t, want, got, line)
		require.Equal(t, want == "", stats.Broken[accesslog.NoRequest]+stats.Broken[accesslog.NotFormat] == 1, line)
	}
}

func TestClientsHaveTheUsualNotation(t *testing.T) {
	for text, want := range map[string]string{
		`192.0.2.1`: "192.0.2.1", `192.0.2.1:80`: "192.0.2.1", `::ffff:192.0.2.1`: "192.0.2.1", `2001:DB8:0:0::1`: "2001:db8::1",
		`[2001:db8::1]:443`: "2001:db8::1", `[2001:db8::1]`: "2001:db8::1", `fe80::1%eth0`: "fe80::1%eth0", `host.example`: "host.example",
		`198.51.100.66, 192.0.2.1`: "192.0.2.1", `-`: "", ``: "",
	} {
		records, _ := readText(t, accesslog.Options{}, fmt.Sprintf(`{"time":1795348800,"method":"GET","path":"/","client_ip":%q}`, text))
		require.Equal(t, want, records[0].Client, text)
	}
}

func TestBrokenTextLinesAreCountedByReason(t *testing.T) {
	const head, request = `192.0.2.1 - - [22/Nov/2026:12:00:00 +0000] `, `"GET / HTTP/1.1" `
	for line, want := range map[string]accesslog.Reason{
		head + request + `200 1`:                             "",
		head + request + `- -`:                               "",
		head + request + `200`:                               "",
		head + request + `20`:                                accesslog.BadStatus,
		head + request + `2xx 1`:                             accesslog.BadStatus,
		head + `"GET / HTTP/1.1"`:                            accesslog.NotFormat,
		head + `"GET / HTTP/1.1`:                             accesslog.NotFormat,
		head + `GET / HTTP/1.1 200 1`:                        accesslog.NotFormat,
		`192.0.2.1 - - 22/Nov/2026:12:00:00 ` + request:      accesslog.NotFormat,
		`192.0.2.1 - - [22/Nov/2026:12:00:00 ` + request:     accesslog.NotFormat,
		`192.0.2.1 - - [] ` + request + `200 1`:              accesslog.NoTime,
		head + request + `200 1 "-" "-" 0.1 then`:            accesslog.NoTime,
		head + request + `200 1 "-" "-" rt="0.1" t=17953488`: "",
	} {
		o := accesslog.Options{Format: accesslog.Combined, Stamp: accesslog.Arrival, Trailing: []string{"duration:s", "time"}}
		_, stats := readText(t, o, line)
		require.Equal(t, want == "", stats.Records == 1, line)
		require.Equal(t, want != "", stats.Broken[want] == 1, line)
	}
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

func TestNamesOfFieldsMayHaveDots(t *testing.T) {
	const flat = `{"@timestamp":"2026-11-22T12:00:00Z","http.request.method":"GET","url.path":"/a","client.ip":"192.0.2.1","http.response.status_code":200}`
	const deep = `{"@timestamp":"2026-11-22T12:00:00Z","http":{"request":{"method":"GET"},"response":{"status_code":200}},"url":{"path":"/a"},"client":{"ip":"192.0.2.1"}}`
	want, _ := readText(t, accesslog.Options{}, flat)
	require.Equal(t, "192.0.2.1", want[0].Client)
	require.Equal(t, 200, want[0].Status)
	got, _ := readText(t, accesslog.Options{}, deep)
	require.Equal(t, want, got)
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
	r, err := accesslog.Open(accesslog.Options{Stdin: text, Window: 1}, "-")
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
