package accesslog_test

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
)

func TestLinesAreSortedWithinAMinuteAndBrokenFurtherBack(t *testing.T) {
	records, stats := readText(t, accesslog.Options{}, common(0, "/a")+common(60, "/d")+common(1, "/b")+
		common(60, "/e")+common(0, "/late")+common(59, "/c")+common(61, "/f"))
	require.Equal(t, []string{"0s /a", "1s /b", "59s /c", "1m0s /d", "1m0s /e", "1m1s /f"}, arrivals(records))
	require.Equal(t, map[accesslog.Reason]int{accesslog.OutOfOrder: 1}, stats.Broken)
	require.Equal(t, 5, stats.Examples[0].Line)
}

func TestLogsOfSeveralServersAreMergedLikeOneThatIsSorted(t *testing.T) {
	chance := rand.New(rand.NewPCG(16, 2))
	for range 8 {
		type line struct{ at, file, number int }
		names := []string{write(t, "access.log.1", nil)} // A file without lines is no error.
		var lines []line
		for file := range 4 {
			var text strings.Builder
			// The first line has the earliest time, by which the files are ranked.
			for at, number := 10*file, 0; at < 300; at, number = at+chance.IntN(3), number+1 {
				l := line{max(10*file, at-chance.IntN(60)), file, number}
				lines = append(lines, l)
				text.WriteString(common(l.at, fmt.Sprintf("/%d/%d", l.file, l.number)))
			}
			names = slices.Insert(names, chance.IntN(len(names)+1), write(t, "access.log", []byte(text.String())))
		}
		slices.SortFunc(lines, func(a, b line) int {
			return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.file, b.file), cmp.Compare(a.number, b.number))
		})
		var want []string
		for _, l := range lines {
			want = append(want, fmt.Sprintf("%v /%d/%d", time.Duration(l.at)*time.Second, l.file, l.number))
		}
		records, stats := readAll(t, accesslog.Options{}, names...)
		require.Empty(t, stats.Broken)
		require.Equal(t, want, arrivals(records))
	}
}

func TestFullBuffersReturnTheEarliestInsteadOfGrowing(t *testing.T) {
	open := func(text string) *accesslog.Reader {
		r, err := accesslog.Open(accesslog.Options{Stdin: strings.NewReader(text)}, "-")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Close()) })
		accesslog.SetMaxHeld(r, 10<<10) // about 40 requests
		return r
	}
	next := func(r *accesslog.Reader) string {
		record, err := r.Next()
		require.NoError(t, err)
		return arrivals([]accesslog.Record{record})[0]
	}

	r := open(strings.Repeat(common(1, "/a"), 100) + common(0, "/late") + common(1, "/b"))
	for range 100 {
		require.Equal(t, "1s /a", next(r))
		require.LessOrEqual(t, accesslog.Held(r), 11<<10)
	}
	require.Equal(t, "1s /b", next(r))
	require.Equal(t, map[accesslog.Reason]int{accesslog.OutOfOrder: 1}, r.Stats().Broken)

	r = open(strings.Repeat(ended(time.Second, 0, "/a"), 100) + ended(time.Second, time.Second/2, "/late"))
	var all []string
	for range 101 {
		all = append(all, next(r))
		require.LessOrEqual(t, accesslog.Held(r), 22<<10)
	}
	require.Empty(t, r.Stats().Broken)
	late := slices.Index(all, "1s /late")
	require.Greater(t, late, 0, "it arrives with the request that was returned before it: %v", all)
}

func TestFilesMayDifferInTheirFormats(t *testing.T) {
	text := write(t, "nginx.log", []byte(common(1, "/text")))
	object := write(t, "app.log", []byte(ended(2500*time.Millisecond, 2*time.Second, "/object")))
	records, _ := readAll(t, accesslog.Options{}, text, object)
	require.Equal(t, []string{"500ms /object", "1s /text"}, arrivals(records))
}

func TestADurationIsSubtractedFromTheEnd(t *testing.T) {
	const second = time.Second
	text := ended(1*second, 0, "/b") + ended(60*second, second/2, "/d") + ended(60*second, 59*second+second/2, "/a") +
		ended(61*second, 59*second+second/2, "/c") + ended(62*second, 60*second, "/long")
	records, stats := readText(t, accesslog.Options{}, text)
	require.Equal(t, []string{"500ms /a", "1s /b", "1.5s /c", "59.5s /d"}, arrivals(records))
	require.Equal(t, map[accesslog.Reason]int{accesslog.TookLong: 1}, stats.Broken)
	require.Zero(t, stats.Undated)

	records, stats = readText(t, accesslog.Options{Stamp: accesslog.Arrival}, text)
	require.Equal(t, []string{"1s /b", "1m0s /d", "1m0s /a", "1m1s /c", "1m2s /long"}, arrivals(records))
	require.Empty(t, stats.Broken)
}

