package clients

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// An api notes what reaches it, and when, and refuses or fails as it is told.
type api struct {
	start time.Time

	mu      sync.Mutex
	log     []string
	answers map[string][]int // statuses by path; then 200
}

func newAPI() *api { return &api{start: time.Now(), answers: map[string][]int{}} }

func (a *api) note(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.log = append(a.log, fmt.Sprint(time.Since(a.start), " ", name))
}

func (a *api) RoundTrip(r *http.Request) (*http.Response, error) {
	a.note(r.URL.Path)
	a.mu.Lock()
	defer a.mu.Unlock()
	status := http.StatusOK
	if left := a.answers[r.URL.Path]; len(left) > 0 {
		status, a.answers[r.URL.Path] = left[0], left[1:]
	}
	header := http.Header{}
	if status == http.StatusTooManyRequests {
		header.Set("Retry-After", "30")
	}
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Header: header,
		Body: io.NopCloser(strings.NewReader("content of " + r.URL.Path)), Request: r,
	}, nil
}

// newShaper lets one request leave a second, with one upstream at a time.
func newShaper(t *testing.T, depth int) *shaper.Shaper {
	s, err := shaper.New(shaper.Limits{Rate: rate.Every(time.Second), Depth: depth, InFlight: 1})
	require.NoError(t, err)
	return s
}

func paths(n int) (paths []string) {
	for i := range n {
		paths = append(paths, fmt.Sprintf("http://api/%d", i))
	}
	return paths
}

var background = context.Background()
