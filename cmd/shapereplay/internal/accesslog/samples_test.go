package accesslog_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
)

var update = flag.Bool("update", false, "write what the samples are read as to their .golden files")

// samples are lines as servers write them, in the formats that their documents give, and
// what an operator would have to say of each.
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
		Time: "at.ms", Method: "http.verb", URI: "http.target", Client: "peer", Status: "http.code", Duration: "http.took",
		Header: map[string]string{"x-tenant": "http.tenant"},
	}},
	"caddy":        {},
	"traefik":      {},
	"traefik-json": {},
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
