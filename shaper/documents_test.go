package shaper_test

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each Go snippet of README.md is part of a program or an example that these
// tests compile: of the file that the comment above it names.
func TestReadmeSnippetsAreCompiled(t *testing.T) {
	readme := read(t, "../README.md")
	snippet := regexp.MustCompile("(?s)(<!-- ([^ ]+) -->\n)?```go\n(.*?)```")
	found := snippet.FindAllStringSubmatch(readme, -1)
	require.NotEmpty(t, found)
	for _, m := range found {
		require.NotEmpty(t, m[2], "which file is this of?\n%s", m[3])
		require.Contains(t, unindented(read(t, "../"+m[2])), unindented(m[3]), m[2])
		whole := m[3]
		if !strings.HasPrefix(whole, "package") {
			whole = "package p\nfunc f() {\n" + whole + "\n}"
		}
		_, err := parser.ParseFile(token.NewFileSet(), m[2], whole, 0)
		require.NoError(t, err, "a snippet ends where a statement does")
	}
}

// unindented lets a snippet stand further left than its source.
func unindented(text string) string {
	return regexp.MustCompile(`(?m)^[\t ]+`).ReplaceAllString(text, "")
}

// Every test and benchmark that a document names is there, and all that it
// links to.
func TestDocumentsNameWhatIsThere(t *testing.T) {
	var code strings.Builder
	for _, pattern := range []string{"*_test.go", "../*/*_test.go", "../*/*/*_test.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			code.WriteString(read(t, file))
		}
	}
	for _, document := range []string{"../README.md", "../ARCHITECTURE.md", "../CONTRIBUTING.md", "../loadtest/README.md"} {
		text := read(t, document)
		for _, m := range regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w+`).FindAllString(text, -1) {
			require.Truef(t, strings.Contains(code.String(), "func "+m+"("), "%s names %s, which is not there", document, m)
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`).FindAllStringSubmatch(text, -1) {
			if !strings.HasPrefix(m[1], "http") {
				_, err := os.Stat(filepath.Join(filepath.Dir(document), m[1]))
				require.NoError(t, err, document)
			}
		}
	}
	architecture := strings.Split(read(t, "../ARCHITECTURE.md"), "\n")
	require.LessOrEqual(t, len(architecture), 150, "ARCHITECTURE.md is to be read in one sitting")
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}
