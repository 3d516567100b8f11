package caddyshaper

import (
	"fmt"
	"sync"

	"github.com/caddyserver/caddy/v2"
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
	if err := registry.Register(collector()); err != nil {
		return fmt.Errorf("the metrics of shape: %w", err)
	}
	return nil
}
