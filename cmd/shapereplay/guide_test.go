package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const docs = "../../docs"

// What docs/replay.md shows is what the program prints about the rules that are shown
// there, and so is the picture. If SHAPER_UPDATE_DOCS is 1, both are written there.
func TestTheGuideShowsWhatIsPrinted(t *testing.T) {
	folder, err := filepath.Abs(docs)
	require.NoError(t, err)
	guide, picture := filepath.Join(folder, "replay.md"), filepath.Join(folder, "replay.svg")
	text, err := os.ReadFile(guide)
	require.NoError(t, err)
	t.Chdir(t.TempDir())
	rules := regexp.MustCompile("(?s)```yaml\n(# shaper.yaml\n.*?)```").FindSubmatch(text)
	require.NotNil(t, rules)
	require.NoError(t, os.WriteFile("shaper.yaml", rules[1], 0o600))
	hits := shopTraffic(30_000, 400, 30*time.Minute)
	here, err := os.Getwd()
	require.NoError(t, err)
	writeLog(t, filepath.Join(here, "access.log"), hits, caddyLine, "2026/11/21 08:30:01 [notice] signal process started")
	writeLog(t, filepath.Join(here, "combined.log"), hits, combinedLine)

	commands := 0
	want := regexp.MustCompile("(?s)```\n(\\$ .*?)```").ReplaceAllFunc(text, func(block []byte) []byte {
		shown := "```\n"
		for line := range strings.Lines(string(block)) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				commands++
				shown += line + printed(t, strings.TrimSuffix(command, "\n"))
			}
		}
		return []byte(shown + "```")
	})
	require.Equal(t, 9, commands)
	drawn, err := os.ReadFile("replay.svg")
	require.NoError(t, err)
	if os.Getenv("SHAPER_UPDATE_DOCS") == "1" {
		require.NoError(t, os.WriteFile(guide, want, 0o644))
		require.NoError(t, os.WriteFile(picture, drawn, 0o644))
		return
	}
	require.Equal(t, string(want), string(text))
	before, err := os.ReadFile(picture)
	require.NoError(t, err)
	require.Equal(t, string(drawn), string(before))
}

// printed returns what a command prints, which may get its standard input from grep.
func printed(t *testing.T, command string) string {
	t.Helper()
	if name, ok := strings.CutPrefix(command, "cat "); ok {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		return string(text)
	}
	m := regexp.MustCompile(`^(?:grep -vF (\S+) (\S+) \| )?shapereplay (.*?)( >/dev/null)?$`).FindStringSubmatch(command)
	require.NotNil(t, m, command)
	var in, out, problems bytes.Buffer
	if m[1] != "" {
		text, err := os.ReadFile(m[2])
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if !strings.Contains(line, m[1]) {
				in.WriteString(line)
			}
		}
	}
	var args []string
	for _, word := range regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(m[3], -1) {
		args = append(args, strings.Trim(word, `"`))
	}
	status := run(t.Context(), args, streams{in: &in, out: &out, err: &problems})
	require.Equal(t, exitOK, status, problems.String())
	if m[4] != "" {
		out.Reset()
	}
	return out.String() + problems.String()
}
