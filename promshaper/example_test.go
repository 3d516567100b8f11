package promshaper_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/leakybucket/promshaper"
	"example.com/leakybucket/shaper"
)

// An upstream gets 50 requests per second, and each client may send one in ten seconds, two of
// them at once. Prometheus is told of both.
func Example() {
	upstream, err := shaper.New(shaper.Limits{Rate: 50, Depth: 500})
	if err != nil {
		log.Fatal(err)
	}
	defer upstream.Close()
	clients, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
		return shaper.Limits{Rate: 0.1, Burst: 2}, nil
	})
	if err != nil {
		log.Fatal(err)
	}
	defer clients.Close()

	registry := prometheus.NewRegistry() // or the default one: prometheus.MustRegister
	c := promshaper.New()
	registry.MustRegister(c)
	remove, err := c.Add("upstream", promshaper.Of(upstream))
	if err != nil {
		log.Fatal(err)
	}
	defer remove() // A Shaper that is no longer used would be told for ever.
	removeClients, err := c.Add("clients", promshaper.OfGroup(clients))
	if err != nil {
		log.Fatal(err)
	}
	defer removeClients()
	metrics := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})

	for range 3 { // The third is refused: it is one too many at once, and nobody waits here.
		if clients.Wait(context.Background(), "10.0.0.1") == nil {
			upstream.Wait(context.Background())
		}
	}

	answer := httptest.NewRecorder()
	metrics.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(answer.Body.String()) {
		if strings.HasPrefix(line, "shaper_requests_total") {
			fmt.Print(line)
		}
	}
	// Output:
	// shaper_requests_total{result="abandoned",rule="clients"} 0
	// shaper_requests_total{result="abandoned",rule="upstream"} 0
	// shaper_requests_total{result="departed",rule="clients"} 2
	// shaper_requests_total{result="departed",rule="upstream"} 2
	// shaper_requests_total{result="refused",rule="clients"} 1
	// shaper_requests_total{result="refused",rule="upstream"} 0
}
