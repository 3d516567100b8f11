package house_test

// What holds for the whole tree, beside its imports: workspaces, package comments, and no
// path of anybody's machine.

import (
	"bytes"
	"go/parser"
	"go/token"
	"go/version"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	goLine       = "1.26.0"   // the oldest Go that the dependencies allow
	minToolchain = "go1.26.6" // the oldest release that we build with, for its security fixes
)

// Within a workspace only go.work's toolchain line counts, outside of it only
// the module's own: where they differ, a bug shows in one and hides in the other.
func TestGoAndToolchainLinesAgree(t *testing.T) {
	lines := regexp.MustCompile(`(?m)^(?:go|toolchain) \S+$`)
	workspace, err := os.ReadFile(filepath.Join(root, "go.work"))
	require.NoError(t, err)
	want := lines.FindAllString(string(workspace), -1)
	require.Len(t, want, 2, "go.work has a go line and a toolchain line")
	all, err := os.ReadFile(filepath.Join(root, "all.work"))
	require.NoError(t, err)
	require.Equal(t, want, lines.FindAllString(string(all), -1), "in all.work")
	require.Equal(t, "go "+goLine, want[0])
	toolchain := strings.TrimPrefix(want[1], "toolchain ")
	require.Truef(t, version.Compare(toolchain, minToolchain) >= 0, "the toolchain is %s, must be at least %s", toolchain, minToolchain)
	for _, dir := range moduleDirs(t) {
		require.Equal(t, want, lines.FindAllString(modFile(t, dir), -1), "in %s", dir)
	}
}

// onlyInAll are the folders of the modules that are in all.work and not in go.work. They need
// Caddy, web frameworks, rival limiters or the protocol of a browser, which few who change the
// library touch, and which take so long to compile that the first "go test work" on a machine
// would take minutes more.
var onlyInAll = []string{"bench", "caddyshaper", "cmd/shaperd", "examples/frameworks", "inspect/browsertest", "internal/deploy"}

func TestEveryModuleIsInTheWorkspaceAndNamedForItsFolder(t *testing.T) {
	require.ElementsMatch(t, moduleDirs(t), workspaceDirs(t, "all.work"))
	without := workspaceDirs(t, "go.work")
	for _, dir := range onlyInAll {
		without = append(without, filepath.Join(root, filepath.FromSlash(dir)))
	}
	require.ElementsMatch(t, moduleDirs(t), without)
	for _, dir := range moduleDirs(t) {
		require.Contains(t, modFile(t, dir), "module "+modulePath(dir)+"\n")
	}
}

// Two package comments are shown one after the other, in the order of their
// files' names. Those of _test files are not shown, but in a folder that has
// nothing else they are all that a reader finds.
func TestEveryFolderHasOnePackageComment(t *testing.T) {
	comments, testComments := map[string][]string{}, map[string][]string{}
	for _, file := range treeFiles(t) {
		if filepath.Ext(file) != ".go" {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.PackageClauseOnly)
		require.NoError(t, err)
		found, dir := comments, filepath.Dir(file)
		if strings.HasSuffix(file, "_test.go") {
			found = testComments
		}
		found[dir] = append(found[dir], parsed.Doc.Text()) // "" without one
	}
	for dir, found := range testComments {
		if comments[dir] == nil {
			comments[dir] = found
		}
	}
	for dir, found := range comments {
		found = slices.DeleteFunc(found, func(comment string) bool { return comment == "" })
		require.Lenf(t, found, 1, "the package comments in %s, must be exactly one", dir)
	}
}

// A path of somebody's machine works nowhere else, and tells of its owner.
func TestNoFileNamesAPathOfAMachine(t *testing.T) {
	t.Parallel()
	names := []string{"home", "root", "Users"} // of the folders in which people have theirs
	homes := regexp.MustCompile(`(?:^|[^\w.\-])(?:/(?:` + strings.Join(names, "|") + `)/|[A-Z]:\\Users\\)\w+`)
	here, err := filepath.Abs(root)
	require.NoError(t, err)
	for _, file := range treeFiles(t) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if slices.Contains(text, 0) {
			continue // a picture or the like
		}
		mayName := func(name string) bool {
			return bytes.Contains(text, []byte("/"+name+"/")) || bytes.Contains(text, []byte(name+`\`))
		}
		if slices.ContainsFunc(names, mayName) { // The expression takes long.
			require.Emptyf(t, homes.FindString(string(text)), "%s names a home folder", file)
		}
		// A tree in a folder of one word, such as "/src", says nothing.
		if strings.Count(here, string(filepath.Separator)) > 1 {
			require.NotContainsf(t, string(text), here, "%s names the folder that this tree is in", file)
		}
	}
}
