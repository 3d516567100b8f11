package main_test

import (
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

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

// A broken ConfigMap must not stay unnoticed until somebody reads the log.
func TestMetricsTellThatChangedRulesAreNotInForce(t *testing.T) {
	begun := float64(time.Now().UnixMilli()) / 1e3
	rules := writeFile(t, "shaper.yaml", "default: 1000/s burst 1000\n")
	s := serveSite(t, "metrics /metrics\nshape shop {\nrules "+rules+"\n}\nshape /other other {\nlimits 1/s\n}\nreverse_proxy")
	value := func(name string) float64 {
		m := regexp.MustCompile(`(?m)^` + name + `\{rule="shop"\} (\S+)$`).FindStringSubmatch(mustGet(t, s.url+"/metrics").body)
		require.NotNil(t, m, name)
		v, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		return v
	}
	const successful, at = "shaper_config_last_reload_successful", "shaper_config_last_reload_success_timestamp_seconds"
	require.Equal(t, 1., value(successful))
	loaded := value(at)
	require.GreaterOrEqual(t, loaded, begun)
	problems, err := promlint.New(strings.NewReader(ours(mustGet(t, s.url+"/metrics").body))).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
	require.NotRegexp(t, successful+`\{rule="other"`, mustGet(t, s.url+"/metrics").body, "its limits are in no file")

	require.NoError(t, os.WriteFile(rules, []byte("default: 1/parsec\n"), 0o600))
	s.Until(func() bool { return value(successful) == 0 }, "the change has failed")
	require.Equal(t, loaded, value(at))
	require.NoError(t, os.WriteFile(rules, []byte("default: 1000/s burst 2000\n"), 0o600))
	s.Until(func() bool { return value(successful) == 1 }, "the next change is in force")
	require.Greater(t, value(at), loaded)

	alerts, err := os.ReadFile("../../deploy/rules.yml")
	require.NoError(t, err)
	require.Contains(t, string(alerts), "expr: "+successful+" == 0\n")
	text, err := os.ReadFile(guide)
	require.NoError(t, err)
	require.Contains(t, string(text), at)
}
