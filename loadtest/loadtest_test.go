// Package loadtest_test keeps the load script and the demo that it is made for
// in step, without running either.
package loadtest_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// longestRun is what CI and the README promise.
const longestRun = 30 * time.Second

func TestScriptExpectsTheDemosAddressAndLimits(t *testing.T) {
	script, demo := readScript(t), demoConstants(t)
	require.Equal(t, "http://"+demo["defaultAddr"], find(t, script, `__ENV\.BASE_URL \|\| '(.*?)'`))

	l, err := shaper.ParseLimits(demo["defaultLimits"])
	require.NoError(t, err)
	require.Equal(t, strconv.FormatFloat(float64(l.Rate), 'f', -1, 64), find(t, script, `fromEnv\('RATE', (.*?)\)`))
	require.Equal(t, strconv.Itoa(l.Depth), find(t, script, `fromEnv\('DEPTH', (.*?)\)`))
	require.Equal(t, strconv.Itoa(max(l.Burst, 1)), find(t, script, `fromEnv\('BURST', (.*?)\)`))
}

func TestScriptReadsWhatTheDemoTells(t *testing.T) {
	script, demo := readScript(t), demoConstants(t)
	require.NotEmpty(t, demo["healthPath"])
	require.Contains(t, script, "${BASE_URL}"+demo["healthPath"]+"`")
	require.Equal(t, "Server-Timing", find(t, script, `\.exec\(res\.headers\['(.*?)'\]`))
}

// k6 is no dependency of ours, and building it takes 90 s: it is used if there.
func TestScriptLoadsInK6AndEndsInTime(t *testing.T) {
	k6, err := exec.LookPath("k6")
	if err != nil {
		const why = "k6 is not in PATH: go install go.k6.io/k6@v1.8.1"
		require.NotEqual(t, "1", os.Getenv("SHAPER_REQUIRE_ALL"), why)
		t.Skip(why)
	}
	cmd := exec.Command(k6, "inspect", "--execution-requirements", "k6.js")
	cmd.Env = append(os.Environ(), "K6_NO_USAGE_REPORT=true", "K6_AUTO_EXTENSION_RESOLUTION=false")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	var plan struct{ TotalDuration string }
	require.NoError(t, json.Unmarshal(out, &plan))
	total, err := time.ParseDuration(plan.TotalDuration)
	require.NoError(t, err)
	require.LessOrEqual(t, total, longestRun)
}

func readScript(t *testing.T) string {
	text, err := os.ReadFile("k6.js")
	require.NoError(t, err)
	return string(text)
}

func find(t *testing.T, script, pattern string) string {
	found := regexp.MustCompile(pattern).FindStringSubmatch(script)
	require.NotNilf(t, found, "k6.js has nothing that matches %s", pattern)
	return found[1]
}

// demoConstants returns the demo's constant strings by name. They are read from
// its sources, as nothing may import a command.
func demoConstants(t *testing.T) map[string]string {
	files, err := filepath.Glob("../cmd/shapedemo/*.go")
	require.NoError(t, err)
	constants := map[string]string{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, value := range spec.Values {
				if literal, ok := value.(*ast.BasicLit); ok && literal.Kind == token.STRING {
					text, err := strconv.Unquote(literal.Value)
					require.NoError(t, err)
					constants[spec.Names[i].Name] = text
				}
			}
			return true
		})
	}
	return constants
}
