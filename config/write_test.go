package config_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/config"
)

func TestRulesAreWrittenOut(t *testing.T) {
	text, err := parse(t, example).MarshalText()
	require.NoError(t, err)
	require.Equal(t, `default: 20/s depth 50
limits:
  "api": 50/s depth 100
  "api/192.168.11.3": 100/s burst 500 depth 0
  "api/premium": {rate: 200/s, depth: 400, wait: 2s, candidate: 100/s depth 200}
  "login": 5/min burst 5 depth 0
`, string(text))
	text, err = parse(t, "default: ~").MarshalText()
	require.NoError(t, err)
	require.Equal(t, "limits: {}\n", string(text))
	text, err = parse(t, "default: 1/s").MarshalText()
	require.NoError(t, err)
	require.Equal(t, "default: 1/s depth 0\n", string(text))
}

func TestTooManyRulesForOneFileAreNotWritten(t *testing.T) {
	// Written out, each of these characters takes three times as much.
	var text strings.Builder
	text.WriteString("limits:\n")
	for i := range 2200 {
		text.WriteString("  " + base62(i) + strings.Repeat("\u2060", 80) + ": 1/s\n")
	}
	_, err := parse(t, text.String()).MarshalText()
	require.ErrorContains(t, err, "config: 2200 rules in 1")
}

// without returns the rules without the place where they stand.
func without(rules *config.Rules) (all []config.Rule) {
	for _, rule := range slices.Collect(rules.All()) {
		rule.Line, rule.File = 0, ""
		all = append(all, rule)
	}
	return all
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		example, "", "limits: {}", "default: ~", "limits: {a: ~, b: 1 per 3s slack 1us}", "limits: {a/-/%2D/x%2Fy%25: '3, 1/s'}",
		"limits:\n ? \"\\x00é\\u2028\"\n : {rate: inf, candidate: {rate: 7/d, burst: 2}}", "default: {rate: 1/s, burts: 2, rate: 3/s}",
		"a: &a [*a]", "default: !!str 1/s", "--- 1\n--- 2", "limits: {? [a] : b}", "default: |\n 1/s", "default: 1/s # x\n\n#y\n",
		"default: '1/s' \nlimits:\n  \"a b\": 10/min wait 1.5h depth 7 # c", "%YAML 1.2\n---\ndefault: 1/s\n...", "limits: {<<: {a: 1/s}}",
		"default: 0.1/s", "default: 0.3333333333/d", "default: 1e3/s", "\ufeffdefault: 1/s\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		requireSchemaAgrees(t, text)
		rules, err := config.Parse("f", text)
		if err != nil {
			require.Nil(t, rules)
			for _, one := range err.(config.Errors) {
				require.NotEmpty(t, one.Message)
				require.GreaterOrEqual(t, one.Line, 0)
				require.Equal(t, one.Line > 0, one.Column > 0, one)
				require.LessOrEqual(t, len(one.Text), 60+len("…"))
			}
			return
		}
		var keys []string
		for rule := range rules.All() {
			require.NoError(t, rule.Limits.Validate())
			if rule.Candidate != nil {
				require.NoError(t, rule.Candidate.Validate())
			}
			require.Equal(t, "f", rule.File)
			require.Positive(t, rule.Line)
			keys = append(keys, rule.Key)

			explained, ok := rules.Explain(rule.Key)
			require.True(t, ok)
			require.Equal(t, rule, explained)
		}
		require.True(t, slices.IsSorted(keys))
		require.Len(t, slices.Compact(slices.Clone(keys)), len(keys))

		for _, key := range append(keys, "", "a/b", "/", string(text)) {
			for _, key := range []string{key, key + "/x", key + "x", key + "/", key[:len(key)/2]} {
				want, ok := longestPrefix(keys, key)
				explained, found := rules.Explain(key)
				require.Equal(t, ok, found, "%q", key)
				require.Equal(t, want, explained.Key, "%q", key)
				l, err := rules.Limits(key)
				require.Equal(t, ok, err == nil)
				require.Equal(t, explained.Limits, l)
			}
		}

		written, err := rules.MarshalText()
		require.NoError(t, err)
		again, err := config.Parse("f", written)
		require.NoError(t, err, "%s", written)
		require.Equal(t, without(rules), without(again), "%s", written)
	})
}

// longestPrefix is the obvious look-up that the real one is compared with.
func longestPrefix(rules []string, key string) (best string, ok bool) {
	for _, rule := range rules {
		if rule == "" || key == rule || strings.HasPrefix(key, rule+"/") {
			if !ok || len(rule) > len(best) {
				best, ok = rule, true
			}
		}
	}
	return best, ok
}
