package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const guide = "../../../docs/limits-file.md"

// What docs/limits-file.md shows of shapecheck is what shapecheck prints about the files
// that the guide shows. If SHAPER_UPDATE_DOCS is 1, it is written there.
func TestTheGuideShowsWhatIsPrinted(t *testing.T) {
	path, err := filepath.Abs(guide)
	require.NoError(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	t.Chdir(t.TempDir())
	for _, shown := range regexp.MustCompile("(?s)```ya?ml\n(# ([a-z]+\\.yaml)\n.*?)```").FindAllSubmatch(text, -1) {
		require.NoError(t, os.WriteFile(string(shown[2]), shown[1], 0o600))
	}

	commands := 0
	want := regexp.MustCompile("(?s)```\n(\\$ [^\n]*shapecheck [^\n]*\n)(.*?)```").ReplaceAllFunc(text, func(block []byte) []byte {
		commands++
		command, _, _ := strings.Cut(strings.TrimPrefix(string(block), "```\n"), "\n")
		return []byte("```\n" + command + "\n" + printed(t, command) + "```")
	})
	require.Equal(t, 2, commands)
	if os.Getenv("SHAPER_UPDATE_DOCS") == "1" {
		require.NoError(t, os.WriteFile(path, want, 0o644))
		return
	}
	require.Equal(t, string(want), string(text))
}

// printed returns the output of a command, which may get its standard input from printf.
func printed(t *testing.T, command string) string {
	m := regexp.MustCompile(`^\$ (?:printf '(.*)' \| )?shapecheck (.*?)( >/dev/null)?$`).FindStringSubmatch(command)
	require.NotNil(t, m, command)
	var out, problems bytes.Buffer
	run(strings.Fields(m[2]), strings.NewReader(strings.ReplaceAll(m[1], `\n`, "\n")), &out, &problems)
	if m[3] != "" {
		out.Reset()
	}
	return out.String() + problems.String()
}

// The line that editors look for is a comment to shapecheck.
func TestTheLineForEditorsIsAComment(t *testing.T) {
	text, err := os.ReadFile(guide)
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^# yaml-language-server: \$schema=\S+$`).Find(text)
	require.NotEmpty(t, line)
	status, _, problems := shapecheck(t, "", file(t, "f.yaml", string(line)+"\ndefault: 1/s depth 3\n"))
	require.Equal(t, exitOK, status, problems)
}

// Operators copy these files, and take a warning about one for a mistake of theirs.
func TestTheFilesThatAreShippedHaveNoWarnings(t *testing.T) {
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	for _, shipped := range []string{"deploy/shaper.yaml", "examples/limitsfile/shaper.yaml"} {
		status, _, problems := shapecheck(t, "", "-strict", filepath.Join(root, shipped))
		require.Equal(t, exitOK, status, problems)
		require.Empty(t, problems, shipped)
	}
}
