package promshaper_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/promshaper"
	"example.com/leakybucket/shaper"
)

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