func TestRequestsAreSpreadOverTheirSecond(t *testing.T) {
	text := common(0, "/a") + common(1, "/c") + common(0, "/b") + common(1, "/d") + common(1, "/e") + common(1, "/f")
	records, stats := readText(t, accesslog.Options{Spread: true}, text)
	require.Equal(t, []string{"0s /a", "500ms /b", "1s /c", "1.25s /d", "1.5s /e", "1.75s /f"}, arrivals(records))
	require.Equal(t, 6, stats.Coarse)

	other := write(t, "access.log", []byte(common(1, "/x")+common(1, "/y")))
	records, _ = readAll(t, accesslog.Options{Spread: true}, write(t, "access.log", []byte(text)), other)
	require.Equal(t, []string{"0s /a", "500ms /b", "1s /c", "1s /x", "1.25s /d", "1.5s /e", "1.5s /y", "1.75s /f"}, arrivals(records),
		"each server's requests are spread by themselves")

	exact := ended(0, 0, "/a") + ended(time.Second/10, 0, "/b") + ended(time.Second/10, 0, "/c")
	records, stats = readText(t, accesslog.Options{Spread: true}, exact)
	require.Equal(t, []string{"0s /a", "100ms /b", "100ms /c"}, arrivals(records), "times that are told exactly stay")
	require.Equal(t, 1, stats.Coarse)
}

func TestAFileGivenTwiceDoesNotCountTwice(t *testing.T) {
	file := write(t, "access.log", []byte(common(0, "/a")))
	link := file + ".link"
	require.NoError(t, os.Link(file, link))
	_, err := accesslog.Open(accesslog.Options{}, file, link)
	require.EqualError(t, err, file+" and "+link+" are the same, so its requests would count twice")
	_, err = accesslog.Open(accesslog.Options{Stdin: strings.NewReader("")}, "-", "-")
	require.ErrorContains(t, err, "- and - are the same")
}

// FuzzFormats reads what looks like the samples as each of the formats, line by line and
// whole. Every line must become a request that could be one, or be counted as broken, also behind NULs.
func FuzzFormats(f *testing.F) {
	var all []accesslog.Options
	for _, name := range slices.Sorted(maps.Keys(samples)) {
		text, err := os.ReadFile(filepath.Join("testdata", name+".log"))
		require.NoError(f, err)
		for line := range strings.Lines(string(text)) {
			f.Add(uint8(len(all)), line)
			f.Add(uint8(len(all)), collected[len(line)%len(collected)].head+line)
		}
		f.Add(uint8(len(all)), string(text))
		all = append(all, samples[name])
	}
	f.Fuzz(func(t *testing.T, which uint8, text string) {
		for _, c := range []string{"\x1f\x8b", "\x28\xb5", "\xfd7", "BZh"} {
			if strings.HasPrefix(text, c) {
				t.Skip("what unpacks files is not tested here")
			}
		}
		o := all[int(which)%len(all)]
		if which >= 128 && o.Format == "" && o.Fields == nil {
			o.Format = []accesslog.Format{
				accesslog.Combined, accesslog.JSON, accesslog.Caddy, accesslog.Traefik, accesslog.HAProxy,
				accesslog.ALB, accesslog.ELB, accesslog.CloudFront, accesslog.Envoy, accesslog.W3C,
			}[which%10]
		}
		stats := readAnything(t, o, text)
		if behind := readAnything(t, o, "\x00\x00"+text); stats.Lines > 0 {
			behind.NULs = stats.NULs
			require.Equal(t, stats, behind)
		}
	})
}

// FuzzPattern reads lines by patterns that nobody has thought of.
func FuzzPattern(f *testing.F) {
	f.Add(`$remote_addr - $remote_user [$time_local] "$request" $status`, strings.TrimSpace(common(0, "/a")))
	f.Add(`'$msec $host' "$request_uri" '"$request_method"';`, `1795348800.1 h/a?b "GET"`)
	f.Fuzz(func(t *testing.T, pattern, line string) {
		o := accesslog.Options{Format: accesslog.Format(pattern + "$?")}
		o.Stdin = strings.NewReader("")
		if _, err := accesslog.Open(o, "-"); err == nil {
			readAnything(t, o, line)
		}
	})
}

// readAnything reads a text, and checks what comes of it.
func readAnything(t *testing.T, o accesslog.Options, text string) (stats accesslog.Stats) {
	o.Header = []string{"User-Agent", "X-Tenant"}
	o.Stdin = strings.NewReader(text)
	r, err := accesslog.Open(o, "-")
	if err != nil {
		_, ok := errors.AsType[*accesslog.FormatError](err)
		require.True(t, ok, err)
		return stats
	}
	var last accesslog.Record
	records := 0
	for {
		record, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		records++
		requireSane(t, record)
		require.False(t, record.At.Before(last.At))
		last = record
	}
	stats = r.Stats()
	broken := 0
	for _, n := range stats.Broken {
		broken += n
	}
	require.Equal(t, records, stats.Records)
	require.Equal(t, stats.Lines, records+broken)
	for _, b := range stats.Examples {
		require.NotContains(t, b.Excerpt, "\x1b")
		require.LessOrEqual(t, len([]rune(b.Excerpt)), 120)
		require.Positive(t, b.Line)
	}
	return stats
}

