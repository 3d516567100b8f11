// Package shaperd_test runs two shaperd with one Redis under load, while one of them and
// Redis are killed.
package shaperd_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/shaper"
)

var load = flag.Bool("load", false, "run the load test, which takes a minute and wants the machine for itself")

// longestRun is what the README promises, without what is built.
const longestRun = time.Minute

func TestScriptLoadsInK6AndEndsInTime(t *testing.T) {
	cmd := exec.Command(k6(t), "inspect", "--include-system-env-vars", "--execution-requirements", "k6.js")
	cmd.Env = environment(t, "http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3")
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

func TestTheLimitHoldsWhileServersDie(t *testing.T) {
	if !*load {
		t.Skip("it is run by go test ./loadtest/shaperd -load")
	}
	tool := k6(t)
	redis, seen := servers.StartRedis(t), &upstream{}
	backend := httptest.NewServer(seen)
	defer backend.Close()
	program := servers.BuildShaperd(t)
	first, second := start(t, program, redis, backend), start(t, program, redis, backend)

	// k6 orders, and the goroutine of the test carries out: what starts and kills servers
	// may fail the test.
	orders, carriedOut := make(chan string), make(chan struct{})
	control := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/upstream" {
			_ = json.NewEncoder(w).Encode(map[string]int{"most_in_a_second": seen.mostInASecond()})
			return
		}
		orders <- r.URL.Path
		<-carriedOut
	}))
	defer control.Close()

	log := filepath.Join(t.TempDir(), "k6.log") // It has a line for each request to what was killed.
	cmd := exec.Command(tool, "run", "--quiet", "--log-output=file="+log, "k6.js")
	cmd.Env = append(environment(t, control.URL, first.url, second.url), "SUMMARY_DIR="+filepath.Dir(log))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1) // One value, which nobody may take if an order fails.
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case order := <-orders:
			t.Logf("order: %s", order)
			switch order {
			case "/redis/kill":
				redis.Kill()
			case "/redis/start":
				redis.Restart()
			case "/shaperd/kill":
				second.Kill()
			default:
				require.Fail(t, "k6 orders what nobody knows", order)
			}
			carriedOut <- struct{}{}
		case err := <-ended:
			require.NoError(t, err, "99: a threshold is crossed\n%s", errorsOf(t, log))
			// k6 ends with 0 too if the script has failed in its summary.
			require.FileExists(t, filepath.Join(filepath.Dir(log), "summary.json"))
			return
		}
	}
}

// errorsOf returns the errors in a log of k6.
func errorsOf(t *testing.T, log string) (text string) {
	t.Helper()
	all, err := os.ReadFile(log)
	require.NoError(t, err)
	for line := range strings.Lines(string(all)) {
		if strings.Contains(line, "level=error") {
			text += line
		}
	}
	return text
}

// k6 returns the path of k6, which is no dependency of ours: building it takes 90 s.
func k6(t *testing.T) string {
	t.Helper()
	return servers.Need(t, "go install go.k6.io/k6@v1.8.1", "k6")
}

// environment returns what the script needs to know. The limits are those of the Caddyfile.
func environment(t *testing.T, control string, fronts ...string) []string {
	t.Helper()
	text, err := os.ReadFile("Caddyfile")
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^\s*limits (.*)$`).FindSubmatch(text)
	require.NotNil(t, found, "the Caddyfile has no limits")
	l, err := shaper.ParseLimits(string(found[1]))
	require.NoError(t, err)
	return append(os.Environ(), "K6_NO_USAGE_REPORT=true", "K6_AUTO_EXTENSION_RESOLUTION=false",
		"CONTROL="+control, "FRONTS="+strings.Join(fronts, ","),
		fmt.Sprintf("RATE=%g", float64(l.Rate)), fmt.Sprintf("BURST=%d", l.Burst), fmt.Sprintf("DEPTH=%d", l.Depth))
}

// A front is a shaperd that runs.
type front struct {
	*servers.Process
	url string
}

// start starts a shaperd with the Caddyfile, and returns when it answers.
func start(t *testing.T, program string, redis *servers.Redis, backend *httptest.Server) front {
	t.Helper()
	port := servers.FreePort(t)
	caddyfile, err := filepath.Abs("Caddyfile")
	require.NoError(t, err)
	command := servers.Shaperd(t, program, "run", "--config", caddyfile)
	command.Env = append(command.Env, fmt.Sprintf("FRONT_PORT=%d", port), "REDIS="+redis.Addr, "UPSTREAM="+backend.Listener.Addr().String())
	f := front{servers.Start(t, command), fmt.Sprintf("http://127.0.0.1:%d", port)}
	f.Until(func() bool {
		answer, err := http.Get(f.url)
		if err != nil {
			return false
		}
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusOK, answer.StatusCode)
		return true
	}, "it answers")
	return f
}

// An upstream notes when requests come.
type upstream struct {
	mu   sync.Mutex
	came []time.Time
}

func (u *upstream) ServeHTTP(http.ResponseWriter, *http.Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.came = append(u.came, time.Now())
}

// mostInASecond returns the most requests that have come within one second.
func (u *upstream) mostInASecond() (most int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	slices.SortFunc(u.came, time.Time.Compare)
	first := 0
	for i, at := range u.came {
		for at.Sub(u.came[first]) >= time.Second {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}
