package house_test

// The public API as text: a change of it shows as a diff of testdata/api.txt,
// to its author and to its reviewers.

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each library package of the tree has a golden copy of its public API in its
// testdata/api.txt, with one line for each exported constant, variable, function,
// type, method and field. A new package is found without an entry here: it only
// needs that file.
func TestPublicAPIChangesOnlyOnPurpose(t *testing.T) {
	t.Parallel()
	const rewrite = "SHAPER_UPDATE_API"
	packages := apiPackages{}
	var libraries []apiPackage
	for _, p := range listWithDependencies(t) {
		packages.check(t, p)
		if p.isLibrary() {
			libraries = append(libraries, p)
		}
	}
	require.NotEmpty(t, libraries)
	for _, p := range libraries {
		now := apiOf(packages[p.ImportPath])
		golden := filepath.Join(p.Dir, "testdata", "api.txt")
		if os.Getenv(rewrite) == "1" {
			require.NoError(t, os.MkdirAll(filepath.Dir(golden), 0o755))
			require.NoError(t, os.WriteFile(golden, []byte(strings.Join(now, "\n")+"\n"), 0o644))
		}
		text, err := os.ReadFile(golden)
		if !os.IsNotExist(err) {
			require.NoError(t, err)
		}
		was := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") // one empty line without a file
		var changes []string
		for _, line := range was {
			if !slices.Contains(now, line) {
				changes = append(changes, "- "+line)
			}
		}
		for _, line := range now {
			if !slices.Contains(was, line) {
				changes = append(changes, "+ "+line)
			}
		}
		require.Emptyf(t, changes, "the public API of %s is not that of its testdata/api.txt. "+
			"If the change is intended, run %s=1 go test -run TestPublicAPIChangesOnlyOnPurpose ./internal/house, and describe the change in CHANGELOG.md.",
			p.ImportPath, rewrite)
	}
}

// An apiPackage is a package as go list shows it.
type apiPackage struct {
	ImportPath, Name, Dir string
	GoFiles               []string
	ImportMap             map[string]string // of a vendored package by the path that its importers name
}

// isLibrary reports whether p is a package of the tree that other modules may import: it is
// no command, not internal, and not only tests.
func (p apiPackage) isLibrary() bool {
	return strings.HasPrefix(p.ImportPath, rootModule+"/") && p.Name != "main" && len(p.GoFiles) > 0 && !strings.Contains(p.ImportPath+"/", "/internal/")
}

// notImported matches the modules that are there to be run or read.
var notImported = regexp.MustCompile(`^\.\./\.\./(?:bench|examples|integration)(?:/|$)`)

// listWithDependencies returns the packages of all modules that others may import, and all that they
// import, each after what it imports itself.
func listWithDependencies(t *testing.T) (packages []apiPackage) {
	list := []string{"list", "-deps", "-json=ImportPath,Name,Dir,GoFiles,ImportMap"}
	for _, dir := range usedDirs(t) {
		if dir = filepath.ToSlash(dir); !notImported.MatchString(dir) {
			list = append(list, "."+strings.TrimPrefix(dir, root)+"/...")
		}
	}
	for d := json.NewDecoder(bytes.NewReader(goCommand(t, root, list...))); d.More(); {
		var p apiPackage
		require.NoError(t, d.Decode(&p))
		packages = append(packages, p)
	}
	return packages
}

// apiPackages has the packages that were checked by import path. They are read from source, without the bodies of
// functions: on a machine with an empty cache, export data would be compiled at the same time as the go command
// that runs the tests compiles these packages.
type apiPackages map[string]*types.Package

func (a apiPackages) check(t *testing.T, p apiPackage) {
	if p.ImportPath == "unsafe" {
		a[p.ImportPath] = types.Unsafe
		return
	}
	fset := token.NewFileSet()
	a.checkFiles(t, p, fset, p.parse(t, fset), nil)
}

// checkFiles is check of a package that has been parsed. With an info it also reads the bodies of functions, and
// notes there what names mean.
func (a apiPackages) checkFiles(t *testing.T, p apiPackage, fset *token.FileSet, files []*ast.File, info *types.Info) {
	imports := importing(func(path string) *types.Package { return a[cmp.Or(p.ImportMap[path], path)] })
	conf := types.Config{IgnoreFuncBodies: info == nil, Sizes: types.SizesFor("gc", runtime.GOARCH), Importer: imports}
	var err error
	a[p.ImportPath], err = conf.Check(p.ImportPath, fset, files, info)
	require.NoError(t, err)
}

// parse returns the files of a package.
func (p apiPackage) parse(t *testing.T, fset *token.FileSet) (files []*ast.File) {
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, file)
	}
	return files
}

type importing func(path string) *types.Package

func (i importing) Import(path string) (*types.Package, error) { return i(path), nil }

