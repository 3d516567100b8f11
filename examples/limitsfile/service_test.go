package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/internal/realtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve returns a service with the file of this folder, and a copy of that file.
func serve(t *testing.T) (s *service, path string) {
	t.Helper()
	text, err := os.ReadFile("shaper.yaml")
	require.NoError(t, err)
	path = filepath.Join(t.TempDir(), "shaper.yaml")
	require.NoError(t, os.WriteFile(path, text, 0o644))
	s, err = newService(path)
	require.NoError(t, err)
	t.Cleanup(s.close)
	return s, path
}

// ask returns the answers to a number of requests, one after the other, in short:
// status and verdict of the trial.
func ask(s *service, target, client string, count int) (answers []string) {
	for range count {
		r := httptest.NewRequest(http.MethodGet, target, nil)
		r.RemoteAddr = client + ":1234"
		w := httptest.NewRecorder()
		s.site().ServeHTTP(w, r)
		answers = append(answers, fmt.Sprint(w.Code, " ", w.Header().Get("Trial")))
	}
	return answers
}

func report(s *service) string {
	w := httptest.NewRecorder()
	s.report(w, httptest.NewRequest(http.MethodGet, "/", nil))
	return w.Body.String()
}

func TestTheFileLimitsEachClient(t *testing.T) {
	s, _ := serve(t)
	require.Equal(t, []string{"200 leave", "200 leave", "200 leave", "200 refuse;reason=queue-full", "200 refuse;reason=queue-full",
		"429 refuse;reason=queue-full"}, ask(s, "/login", "192.0.2.1", 6))
	require.Equal(t, []string{"200 leave"}, ask(s, "/login", "192.0.2.2", 1))
	require.Contains(t, report(s), "login/192.0.2.1 met its limit 1 times (")
}

// The candidate refuses, and nobody notices but who asks.
func TestTheCandidateHoldsNobodyUp(t *testing.T) {
	s, path := serve(t)
	require.Equal(t, []string{"200 leave", "200 leave", "200 leave", "200 refuse;reason=queue-full", "200 refuse;reason=queue-full"},
		ask(s, "/login", "192.0.2.1", 5))
	require.Contains(t, report(s), "trial: 3 left, 2 refused, 0 wait\n  login/192.0.2.1 met its limit 2 times ("+path+":7)\n")
	require.Contains(t, report(s), "live: 5 left, 0 refused")

	// This client's rule has no candidate.
	require.Equal(t, []string{"200 leave", "200 leave", "200 leave", "200 leave"}, ask(s, "/api", "192.0.2.3", 4))
}

func TestAChangedFileTakesEffectWhileServing(t *testing.T) {
	s, path := serve(t)
	const refused = "429 refuse;reason=queue-full"
	require.Equal(t, refused, ask(s, "/login", "192.0.2.1", 6)[5])

	// A mistake changes nothing.
	replace(t, path, "burst: 5\n", "burts: 50\n")
	realtime.Until(t, func() bool { return strings.Contains(report(s), "burts: did you mean burst?") }, "the mistake is reported")
	require.Equal(t, []string{refused}, ask(s, "/login", "192.0.2.1", 1))

	// More burst for those who have met the limit already.
	replace(t, path, "burts", "burst")
	realtime.Until(t, func() bool { return s.limits.Status().Reloads == 1 }, "the file is read again")
	realtime.Until(t, func() bool { return strings.HasPrefix(ask(s, "/login", "192.0.2.1", 1)[0], "200 ") }, "a request leaves by the new limits")
	require.NotContains(t, report(s), "not in force")

	// A signal does not wait for the watching. The candidate has become the limit.
	replace(t, path, "    candidate: 3/h burst 3 ", "    #")
	replace(t, path, "rate: 5/h", "rate: 3/h")
	replace(t, path, "burst: 50", "burst: 3")
	require.NoError(t, s.limits.Reload())
	require.Equal(t, []string{"200 leave", "200 leave", "200 leave", "429 leave"}, ask(s, "/login", "192.0.2.9", 4))
}

// replace changes a file as most editors do.
func replace(t *testing.T, path, old, by string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), old)
	require.NoError(t, os.WriteFile(path+".new", []byte(strings.ReplaceAll(string(text), old, by)), 0o644))
	require.NoError(t, os.Rename(path+".new", path))
}

func TestAFileWithMistakesServesNobody(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shaper.yaml")
	require.NoError(t, os.WriteFile(path, []byte("limits: {api: 50/s dept 3}"), 0o644))
	_, err := newService(path)
	require.ErrorContains(t, err, `shaper.yaml:1:20: rule "api": "50/s dept 3": expected burst, depth, wait, slack or inflight`)
}
