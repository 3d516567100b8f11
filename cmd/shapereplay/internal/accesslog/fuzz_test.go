package accesslog_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
)

func FuzzCombined(f *testing.F) {
	o := accesslog.Options{Format: accesslog.Combined, Stamp: accesslog.End, Trailing: []string{"client", "duration:s", "-", "time", "host"}}
	fuzz(f, o, "apache-combined", "apache-vhost", "common", "nginx-combined", "nginx-timed")
}

func FuzzJSON(f *testing.F) {
	fuzz(f, accesslog.Options{Format: accesslog.JSON, Spread: true}, "nginx-json", "app-json")
}

func FuzzCaddy(f *testing.F) { fuzz(f, accesslog.Options{Format: accesslog.Caddy}, "caddy") }

func FuzzTraefik(f *testing.F) {
	fuzz(f, accesslog.Options{Format: accesslog.Traefik}, "traefik", "traefik-json")
}

func FuzzAuto(f *testing.F) {
	names, err := filepath.Glob("testdata/*.log")
	require.NoError(f, err)
	for i := range names {
		names[i] = strings.TrimSuffix(filepath.Base(names[i]), ".log")
	}
	fuzz(f, accesslog.Options{}, names...)
}

// fuzz reads what looks like samples, line by line and whole. Every line must become a
// request that could be one, or be counted as broken.
func fuzz(f *testing.F, o accesslog.Options, samples ...string) {
	for _, name := range samples {
		text, err := os.ReadFile(filepath.Join("testdata", name+".log"))
		require.NoError(f, err)
		f.Add(string(text))
		for line := range strings.Lines(string(text)) {
			f.Add(line)
		}
	}
	o.Header = []string{"User-Agent", "X-Tenant"}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.HasPrefix(text, "\x1f\x8b") {
			t.Skip("gzip is not what is tested")
		}
		o.Stdin = strings.NewReader(text)
		r, err := accesslog.Open(o, "-")
		if err != nil {
			_, ok := errors.AsType[*accesslog.FormatError](err)
			require.True(t, ok, err)
			return
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
		stats := r.Stats()
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
	})
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
}
