package otelshaper_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/otelshaper"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

func observe(t testing.TB, b backend, rule string, source otelshaper.Source) metric.Registration {
	r, err := b.Observe(rule, source)
	require.NoError(t, err)
	return r
}

func TestObserveTellsTheStatsOfAShaper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		s := made.Shaper(t, "10/s burst 2 depth 3 inflight 4")
		observe(t, b, "api", otelshaper.Of(s))
		ctx, cancel := context.WithCancel(t.Context())
		for range 6 { // Two leave at once, three wait, one is refused.
			go s.Acquire(ctx, 1)
		}
		time.Sleep(150 * time.Millisecond)
		synctest.Wait()
		want := map[string]float64{
			"shaper.requests{acquired,api}": 3, "shaper.requests{queue_full,api}": 1, "shaper.requests{request_canceled,api}": 0,
			"shaper.requests{too_late,api}": 0, "shaper.requests{too_costly,api}": 0, "shaper.requests{closed,api}": 0, "shaper.requests{unavailable,api}": 0,
			"shaper.queued_requests{api}": 2, "shaper.queued_keys{api}": 0, "shaper.active_request_leases{api}": 3,
			"shaper.missed_units{api}": 0, "shaper.oldest_wait{api}": 0.15,
			"shaper.reserved_units{api}": 0, "shaper.given_back_units{api}": 0, "shaper.charged_units{api}": 0, "shaper.forfeited_units{api}": 0,
		}
		require.Equal(t, want, b.values(t))
		cancel()
		synctest.Wait()
		require.NoError(t, s.Close())
		want["shaper.requests{request_canceled,api}"] = 2
		want["shaper.queued_requests{api}"], want["shaper.oldest_wait{api}"] = 0, 0
		require.Equal(t, want, b.values(t), "a closed Shaper keeps its totals")
	})
}

func TestObserveTellsTheStatsOfAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		g := made.GroupBy(t, func(key string) (shaper.Limits, error) {
			if key == "unknown" {
				return shaper.Limits{}, errors.New("unknown")
			}
			return shaper.Limits{Rate: 1, Depth: 1}, nil
		}, shaper.WithMaxKeys(2))
		observe(t, b, "clients", otelshaper.OfGroup(g))
		for _, key := range []string{"a", "a", "a", "b", "c", "unknown"} {
			go g.Wait(t.Context(), key)
			synctest.Wait()
		}
		require.Equal(t, map[string]float64{
			"shaper.requests{acquired,clients}": 3, "shaper.requests{queue_full,clients}": 1, "shaper.requests{request_canceled,clients}": 0,
			"shaper.requests{too_late,clients}": 0, "shaper.requests{too_costly,clients}": 0, "shaper.requests{closed,clients}": 0, "shaper.requests{unavailable,clients}": 0,
			"shaper.queued_requests{clients}": 1, "shaper.missed_units{clients}": 0,
			"shaper.reserved_units{clients}": 0, "shaper.given_back_units{clients}": 0, "shaper.charged_units{clients}": 0, "shaper.forfeited_units{clients}": 0,
			"shaper.keys{clients}": 2, "shaper.overflowed_calls{clients}": 1, "shaper.limit_errors{clients}": 1,
		}, b.values(t))
		time.Sleep(time.Minute)
		synctest.Wait()
		values := b.values(t)
		require.Zero(t, values["shaper.keys{clients}"])
		require.EqualValues(t, 4, values["shaper.requests{acquired,clients}"], "the keys have gone, what they did has not")
	})
}

// What has been reserved, given back, charged and found drained: of a Shaper, and of all keys of a
// Group.
func TestObserveTellsOfReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := made.Shaper(t, "1/s burst 100"), made.Group[string](t, "1/s burst 100")
		b := newBackend(t)
		observe(t, b, "tokens", otelshaper.Of(s))
		observe(t, b, "clients", otelshaper.OfGroup(g))
		for _, reserve := range []func(context.Context, int) (func(int), error){s.Reserve, g.Limiter("a").Reserve} {
			var settles []func(int)
			for range 4 {
				settle, err := reserve(t.Context(), 20)
				require.NoError(t, err)
				settles = append(settles, settle)
			}
			settles[0](13)
			settles[1](22)
			time.Sleep(time.Hour) // All has drained.
			settles[2](5)
		}
		values := b.values(t)
		for _, rule := range []string{"tokens", "clients"} {
			for name, want := range map[string]float64{"reserved_units": 20, "given_back_units": 7, "charged_units": 2, "forfeited_units": 15} {
				require.EqualValues(t, want, values["shaper."+name+"{"+rule+"}"], "%s of %s", name, rule)
			}
		}
	})
}

