// Package loadtest_test keeps the load script and the demo that it is made for
// in step, without running either.
package loadtest_test

import (
	"encoding/json"
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
	script := readScript(t)
	require.Equal(t, "http://"+demoConstant(t, "defaultAddr"), find(t, script, `__ENV\.BASE_URL \|\| '(.*?)'`))

	l, err := shaper.ParseLimits(demoConstant(t, "defaultLimits"))
	require.NoError(t, err)
	require.Equal(t, strconv.FormatFloat(float64(l.Rate), 'f', -1, 64), find(t, script, `fromEnv\('RATE', (.*?)\)`))
	require.Equal(t, strconv.Itoa(l.Depth), find(t, script, `fromEnv\('DEPTH', (.*?)\)`))
	require.Equal(t, strconv.Itoa(max(l.Burst, 1)), find(t, script, `fromEnv\('BURST', (.*?)\)`))
}

func TestScriptReadsWhatTheDemoTells(t *testing.T) {
	script := readScript(t)
	require.Contains(t, script, "${BASE_URL}"+demoConstant(t, "healthPath")+"`")
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

// demoConstant returns the text of a constant of the demo. It is read from the sources, as nothing may
// import a command.
func demoConstant(t *testing.T, name string) string {
	files, err := filepath.Glob("../cmd/shapedemo/*.go")
	require.NoError(t, err)
	constant := regexp.MustCompile(`(?m)^\s*(?:const )?` + name + `\s*= "(.+)"`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if found := constant.FindSubmatch(text); found != nil {
			return string(found[1])
		}
	}
	require.Fail(t, "the demo has no such constant", name)
	return ""
}