func requireSane(t *testing.T, r accesslog.Record) {
	t.Helper()
	require.False(t, r.At.Before(time.Unix(0, 0)), r.At)
	require.Less(t, r.At.Year(), 2263)
	require.Regexp(t, `^[A-Za-z0-9_-]+$`, r.Method)
	require.True(t, strings.HasPrefix(r.Path, "/") || r.Path == "*" || r.Method == "CONNECT" && r.Path == "", r.Path)
	require.NotContains(t, r.Path, "?")
	require.True(t, 0 <= r.Status && r.Status <= 999, r.Status)
	require.GreaterOrEqual(t, r.Duration, time.Duration(0))
	require.Len(t, r.Header, 2)
	name := accesslog.ShortName(r.Client)
	require.LessOrEqual(t, len(strconv.Quote(name)), 2*72+2, "quotes and backslashes take two bytes each")
	require.True(t, name == r.Client || strings.Contains(name, "…"))
}

// BenchmarkReader reads lines like the first of a sample: 12 a second, of 10,000 clients.
func BenchmarkReader(b *testing.B) {
	const lines = 20_000
	const iso, clf = "2006-01-02T15:04:05.000000Z07:00", "02/Jan/2006:15:04:05 -0700"
	for _, format := range []struct{ sample, times, layout, client string }{
		{"alb", "2018-07-02T22:23:00.186641Z|2018-07-02T22:22:48.364000Z", iso, "192.168.131.39"},
		{"apache-combined", "10/Oct/2025:13:55:36 -0700", clf, "127.0.0.1"},
		{"apache-vhost", "01/Feb/2026:06:25:24 +0100", clf, "192.0.2.10"},
		{"caddy", "1795338902.5241024", "", "198.51.100.7"},
		{"cloudfront", "2019-12-04\t21:02:31", "2006-01-02\t15:04:05", "192.0.2.100"},
		{"common", "31/Dec/2025:23:59:59 -0130", clf, "192.0.2.1"},
		{"elb", "2015-05-13T23:39:43.945958Z", iso, "192.168.131.39"},
		{"envoy", "2016-04-15T20:17:00.310Z", iso, "10.0.35.28"},
		{"haproxy", "06/Feb/2026:12:14:14.655", "02/Jan/2006:15:04:05.000", "10.0.1.2"},
		{"iis", "2026-05-02 17:42:15", "2006-01-02 15:04:05", "172.22.255.255"},
		{"nginx-format", "1795693955.648", "", "127.0.0.1"},
		{"nginx-json", "2026-11-22T10:15:02+01:00", iso, "203.0.113.9"},
		{"nginx-timed", "1795338902.310", "", "198.51.100.77"},
		{"traefik", "15/Nov/2026:10:00:00 +0000", clf, "192.0.2.1"},
		{"traefik-json", "2026-11-15T10:00:00.123456789Z", iso, "192.0.2.1"},
	} {
		b.Run(format.sample, func(b *testing.B) {
			sample, err := os.ReadFile(filepath.Join("testdata", format.sample+".log"))
			require.NoError(b, err)
			var text strings.Builder
			first := ""
			for line := range strings.Lines(string(sample)) {
				if first = line; line[0] != '#' {
					break
				}
				text.WriteString(line)
			}
			for i := range lines {
				at := noon.Add(time.Duration(i) * 86 * time.Millisecond)
				told := at.Format(format.layout)
				if format.layout == "" {
					told = fmt.Sprintf("%d.%03d", at.Unix(), at.Nanosecond()/1e6)
				}
				which := i * 7919 % 10_000
				change := []string{format.client, fmt.Sprintf("198.51.%d.%d", which/250, which%250)}
				for before := range strings.SplitSeq(format.times, "|") {
					change = append(change, before, told)
				}
				text.WriteString(strings.NewReplacer(change...).Replace(first))
			}
			b.SetBytes(int64(text.Len()))
			b.ReportAllocs()
			read := 0
			for b.Loop() {
				o := samples[format.sample]
				o.Stdin = strings.NewReader(text.String())
				r, err := accesslog.Open(o, "-")
				require.NoError(b, err)
				var record accesslog.Record
				n := 0
				for ; err == nil; n++ {
					record, err = r.Next()
				}
				if !errors.Is(err, io.EOF) || n != lines+1 || record.Client != "" {
					b.Fatal(n, err, r.Stats().Examples)
				}
				read += lines
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(read), "ns/line")
		})
	}
}