// Each level of a Shaper is told by its name.
func TestObserveTellsOfMeters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		s := made.Shaper(t, "1/s burst 100", shaper.WithMeters(shaper.Meter{Name: "input", Rate: 2, Burst: 50}, shaper.Meter{Name: "output", Rate: math.MaxFloat64}))
		observe(t, b, "api", otelshaper.Of(s))
		_, err := s.ReserveEach(t.Context(), 1, 30, 5)
		require.NoError(t, err)
		settle, err := s.ReserveEach(t.Context(), 1, 10, 0)
		require.NoError(t, err)
		settle(1, 4, 3)
		time.Sleep(time.Second)
		values := b.values(t)
		for name, want := range map[string]float64{
			"level{input,api}": 32, "level{output,api}": 0, "reserved_units{input,api}": 30, "reserved_units{output,api}": 5,
			"rate{input,api}": 2, "burst{input,api}": 50, "burst{output,api}": 1,
			"given_back_units{input,api}": 6, "charged_units{output,api}": 3, "forfeited_units{input,api}": 0,
		} {
			require.Contains(t, values, "shaper.meter."+name)
			require.EqualValues(t, want, values["shaper.meter."+name], name)
		}
		require.NotContains(t, values, "shaper.meter.rate{output,api}")
	})
}

// What a Controller has found, with its bounds, and how often each kind of answer has lowered the rate.
func TestObserveTellsOfARateThatAdapts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		s := made.Shaper(t, "100/s depth 9")
		a, err := adapt.New(s, adapt.Config{Min: 2, Start: 80, Max: 200, Slow: time.Second})
		require.NoError(t, err)
		observe(t, b, "api", otelshaper.OfAdaptive(s, a))
		observe(t, b, "other", otelshaper.Of(made.Shaper(t, "1/s")))
		a.Observe(adapt.Refused, 0)
		time.Sleep(time.Nanosecond)
		a.Observe(adapt.Refused, 0)
		time.Sleep(time.Nanosecond)
		for range 5 {
			a.Observe(adapt.OK, 2*time.Second) // They left before.
		}
		values := b.values(t)
		for name, want := range map[string]float64{
			"rate{api}": 57.6, "min{api}": 2, "max{api}": 200, "decreases{refused,api}": 2, "decreases{failed,api}": 0, "decreases{slow,api}": 0,
		} {
			require.Contains(t, values, "shaper.adapt."+name)
			require.InDelta(t, want, values["shaper.adapt."+name], 1e-9, name)
		}
		require.NotContains(t, values, "shaper.adapt.rate{other}")
		require.EqualValues(t, 0, values["shaper.queued_requests{api}"], "and all else as of any Shaper")
		require.Panics(t, func() { otelshaper.OfAdaptive(s, nil) })
	})
}

// However many keys have requests in line, they are one number.
func TestObserveTellsHowManyKeysAreInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		s := made.Shaper(t, "1/s depth 9", shaper.WithFairQueue(nil))
		observe(t, b, "api", otelshaper.Of(s))
		for _, key := range []string{"a", "a", "a", "b", "c"} { // The first leaves at once.
			go s.For(key).Wait(t.Context())
			synctest.Wait()
		}
		require.EqualValues(t, 3, b.values(t)["shaper.queued_keys{api}"])
		time.Sleep(time.Minute)
		require.Zero(t, b.values(t)["shaper.queued_keys{api}"])
	})
}

