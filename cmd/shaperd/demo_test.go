package main_test

import (
	"bufio"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A demo is a demonstration that serves, with the addresses that it has printed.
type demo struct {
	*process
	front, page, upstream string
}

var printed = regexp.MustCompile(`(front|page|upstream) +(http://127\.0\.0\.1:\d+) `)

func startDemo(t *testing.T) demo {
	t.Helper()
	d := demo{process: start(t)}
	d.until(func() bool { return strings.Contains(d.out.String(), "shaperd run\n") }, "the demonstration says how to go on")
	urls := map[string]string{}
	for _, found := range printed.FindAllStringSubmatch(d.out.String(), -1) {
		urls[found[1]] = found[2]
	}
	require.Len(t, urls, 3, d.out)
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
	d.until(func() bool {
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
	d.interrupt(syscall.SIGINT)
	require.Zero(t, d.wait())
	for _, dir := range []string{d.home, d.tmp} {
		require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if path != dir {
				require.NoError(t, err)
				require.Fail(t, "there is a new file", path)
			}
			return err
		}))
	}
}

func TestCtrlCServesThoseInLine(t *testing.T) {
	d := startDemo(t)
	// Those who are on their way when the listener closes would be lost. If the line has drained
	// before all have come, more are sent.
	var statuses []func() map[int]int
	sent := 0
	d.until(func() bool {
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

	d.interrupt(syscall.SIGINT)
	for _, of := range statuses {
		require.Equal(t, map[int]int{http.StatusOK: 40}, of())
	}
	require.Zero(t, d.wait())
	require.NotContains(t, d.log.String(), "timeout")
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
