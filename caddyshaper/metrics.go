package caddyshaper

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/llm/promledger"
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

// registerMetrics adds the metrics of all lines to the metrics of a configuration. Each
// configuration has a registry of its own.
func registerMetrics(ctx caddy.Context) error {
	registry := ctx.GetMetricsRegistry()
	if registry == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{collector(), rulesCollector{}, fleetsCollector{}, promledger.New(ledgers)} {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("the metrics of shape: %w", err)
		}
	}
	return nil
}

// ledgers returns the ledgers of gateways, by the names of their lines.
func ledgers() map[string]*gateway.Ledger {
	all := map[string]*gateway.Ledger{}
	for _, l := range running() {
		if l.ledger != nil {
			all[l.name] = l.ledger
		}
	}
	return all
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

// A fleetsCollector tells Prometheus which replica of a gateway has the line.
type fleetsCollector struct{}

var (
	replicaKeeper = prometheus.NewDesc("shaper_replica_keeper",
		"Whether this replica has the line. Over all replicas the sum is 1; for some seconds after a death it is 0.", []string{"rule"}, nil)
	replicaPassed = prometheus.NewDesc("shaper_replica_passed_total",
		"Calls that this replica has passed on to the one that has the line.", []string{"rule"}, nil)
)

// Describe implements [prometheus.Collector].
func (fleetsCollector) Describe(out chan<- *prometheus.Desc) {
	out <- replicaKeeper
	out <- replicaPassed
}

// Collect implements [prometheus.Collector].
func (fleetsCollector) Collect(out chan<- prometheus.Metric) {
	for _, f := range takingPart() {
		st, keeper := f.replica.Load().State(), 0.
		if st.Here {
			keeper = 1
		}
		out <- prometheus.MustNewConstMetric(replicaKeeper, prometheus.GaugeValue, keeper, f.key.name)
		out <- prometheus.MustNewConstMetric(replicaPassed, prometheus.CounterValue, float64(st.Passed), f.key.name)
	}
}

func init() {
	caddy.RegisterModule(new(Readiness))
	httpcaddyfile.RegisterHandlerDirective("shape_ready", parseReady)
	// In front of authentication, and of shape, in whose line a load balancer would wait.
	httpcaddyfile.RegisterDirectiveOrder("shape_ready", httpcaddyfile.Before, "redir")
	httpcaddyfile.RegisterHandlerDirective("shape_healthy", parseHealthy)
	httpcaddyfile.RegisterDirectiveOrder("shape_healthy", httpcaddyfile.Before, "redir")
}

// parseHealthy reads the directive shape_healthy, whose handler answers 200 as long as the process serves, in front of the
// line. It has nothing but a matcher.
func parseHealthy(helper httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	d := helper.Dispenser
	d.Next()
	if d.NextArg() || d.NextBlock(0) {
		return nil, d.Errf("shape_healthy has %q, but takes nothing but a matcher", d.Val())
	}
	return caddyhttp.StaticResponse{StatusCode: "200", Body: "healthy\n", Headers: http.Header{"Cache-Control": {"no-store"}}}, nil
}

// Readiness is the handler that tells load balancers whether to send requests here:
// http.handlers.shape_ready, in a Caddyfile shape_ready. It answers 200 and, from the moment
// at which the process is told to end, 503.
//
//	{
//		shutdown_delay 10s # so that load balancers have the time to ask
//		grace_period 30s   # for those in line
//	}
//	shop.example {
//		shape_ready /ready
//		…
//	}
//
// Caddy takes requests during its shutdown_delay as before. Then it takes no more, and the
// requests in line leave at their rate until the grace period is over. Without a shutdown_delay a
// load balancer finds no server at all, which tells it the same.
type Readiness struct{}

// CaddyModule implements [caddy.Module].
func (*Readiness) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.shape_ready", New: func() caddy.Module { return new(Readiness) }}
}

// ServeHTTP implements [caddyhttp.MiddlewareHandler].
func (*Readiness) ServeHTTP(w http.ResponseWriter, _ *http.Request, _ caddyhttp.Handler) error {
	return answerReady(w, nil)
}

// serveReady says at the admin endpoint whether the process is ready for requests, and how
// many wait in line, which strangers need not know.
func serveReady(w http.ResponseWriter, _ *http.Request) error {
	waiting := 0
	for _, l := range running() {
		waiting += l.waiting()
	}
	return answerReady(w, &waiting)
}

func answerReady(w http.ResponseWriter, waiting *int) error {
	ready := ready()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	return json.NewEncoder(w).Encode(struct {
		Ready   bool `json:"ready"`
		Waiting *int `json:"waiting,omitempty"`
	}{ready, waiting})
}

func parseReady(helper httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	h := new(Readiness)
	return h, h.UnmarshalCaddyfile(helper.Dispenser)
}

// UnmarshalCaddyfile reads the directive, which has nothing but a matcher:
//
//	shape_ready [<matcher>]
func (*Readiness) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the name of the directive
	if d.NextArg() {
		return d.ArgErr()
	}
	if d.NextBlock(0) {
		return d.Errf("shape_ready has no subdirective %q, nor any other", d.Val())
	}
	return nil
}

var (
	_ caddyhttp.MiddlewareHandler = (*Readiness)(nil)
	_ caddyfile.Unmarshaler       = (*Readiness)(nil)
)
