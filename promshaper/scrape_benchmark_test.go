package promshaper_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/promshaper"
)

// BenchmarkScrape measures what a scrape of one Shaper takes out of whose line 1,000 requests have left.
func BenchmarkScrape(b *testing.B) {
	c := promshaper.New()
	s := newShaper(b, "1000/s depth 1000")
	for range 1000 {
		go s.Wait(b.Context())
	}
	for s.Stats().Departed < 1000 {
		time.Sleep(time.Millisecond)
	}
	add(b, c, "x", promshaper.Of(s))
	r := prometheus.NewRegistry()
	require.NoError(b, r.Register(c))
	b.ReportAllocs()
	for b.Loop() {
		_, err := r.Gather()
		require.NoError(b, err)
	}
}
