package main_test

import (
	"bufio"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

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
