// Bubbles prints the tests that run in bubbles of testing/synctest, as a regular
// expression for go test:
//
//	go test -run "$(go run ./internal/bubbles ./shaper)" -count=1000 ./shaper
//
// The time of a bubble does not depend on the machine, so these tests must pass each
// time, however often they run and however busy the machine is. The list is computed
// from the code, so it is never out of date: a test is in it if it uses
// [testing/synctest.Test], or a function, method or variable of this workspace that
// does.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	tests, err := find(os.Args[1:]...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bubbles:", err)
		os.Exit(1)
	}
	fmt.Printf("^(%s)$\n", strings.Join(tests, "|"))
}

// find returns the names of the tests, fuzz targets and examples of some packages that
// start a bubble. It returns an error if there is none. It also returns an error if a
// function in a _test file starts a bubble but no test is found to use it: a test may
// then use it in a way that is not seen, for example through an interface.
func find(patterns ...string) ([]string, error) {
	packages, err := list(patterns)
	if err != nil {
		return nil, err
	}
	c := code{
		positions: token.NewFileSet(), files: map[string]*ast.File{},
		uses: map[token.Pos][]token.Pos{}, usedBy: map[token.Pos][]token.Pos{}, entries: map[token.Pos]string{},
	}
	if err := c.load(packages); err != nil {
		return nil, err
	}
	var found []string
	var entries []token.Pos // those that start a bubble
	inBubbles := reach(c.usedBy, bubble)
	for entry, name := range c.entries {
		if inBubbles[entry] {
			entries = append(entries, entry)
			if !strings.HasPrefix(name, "Benchmark") { // -run does not run them.
				found = append(found, name)
			}
		}
	}
	reached := reach(c.uses, entries...)
	for _, from := range c.usedBy[bubble] {
		if at := c.positions.Position(from); strings.HasSuffix(at.Filename, "_test.go") && !reached[from] {
			return nil, fmt.Errorf("%s starts a bubble, and no test uses it", at)
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no test starts a bubble")
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// A goPackage is what go list says of a package, or of its variant for a test.
type goPackage struct {
	ImportPath, Dir  string
	GoFiles, Imports []string
	ImportMap        map[string]string
	Module           *struct{ Main bool }
}

// isOurs reports whether p is of a module of the workspace, and not the program that
// go test makes of it.
func (p goPackage) isOurs() bool {
	return p.Module != nil && p.Module.Main && !strings.HasSuffix(p.ImportPath, ".test")
}

// list returns our packages among those that match the patterns and all that they
// import. Each comes after those that it imports.
func list(patterns []string) (packages []goPackage, err error) {
	err = goList(append([]string{"-deps", "-test", "-json=ImportPath,Dir,GoFiles,Imports,ImportMap,Module", "--"}, patterns...), func(d *json.Decoder) error {
		var p goPackage
		err := d.Decode(&p)
		if p.isOurs() {
			packages = append(packages, p)
		}
		return err
	})
	return packages, err
}

// exports returns the files of the types that the compiler exports of what our packages
// import from others. Ours are not among them, as to compile all of them and their
// variants takes a minute after each change.
func exports(packages []goPackage) (files map[string]string, err error) {
	ours, others := map[string]bool{}, map[string]bool{}
	for _, p := range packages {
		ours[p.ImportPath] = true
		for _, path := range p.Imports {
			if path != "unsafe" { // It has no file.
				others[path] = true
			}
		}
	}
	maps.DeleteFunc(others, func(path string, _ bool) bool { return ours[path] })
	files = map[string]string{}
	err = goList(append([]string{"-export", "-json=ImportPath,Export", "--"}, slices.Sorted(maps.Keys(others))...), func(d *json.Decoder) error {
		var p struct{ ImportPath, Export string }
		err := d.Decode(&p)
		files[p.ImportPath] = p.Export
		return err
	})
	return files, err
}

// goList runs go list, and calls read until it has read all that go list prints.
func goList(args []string, read func(*json.Decoder) error) error {
	list := exec.Command("go", append([]string{"list"}, args...)...)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		if err := read(d); err != nil {
			return err
		}
	}
	return nil
}

// bubbleName is the name of the function that starts a bubble. It is not in our files, so
// bubble stands for its position.
const (
	bubbleName = "testing/synctest.Test"
	bubble     = token.NoPos
)

// code records which declarations use which. A declaration is known by its position,
// because a package and its variants for tests declare the same names. So each file is
// parsed once, for all of them.
type code struct {
	positions *token.FileSet
	files     map[string]*ast.File // by path
	uses      map[token.Pos][]token.Pos
	usedBy    map[token.Pos][]token.Pos
	entries   map[token.Pos]string // the names of those that go test runs
}

// load reads the packages of the workspace. For all other packages it uses the types
// that the compiler has exported.
func (c *code) load(packages []goPackage) error {
	exported, err := exports(packages)
	if err != nil {
		return err
	}
	ours := map[string]*types.Package{}
	others := importer.ForCompiler(c.positions, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exported[path]) })
	for _, p := range packages {
		files, read, err := c.parse(p)
		if err != nil {
			return err
		}
		info := types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
		// A variant with the files of before only has its types to give.
		config := types.Config{IgnoreFuncBodies: read, Importer: importFunc(func(path string) (*types.Package, error) {
			path = cmp.Or(p.ImportMap[path], path)
			if ours[path] != nil {
				return ours[path], nil
			}
			return others.Import(path)
		})}
		checked, err := config.Check(p.ImportPath, c.positions, files, &info)
		if err != nil {
			return err
		}
		ours[p.ImportPath] = checked
		if read {
			continue
		}
		for _, file := range files {
			c.read(file, &info)
		}
	}
	return nil
}

