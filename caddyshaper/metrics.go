package caddyshaper

import (
	"fmt"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"example.com/leakybucket/promshaper"
)

// collector tells Prometheus of all lines that are in use. It is made when the first
// configuration wants it, and there is one, as it may be in several registries.
var collector = sync.OnceValue(func() *promshaper.Collector {
	c := promshaper.New()
	follow(func(l shownLine) (hide func()) {
		remove, err := c.Add(l.name, l.measured())
		if err != nil {
			caddy.Log().Named("shape").Error("no metrics", zap.String("name", l.name), zap.Error(err))
			return func() {}
		}
		return remove
	})
	return c
})

// registerMetrics adds the metrics of all lines to those of a configuration. Each has a
// registry of its own.
func registerMetrics(ctx caddy.Context) error {
	registry := ctx.GetMetricsRegistry()
	if registry == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{collector(), rulesCollector{}} {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("the metrics of shape: %w", err)
		}
	}
	return nil
}

// A rulesCollector tells Prometheus of the rules in files, in the way of Prometheus' own
// metrics of its configuration.
type rulesCollector struct{}

var (
	reloadSuccessful = prometheus.NewDesc("shaper_config_last_reload_successful",
		"Whether the files of rules are in force as they are now: 0 if the last change of them has failed, so that older rules stay in force.", []string{"rule"}, nil)
	reloadSuccess = prometheus.NewDesc("shaper_config_last_reload_success_timestamp_seconds",
		"When the rules in force were put in force.", []string{"rule"}, nil)
)

// Describe implements [prometheus.Collector].
func (rulesCollector) Describe(out chan<- *prometheus.Desc) {
	out <- reloadSuccessful
	out <- reloadSuccess
}

// Collect implements [prometheus.Collector].
func (rulesCollector) Collect(out chan<- prometheus.Metric) {
	for _, l := range running() {
		file := l.file()
		if file == nil {
			continue
		}
		st, successful := file.Status(), 1.
		if st.Err != nil {
			successful = 0
		}
		out <- prometheus.MustNewConstMetric(reloadSuccessful, prometheus.GaugeValue, successful, l.name)
		out <- prometheus.MustNewConstMetric(reloadSuccess, prometheus.GaugeValue, float64(st.Loaded.UnixMilli())/1e3, l.name)
	}
}
