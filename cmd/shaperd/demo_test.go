package main_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
)

// A demo is a demonstration that serves, with the addresses that it has printed.
type demo struct {
	*servers.Process
	front, page, upstream string
}

var printed = regexp.MustCompile(`(front|page|upstream) +(http://127\.0\.0\.1:\d+) `)

func startDemo(t *testing.T) demo {
	t.Helper()
	d := demo{Process: start(t)}
	d.Says("shaperd run\n")
	urls := map[string]string{}
	for _, found := range printed.FindAllStringSubmatch(d.Output(), -1) {
		urls[found[1]] = found[2]
	}
	require.Len(t, urls, 3, d.Output())
	d.front, d.page, d.upstream = urls["front"], urls["page"], urls["upstream"]
	return d
}

func TestTheDemonstrationShowsWhatTheShaperIsFor(t *testing.T) {
	d := startDemo(t)
	require.Equal(t, map[int]int{http.StatusOK: 30}, getAll(30, d.front)())
	require.Contains(t, mustGet(t, d.upstream+"/upstream").body, "served 30\nfailed 0\nbroke down 0\n")

	page := mustGet(t, d.page)
	require.Equal(t, http.StatusOK, page.status)
	require.Contains(t, page.body, "<table")
	require.Contains(t, mustGet(t, d.page+"/api/buckets").body, `"departed":30`)

	// Without the shaper the upstream must break down. A slow client may spread its requests.
	d.Until(func() bool {
		got := getAll(100, d.upstream)()
		return got[http.StatusOK] < 100 && !strings.Contains(mustGet(t, d.upstream+"/upstream").body, "broke down 0")
	}, "the upstream breaks down")
}

// A demonstration that shared files or addresses with a Caddy that runs already could end
// its service.
func TestTheDemonstrationLeavesAnotherCaddyAlone(t *testing.T) {
	for _, address := range []string{"127.0.0.1:2019", "127.0.0.1:8480", "127.0.0.1:8481", "127.0.0.1:8482"} {
		l, err := net.Listen("tcp", address)
		if err == nil { // Otherwise something else has it, which is as good.
			defer l.Close()
		}
	}
	d := startDemo(t)
	require.Equal(t, http.StatusOK, mustGet(t, d.front).status)
	require.Equal(t, http.StatusOK, mustGet(t, d.page).status)
	require.Zero(t, d.Stop(syscall.SIGINT))
	files, err := os.ReadDir(d.Command.Dir)
	require.NoError(t, err)
	require.Empty(t, files, "there are new files")
}

func TestCtrlCServesThoseInLine(t *testing.T) {
	d := startDemo(t)
	// Those who are on their way when the listener closes would be lost. If the line has drained
	// before all have come, more are sent.
	var statuses []func() map[int]int
	sent := 0
	d.Until(func() bool {
		now := bucketAt(t, d.page+"/api/buckets/demo/127.0.0.1")
		if now.Waiting+now.Departed < sent {
			return false
		}
		if now.Waiting < 20 {
			statuses = append(statuses, getAll(40, d.front))
			sent += 40
			return false
		}
		return true
	}, "20 wait")
	// An open page must not keep the process from ending.
	stream, err := client.Get(d.page + "/api/events")
	require.NoError(t, err)
	defer stream.Body.Close()
	first := bufio.NewReader(stream.Body)
	_, err = first.ReadString('\n')
	require.NoError(t, err)

	d.Signal(syscall.SIGINT)
	for _, of := range statuses {
		require.Equal(t, map[int]int{http.StatusOK: 40}, of())
	}
	require.Zero(t, d.Wait())
	require.NotContains(t, d.Output(), "timeout")
}

func TestTheCaddyfileOfTheDemonstrationIsOneToBeginWith(t *testing.T) {
	status, text := do(t, "demo", "--caddyfile")
	require.Zero(t, status)
	file := writeFile(t, "Caddyfile", text)
	status, told := do(t, "validate", "--config", file)
	require.Zero(t, status, told)
	status, formatted := do(t, "fmt", file)
	require.Zero(t, status)
	require.Equal(t, text, formatted)
}

