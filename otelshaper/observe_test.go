package otelshaper_test

import (
	"context"
	"errors"
	"maps"
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
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

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

// doc.go lists each metric once.
func TestTheDocumentationHasTheMetricsThatThereAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		s := made.Shaper(t, "1/s depth 1 inflight 2", shaper.WithTrace(b.Trace("api")))
		observe(t, b, "api", otelshaper.Of(s))
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
