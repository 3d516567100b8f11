package deploy_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/promshaper"
	"example.com/leakybucket/shaper"
)

// A rule of rules.yml records or alerts.
type rule struct {
	Record      string
	Alert       string
	Expr        string
	Annotations map[string]string
}

func rules(t *testing.T) (all []rule) {
	var file struct{ Groups []struct{ Rules []rule } }
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "rules.yml")), &file))
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

func TestEachAlertFiresWhereItShould(t *testing.T) {
	promtool(t, "test", "rules", filepath.Join("testdata", "rules_test.yml"))
	tested, err := os.ReadFile(filepath.Join("testdata", "rules_test.yml"))
	require.NoError(t, err)
	for _, r := range rules(t) {
		if r.Alert == "" {
			require.Contains(t, string(tested), r.Record)
			continue
		}
		require.Containsf(t, string(tested), "- alertname: "+r.Alert+"\n", "it never fires")
		require.Containsf(t, string(tested), "- {alertname: "+r.Alert+",", "it is never quiet")
	}
}

// An alert without a section leaves whoever is woken by it alone, and a section without an alert is not read.
func TestTheDocumentSaysOfEachAlertWhatToDo(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "operating.md"))
	require.NoError(t, err)
	var sections, alerts []string
	for _, heading := range regexp.MustCompile(`(?m)^### (Shaper\w+)$`).FindAllStringSubmatch(string(text), -1) {
		sections = append(sections, heading[1])
	}
	for _, r := range rules(t) {
		if r.Alert != "" {
			alerts = append(alerts, r.Alert)
			require.Equal(t, "docs/operating.md#"+strings.ToLower(r.Alert), r.Annotations["runbook"])
		}
	}
	require.Equal(t, alerts, sections)
}

// caddyshaper has two metrics of its own, which need a server to be exposed.
var ofCaddy = regexp.MustCompile(`"(shaper_config_\w+)"`)

func TestRulesAskOnlyForWhatIsExposed(t *testing.T) {
	exposed := exposedMetrics(t)
	text, err := os.ReadFile(filepath.Join(root, "caddyshaper", "metrics.go"))
	require.NoError(t, err)
	for _, m := range ofCaddy.FindAllStringSubmatch(string(text), -1) {
		exposed[m[1]] = map[string][]string{"rule": nil}
	}
	recorded := regexp.MustCompile(`\w+:\w+:\w+`)
	for _, r := range rules(t) {
		for _, s := range selector.FindAllStringSubmatch(recorded.ReplaceAllString(r.Expr, ""), -1) {
			name := strings.TrimSuffix(s[1], "_bucket")
			require.Containsf(t, exposed, name, "in %s%s", r.Record, r.Alert)
			for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
				require.Contains(t, exposed[name][m[1]], m[3])
			}
		}
		for _, name := range recorded.FindAllString(r.Expr, -1) {
			require.True(t, slices.ContainsFunc(rules(t), func(r rule) bool { return r.Record == name }), "%s is recorded", name)
		}
	}
}

// A Prometheus that takes native histograms has no classic ones, and another has no native ones. Whatever asks
// for a histogram must find it in both.
func TestBoardAndRulesWorkWithBothFormsOfHistograms(t *testing.T) {
	t.Parallel()
	binary := servers.Need(t, "apt-get install prometheus", "prometheus")
	var asked []string
	all, _ := expressions(t)
	variables := strings.NewReplacer("$__rate_interval", "1m", "$rule", ".*")
	for _, expr := range all {
		if strings.HasPrefix(expr, "histogram_") {
			asked = append(asked, variables.Replace(expr))
		}
	}
	for _, r := range rules(t) {
		if strings.HasPrefix(r.Expr, "histogram_") {
			asked = append(asked, r.Expr)
		}
	}
	require.Len(t, asked, 5)
	s, err := shaper.New(shaper.Limits{Rate: 1000, Depth: 100})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	registry, collector := prometheus.NewRegistry(), promshaper.New()
	require.NoError(t, registry.Register(collector))
	_, err = collector.Add("site", promshaper.Of(s))
	require.NoError(t, err)
	exposed := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range 10 { // Each scrape finds higher counts, and all but one of these have waited.
			if s.WaitN(r.Context(), 1) != nil {
				return // The one that scrapes has ended.
			}
		}
		exposed.ServeHTTP(w, r)
	}))
	t.Cleanup(target.Close)

	for name, options := range map[string][]string{"classic": nil, "native": {"--enable-feature=native-histograms"}} {
		t.Run(name, func(t *testing.T) {
			address := startPrometheus(t, binary, target.URL, options)
			for _, expr := range asked {
				realtime.Until(t, func() bool { return len(query(t, address, expr)) == 1 }, expr)
			}
			require.Equal(t, name == "classic", len(query(t, address, "shaper_wait_seconds_bucket")) > 0)
			require.Equal(t, name == "native", len(query(t, address, "shaper_wait_seconds")) > 0)
		})
	}
}

// startPrometheus runs a Prometheus that scrapes one target each second, and returns its address.
func startPrometheus(t *testing.T, binary, target string, options []string) (address string) {
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs:\n  - job_name: test\n    static_configs:\n      - targets: [%q]\n",
		strings.TrimPrefix(target, "http://"))
	file := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	address = fmt.Sprintf("127.0.0.1:%d", servers.FreePort(t))
	cmd := exec.Command(binary, append([]string{"--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"),
		"--web.listen-address=" + address, "--log.level=error"}, options...)...)
	servers.Start(t, cmd).Until(func() bool {
		status, _ := get("http://" + address + "/-/ready")
		return status == http.StatusOK
	}, "Prometheus is ready")
	return address
}

// query returns the series that an expression gives now.
func query(t *testing.T, address, expr string) []json.RawMessage {
	status, text := get("http://" + address + "/api/v1/query?query=" + url.QueryEscape(expr))
	require.Equal(t, http.StatusOK, status, text)
	var answer struct {
		Data struct{ Result []json.RawMessage }
	}
	require.NoError(t, json.Unmarshal([]byte(text), &answer))
	// A quantile of nothing is NaN: no call has been counted twice yet.
	return slices.DeleteFunc(answer.Data.Result, func(series json.RawMessage) bool { return strings.Contains(string(series), `"NaN"`) })
}
