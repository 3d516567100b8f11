package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/config"
)

// The files that docs/limits-file.md shows are accepted, and its mistakes are reported
// as it says.
func TestTheGuideIsTrue(t *testing.T) {
	guide, err := os.ReadFile("../../docs/limits-file.md")
	require.NoError(t, err)
	files := regexp.MustCompile("(?s)(<!-- mistakes -->\n)?```yaml\n(.*?)```\n(?:\n```\n(.*?)\n```)?").FindAllSubmatch(guide, -1)
	require.Len(t, files, 4)
	mistakes := 0
	for _, file := range files {
		_, err := config.Parse("shaper.yaml", file[2])
		if len(file[1]) == 0 {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, string(file[3]))
		mistakes++
	}
	require.Equal(t, 1, mistakes)
}

// Whoever tries the guide with its file gets the answers that it shows.
func TestTheGuideShowsWhatTheExamplePrints(t *testing.T) {
	guide, err := os.ReadFile("../../docs/limits-file.md")
	require.NoError(t, err)
	file, err := os.ReadFile("shaper.yaml")
	require.NoError(t, err)
	require.Contains(t, string(guide), "```yaml\n"+string(file)+"```\n")

	t.Chdir("../..") // as the session has it
	session := regexp.MustCompile("(?s)```\n\\$ go run ./examples/limitsfile (\\S+) &\n\\$ curl localhost:8080(\\S+) +# five times\n(.*?)\\$ curl localhost:8081 .*?\n…\n(.*?)```").FindSubmatch(guide)
	require.NotNil(t, session)
	s, err := newService(string(session[1]))
	require.NoError(t, err)
	defer s.close()
	served := ""
	for range 5 {
		r, w := httptest.NewRequest(http.MethodGet, string(session[2]), nil), httptest.NewRecorder()
		r.RemoteAddr = "127.0.0.1:1234"
		s.site().ServeHTTP(w, r)
		served += w.Body.String()
	}
	require.Equal(t, string(session[3]), served)
	printed := report(s)
	require.Equal(t, string(session[4]), printed[strings.Index(printed, "trial: "):])
}
