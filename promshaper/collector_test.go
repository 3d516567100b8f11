package promshaper_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/encoding/protojson"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/promshaper"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

func TestAddSaysWhatIsWrong(t *testing.T) {
	c := promshaper.New(nil)
	source := promshaper.Of(made.Shaper(t, "1/s"))
	add(t, c, "login", source)
	for _, bad := range []struct {
		rule   string
		source promshaper.Source
		err    string
	}{
		{"login", source, `promshaper: there is a source of rule "login" already`},
		{"", source, "promshaper: the name of a rule is empty"},
		{"other", nil, `promshaper: the source of rule "other" is nil`},
		{"a\xff", source, `promshaper: the name of rule "a\xff" is not valid UTF-8`},
	} {
		remove, err := c.Add(bad.rule, bad.source)
		require.EqualError(t, err, bad.err)
		require.Nil(t, remove)
	}
	require.NotEmpty(t, gather(t, registryWith(t, c)))
}

// A configuration that is replaced takes its sources away and adds others of the same names.
func TestASourceThatIsRemovedIsNotToldAnyMore(t *testing.T) {
	c := promshaper.New()
	r := registryWith(t, c)
	require.Empty(t, gather(t, r))
	first := made.Shaper(t, "1/s")
	remove := add(t, c, "login", promshaper.Of(first))
	add(t, c, "search", promshaper.OfGroup(made.Group[string](t, "1/s")))
	require.True(t, first.Allow())
	require.EqualValues(t, 1, value(gather(t, r)["shaper_requests_total{departed,login}"]))

	remove()
	for name := range gather(t, r) {
		require.False(t, strings.Contains(name, "login"), name)
	}
	add(t, c, "login", promshaper.Of(made.Shaper(t, "1/s")))
	remove() // of the first one only
	metrics := gather(t, r)
	require.Zero(t, value(metrics["shaper_requests_total{departed,login}"]))
	require.NotNil(t, metrics["shaper_keys{search}"])
}

// A panic in the middle of a scrape would end the program, long after the mistake was made.
func TestASourceOfNothingPanicsWhereItIsMade(t *testing.T) {
	require.Panics(t, func() { promshaper.Of(nil) })
	require.Panics(t, func() { promshaper.Of(new(shaper.Shaper)) })
	require.Panics(t, func() { promshaper.OfGroup[string](nil) })
	require.Panics(t, func() { promshaper.OfGroup(new(shaper.Group[string])) })
}

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

// What has been reserved, given back, charged and found drained: of a Shaper, and of all keys of a
// Group.
func TestReservationsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := made.Shaper(t, "1/s burst 100"), made.Group[string](t, "1/s burst 100")
		c := promshaper.New()
		add(t, c, "tokens", promshaper.Of(s))
		add(t, c, "clients", promshaper.OfGroup(g))
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
		metrics := gather(t, registryWith(t, c))
		for _, rule := range []string{"tokens", "clients"} {
			for name, want := range map[string]float64{"reserved_units": 20, "given_back_units_total": 7, "charged_units_total": 2, "forfeited_units_total": 15} {
				require.EqualValues(t, want, value(metrics["shaper_"+name+"{"+rule+"}"]), "%s of %s", name, rule)
			}
		}
	})
}

// Each level of a Shaper is told by its name.
func TestMetersAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "1/s burst 100", shaper.WithMeters(shaper.Meter{Name: "input", Rate: 2, Burst: 50}, shaper.Meter{Name: "output", Rate: rate.Inf}))
		r := of(t, "api", promshaper.Of(s))
		_, err := s.ReserveEach(t.Context(), 1, 30, 5)
		require.NoError(t, err)
		settle, err := s.ReserveEach(t.Context(), 1, 10, 0)
		require.NoError(t, err)
		settle(1, 4, 3)
		time.Sleep(time.Second)
		metrics := gather(t, r)
		for name, want := range map[string]float64{
			"level_units{input,api}": 32, "level_units{output,api}": 0, "reserved_units{input,api}": 30, "reserved_units{output,api}": 5,
			"limit_units_per_second{input,api}": 2, "limit_units_per_second{output,api}": math.Inf(1), "limit_burst_units{input,api}": 50, "limit_burst_units{output,api}": 1,
			"given_back_units_total{input,api}": 6, "charged_units_total{output,api}": 3, "forfeited_units_total{input,api}": 0, "missed_units_total{input,api}": 0,
		} {
			require.Contains(t, metrics, "shaper_meter_"+name)
			require.EqualValues(t, want, value(metrics["shaper_meter_"+name]), name)
		}
	})
}