// apiOf returns the public API of a package, one sorted line for each name.
func apiOf(pkg *types.Package) (lines []string) {
	text := func(t types.Type) string { return types.TypeString(unnamed(t), types.RelativeTo(pkg)) }
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, name := range pkg.Scope().Names() {
		object := pkg.Scope().Lookup(name)
		if !object.Exported() {
			continue
		}
		switch o := object.(type) {
		case *types.Const:
			add("const %s %s = %s", name, text(o.Type()), o.Val().ExactString())
		case *types.Var:
			add("var %s %s", name, text(o.Type()))
		case *types.Func:
			add("func %s%s", name, strings.TrimPrefix(text(o.Type()), "func"))
		case *types.TypeName:
			if o.IsAlias() {
				add("type %s = %s", name, text(types.Unalias(o.Type())))
				// Of a type that users can't name otherwise, the alias shows the fields and methods.
				if of, ok := types.Unalias(o.Type()).(*types.Named); ok && strings.Contains(of.Obj().Pkg().Path()+"/", "/internal/") {
					lines = append(lines, apiOfType(of, text)[1:]...)
				}
				continue
			}
			lines = append(lines, apiOfType(o.Type().(*types.Named), text)...)
		}
	}
	slices.Sort(lines)
	return lines
}

// apiOfType returns the lines of a defined type, its fields and its methods,
// including those promoted from embedded types.
func apiOfType(named *types.Named, text func(types.Type) string) (lines []string) {
	name := named.Obj().Name()
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }

	kind := ""
	switch u := named.Underlying().(type) {
	case *types.Struct:
		kind = "struct"
		if types.Comparable(u) {
			kind = "comparable struct" // Even an unexported field can end that.
		}
	case *types.Interface:
		kind = "interface"
		for i := range u.NumMethods() {
			if !u.Method(i).Exported() {
				kind = "interface with unexported methods"
			}
		}
	default:
		kind = text(u)
	}
	parameters := ""
	if list := named.TypeParams(); list.Len() > 0 {
		var each []string
		for i := range list.Len() {
			each = append(each, list.At(i).Obj().Name()+" "+text(list.At(i).Constraint()))
		}
		parameters = "[" + strings.Join(each, ", ") + "]"
	}
	add("type %s%s %s", name, parameters, kind)

	if s, ok := named.Underlying().(*types.Struct); ok {
		for _, f := range exportedFields(s) {
			add("field %s.%s %s", name, f.Name(), text(f.Type()))
		}
	}
	byValue := types.NewMethodSet(named)
	all := byValue
	if !types.IsInterface(named) {
		all = types.NewMethodSet(types.NewPointer(named))
	}
	for i := range all.Len() {
		method := all.At(i).Obj()
		if !method.Exported() {
			continue
		}
		receiver := name
		if byValue.Lookup(method.Pkg(), method.Name()) == nil {
			receiver = "*" + name
		}
		add("method (%s) %s%s", receiver, method.Name(), strings.TrimPrefix(text(method.Type()), "func"))
	}
	return lines
}

// exportedFields returns the exported fields of a struct, including those promoted
// from embedded structs of unexported types.
func exportedFields(s *types.Struct) (fields []*types.Var) {
	for i := range s.NumFields() {
		f := s.Field(i)
		if f.Exported() {
			fields = append(fields, f)
		} else if inner, ok := f.Type().Underlying().(*types.Struct); ok && f.Embedded() {
			fields = append(fields, exportedFields(inner)...)
		}
	}
	return fields
}

// unnamed returns t without the names of parameters and results, which callers
// do not depend on.
func unnamed(t types.Type) types.Type {
	switch t := t.(type) {
	case *types.Signature:
		var parameters []*types.TypeParam
		for i := range t.TypeParams().Len() {
			old := t.TypeParams().At(i)
			parameters = append(parameters, types.NewTypeParam(old.Obj(), old.Constraint()))
		}
		return types.NewSignatureType(nil, nil, parameters, unnamedTuple(t.Params()), unnamedTuple(t.Results()), t.Variadic())
	case *types.Pointer:
		return types.NewPointer(unnamed(t.Elem()))
	case *types.Slice:
		return types.NewSlice(unnamed(t.Elem()))
	case *types.Array:
		return types.NewArray(unnamed(t.Elem()), t.Len())
	case *types.Map:
		return types.NewMap(unnamed(t.Key()), unnamed(t.Elem()))
	case *types.Chan:
		return types.NewChan(t.Dir(), unnamed(t.Elem()))
	}
	return t
}

func unnamedTuple(tuple *types.Tuple) *types.Tuple {
	var each []*types.Var
	for i := range tuple.Len() {
		each = append(each, types.NewVar(token.NoPos, nil, "", unnamed(tuple.At(i).Type())))
	}
	return types.NewTuple(each...)
}
