package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A million lines of the combined format, of 10,000 clients and with bursts, are to be
// replayed on one core within 10 s:
//
//	GOMAXPROCS=1 go test -run='^$' -bench=AMillion -benchtime=1x ./cmd/shapereplay
func BenchmarkAMillionLines(b *testing.B) {
	log := writeLog(b, "access.log", shopTraffic(1_000_000, 10_000, 24*time.Hour), combinedLine)
	rules := filepath.Join(b.TempDir(), "shaper.yaml")
	require.NoError(b, os.WriteFile(rules, []byte("default: 10/s burst 5 depth 20 wait 2s\nlimits:\n  \"POST %2Flogin\": 5/min burst 3\n"), 0o600))
	for name, args := range map[string][]string{
		"replay":           {},
		"route_and_client": {"-key", "route client_ip"},
		"picture":          {"-svg", filepath.Join(b.TempDir(), "r.svg"), "-spread"},
		"find":             {"-find", "wait=200ms refused=0.1%"},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				status := run(b.Context(), append([]string{"-rules", rules, log}, args...), streams{out: io.Discard, err: os.Stderr})
				require.Equal(b, exitOK, status)
			}
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/million")
		})
	}
}
