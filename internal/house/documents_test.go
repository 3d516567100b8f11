package house_test

import (
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// documents returns the files that people read, from this package's folder.
func documents(t *testing.T) []string {
	t.Helper()
	guides, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, guides)
	return append(guides, "../../README.md", "../../ARCHITECTURE.md", "../../CONTRIBUTING.md", "../../CHANGELOG.md", "../../loadtest/README.md")
}

// Each Go snippet of a document is part of a program or an example that these
// tests compile: of the file that the comment above it names.
func TestSnippetsOfDocumentsAreCompiled(t *testing.T) {
	snippet := regexp.MustCompile("(?s)(<!-- ([^ ]+) -->\n)?```go\n(.*?)```")
	for _, document := range documents(t) {
		found := snippet.FindAllStringSubmatch(read(t, document), -1)
		if filepath.Base(document) == "README.md" && filepath.Dir(document) == root {
			require.NotEmpty(t, found)
		}
		for _, m := range found {
			require.NotEmpty(t, m[2], "%s: which file is this of?\n%s", document, m[3])
			require.Contains(t, unindented(read(t, "../../"+m[2])), unindented(m[3]), "%s, %s", document, m[2])
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

// What works with a cap and without is what README shows before all else.
func TestReadmeShowsFirstWhatWorksWithACapToo(t *testing.T) {
	use := regexp.MustCompile(`\b(?:s|shaper)\.(Do|Acquire|Middleware|Transport|Wait|WaitN|Allow|AllowN)[({]`)
	var first []string
	for _, found := range use.FindAllStringSubmatch(read(t, "../../README.md"), -1) {
		if !slices.Contains(first, found[1]) {
			first = append(first, found[1])
		}
	}
	require.ElementsMatch(t, []string{"Do", "Middleware", "Transport"}, first)
}

// A reader who looks for a file of the engine finds it in the table of ARCHITECTURE.md, and none
// there that is gone.
func TestTheDocumentedTableOfFilesHasThemAll(t *testing.T) {
	_, table, found := strings.Cut(read(t, "../../ARCHITECTURE.md"), "| files of `shaper/` |")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("`([^`/]+\\.go)`").FindAllStringSubmatch(table, -1) {
		files, err := filepath.Glob("../../shaper/" + m[1])
		require.NoError(t, err)
		require.NotEmptyf(t, files, "the table has %s, which is not there", m[1])
		for _, file := range files {
			listed[file] = true
		}
	}
	files, err := filepath.Glob("../../shaper/*.go")
	require.NoError(t, err)
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") && filepath.Base(file) != "doc.go" {
			require.Truef(t, listed[file], "the table does not have %s", file)
		}
	}
}

// The lines of README.md for somebody with a clone make the packages be found, in a module of
// theirs that has nothing else.
func TestTheDocumentedReplaceLinesAreEnough(t *testing.T) {
	_, text, found := strings.Cut(read(t, "../../README.md"), "With a clone instead")
	require.True(t, found)
	_, text, _ = strings.Cut(text, "```\n")
	lines, _, _ := strings.Cut(text, "```")
	clone, err := filepath.Abs(root)
	require.NoError(t, err)
	parent := t.TempDir()
	require.NoError(t, os.Symlink(clone, filepath.Join(parent, "leakybucket")))
	own := filepath.Join(parent, "own")
	require.NoError(t, os.Mkdir(own, 0o700))
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(own, name), []byte(text), 0o600))
	}
	write("go.mod", "module own.test\n\ngo "+goLine+"\n")
	program := "package main\n\nimport (\n"
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		require.Equal(t, []string{"go", "mod", "edit", "-replace"}, words[:4])
		goCommandAlone(t, own, words[1:]...)
		module, _, _ := strings.Cut(words[4], "=")
		if module == rootModule {
			module += "/shaper"
		}
		program += "\t_ \"" + module + "\"\n"
	}
	require.Contains(t, program, "redisbucket", "one of a module of its own")
	write("main.go", program+")\n\nfunc main() {}\n")
	goCommandAlone(t, own, "mod", "tidy")
	goCommandAlone(t, own, "list", "-deps", ".")
}

// goCommandAlone runs the go command for a module outside of all workspaces. What the module
// needs beside ours is in the cache, as the workspace needs it, too.
func goCommandAlone(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOPROXY=off", "GOSUMDB=off")
	text, err := cmd.CombinedOutput()
	require.NoErrorf(t, err, "go %s: %s", strings.Join(args, " "), text)
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}
