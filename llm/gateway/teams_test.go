package gateway_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm/gateway"
)

func teamLine(team, token string) string {
	return fmt.Sprintf("%s: %x\n", team, sha256.Sum256([]byte(token)))
}

// A token may stand where a key of a provider may, and does not go on from there.
func TestATokenNamesItsTeamAndGoesNoFurther(t *testing.T) {
	file := filepath.Join(t.TempDir(), "teams")
	require.NoError(t, os.WriteFile(file, []byte("\ufeff"+teamLine("gold", "secret")+"# teams\r\n\n"+teamLine("gold", "next")+teamLine("batch", "b")), 0o600))
	teams, err := gateway.OpenTeams(file, nil)
	require.NoError(t, err)
	for _, c := range []struct{ field, value, path, team, passed string }{
		{"Authorization", "Bearer secret", "/v1", "gold", "/v1"},
		{"Authorization", "bearer next", "/v1", "gold", "/v1"},
		{"Authorization", "Bearer  secret", "/v1", "gold", "/v1"}, // RFC 9110, section 11.4: 1*SP
		{"X-Api-Key", "b", "/v1", "batch", "/v1"},
		{"X-Goog-Api-Key", "b", "/v1", "batch", "/v1"},
		{"Api-Key", "b", "/v1", "batch", "/v1"},
		{"Accept", "*", "/v1?key=b&alt=sse", "batch", "/v1?alt=sse"},
		{"Accept", "*", "/v1?z=%20x&k%65y=b&a;b&y", "batch", "/v1?z=%20x&a;b&y"},
		{"Authorization", "Bearer wrong", "/v1?key=wrong", "", "/v1?key=wrong"},
		{"Authorization", "Basic secret", "/v1", "", "/v1"},
		{"Authorization", "Bearer ", "/v1", "", "/v1"},
		{"Accept", "*", "/v1", "", "/v1"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://gateway"+c.path, nil)
		require.NoError(t, err)
		r.Header.Set(c.field, c.value)
		team, ok := teams.Of(r)
		require.Equal(t, c.team, team, c)
		require.Equal(t, c.team != "", ok, c)
		require.Equal(t, c.passed, r.URL.RequestURI())
		if ok && c.field != "Accept" {
			require.Empty(t, r.Header)
		}
	}
}

func TestMistakesInAFileOfTeams(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "it has no team",
		"gold\n":                                `:1: it must read "team: sha256"`,
		": 00\n":                                `:1: it must read "team: sha256"`,
		"# one\ngold: sk-secret\n":              ":2: the value after the team must be a SHA-256",
		teamLine("a", "x")[:40] + "\n":          ":1: the value after the team must be a SHA-256",
		teamLine("a", "x") + teamLine("b", "x"): ":2: the token of another line",
	} {
		file := filepath.Join(t.TempDir(), "teams")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := gateway.OpenTeams(file, nil)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "sk-secret")
	}
	_, err := gateway.OpenTeams(filepath.Join(t.TempDir(), "none"), nil)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestAChangedFileOfTeamsIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "teams")
		require.NoError(t, os.WriteFile(file, []byte(teamLine("gold", "old")), 0o600))
		var log bytes.Buffer
		teams, err := gateway.OpenTeams(file, slog.New(slog.NewTextHandler(&log, nil)))
		require.NoError(t, err)
		of := func(token string) string {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://gateway/", nil)
			require.NoError(t, err)
			r.Header.Set("X-Api-Key", token)
			team, _ := teams.Of(r)
			return team
		}
		require.Equal(t, "gold", of("old"))
		require.NoError(t, os.WriteFile(file, []byte(teamLine("silver", "newer")), 0o600))
		require.Equal(t, "gold", of("old"), "it is looked at once a second")
		time.Sleep(time.Second)
		require.Empty(t, of("old"))
		require.Equal(t, "silver", of("newer"))
		require.NoError(t, os.WriteFile(file, []byte("silver"), 0o600))
		time.Sleep(time.Second)
		require.Equal(t, "silver", of("newer"), "a file with a mistake changes nothing")
		require.NoError(t, os.Remove(file))
		for range 5 {
			time.Sleep(time.Second)
			require.Equal(t, "silver", of("newer"), "nor does a file that is gone")
		}
		require.Equal(t, 2, strings.Count(log.String(), "the teams stay as they were"), "each mistake is told once")
	})
}
