// Package house_test holds the rules of the house, which go for the whole tree: who may import
// whom, what the public API is, and that documents say what is there. They read every file of the
// tree, so that the go command's test cache notices a change anywhere.
package house_test

// This file reads the tree: its files, its modules and its packages.

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
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

func goCommand(t *testing.T, dir string, args ...string) []byte {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
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

// usedDirs returns the folders of the modules of the workspace in which the tests run. It is
// that of all.work in .ci/run, and otherwise that of go.work, which leaves out the modules
// that take long to compile.
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