// What a Controller has found, with its bounds, and how often each kind of answer has lowered the rate.
func TestARateThatAdaptsIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "100/s depth 9")
		a, err := adapt.New(s, adapt.Config{Min: 2, Start: 80, Max: 200})
		require.NoError(t, err)
		r := of(t, "api", promshaper.OfAdaptive(s, a))
		for range 5 {
			a.Observe(adapt.Failed, 0)
		}
		time.Sleep(time.Nanosecond)
		a.Observe(adapt.Refused, 0)
		metrics := gather(t, r)
		for name, want := range map[string]float64{
			"adapt_units_per_second{api}": 20, "adapt_min_units_per_second{api}": 2, "adapt_max_units_per_second{api}": 200,
			"adapt_decreases_total{refused,api}": 1, "adapt_decreases_total{failed,api}": 1, "adapt_decreases_total{slow,api}": 0,
			"limit_units_per_second{api}": 20,
		} {
			require.Contains(t, metrics, "shaper_"+name)
			require.EqualValues(t, want, value(metrics["shaper_"+name]), name)
		}
		require.NotContains(t, gather(t, of(t, "api", promshaper.Of(s))), "shaper_adapt_units_per_second{api}")
		require.Panics(t, func() { promshaper.OfAdaptive(s, nil) })
	})
}

// How many seats this process has of a cap of all processes. Without such a cap there is no number.
func TestSeatsOfAllProcessesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := buckettest.NewMemory()
		s := made.Shaper(t, "100/s depth 9", shaper.WithBucket(memory, "api", shared.Options{InFlight: 3}))
		r := of(t, "api", promshaper.Of(s))
		requireTold := func(seats, inFlight float64) {
			t.Helper()
			metrics := gather(t, r)
			for name, want := range map[string]float64{"bucket_limit_seats{api}": 3, "bucket_seats{api}": seats, "in_flight_requests{api}": inFlight} {
				require.Contains(t, metrics, "shaper_"+name)
				require.EqualValues(t, want, value(metrics["shaper_"+name]), name)
			}
			require.NotContains(t, metrics, "shaper_limit_in_flight_requests{api}", "its own limits have no cap")
		}
		requireTold(0, 0)
		for n := range 2 {
			release, err := s.Acquire(t.Context(), 1)
			require.NoError(t, err)
			defer release()
			requireTold(float64(n+1), float64(n+1))
		}
		require.Positive(t, value(gather(t, r)["shaper_bucket_round_trips_total{api}"]))
		uncapped := gather(t, of(t, "api", promshaper.Of(made.Shaper(t, "100/s", shaper.WithBucket(memory, "b", shared.Options{})))))
		require.Contains(t, uncapped, "shaper_bucket_held_units{api}")
		for _, name := range []string{"bucket_limit_seats", "bucket_seats", "in_flight_requests"} {
			require.NotContains(t, uncapped, "shaper_"+name+"{api}")
		}
	})
}

// However many keys have requests in line, they are one number.
func TestKeysInLineAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "1/s depth 9", shaper.WithFairQueue(nil))
		r := of(t, "api", promshaper.Of(s))
		for _, key := range []string{"secret-1", "secret-1", "secret-1", "secret-2", "secret-3"} { // The first leaves at once.
			go s.For(key).Wait(t.Context())
			synctest.Wait()
		}
		metrics := gather(t, r)
		require.EqualValues(t, 3, value(metrics["shaper_waiting_keys{api}"]))
		for name := range metrics {
			require.NotContains(t, name, "secret")
		}
		time.Sleep(time.Minute)
		require.Zero(t, value(gather(t, r)["shaper_waiting_keys{api}"]))
	})
}

