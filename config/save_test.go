package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/config"
)

// What editors, deploy scripts and orchestrators do to a file, each of them twice.
func TestEveryWayToSaveAFileIsNoticed(t *testing.T) {
	for _, c := range []struct {
		name string
		// prepare makes the first file, whose path it returns.
		prepare func(t *testing.T, dir, text string) string
		save    func(t *testing.T, path, text string)
	}{
		{"in place", plain, func(t *testing.T, path, text string) {
			write(t, "", path, text)
		}},
		{"rename over", plain, func(t *testing.T, path, text string) {
			write(t, "", path+".new", text)
			require.NoError(t, os.Rename(path+".new", path))
		}},
		{"move away and create", plain, func(t *testing.T, path, text string) {
			require.NoError(t, os.Rename(path, path+"~"))
			write(t, "", path, text)
		}},
		{"delete and recreate", plain, func(t *testing.T, path, text string) {
			require.NoError(t, os.Remove(path))
			time.Sleep(300 * time.Millisecond)
			write(t, "", path, text)
		}},
		{"the folder is replaced", plain, func(t *testing.T, path, text string) {
			dir := filepath.Dir(path)
			require.NoError(t, os.Mkdir(dir+".new", 0o755))
			write(t, dir+".new", filepath.Base(path), text)
			require.NoError(t, os.RemoveAll(dir))
			require.NoError(t, os.Rename(dir+".new", dir))
		}},
		{"ConfigMap", configMap, func(t *testing.T, path, text string) {
			old, err := os.Readlink(filepath.Join(filepath.Dir(path), "..data"))
			require.NoError(t, err)
			newVersion(t, filepath.Dir(path), text)
			require.NoError(t, os.RemoveAll(filepath.Join(filepath.Dir(path), old)))
		}},
		{"behind a link", linked, func(t *testing.T, path, text string) {
			target, err := os.Readlink(path)
			require.NoError(t, err)
			write(t, "", target+".new", text)
			require.NoError(t, os.Rename(target+".new", target))
		}},
		{"another link", linked, func(t *testing.T, path, text string) {
			target, err := os.Readlink(path)
			require.NoError(t, err)
			require.NoError(t, os.Symlink(write(t, "", target+"+", text), path+".new"))
			require.NoError(t, os.Rename(path+".new", path))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "conf")
				require.NoError(t, os.Mkdir(dir, 0o755))
				path := c.prepare(t, dir, "default: 1/s")
				f, err := config.Open(path)
				require.NoError(t, err)
				defer f.Close()
				for i := 2; i < 4; i++ {
					c.save(t, path, fmt.Sprintf("default: %d/s", i))
					settle()
					require.EqualValues(t, i, rateOf(t, f))
					require.NoError(t, f.Status().Err)
				}
			})
		})
	}
}

func plain(t *testing.T, dir, text string) string { return write(t, dir, "f.yaml", text) }

// linked returns a link to a file in another folder.
func linked(t *testing.T, dir, text string) string {
	path := filepath.Join(dir, "f.yaml")
	require.NoError(t, os.Symlink(write(t, t.TempDir(), "target.yaml", text), path))
	return path
}

// configMap lays files out as Kubernetes mounts a ConfigMap: the file is a link into
// ..data, and that a link to a folder of this version.
func configMap(t *testing.T, dir, text string) string {
	newVersion(t, dir, text)
	path := filepath.Join(dir, "f.yaml")
	require.NoError(t, os.Symlink("..data/f.yaml", path))
	return path
}

// newVersion replaces ..data as Kubernetes does.
func newVersion(t *testing.T, dir, text string) {
	version, err := os.MkdirTemp(dir, "..2026_")
	require.NoError(t, err)
	write(t, version, "f.yaml", text)
	require.NoError(t, os.Symlink(filepath.Base(version), filepath.Join(dir, "..data_tmp")))
	require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
}

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

// fairWithout returns what rules say of fair queueing, without the place where it stands.
func fairWithout(rules *config.Rules) config.Fair {
	fair, _ := rules.ExplainFair()
	fair.File, fair.Line = "", 0
	for i := range fair.Weights {
		fair.Weights[i].Line = 0
	}
	return fair
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		example, "", "limits: {}", "default: ~", "limits: {a: ~, b: 1 per 3s slack 1us}", "limits: {a/-/%2D/x%2Fy%25: '3, 1/s'}",
		"limits:\n ? \"\\x00é\\u2028\"\n : {rate: inf, candidate: {rate: 7/d, burst: 2}}", "default: {rate: 1/s, burts: 2, rate: 3/s}",
		"a: &a [*a]", "default: !!str 1/s", "--- 1\n--- 2", "limits: {? [a] : b}", "default: |\n 1/s", "default: 1/s # x\n\n#y\n",
		"default: '1/s' \nlimits:\n  \"a b\": 10/min wait 1.5h depth 7 # c", "%YAML 1.2\n---\ndefault: 1/s\n...", "limits: {<<: {a: 1/s}}",
		"default: 0.1/s", "default: 0.3333333333/d", "default: 1e3/s", "\ufeffdefault: 1/s\r\n", "\ufeffdefault: 1/s\r",
		"default: 1/s\nfair:\n  by: header X-Team\n  weights: {gold: 4, \"a\\u2028\": 1000}", "fair: {by: header # host, weights: {a/b: 2}}", "fair: ~", "fair: {by: &a host}",
		"# c\n%TAG ! x:\n%YAML 1.2 # c\n--- {default: 9 in 1min burst 3 depth 2}", "limits: {a: {rate: 9 in 1s, burst: 9, candidate: {slack: 1h, rate: 020 in 1.5h}}}",
		"default: 1/s # \x7f", "default: 1/s\u0085", "limits: {\"a\u2028b\": 1/s}",
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
		require.Equal(t, fairWithout(rules), fairWithout(again), "%s", written)

		by, weight, fair := rules.Fair()
		explained, ok := rules.ExplainFair()
		require.Equal(t, fair, ok)
		require.Equal(t, explained.By, by)
		if fair {
			require.Empty(t, keys[1:], "beside fair there is the default alone")
			require.Equal(t, 1, weight("/"))
		}
		for _, w := range explained.Weights {
			require.Equal(t, w.Weight, weight(w.Key))
			require.True(t, 1 <= w.Weight && w.Weight <= 1000)
			require.Positive(t, w.Line)
		}
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
