package shaper_test

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// documents returns the files that people read, from this package's folder.
func documents(t *testing.T) []string {
	t.Helper()
	guides, err := filepath.Glob("../docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, guides)
	return append(guides, "../README.md", "../ARCHITECTURE.md", "../CONTRIBUTING.md", "../CHANGELOG.md", "../loadtest/README.md")
}

// Each Go snippet of a document is part of a program or an example that these
// tests compile: of the file that the comment above it names.
func TestSnippetsOfDocumentsAreCompiled(t *testing.T) {
	snippet := regexp.MustCompile("(?s)(<!-- ([^ ]+) -->\n)?```go\n(.*?)```")
	for _, document := range documents(t) {
		found := snippet.FindAllStringSubmatch(read(t, document), -1)
		if filepath.Base(document) == "README.md" && filepath.Dir(document) == ".." {
			require.NotEmpty(t, found)
		}
		for _, m := range found {
			require.NotEmpty(t, m[2], "%s: which file is this of?\n%s", document, m[3])
			require.Contains(t, unindented(read(t, "../"+m[2])), unindented(m[3]), "%s, %s", document, m[2])
			whole := m[3]
			if !strings.HasPrefix(whole, "package") {
				whole = "package p\nfunc f() {\n" + whole + "\n}"
			}
			_, err := parser.ParseFile(token.NewFileSet(), m[2], whole, 0)
			require.NoError(t, err, "a snippet ends where a statement does")
		}
	}
}

// unindented lets a snippet stand further left than its source.
func unindented(text string) string {
	return regexp.MustCompile(`(?m)^[\t ]+`).ReplaceAllString(text, "")
}

// Every test and benchmark that a document names is there, and all that it
// links to, headings included.
func TestDocumentsNameWhatIsThere(t *testing.T) {
	var code strings.Builder
	for _, file := range treeFiles(t) {
		if strings.HasSuffix(file, "_test.go") {
			code.WriteString(read(t, file))
		}
	}
	for _, document := range documents(t) {
		text := read(t, document)
		for _, m := range regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w+`).FindAllString(text, -1) {
			require.Truef(t, strings.Contains(code.String(), "func "+m+"("), "%s names %s, which is not there", document, m)
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#]*)(#[^)]*)?\)`).FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(m[1], "http") {
				continue
			}
			target := document
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(document), m[1])
				_, err := os.Stat(target)
				require.NoError(t, err, document)
			}
			if m[2] != "" {
				require.Contains(t, anchors(read(t, target)), m[2][1:], "%s links to %s%s", document, m[1], m[2])
			}
		}
	}
}

// anchors returns the names by which links reach the headings of a document, as
// GitHub makes them: lower case, without punctuation, a hyphen for each blank.
func anchors(text string) (names []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		names = append(names, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, m[1]))
	}
	return names
}

// What is to be read in one sitting stays that short.
func TestDocumentsAreShort(t *testing.T) {
	for document, most := range map[string]int{"../README.md": 200, "../ARCHITECTURE.md": 180} {
		lines := strings.Count(read(t, document), "\n")
		require.LessOrEqualf(t, lines, most, "%s has %d lines", document, lines)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}