// Refusals of an outage and the state of a shared bucket.
func TestObserveTellsOfASharedBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		memory := buckettest.NewMemory()
		memory.Fail(func(int, string) buckettest.Fault { return buckettest.FailBefore })
		s := made.Shaper(t, "1000/s depth 9", shaper.WithBucket(memory, "api", shared.Options{}))
		observe(t, b, "api", otelshaper.Of(s))
		require.EqualValues(t, 1, b.values(t)["shaper.bucket.state{shared,api}"])
		first, giveUp := context.WithTimeout(t.Context(), time.Second) // It is in line when the outage is noticed, and stays there.
		defer giveUp()
		require.ErrorIs(t, s.Wait(first), context.DeadlineExceeded)
		require.ErrorIs(t, s.Wait(t.Context()), shaper.ErrUnavailable)
		require.ErrorIs(t, s.Wait(t.Context()), shaper.ErrUnavailable)
		values := b.values(t)
		require.EqualValues(t, 1, values["shaper.bucket.state{down,api}"])
		for _, state := range []string{"shared", "local", "open"} {
			require.Zero(t, values["shaper.bucket.state{"+state+",api}"])
		}
		require.EqualValues(t, 2, values["shaper.requests{unavailable,api}"])
		require.Positive(t, values["shaper.bucket.failures{api}"])
		require.GreaterOrEqual(t, values["shaper.bucket.round_trips{api}"], values["shaper.bucket.failures{api}"])
	})
}

// How many seats this process has of a cap of all processes.
func TestObserveTellsOfSeatsOfAllProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		s := made.Shaper(t, "100/s depth 9", shaper.WithBucket(buckettest.NewMemory(), "api", shared.Options{InFlight: 3}))
		observe(t, b, "api", otelshaper.Of(s))
		requireTold := func(seats int) {
			t.Helper()
			values := b.values(t)
			require.EqualValues(t, 3, values["shaper.bucket.limit_seats{api}"])
			for _, name := range []string{"shaper.bucket.seats{api}", "shaper.active_request_leases{api}"} {
				require.Contains(t, values, name)
				require.EqualValues(t, seats, values[name], name)
			}
		}
		requireTold(0)
		for n := range 2 {
			release, err := s.Acquire(t.Context(), 1)
			require.NoError(t, err)
			defer release()
			requireTold(n + 1)
		}
	})
}

// doc.go lists each metric once.
func TestTheDocumentationHasTheMetricsThatThereAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		s := made.Shaper(t, "1/s depth 1 inflight 2", shaper.WithTrace(b.Trace("api")), shaper.WithMeters(shaper.Meter{Name: "bytes", Rate: 1}))
		a, err := adapt.New(s, adapt.Config{Start: 1})
		require.NoError(t, err)
		observe(t, b, "api", otelshaper.OfAdaptive(s, a))
		observe(t, b, "workers", otelshaper.Of(made.Shaper(t, "1/s", shaper.WithBucket(buckettest.NewMemory(), "w", shared.Options{InFlight: 2}))))
		observe(t, b, "clients", otelshaper.OfGroup(made.Group[string](t, "1/s", shaper.WithBuckets(buckettest.NewMemory(), strings.Clone, shared.Options{}))))
		for range 2 {
			_, err := s.Acquire(t.Context(), 1)
			require.NoError(t, err)
		}
		text, err := os.ReadFile("doc.go")
		require.NoError(t, err)
		var listed []string
		for _, m := range regexp.MustCompile(`(?m)^//\t.*?(shaper\.[a-z._]+) +(?:counter|up-down counter|gauge|histogram) `).FindAllStringSubmatch(string(text), -1) {
			listed = append(listed, m[1])
		}
		require.ElementsMatch(t, slices.Collect(maps.Keys(b.metrics(t))), listed)
	})
}

// The kinds and units are taken from aspnetcore.rate_limiting.*.
func TestInstrumentsAreOfTheKindsOfTheConventions(t *testing.T) {
	b := newBackend(t)
	observe(t, b, "api", otelshaper.Of(made.Shaper(t, "1/s inflight 1")))
	metrics := b.metrics(t)
	for name, monotonic := range map[string]bool{"shaper.requests": true, "shaper.queued_requests": false, "shaper.active_request_leases": false} {
		sum, ok := metrics[name].Data.(metricdata.Sum[int64])
		require.True(t, ok, name)
		require.Equal(t, monotonic, sum.IsMonotonic, name)
		require.Equal(t, metricdata.CumulativeTemporality, sum.Temporality, name)
		require.Equal(t, "{request}", metrics[name].Unit)
		require.NotEmpty(t, metrics[name].Description)
	}
}

