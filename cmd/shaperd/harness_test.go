package main_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
)

// patience is after what time a test gives up what should have happened long before.
const patience = 30 * time.Second

// program is the path of shaperd, which TestMain builds.
var program string

func TestMain(m *testing.M) {
	// The parallel tests mostly wait, so more of them may run at once than there are
	// processors. A flag -parallel comes later, and counts.
	if err := flag.Set("test.parallel", strconv.Itoa(max(8, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "shaperd-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "shaperd")
	if text, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, text)
		return 1
	}
	return m.Run()
}

// start starts shaperd in a folder of its own. It is killed at the end of the test, if it runs then.
func start(t *testing.T, args ...string) *servers.Process {
	t.Helper()
	return servers.Start(t, servers.Shaperd(t, program, args...))
}

// serve is run with a Caddyfile that is written first.
func serve(t *testing.T, caddyfile string) *servers.Process {
	t.Helper()
	return run(t, writeFile(t, "Caddyfile", caddyfile))
}

// run starts shaperd with a configuration, and returns when that is in force: its servers
// answer earlier, while pages show no lines and no levels are restored yet.
func run(t *testing.T, file string) *servers.Process {
	t.Helper()
	p := start(t, "run", "--config", file)
	p.Says("serving initial configuration")
	return p
}

// do runs shaperd to its end, and returns its status and all that it has printed.
func do(t *testing.T, args ...string) (status int, text string) {
	t.Helper()
	p := start(t, args...)
	return p.Wait(), p.Output()
}

// writeFile writes a file into a folder of its own, and returns its path.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// freeAddress returns a loopback address with a free port.
func freeAddress(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", servers.FreePort(t))
}

// port returns the port of an address, with the colon.
func port(t *testing.T, address string) string {
	t.Helper()
	_, p, err := net.SplitHostPort(address)
	require.NoError(t, err)
	return ":" + p
}

// An answer is the answer of a server.
type answer struct {
	status int
	header http.Header
	body   string
}

// client follows no redirects, and has a connection for each request.
var client = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// get returns the answer to a request, whose header fields follow the URL in pairs.
func get(url string, fields ...string) (answer, error) {
	return send(http.MethodGet, url, "", fields...)
}

func send(method, url, body string, fields ...string) (answer, error) {
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for i := 0; i < len(fields); i += 2 {
		if r.Header.Set(fields[i], fields[i+1]); fields[i] == "Host" {
			r.Host = fields[i+1]
		}
	}
	w, err := client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	return answer{w.StatusCode, w.Header, string(text)}, err
}

// mustGet is get for requests that are answered.
func mustGet(t *testing.T, url string, fields ...string) answer {
	t.Helper()
	a, err := get(url, fields...)
	require.NoError(t, err)
	return a
}

// A bucket has the fields of the API's buckets that tests look at. It is zero while there is none.
type bucket struct{ Waiting, Departed int }

func bucketAt(t *testing.T, url string) bucket {
	t.Helper()
	var told struct{ Bucket bucket }
	require.NoError(t, json.Unmarshal([]byte(mustGet(t, url).body), &told))
	return told.Bucket
}

// getAll sends n requests at once, and returns a function that waits for the answers and
// returns how many there were of each status; 0 stands for none.
func getAll(n int, url string, fields ...string) (statuses func() map[int]int) {
	var mu sync.Mutex
	var all sync.WaitGroup
	counts := map[int]int{}
	for range n {
		all.Go(func() {
			a, err := get(url, fields...)
			if err != nil {
				a.status = 0
			}
			mu.Lock()
			defer mu.Unlock()
			counts[a.status]++
		})
	}
	return func() map[int]int {
		all.Wait()
		return counts
	}
}
