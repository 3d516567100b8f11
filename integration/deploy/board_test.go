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
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/llm/promledger"
	"example.com/leakybucket/promshaper"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// folder is the one that all tests are about.
const folder = "../../deploy"

// expressions returns all expressions of PromQL in the board, with the variables of Grafana, and
// the uids of all sources that it asks.
func expressions(t *testing.T) (all, sources []string) {
	text, err := os.ReadFile(filepath.Join(folder, "grafana", "shaper.json"))
	require.NoError(t, err)
	var board any
	require.NoError(t, json.Unmarshal(text, &board))
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, one := range v {
				walk(one)
			}
		case map[string]any:
			for name, one := range v {
				switch text, isText := one.(string); {
				case name == "expr", name == "query" && isText:
					all = append(all, text)
				case name == "datasource":
					sources = append(sources, one.(map[string]any)["uid"].(string))
				}
				walk(one)
			}
		}
	}
	walk(board)
	require.NotEmpty(t, all)
	return all, sources
}

var (
	selector = regexp.MustCompile(`(shaper_\w+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)(=~|=)"([^"]*)"`)
	grouping = regexp.MustCompile(`by \(([^)]*)\)`)
)

// A panel whose metric has another name, or another label, stays empty without a word.
func TestBoardAsksOnlyForWhatIsExposed(t *testing.T) {
	exposed := exposedMetrics(t)
	asked := map[string]bool{}
	all, _ := expressions(t)
	for _, expr := range all {
		labels := []string{"instance"} // of every series that Prometheus has scraped
		for _, s := range selector.FindAllStringSubmatch(expr, -1) {
			name, isBucket := strings.CutSuffix(s[1], "_bucket")
			values, ok := exposed[name]
			require.Truef(t, ok, "%s is in the board, and not exposed: %s", name, expr)
			if values["le"] != nil {
				require.Containsf(t, expr, name+"_bucket{", "%s in the classic form", name)
				require.Containsf(t, expr, name+"{", "%s in the native form", name)
			} else {
				require.Falsef(t, isBucket, "%s is no histogram: %s", name, expr)
			}
			asked[name] = true
			for label := range values {
				labels = append(labels, label)
			}
			for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
				require.Containsf(t, values, m[1], "the labels of %s: %s", name, expr)
				if m[2] == "=" {
					require.Containsf(t, values[m[1]], m[3], "the values of label %s of %s: %s", m[1], name, expr)
				}
			}
		}
		for _, by := range grouping.FindAllStringSubmatch(expr, -1) {
			for label := range strings.SplitSeq(by[1], ", ") {
				require.Containsf(t, labels, label, "the labels in %s", expr)
			}
		}
	}
	// What a shaper tells and the board does not show is nothing that an operator will see.
	for name := range exposed {
		require.Truef(t, asked[name], "%s is exposed, and not in the board", name)
	}
}

// What waits is the sum of all processes, each of which has places of its own: the limit of one would look as
// if the line were longer than it may be.
func TestTheBoardAddsUpLimitsAsItAddsUpWhatTheyLimit(t *testing.T) {
	all, _ := expressions(t)
	for _, what := range []string{"waiting_requests", "in_flight_requests"} {
		for _, metric := range []string{"shaper_" + what, "shaper_limit_" + what} {
			require.Contains(t, all, "sum by (rule) ("+metric+`{rule=~"$rule"})`)
		}
	}
	require.Contains(t, all, `max by (rule) (shaper_bucket_limit_seats{rule=~"$rule"})`) // Each process tells the cap of all.
}

// exposedMetrics returns the metrics that a Collector has of sources of all kinds: for each its
// labels, and for each label its values.
func exposedMetrics(t *testing.T) map[string]map[string][]string {
	exposed := map[string]map[string][]string{}
	synctest.Test(t, func(t *testing.T) {
		for _, family := range gather(t) {
			labels := map[string][]string{}
			for _, m := range family.GetMetric() {
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = append(labels[l.GetName()], l.GetValue())
				}
			}
			if family.GetType() == dto.MetricType_HISTOGRAM {
				labels["le"] = []string{}
			}
			exposed[family.GetName()] = labels
		}
	})
	return exposed
}

func gather(t *testing.T) []*dto.MetricFamily {
	memory := buckettest.NewMemory()
	memory.SetDelay(time.Millisecond, time.Millisecond)
	limits, err := shaper.ParseLimits("10/s depth 50 wait 20s inflight 100")
	require.NoError(t, err)
	single, err := shaper.New(limits)
	require.NoError(t, err)
	shared, err := shaper.New(limits, shaper.WithBucket(memory, "shared", shared.Options{InFlight: 200}))
	require.NoError(t, err)
	group, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return limits, nil })
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, single.Close())
		require.NoError(t, shared.Close())
		require.NoError(t, group.Close())
	})
	for range 20 {
		release, err := shared.Acquire(t.Context(), 1)
		require.NoError(t, err)
		release()
	}

	c := promshaper.New()
	for name, source := range map[string]promshaper.Source{
		"single": promshaper.Of(single), "shared": promshaper.Of(shared), "group": promshaper.OfGroup(group),
	} {
		_, err := c.Add(name, source)
		require.NoError(t, err)
	}
	models, err := gateway.New(gateway.Config{Provider: "openai", Quota: llm.Quota{Requests: 1}, Line: func() *shaper.Shaper { return single }})
	require.NoError(t, err)
	models.Begin()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	require.NoError(t, registry.Register(promledger.New(func() map[string]*gateway.Ledger {
		return map[string]*gateway.Ledger{"models": models.Ledger()}
	})))
	families, err := registry.Gather()
	require.NoError(t, err)
	return families
}

// promtool is Prometheus's own judge of its files.
func promtool(t *testing.T, args ...string) {
	text, err := command(t, "promtool", "prometheus", args...).CombinedOutput()
	require.NoErrorf(t, err, "promtool %s\n%s", strings.Join(args, " "), text)
}

func TestPrometheusTakesItsFile(t *testing.T) {
	promtool(t, "check", "config", filepath.Join(folder, "prometheus.yml"))
}

func TestPrometheusUnderstandsTheBoard(t *testing.T) {
	type rule struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var rules []rule
	all, _ := expressions(t)
	variables := strings.NewReplacer("$__rate_interval", "1m", "$rule", ".*")
	for _, expr := range slices.Compact(slices.Sorted(slices.Values(all))) {
		if !strings.HasPrefix(expr, "label_values(") { // That is a function of Grafana.
			rules = append(rules, rule{"board:expression", variables.Replace(expr)})
		}
	}
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "board", "rules": rules}}})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "rules.yml")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	promtool(t, "check", "rules", "--lint=none", file)
}

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
