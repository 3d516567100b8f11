package accesslog_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
