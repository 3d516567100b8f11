package otelshaper_test

import (
	"context"
	"fmt"
	"log"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"example.com/leakybucket/otelshaper"
	"example.com/leakybucket/shaper"
)

// An upstream gets a request each 10 ms. The second request waits for its turn: its span says
// so, and the metrics count it.
func Example() {
	ctx := context.Background()
	reader := sdkmetric.NewManualReader() // or one that exports, such as a PeriodicReader
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	defer meters.Shutdown(ctx)
	spans := tracetest.NewSpanRecorder() // or a BatchSpanProcessor
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	defer tracers.Shutdown(ctx)

	instruments, err := otelshaper.New(otelshaper.WithMeterProvider(meters))
	if err != nil {
		log.Fatal(err)
	}
	s, err := shaper.New(shaper.Limits{Rate: 100, Depth: 50}, shaper.WithTrace(instruments.Trace("upstream")))
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	observed, err := instruments.Observe("upstream", otelshaper.Of(s))
	if err != nil {
		log.Fatal(err)
	}
	defer observed.Unregister()

	for _, name := range []string{"first", "second"} {
		ctx, span := tracers.Tracer("example").Start(ctx, name)
		if err := s.Wait(ctx); err != nil {
			log.Fatal(err)
		}
		span.End()
	}

	for _, span := range spans.Ended() {
		fmt.Print(span.Name(), ":")
		for _, event := range span.Events() {
			fmt.Print(" ", event.Name)
		}
		fmt.Println()
	}
	var collected metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &collected); err != nil {
		log.Fatal(err)
	}
	for _, m := range collected.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Histogram[float64]:
			fmt.Println(m.Name, data.DataPoints[0].Count)
		case metricdata.Sum[int64]:
			if i := slices.IndexFunc(data.DataPoints, isAcquired); i >= 0 {
				fmt.Println(m.Name, data.DataPoints[i].Value)
			}
		}
	}
	// Unordered output:
	// first:
	// second: shaper.queued shaper.acquired
	// shaper.request.time_in_queue 1
	// shaper.requests 2
}

func isAcquired(p metricdata.DataPoint[int64]) bool {
	result, _ := p.Attributes.Value(attribute.Key("shaper.result"))
	return result.AsString() == "acquired"
}
