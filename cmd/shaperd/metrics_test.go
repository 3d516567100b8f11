package main_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"
)

// ours returns the lines of a page of metrics that are about the shaper.
func ours(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if regexp.MustCompile(`^(# (HELP|TYPE) )?shaper_`).MatchString(line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

func TestCaddysMetricsHaveThoseOfTheShaper(t *testing.T) {
	s := serveShop(t)
	for range 4 {
		mustGet(t, s.front+"/login", "Client", "Ann")
	}
	metrics := func() string {
		a := mustGet(t, s.admin+"/metrics")
		require.Equal(t, http.StatusOK, a.status)
		return ours(a.body)
	}
	problems, err := promlint.New(strings.NewReader(metrics())).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
	require.Contains(t, metrics(), `shaper_requests_total{result="departed",rule="login"} 3`)
	require.Contains(t, metrics(), `shaper_refusals_total{reason="queue_full",rule="login"} 1`)
	require.Contains(t, metrics(), `shaper_limit_units_per_second{rule="shop/site"} 1000`)
	require.NotContains(t, metrics(), "Ann", "a key in a label would be a time series for each client, for ever")

	// Each configuration has a registry of its own; counters go on.
	s.reload("site 1000/s", "site 2000/s")
	mustGet(t, s.front+"/login", "Client", "Ann")
	require.Contains(t, metrics(), `shaper_refusals_total{reason="queue_full",rule="login"} 2`)
	require.Contains(t, metrics(), `shaper_limit_units_per_second{rule="shop/site"} 2000`)
	s.reload("shape login", "shape entry")
	require.NotContains(t, metrics(), `"login"`)
	require.Contains(t, metrics(), `shaper_requests_total{result="departed",rule="entry"} 0`)
}
