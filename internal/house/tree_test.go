// Package house_test holds the rules of the house, which go for the whole tree: who may import
// whom, what the public API is, and that documents say what is there. They read every file of the
// tree, so that the go command's test cache notices a change anywhere.
package house_test

// This file reads the tree: its files, its modules and its packages.

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/version"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

type goPackage struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
	Module                             struct{ Path string }
}

func (p goPackage) testImports() []string { return slices.Concat(p.TestImports, p.XTestImports) }

// owns reports whether imp is of the same command, or p itself or below it.
func (p goPackage) owns(imp string) bool {
	return strings.HasPrefix(imp+"/", cmp.Or(command.FindString(p.ImportPath), p.ImportPath)+"/")
}

// listPackages returns the packages of the module in dir, once for each system
// that may have files of its own.
func listPackages(t *testing.T, dir string) []goPackage {
	packages, err := workspacePackages()
	require.NoError(t, err)
	packages = slices.DeleteFunc(slices.Clone(packages), func(p goPackage) bool { return p.Module.Path != modulePath(dir) })
	require.NotEmptyf(t, packages, "the workspace has no packages of %s", modulePath(dir))
	return packages
}

// workspacePackages lists the packages of all modules of the workspace at once, as each
// run of go list takes a moment. That no module is missing in all.work has a test of its own.
var workspacePackages = sync.OnceValues(func() (packages []goPackage, err error) {
	for _, goos := range []string{"linux", "darwin", "windows"} {
		cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports,Module", "work")
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "GOOS="+goos)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go list for %s: %w: %s", goos, err, &stderr)
		}
		for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
			var p goPackage
			if err := d.Decode(&p); err != nil {
				return nil, err
			}
			packages = append(packages, p)
		}
	}
	return packages, nil
})

// goCommand returns what the go command prints. No package has files that cgo writes then.
func goCommand(t *testing.T, dir string, args ...string) []byte {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoErrorf(t, err, "go %s in %s: %s", strings.Join(args, " "), dir, &stderr)
	return out
}

// moduleDirs returns the folders of all modules of the tree, the root's first.
func moduleDirs(t *testing.T) (dirs []string) {
	for _, file := range treeFiles(t) {
		if filepath.Base(file) == "go.mod" {
			dirs = append(dirs, filepath.Dir(file))
		}
	}
	slices.Sort(dirs)
	require.Equal(t, root, dirs[0])
	return dirs
}

// workspaceDirs returns the folders of the modules that a workspace file uses, the root's first.
func workspaceDirs(t *testing.T, file string) (dirs []string) {
	var work struct{ Use []struct{ DiskPath string } }
	require.NoError(t, json.Unmarshal(goCommand(t, root, "work", "edit", "-json", file), &work))
	for _, u := range work.Use {
		dirs = append(dirs, filepath.Join(root, u.DiskPath))
	}
	slices.Sort(dirs)
	return dirs
}

// usedDirs returns the folders of the modules of the workspace in which the tests run. The
// workspace is all.work in .ci/run, and otherwise go.work, which leaves out the modules that
// take long to compile.
func usedDirs(t *testing.T) []string {
	return workspaceDirs(t, strings.TrimSpace(string(goCommand(t, root, "env", "GOWORK"))))
}

func modFile(t *testing.T, dir string) string {
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	require.NoError(t, err)
	return string(text)
}

// modulePath is the path that the module in dir must have.
func modulePath(dir string) string {
	return rootModule + filepath.ToSlash(strings.TrimPrefix(dir, root))
}

// treeFiles returns all files of the tree but those that git, editors and the
// like keep in folders whose names begin with a dot.
func treeFiles(t *testing.T) (files []string) {
	require.NoError(t, filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != root && strings.HasPrefix(d.Name(), ".") && d.Name() != ".ci":
			return filepath.SkipDir
		case d.Type().IsRegular():
			files = append(files, file)
		}
		return nil
	}))
	return files
}

// What holds for the whole tree, beside its imports: workspaces, package comments, and no
// path of anybody's machine.

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

// onlyInAll are the folders of the modules that are in all.work and not in go.work. They need Caddy, rival limiters, web
// frameworks, clients of language models, the types of Kubernetes or the protocol of a browser, which few who change the
// library touch, and which take so long to compile that the first "go test work" on a machine would take minutes more.
var onlyInAll = []string{"bench", "caddyshaper", "cmd/shaperd", "integration"}

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

// receiver returns the name of the type of a receiver.
func receiver(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.StarExpr:
		return receiver(of.X)
	case *ast.IndexExpr:
		return receiver(of.X)
	case *ast.IndexListExpr:
		return receiver(of.X)
	}
	return of.(*ast.Ident).Name
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

// Copied files are what their origin released: the VENDOR beside them names each with its hash, and
// the version that the script says.
func TestVendoredFilesAreThoseOfTheirRelease(t *testing.T) {
	line, number := regexp.MustCompile(`(?m)^([0-9a-f]{64})  (\S+)$`), regexp.MustCompile(`\d+\.\d+\.\d+`)
	for dir, script := range map[string]string{"inspect/web/uplot": "uPlot.iife.min.js", "integration/browsertest/testdata/axe": "axe.min.js"} {
		vendor, err := os.ReadFile(filepath.Join(root, dir, "VENDOR"))
		require.NoError(t, err)
		stated := map[string]string{"VENDOR": fmt.Sprintf("%x", sha256.Sum256(vendor))}
		for _, m := range line.FindAllStringSubmatch(string(vendor), -1) {
			stated[m[2]] = m[1]
		}
		found := map[string]string{}
		files, err := os.ReadDir(filepath.Join(root, dir))
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(filepath.Join(root, dir, file.Name()))
			require.NoError(t, err)
			found[file.Name()] = fmt.Sprintf("%x", sha256.Sum256(text))
			require.Equal(t, stated[file.Name()], found[file.Name()], "%s/%s: its hash must be the one that VENDOR states", dir, file.Name())
			if file.Name() == script {
				require.Contains(t, string(text[:100]), number.FindString(string(vendor)), dir)
			}
		}
		require.Contains(t, found, script)
		require.Contains(t, found, "LICENSE")
	}
}
