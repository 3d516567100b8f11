package deploy_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

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
	shared, err := shaper.New(limits, shaper.WithBucket(memory, "shared", shared.Options{}))
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