func TestASourceThatIsUnregisteredIsNotToldAnyMore(t *testing.T) {
	b := newBackend(t)
	s := made.Shaper(t, "1/s")
	first := observe(t, b, "login", otelshaper.Of(s))
	observe(t, b, "", otelshaper.OfGroup(made.Group[string](t, "1/s")))
	_, err := b.Observe("login", otelshaper.Of(s))
	require.EqualError(t, err, `otelshaper: a source of rule "login" is observed already`)
	_, err = b.Observe("other", nil)
	require.EqualError(t, err, `otelshaper: the source of rule "other" is nil`)
	require.Contains(t, b.values(t), "shaper.oldest_wait{login}")
	require.Contains(t, b.values(t), "shaper.keys{}")

	require.NoError(t, first.Unregister())
	require.NotContains(t, b.values(t), "shaper.oldest_wait{login}")
	require.Contains(t, b.values(t), "shaper.keys{}")
	observe(t, b, "login", otelshaper.Of(s))
	require.NoError(t, first.Unregister())
	_, err = b.Observe("login", otelshaper.Of(s))
	require.Error(t, err, "a second Unregister frees nothing")
	require.Contains(t, b.values(t), "shaper.oldest_wait{login}")
}

// One name that is not valid text would keep an exporter from sending all the others.
func TestANameIsValidText(t *testing.T) {
	b := newBackend(t)
	observe(t, b, "a\xff", otelshaper.Of(made.Shaper(t, "1/s")))
	require.Contains(t, b.values(t), "shaper.oldest_wait{a\uFFFD}")
}

// setGlobal sets the global provider, and returns its reader. otel hands over earlier
// instruments to the first provider alone, so a process sets it once, also if tests run repeatedly.
var setGlobal = sync.OnceValue(func() *sdkmetric.ManualReader {
	reader := sdkmetric.NewManualReader()
	otel.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	return reader
})

// The program may set its provider later: without one nothing is reported, and nothing fails.
func TestTheDefaultIsTheGlobalProvider(t *testing.T) {
	i, err := otelshaper.New(nil)
	require.NoError(t, err)
	r, err := i.Observe("api", otelshaper.Of(made.Shaper(t, "1/s")))
	require.NoError(t, err)
	global := backend{i, setGlobal()}
	require.Contains(t, global.values(t), "shaper.oldest_wait{api}")
	require.NoError(t, r.Unregister())
	require.Empty(t, global.values(t))
	_, err = otelshaper.New(otelshaper.WithMeterProvider(nil))
	require.EqualError(t, err, "otelshaper: WithMeterProvider got nil")
	_, err = otelshaper.New(otelshaper.WithMeterProvider(noop.NewMeterProvider()))
	require.NoError(t, err)
}

// A panic in the middle of a collection would end the program, long after the mistake was made.
func TestASourceOfNothingPanicsWhereItIsMade(t *testing.T) {
	require.Panics(t, func() { otelshaper.Of(nil) })
	require.Panics(t, func() { otelshaper.Of(new(shaper.Shaper)) })
	require.Panics(t, func() { otelshaper.OfGroup[string](nil) })
	require.Panics(t, func() { otelshaper.OfGroup(new(shaper.Group[string])) })
}

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

// call waits with a span of the name that is given.
func call(ctx context.Context, tracer trace.Tracer, name string, l shaper.Limiter) {
	ctx, span := tracer.Start(ctx, name)
	defer span.End()
	l.WaitN(ctx, 1)
}

// events returns the events of all spans that have ended, by the name of the span: the time
// since start, the event's name and its attributes, one event in each line.
func events(recorder *tracetest.SpanRecorder, start time.Time) map[string]string {
	texts := map[string]string{}
	for _, span := range recorder.Ended() {
		text := ""
		for _, e := range span.Events() {
			text += fmt.Sprintf("%v %s", e.Time.Sub(start), e.Name)
			for _, a := range e.Attributes {
				text += fmt.Sprintf(" %s=%s", a.Key, a.Value.String())
			}
			text += "\n"
		}
		texts[span.Name()] = text
	}
	return texts
}

