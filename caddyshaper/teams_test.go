package caddyshaper_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
	"example.com/leakybucket/internal/realtime"
)

func hashOf(token string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(token))) }

// asked returns a request with header fields, which are given in pairs.
func asked(target string, fields ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, target, nil)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	return r
}

func TestATeamIsFoundByItsTokenHoweverTheClientSendsIt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "teams")
	text := "# teams\n\ngold: " + hashOf("g") + "\na: b: " + strings.ToUpper(hashOf("ab")) + "\ngold: " + hashOf("g2") + "\n"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	for _, c := range []struct {
		provider string
		r        *http.Request
		team     string
		ok       bool
		left     string // of the query
	}{
		{"openai", asked("/v1", "Authorization", "Bearer g"), "gold", true, ""},
		{"openai", asked("/v1", "Authorization", "bearer g2"), "gold", true, ""},
		{"openai", asked("/v1?key=5", "Api-Key", "ab"), "a: b", true, "key=5"},
		{"anthropic", asked("/v1", "X-Api-Key", "g", "Authorization", "Basic Zzpn"), "gold", true, ""},
		{"gemini", asked("/v1", "X-Goog-Api-Key", "g"), "gold", true, ""},
		{"gemini", asked("/v1?alt=sse&key=g"), "gold", true, "alt=sse"},
		{"openai", asked("/v1?key=g"), "", false, "key=g"},
		{"openai", asked("/v1", "Authorization", "Bearer other"), "", false, ""},
		{"openai", asked("/v1", "Authorization", "Bearer "+hashOf("g")), "", false, ""},
		{"openai", asked("/v1"), "", false, ""},
	} {
		of, err := caddyshaper.OpenTeams(file, c.provider, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		team, ok := of(c.r)
		require.Equal(t, c.ok, ok)
		require.Equal(t, c.team, team)
		require.Equal(t, c.left, c.r.URL.RawQuery)
		require.Empty(t, c.r.Header, "a token goes on to the provider")
	}
}

func TestAMistakeInTheFileOfTeamsIsToldWithoutTheToken(t *testing.T) {
	for text, want := range map[string]string{
		"":                            "there is no team in it",
		"\ngold\n":                    ":2: must be the name of a team, a colon and the SHA-256 of its token",
		"gold: secret\n":              `:1: what stands after the team "gold" has 6 characters, must be the SHA-256 of its token`,
		": " + hashOf("g"):            ":1: must be the name of a team",
		"a: " + hashOf("g")[1:]:       "has 63 characters",
		"a: " + hashOf("g")[1:] + "x": "has 64 characters, must be the SHA-256",
		"a: " + hashOf("g") + "\nb: " + hashOf("g"): `:2: the team "b" has the token of the team "a"`,
	} {
		file := filepath.Join(t.TempDir(), "teams")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := caddyshaper.OpenTeams(file, "openai", nil)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "teams: "+file)
		require.NotContains(t, err.Error(), "secret")
	}
	_, err := caddyshaper.OpenTeams(filepath.Join(t.TempDir(), "none"), "openai", nil)
	require.ErrorContains(t, err, "teams: ")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestAChangedFileOfTeamsIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "teams")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("gold: " + hashOf("old"))
	var log bytes.Buffer
	of, err := caddyshaper.OpenTeams(file, "openai", slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	knows := func(token string) bool {
		_, ok := of(asked("/v1", "Authorization", "Bearer "+token))
		return ok
	}
	write("gold: " + hashOf("new") + "\n")
	realtime.Until(t, func() bool { return knows("new") }, "the new token is known")
	require.False(t, knows("old"))

	write("gold: a mistake\n")
	realtime.Until(t, func() bool { knows("new"); return log.Len() > 0 }, "the mistake is logged")
	require.True(t, knows("new"), "a mistake takes nobody's token away")
	require.Equal(t, 1, strings.Count(log.String(), "\n"))
}