// parse returns the files of a package. It reports whether all of them are files of a
// package that has been parsed before.
func (c *code) parse(p goPackage) (files []*ast.File, before bool, err error) {
	before = true
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		if c.files[path] == nil {
			before = false
			if c.files[path], err = parser.ParseFile(c.positions, path, nil, parser.SkipObjectResolution); err != nil {
				return nil, false, err
			}
		}
		files = append(files, c.files[path])
	}
	return files, before, nil
}

type importFunc func(path string) (*types.Package, error)

func (f importFunc) Import(path string) (*types.Package, error) { return f(path) }

// testName matches what go test looks for in _test files.
var testName = regexp.MustCompile(`^(?:Test|Fuzz|Example|Benchmark)(?:[^a-z]|$)`)

// read notes what each declaration of a file uses.
func (c *code) read(file *ast.File, info *types.Info) {
	isTest := strings.HasSuffix(c.positions.Position(file.Pos()).Filename, "_test.go")
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			c.note(d.Name, d, info)
			if isTest && d.Recv == nil && testName.MatchString(d.Name.Name) {
				c.entries[d.Name.Pos()] = d.Name.Name
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok {
					for _, name := range v.Names {
						c.note(name, v, info)
					}
				}
			}
		}
	}
}

// note notes what a declaration uses.
func (c *code) note(declared *ast.Ident, declaration ast.Node, info *types.Info) {
	from := declared.Pos()
	ast.Inspect(declaration, func(n ast.Node) bool {
		if name, ok := n.(*ast.Ident); ok && info.Uses[name] != nil {
			if used, ok := position(info.Uses[name]); ok {
				c.uses[from] = append(c.uses[from], used)
				c.usedBy[used] = append(c.usedBy[used], from)
			}
		}
		return true
	})
}

// position returns where something is declared; ok is false if nothing else matters of it:
// it is of the language, such as len.
func position(declared types.Object) (at token.Pos, ok bool) {
	if f, isFunc := declared.(*types.Func); isFunc && f.FullName() == bubbleName {
		return bubble, true
	}
	return declared.Pos(), declared.Pos().IsValid()
}

// reach returns the declarations that some lead to, directly or through others, and these.
func reach(next map[token.Pos][]token.Pos, from ...token.Pos) map[token.Pos]bool {
	reached := map[token.Pos]bool{}
	for left := slices.Clone(from); len(left) > 0; {
		at := left[len(left)-1]
		left = left[:len(left)-1]
		if !reached[at] {
			reached[at] = true
			left = append(left, next[at]...)
		}
	}
	return reached
}
