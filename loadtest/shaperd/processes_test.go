package shaperd_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
)

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