// Each span says how many were ahead, how long its request waited, or why it was refused, and
// when. The histogram has the same waits, and no others.
func TestASpanTellsOfItsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		tracer, recorder := newTracer(t)
		s := made.Shaper(t, "2/s depth 3", shaper.WithTrace(b.Trace("api")))
		start := time.Now()
		impatient, giveUp := context.WithTimeout(context.Background(), time.Hour)
		for _, name := range []string{"first", "second", "third", "impatient", "refused"} {
			ctx := t.Context()
			if name == "impatient" {
				ctx = impatient
			}
			go call(ctx, tracer, name, s)
			synctest.Wait()
		}
		time.Sleep(700 * time.Millisecond)
		giveUp()
		synctest.Wait()
		time.Sleep(time.Second)
		go call(t.Context(), tracer, "late", s)
		synctest.Wait()
		go call(t.Context(), tracer, "closed", s)
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, s.Close())
		synctest.Wait()

		require.Equal(t, map[string]string{
			"first": "",
			"second": "0s shaper.queued shaper.rule=api shaper.ahead=0 shaper.cost=1\n" +
				"500ms shaper.acquired shaper.rule=api shaper.time_in_queue=0.5 shaper.ahead=0\n",
			"third": "0s shaper.queued shaper.rule=api shaper.ahead=1 shaper.cost=1\n" +
				"1s shaper.acquired shaper.rule=api shaper.time_in_queue=1 shaper.ahead=1\n",
			"impatient": "0s shaper.queued shaper.rule=api shaper.ahead=2 shaper.cost=1\n" +
				"700ms shaper.request_canceled shaper.rule=api shaper.time_in_queue=0.7 shaper.ahead=2\n",
			"refused": "0s shaper.refused shaper.rule=api shaper.result=queue_full shaper.retry_after=0.5\n",
			"late":    "",
			"closed": "1.7s shaper.queued shaper.rule=api shaper.ahead=0 shaper.cost=1\n" +
				"1.8s shaper.refused shaper.rule=api shaper.time_in_queue=0.1 shaper.ahead=0 shaper.result=closed\n",
		}, events(recorder, start))

		waits := b.waits(t)
		require.Len(t, waits, 3)
		require.EqualValues(t, 2, waits["acquired,api"].Count, "second and third; others did not wait")
		require.Equal(t, 1.5, waits["acquired,api"].Sum)
		require.EqualValues(t, 1, waits["request_canceled,api"].Count)
		require.Equal(t, 0.7, waits["request_canceled,api"].Sum)
		require.EqualValues(t, 1, waits["closed,api"].Count)
		require.Equal(t, 0.1, waits["closed,api"].Sum)
		require.Equal(t, []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 25, 50, 100, 250, 500}, waits["acquired,api"].Bounds)
		require.Equal(t, "s", b.metrics(t)["shaper.request.time_in_queue"].Unit)
	})
}

// What an outage of a shared bucket makes of a wait is in its span and in the histogram.
func TestASpanTellsOfAWaitThatAnOutageEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		tracer, recorder := newTracer(t)
		memory := buckettest.NewMemory()
		memory.Fail(func(int, string) buckettest.Fault { return buckettest.FailBefore })
		s := made.Shaper(t, "2/s depth 3", shaper.WithTrace(b.Trace("api")), shaper.WithBucket(memory, "key", shared.Options{Patience: 2 * time.Second}))
		start := time.Now()
		call(context.Background(), tracer, "call", s)
		require.Regexp(t, `^0s shaper.queued shaper.rule=api shaper.ahead=0 shaper.cost=1
2s shaper.refused shaper.rule=api shaper.time_in_queue=2 shaper.ahead=0 shaper.result=unavailable shaper.retry_after=[0-9.e-]+
$`, events(recorder, start)["call"])
		waits := b.waits(t)
		require.Len(t, waits, 1)
		require.EqualValues(t, 1, waits["unavailable,api"].Count)
		require.Equal(t, 2., waits["unavailable,api"].Sum)
	})
}

// Of a dry run a span says what would have been. Nobody was in line, so no wait is recorded.
func TestASpanTellsWhatADryRunWouldHaveDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		tracer, recorder := newTracer(t)
		s := made.Shaper(t, "2/s depth 1", shaper.WithTrace(b.Trace("trial")), shaper.WithDryRun())
		start := time.Now()
		for _, name := range []string{"first", "second", "third"} {
			call(t.Context(), tracer, name, s)
		}
		require.Equal(t, map[string]string{
			"first":  "",
			"second": "0s shaper.acquired shaper.rule=trial shaper.time_in_queue=0.5 shaper.ahead=0 shaper.dry_run=true\n",
			"third":  "0s shaper.refused shaper.rule=trial shaper.dry_run=true shaper.result=queue_full shaper.retry_after=0.5\n",
		}, events(recorder, start))
		require.Empty(t, b.waits(t))
	})
}

func TestEachReasonHasItsWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		full := &shaper.RejectError{Reason: shaper.ErrQueueFull}
		noLimits := made.GroupBy(t, func(string) (shaper.Limits, error) { return shaper.Limits{}, full }).Wait(t.Context(), "key")
		require.ErrorIs(t, noLimits, shaper.ErrQueueFull)
		for want, err := range map[string]error{
			"queue_full": full, "too_late": &shaper.RejectError{Reason: shaper.ErrTooLate},
			"too_costly": &shaper.RejectError{Reason: shaper.ErrTooCostly}, "closed": &shaper.RejectError{Reason: shaper.ErrClosed},
			// The error of an outage may say more than ErrUnavailable.
			"unavailable": &shaper.RejectError{Reason: fmt.Errorf("%w: too slow", shaper.ErrUnavailable)}, "no_limits": noLimits,
		} {
			tracer, recorder := newTracer(t)
			ctx, span := tracer.Start(t.Context(), "call")
			b.Trace("").Refused(ctx, shaper.Event{Err: err})
			span.End()
			require.Equal(t, map[string]string{"call": "0s shaper.refused shaper.result=" + want + "\n"},
				events(recorder, time.Now()), "%v", err)
		}
	})
}

// The function for limits may ask a database, whose timeout is not the end of the request.
func TestALimitsFunctionThatTimesOutIsNoRequestThatGaveUp(t *testing.T) {
	b := newBackend(t)
	tracer, recorder := newTracer(t)
	g := made.GroupBy(t, func(string) (shaper.Limits, error) { return shaper.Limits{}, context.DeadlineExceeded },
		shaper.WithTrace(b.Trace("")), shaper.WithDryRun())
	ctx, span := tracer.Start(t.Context(), "call")
	require.NoError(t, g.Wait(ctx, "key"))
	span.End()
	require.Regexp(t, `shaper.refused shaper.dry_run=true shaper.result=no_limits\n$`, events(recorder, time.Now())["call"])
}

// A program's own hooks run too, after ours, and those that are not there are no trouble.
func TestHooksOfTheProgramRunAsWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		var told []string
		tell := func(what string) func(context.Context, shaper.Event) {
			return func(_ context.Context, e shaper.Event) { told = append(told, what) }
		}
		own := &shaper.Trace{
			Enqueued: tell("enqueued"), Departed: tell("departed"), Refused: tell("refused"), Abandoned: tell("abandoned"),
			Bucket: func(context.Context, shared.Event) { told = append(told, "bucket") },
		}
		joined := b.Trace("x", nil, own, &shaper.Trace{Departed: tell("departed again")})
		s := made.Shaper(t, "1/s depth 1", shaper.WithTrace(joined))
		require.NoError(t, s.Wait(t.Context()))
		require.NoError(t, s.Wait(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		require.ErrorIs(t, s.Wait(ctx), context.Canceled)
		require.NoError(t, s.Close())
		require.ErrorIs(t, s.Wait(t.Context()), shaper.ErrClosed)
		joined.Bucket(t.Context(), shared.Event{Err: errors.New("away")})
		require.Equal(t, []string{"departed", "departed again", "enqueued", "departed", "departed again", "enqueued", "abandoned", "refused", "bucket"}, told)
		require.Len(t, b.waits(t), 2, "ours have run as well")
		require.Nil(t, b.Trace("x").Bucket)
	})
}

// A call that leaves at once must cost no more than without hooks, whatever its context.
func TestACallThatLeavesAtOnceAllocatesNothing(t *testing.T) {
	b := newBackend(t)
	s := made.Shaper(t, "inf", shaper.WithTrace(b.Trace("api")))
	for name, ctx := range map[string]context.Context{
		"no span":              context.Background(),
		"span is not recorded": trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}})),
	} {
		require.Zero(t, testing.AllocsPerRun(1000, func() { s.Wait(ctx) }), name)
	}
	refusing := made.Shaper(t, "1/h", shaper.WithTrace(b.Trace("api")))
	require.True(t, refusing.Allow())
	plain := made.Shaper(t, "1/h")
	require.True(t, plain.Allow())
	require.LessOrEqual(t,
		testing.AllocsPerRun(1600, func() { refusing.Wait(context.Background()) }),
		testing.AllocsPerRun(1600, func() { plain.Wait(context.Background()) }), "a refusal costs no more either")
}
