package main

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// A tree is a folder with the modules of one repository.
type tree struct {
	dir     string
	version string   // of all its modules
	modules []*goMod // each after those that it requires
	files   []string // all of them, with slashes, from dir
}

// A goMod is a module of the tree.
type goMod struct {
	path    string
	name    string // the folder from the tree's with slashes, "" for the root module
	dir     string
	library bool // whether it is published
	file    *modfile.File
	sums    []string // the lines of a go.sum that name it, once it is served
}

// notPublished matches the folders of modules that are there to be run or read where
// the tree is.
var notPublished = regexp.MustCompile(`(?:^|/)(?:bench|browsertest|examples|internal)(?:/|$)`)

// findModules reads the tree in dir.
func findModules(dir, version string) (*tree, error) {
	t := &tree{dir: dir, version: version}
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, file)
		t.files = append(t.files, filepath.ToSlash(name))
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, name := range t.files {
		if name != "go.mod" && !strings.HasSuffix(name, "/go.mod") {
			continue
		}
		m := &goMod{name: strings.TrimSuffix(strings.TrimSuffix(name, "go.mod"), "/")}
		m.dir = filepath.Join(dir, filepath.FromSlash(m.name))
		m.library = !notPublished.MatchString(m.name)
		text, err := os.ReadFile(filepath.Join(m.dir, "go.mod"))
		if err != nil {
			return nil, err
		}
		m.file, err = modfile.Parse(name, text, nil)
		if err != nil {
			return nil, err
		}
		m.path = m.file.Module.Mod.Path
		t.modules = append(t.modules, m)
	}
	if len(t.modules) == 0 || !slices.Contains(t.files, "go.mod") {
		return nil, fmt.Errorf("%s has no go.mod", dir)
	}
	return t, t.sort()
}

// sort puts each module behind those that it requires, and the others in the order of
// their names.
func (t *tree) sort() error {
	slices.SortFunc(t.modules, func(a, b *goMod) int { return cmp.Compare(a.name, b.name) })
	var sorted []*goMod
	for len(t.modules) > 0 {
		i := slices.IndexFunc(t.modules, func(m *goMod) bool {
			return !slices.ContainsFunc(m.file.Require, func(r *modfile.Require) bool {
				return slices.ContainsFunc(t.modules, func(o *goMod) bool { return o.path == r.Mod.Path })
			})
		})
		if i < 0 {
			return fmt.Errorf("the modules %s require each other in a circle, so none of them can be released first", t.names())
		}
		sorted = append(sorted, t.modules[i])
		t.modules = slices.Delete(t.modules, i, i+1)
	}
	t.modules = sorted
	return nil
}

func (t *tree) names() string {
	var names []string
	for _, m := range t.modules {
		names = append(names, m.path)
	}
	return strings.Join(names, ", ")
}

// module returns the module with that path, or nil.
func (t *tree) module(path string) *goMod {
	for _, m := range t.modules {
		if m.path == path {
			return m
		}
	}
	return nil
}

// moduleOf returns the module that a file belongs to: the one in the nearest folder
// above it.
func (t *tree) moduleOf(file string) (nearest *goMod) {
	for _, m := range t.modules {
		if m.name == "" && nearest == nil || m.name != "" && strings.HasPrefix(file, m.name+"/") && (nearest == nil || len(m.name) > len(nearest.name)) {
			nearest = m
		}
	}
	return nearest
}
