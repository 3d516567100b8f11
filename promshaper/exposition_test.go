package promshaper_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"example.com/leakybucket/promshaper"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// What is told of a Shaper with all limits, of one with a shared bucket, and of a Group, is
// compared with a golden copy of the text that Prometheus reads, and of the protocol buffers
// that have native histograms. SHAPER_UPDATE_GOLDEN=1 rewrites both.
func TestTheExpositionIsAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registryWith(t, scene(t))
		golden(t, "scrape.txt", scrape(t, r, ""))
		golden(t, "histograms.json", histogramsOf(t, scrape(t, r, string(expfmt.NewFormat(expfmt.TypeProtoDelim)))))
		problems, err := testutil.GatherAndLint(r)
		require.NoError(t, err)
		require.Empty(t, problems)
	})
}

// scene has a source of each kind, two and a half seconds after requests came.
func scene(t *testing.T) *promshaper.Collector {
	c := promshaper.New()
	upstream := newShaper(t, "2/s burst 2 depth 5 wait 3s inflight 4", shaper.WithBlock(10*time.Second))
	add(t, c, "upstream", promshaper.Of(upstream))
	for range 9 { // Two leave at once, one after half a second and one after a second; then three wait for a seat. Two are refused.
		go upstream.Acquire(t.Context(), 1)
		synctest.Wait()
	}

	memory := buckettest.NewMemory()
	memory.SetDelay(time.Millisecond, time.Millisecond)
	shared := newShaper(t, "10/s depth 50", shaper.WithBucket(memory, "api"), shaper.WithFallback(shaper.FallbackLocal(2)))
	add(t, c, "shared", promshaper.Of(shared))
	arrive(shared, 40)

	clients := newGroup(t, "1/s burst 2 depth 1", shaper.WithMaxKeys(2))
	add(t, c, "clients", promshaper.OfGroup(clients))
	for _, key := range []string{"a", "b", "c"} {
		arrive(clients.Limiter(key), 4)
	}

	trial := newShaper(t, "1/h", shaper.WithDryRun())
	add(t, c, "trial", promshaper.Of(trial))
	arrive(trial, 3)

	time.Sleep(2500 * time.Millisecond)
	synctest.Wait()
	upstream.Hold(time.Minute)
	return c
}

// scrape returns what a server answers that serves a registry. accept is the header field of
// the request.
func scrape(t *testing.T, r *prometheus.Registry, accept string) []byte {
	req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	req.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(w, req)
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	return w.Body.Bytes()
}

// histogramsOf reads protocol buffers, and returns the histograms as JSON, indented.
func histogramsOf(t *testing.T, scraped []byte) []byte {
	decoder := expfmt.NewDecoder(bytes.NewReader(scraped), expfmt.NewFormat(expfmt.TypeProtoDelim))
	var text bytes.Buffer
	for {
		var family dto.MetricFamily
		err := decoder.Decode(&family)
		if errors.Is(err, io.EOF) {
			return text.Bytes()
		}
		require.NoError(t, err)
		if family.GetType() != dto.MetricType_HISTOGRAM {
			continue
		}
		line, err := protojson.Marshal(&family)
		require.NoError(t, err)
		require.NoError(t, json.Indent(&text, line, "", "\t")) // Marshal adds blanks at random.
		text.WriteByte('\n')
	}
}

// golden compares a text with a file of testdata.
func golden(t *testing.T, name string, text []byte) {
	file := filepath.Join("testdata", name)
	if os.Getenv("SHAPER_UPDATE_GOLDEN") == "1" {
		require.NoError(t, os.WriteFile(file, text, 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), string(text))
}