// scene has a source of each kind, two and a half seconds after requests came.
func scene(t *testing.T) *promshaper.Collector {
	c := promshaper.New()
	upstream := made.Shaper(t, "2/s burst 2 depth 5 wait 3s inflight 4", shaper.WithBlock(10*time.Second))
	add(t, c, "upstream", promshaper.Of(upstream))
	for range 9 { // Two leave at once, one after half a second and one after a second; then three wait for a seat. Two are refused.
		go upstream.Acquire(t.Context(), 1)
		synctest.Wait()
	}

	memory := buckettest.NewMemory()
	memory.SetDelay(time.Millisecond, time.Millisecond)
	shared := made.Shaper(t, "10/s depth 50", shaper.WithBucket(memory, "api", shared.Options{Fallback: shared.FallbackLocal(2)}))
	add(t, c, "shared", promshaper.Of(shared))
	arrive(shared, 40)

	clients := made.Group[string](t, "1/s burst 2 depth 1", shaper.WithMaxKeys(2))
	add(t, c, "clients", promshaper.OfGroup(clients))
	for _, key := range []string{"a", "b", "c"} {
		arrive(clients.Limiter(key), 4)
	}

	trial := made.Shaper(t, "1/h", shaper.WithDryRun())
	add(t, c, "trial", promshaper.Of(trial))
	arrive(trial, 3)

	time.Sleep(2500 * time.Millisecond)
	synctest.Wait()
	upstream.Hold(time.Minute)
	return c
}

// scrape returns the answer of a server that serves a registry. accept is the header field of
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

// A watch scrapes a registry again and again, and fails if anything that only grows goes
// back.
type watch struct {
	prometheus.Gatherer
	last map[string]*dto.Metric
}

func (w *watch) scrape(t testing.TB) map[string]*dto.Metric {
	now := gather(t, w)
	for name, old := range w.last {
		m := now[name]
		require.NotNil(t, m, "%s has gone", name)
		if old.Counter != nil {
			require.GreaterOrEqual(t, m.Counter.GetValue(), old.Counter.GetValue(), name)
		}
		if h := old.Histogram; h != nil {
			requireGrown(t, h, m.Histogram, name)
		}
	}
	for _, rule := range []string{"shaper", "group"} {
		var sum float64
		for _, reason := range []string{"queue_full", "too_late", "too_costly", "closed", "unavailable"} {
			sum += value(now["shaper_refusals_total{"+reason+","+rule+"}"])
		}
		require.Equal(t, value(now["shaper_requests_total{refused,"+rule+"}"]), sum)
		left := now["shaper_wait_seconds{"+rule+"}"].Histogram.GetSampleCount()
		require.LessOrEqual(t, float64(left), value(now["shaper_requests_total{departed,"+rule+"}"]))
	}
	w.last = now
	return now
}

func requireGrown(t testing.TB, old, now *dto.Histogram, name string) {
	require.GreaterOrEqual(t, now.GetSampleCount(), old.GetSampleCount(), name)
	require.GreaterOrEqual(t, now.GetSampleSum(), old.GetSampleSum(), name)
	require.GreaterOrEqual(t, now.GetZeroCount(), old.GetZeroCount(), name)
	for i, b := range old.Bucket {
		require.GreaterOrEqual(t, now.Bucket[i].GetCumulativeCount(), b.GetCumulativeCount(), "%s up to %v", name, b.GetUpperBound())
	}
	later := nativeBuckets(t, now)
	for number, count := range nativeBuckets(t, old) {
		require.GreaterOrEqual(t, later[number], count, "%s: bucket %d", name, number)
	}
}