// stopping is a Caddyfile with a line that nobody leaves, and time for load balancers. It
// needs the addresses of admin endpoint and front, and that time.
const stopping = `{
	admin %[1]s
	shutdown_delay %[3]v
	grace_period 20s
}
http://%[2]s {
	shape_ready /ready
	handle {
		shape line {
			limits 1/h depth 100
		}
		respond "served"
	}
}
`

func TestALoadBalancerIsToldBeforeTheLineDrains(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*testing.T, *servers.Process, string){
		"SIGTERM": func(_ *testing.T, p *servers.Process, _ string) { p.Signal(syscall.SIGTERM) },
		"stop":    func(t *testing.T, _ *servers.Process, admin string) { start(t, "stop", "--address", admin) }, // It ends after p.
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for delay := 2 * time.Second; !tellsLoadBalancers(t, delay, stop); delay *= 2 {
				require.Less(t, delay, patience, "all must be asked within that time")
			}
		})
	}
}

// tellsLoadBalancers stops a process while a line is in it, and asks it what load balancers ask.
// It returns false if the test had not asked all before the delay of the end was over.
func tellsLoadBalancers(t *testing.T, delay time.Duration, stop func(*testing.T, *servers.Process, string)) bool {
	t.Helper()
	const inLine = 50
	admin, front := freeAddress(t), freeAddress(t)
	p := serve(t, fmt.Sprintf(stopping, admin, front, delay))
	ready, told := "http://"+front+"/ready", "http://"+admin+"/shape/ready"
	require.Equal(t, http.StatusOK, mustGet(t, ready).status)
	require.JSONEq(t, `{"ready":true}`, mustGet(t, ready).body)
	require.JSONEq(t, `{"ready":true,"waiting":0}`, mustGet(t, told).body)

	// waiting returns how many wait; -1 if nobody answers any more.
	waiting := func() int {
		var is struct{ Waiting int }
		a, err := get(told)
		if err != nil || json.Unmarshal([]byte(a.body), &is) != nil {
			return -1
		}
		return is.Waiting
	}
	statuses := getAll(1+inLine, "http://"+front)
	p.Until(func() bool { return waiting() == inLine }, "all wait")
	// Somebody who looks on must not keep the process from ending in good order.
	stream, err := client.Get("http://" + admin + "/shape/api/events")
	require.NoError(t, err)
	defer stream.Body.Close()
	require.Equal(t, http.StatusOK, stream.StatusCode)

	stopped := time.Now()
	isOver := func() bool { return time.Since(stopped) > delay*3/4 }
	stop(t, p, admin)
	last := func(url string) (a answer) {
		p.Until(func() bool {
			a, err = get(url)
			return err == nil && a.status == http.StatusServiceUnavailable || isOver()
		}, "it says that it is not ready")
		return a
	}
	byFront, byAdmin := last(ready), last(told)
	late := getAll(1, "http://"+front)
	p.Until(func() bool { return waiting() == inLine+1 || isOver() }, "one more waits")
	// They leave after all that, and go on leaving when the delay is over.
	faster, err := send(http.MethodPost, "http://"+admin+"/shape/api/limits",
		`{"source":"line","key":"127.0.0.1","limits":"10/s depth 100","for":"1h"}`, "Content-Type", "application/json")
	if isOver() {
		t.Logf("%v were too short", delay)
		return false
	}
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, faster.status, faster.body)
	require.JSONEq(t, `{"ready":false}`, byFront.body)
	require.Equal(t, http.StatusServiceUnavailable, byAdmin.status)

	require.Equal(t, map[int]int{http.StatusOK: 1 + inLine}, statuses())
	require.Equal(t, map[int]int{http.StatusOK: 1}, late(), "until the delay is over, requests are taken as before")
	require.Zero(t, p.Wait())
	return true
}

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
