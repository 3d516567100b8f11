package shaperd_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
)

// A process is a shaperd that runs.
type process struct {
	url   string
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended
}

// start starts a shaperd with the Caddyfile, and returns when it answers. It is killed at
// the end of the test.
func start(t *testing.T, program string, redis *servers.Redis, backend *httptest.Server) *process {
	t.Helper()
	port := servers.FreePort(t)
	p := &process{url: fmt.Sprintf("http://127.0.0.1:%d", port), cmd: exec.Command(program, "run", "--config", "Caddyfile"), ended: make(chan struct{})}
	home := t.TempDir()
	p.cmd.Env = append(os.Environ(), "HOME="+home, "XDG_DATA_HOME=", "XDG_CONFIG_HOME=",
		fmt.Sprintf("FRONT_PORT=%d", port), "REDIS="+redis.Addr, "UPSTREAM="+backend.Listener.Addr().String())
	var log strings.Builder // read when the process has ended
	p.cmd.Stderr = &log
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			text := log.String()
			t.Logf("%s:\n%s", p.url, text[max(0, len(text)-4096):])
		}
	})
	const patience = 30 * time.Second
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		answer, err := http.Get(p.url)
		if err == nil {
			require.NoError(t, answer.Body.Close())
			require.Equal(t, http.StatusOK, answer.StatusCode)
			return p
		}
		require.True(t, time.Now().Before(deadline), "shaperd does not answer: %v", err)
	}
}

// kill ends the process at once, as a machine that fails does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
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