// Scrapes run while requests come, wait, give up and are refused, keys come and go, and both
// sources are closed. Nothing that is counted is lost by any of that.
func TestCountersNeverGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "1000/s burst 3 depth 15 wait 12ms")
		g := made.Group[string](t, "100/s depth 3")
		c := promshaper.New()
		add(t, c, "shaper", promshaper.Of(s))
		add(t, c, "group", promshaper.OfGroup(g))
		w := watch{Gatherer: registryWith(t, c)}

		var calls sync.WaitGroup
		const callers, each = 20, 30
		for caller := range callers {
			random := rand.New(rand.NewPCG(1, uint64(caller)))
			calls.Go(func() {
				for i := range each {
					ctx, cancel := context.WithCancel(t.Context())
					giveUp := time.AfterFunc(time.Duration(random.Int64N(int64(20*time.Millisecond))), cancel)
					s.Wait(ctx)
					g.Wait(ctx, fmt.Sprint(i/10, random.IntN(10)))
					giveUp.Stop()
					cancel()
					time.Sleep(time.Duration(random.Int64N(int64(50 * time.Millisecond))))
				}
			})
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			calls.Wait()
		}()
		keys := 0.
		for scrapes := 0; ; scrapes++ {
			keys = max(keys, value(w.scrape(t)["shaper_keys{group}"]))
			if scrapes == 100 {
				require.NoError(t, s.Close())
				require.NoError(t, g.Close())
			}
			select {
			case <-ended:
			case <-time.After(5 * time.Millisecond):
				continue
			}
			break
		}
		require.Greater(t, keys, 10.)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		end := w.scrape(t)
		require.Zero(t, value(end["shaper_keys{group}"]), "all keys have been swept")
		all := 0.
		for _, result := range []string{"departed", "refused", "abandoned"} {
			n := value(end["shaper_requests_total{"+result+",shaper}"])
			require.Positive(t, n, result)
			require.Positive(t, value(end["shaper_requests_total{"+result+",group}"]), result)
			all += n
		}
		require.EqualValues(t, callers*each, all, "each call with a live context is counted once")
		require.Positive(t, value(end["shaper_refusals_total{closed,shaper}"]))
	})
}

// doc.go lists each metric once with its labels.
func TestTheDocumentationHasTheMetricsThatThereAre(t *testing.T) {
	descs := make(chan *prometheus.Desc, 100)
	promshaper.New().Describe(descs)
	close(descs)
	description := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{rule,?(\w*)\}`)
	var metrics, names []string
	for desc := range descs {
		found := description.FindStringSubmatch(desc.String())
		require.NotNil(t, found, desc.String())
		labels := ""
		if found[2] != "" {
			labels = "{" + found[2] + "}"
		}
		metrics, names = append(metrics, found[1]+labels), append(names, found[1])
	}
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(names))), len(names), "a name is used twice")

	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	var listed []string
	for _, m := range regexp.MustCompile(`(?m)^//\t(shaper_\S+)`).FindAllStringSubmatch(string(text), -1) {
		listed = append(listed, m[1])
	}
	require.ElementsMatch(t, metrics, listed)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// of registers a new Collector that has one source.
func of(t testing.TB, rule string, source promshaper.Source) *prometheus.Registry {
	c := promshaper.New()
	add(t, c, rule, source)
	return registryWith(t, c)
}

func add(t testing.TB, c *promshaper.Collector, rule string, source promshaper.Source) (remove func()) {
	remove, err := c.Add(rule, source)
	require.NoError(t, err)
	return remove
}

// registryWith returns a registry that checks more than the default one.
func registryWith(t testing.TB, c *promshaper.Collector) *prometheus.Registry {
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(c))
	return r
}

// arrive lets n requests of a limiter arrive at one instant, one after the other. It is for
// bubbles.
func arrive(l shaper.Limiter, n int) {
	for range n {
		go l.WaitN(context.Background(), 1)
		synctest.Wait()
	}
}

// gather returns the metrics by name and labels, as in shaper_requests_total{x,departed}:
// values of labels come in the order of the names of the labels.
func gather(t testing.TB, r prometheus.Gatherer) map[string]*dto.Metric {
	found, err := r.Gather()
	require.NoError(t, err)
	metrics := map[string]*dto.Metric{}
	for _, family := range found {
		for _, m := range family.Metric {
			name := family.GetName() + "{"
			for i, label := range m.Label {
				if i > 0 {
					name += ","
				}
				name += label.GetValue()
			}
			metrics[name+"}"] = m
		}
	}
	return metrics
}

// value returns the value of a gauge or a counter.
func value(m *dto.Metric) float64 {
	if m.Counter != nil {
		return m.Counter.GetValue()
	}
	return m.Gauge.GetValue()
}
