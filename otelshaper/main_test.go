package otelshaper_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"example.com/leakybucket/otelshaper"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A backend collects metrics by hand.
type backend struct {
	*otelshaper.Instruments
	reader *sdkmetric.ManualReader
}

func newBackend(t testing.TB) backend {
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	i, err := otelshaper.New(otelshaper.WithMeterProvider(provider))
	require.NoError(t, err)
	return backend{i, reader}
}

// metrics returns the metrics of a collection, by name.
func (b backend) metrics(t testing.TB) map[string]metricdata.Metrics {
	var all metricdata.ResourceMetrics
	require.NoError(t, b.reader.Collect(context.Background(), &all))
	metrics := map[string]metricdata.Metrics{}
	for _, scope := range all.ScopeMetrics {
		require.Equal(t, "example.com/leakybucket/otelshaper", scope.Scope.Name)
		for _, m := range scope.Metrics {
			metrics[m.Name] = m
		}
	}
	return metrics
}

// values returns the values of a collection by name and values of the attributes, as in
// shaper.requests{acquired,login}.
func (b backend) values(t testing.TB) map[string]float64 {
	values := map[string]float64{}
	for name, m := range b.metrics(t) {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			addPoints(values, name, data.DataPoints)
		case metricdata.Sum[float64]:
			addPoints(values, name, data.DataPoints)
		case metricdata.Gauge[float64]:
			addPoints(values, name, data.DataPoints)
		}
	}
	return values
}

func addPoints[N int64 | float64](to map[string]float64, name string, points []metricdata.DataPoint[N]) {
	for _, p := range points {
		to[name+"{"+attributesText(p.Attributes)+"}"] = float64(p.Value)
	}
}

// attributesText returns the values of a set in the order of the keys.
func attributesText(set attribute.Set) (text string) {
	for i, a := range set.ToSlice() {
		if i > 0 {
			text += ","
		}
		text += a.Value.String()
	}
	return text
}

// waits returns the histogram of the time in queue by values of its attributes.
func (b backend) waits(t testing.TB) map[string]metricdata.HistogramDataPoint[float64] {
	waits := map[string]metricdata.HistogramDataPoint[float64]{}
	if m, ok := b.metrics(t)["shaper.request.time_in_queue"]; ok {
		for _, p := range m.Data.(metricdata.Histogram[float64]).DataPoints {
			waits[attributesText(p.Attributes)] = p
		}
	}
	return waits
}

// newTracer returns a tracer whose spans are recorded.
func newTracer(t testing.TB) (trace.Tracer, *tracetest.SpanRecorder) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	return provider.Tracer("test"), recorder
}
