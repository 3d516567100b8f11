// Command release publishes a copy of this tree to a folder, so that
// .ci/release-check can use it as others will: through the go command, from
// outside the tree.
//
//	release TREE VERSION OUT
//
// TREE is the copy, and nothing but the files of a release. Each library module in
// it gets the go.mod and go.sum that a release needs: without the replace lines that
// lead to other modules of the tree, and with VERSION of those. OUT/proxy then serves
// it to the go command. Standard output has one line for each such module: its path, and
// its folder in TREE.
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: release TREE VERSION OUT")
		os.Exit(2)
	}
	lines, err := publish(os.Args[1], os.Args[2], os.Args[3])
	if err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
	for _, line := range lines {
		fmt.Println(line)
	}
}

// publish is the command. It returns the lines that are printed.
func publish(dir, version, out string) (lines []string, err error) {
	tree, err := findModules(dir, version)
	if err != nil {
		return nil, err
	}
	// The go command makes the zip file of a module of a commit, and obeys the attributes of .gitattributes.
	if err := tree.git("init", "--quiet"); err != nil {
		return nil, err
	}
	for _, m := range tree.modules {
		if !m.library {
			continue
		}
		if err := tree.pin(m); err != nil {
			return nil, err
		}
		if err := tree.serve(m, out); err != nil {
			return nil, err
		}
		lines = append(lines, m.path+" "+m.dir)
	}
	return lines, nil
}

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
var notPublished = regexp.MustCompile(`(?:^|/)(?:bench|examples|integration)(?:/|$)`)

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

// pin gives the library m the go.mod and go.sum of a release. The modules of the tree that it
// requires must have been served.
func (t *tree) pin(m *goMod) error {
	for _, r := range slices.Clone(m.file.Replace) {
		if other := t.module(r.Old.Path); other == nil || !other.library || !modfile.IsDirectoryPath(r.New.Path) {
			return fmt.Errorf("the go.mod of %s replaces %s by %s: other modules take no notice of that line, and go install refuses a command whose module has one. Remove it",
				m.path, r.Old.Path, r.New.Path)
		}
		if err := m.file.DropReplace(r.Old.Path, r.Old.Version); err != nil {
			return err
		}
	}
	if len(m.file.Exclude) > 0 {
		return fmt.Errorf("the go.mod of %s excludes %s: go install refuses a command whose module has such a line. Remove it", m.path, m.file.Exclude[0].Mod)
	}
	var sums []string
	for _, r := range slices.Clone(m.file.Require) {
		required := t.module(r.Mod.Path)
		switch {
		case required == nil:
			continue
		case !required.library:
			return fmt.Errorf("the go.mod of %s requires %s, which is not published", m.path, required.path)
		}
		if err := m.file.AddRequire(required.path, t.version); err != nil {
			return err
		}
		sums = append(sums, required.sums...)
	}
	m.file.Cleanup()
	text, err := m.file.Format()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(m.dir, "go.mod"), text, 0o644); err != nil {
		return err
	}
	return t.setSums(m.dir, sums)
}

// setSums gives the go.sum of the module in dir these lines for the modules of the tree,
// in the order in which the go command would write them. Those of other versions go.
func (t *tree) setSums(dir string, sums []string) error {
	file := filepath.Join(dir, "go.sum")
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) && len(sums) == 0 {
		return nil
	}
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	lines := map[module.Version]string{}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) != 3 {
			return fmt.Errorf("%s: the line %q has not three words", file, line)
		}
		if t.module(words[0]) == nil {
			lines[module.Version{Path: words[0], Version: words[1]}] = line
		}
	}
	for _, line := range sums {
		words := strings.Fields(line)
		lines[module.Version{Path: words[0], Version: words[1]}] = line
	}
	var sorted []module.Version
	for m := range lines {
		sorted = append(sorted, m)
	}
	module.Sort(sorted)
	var all strings.Builder
	for _, m := range sorted {
		all.WriteString(lines[m])
	}
	return os.WriteFile(file, []byte(all.String()), 0o644)
}

// git runs a git command in the tree, undisturbed by the settings of whoever runs it.
func (t *tree) git(args ...string) error {
	cmd := exec.Command("git", append([]string{
		"-c", "user.name=release", "-c", "user.email=release@localhost", "-c", "core.autocrlf=false", "-c", "core.hooksPath=" + os.DevNull,
	}, args...)...)
	cmd.Dir = t.dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git %s: %w: %s", args[0], err, out)
	}
	return nil
}

// serve writes the module m to OUT/proxy, in the layout of a module proxy, and notes
// its sums.
func (t *tree) serve(m *goMod, out string) error {
	version := module.Version{Path: m.path, Version: t.version}
	escaped, err := module.EscapePath(m.path)
	if err != nil {
		return err
	}
	folder := filepath.Join(out, "proxy", filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	base := filepath.Join(folder, t.version)

	// --force, because files that are ignored may be part of a release all the same.
	if err := t.git("add", "--all", "--force"); err != nil {
		return err
	}
	if err := t.git("commit", "--quiet", "--allow-empty", "--message", version.String()); err != nil {
		return err
	}
	archive, err := os.Create(base + ".zip")
	if err != nil {
		return err
	}
	defer archive.Close()
	if err := zip.CreateFromVCS(archive, version, t.dir, "HEAD", m.name); err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return err
	}
	if err := t.compare(m, version, base+".zip"); err != nil {
		return err
	}

	mod, err := os.ReadFile(filepath.Join(m.dir, "go.mod"))
	if err != nil {
		return err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{t.version, time.Now().UTC()})
	if err != nil {
		return err
	}
	for file, text := range map[string][]byte{
		base + ".mod": mod, base + ".info": info, filepath.Join(folder, "list"): []byte(t.version + "\n"),
	} {
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return err
		}
	}

	zipSum, err := dirhash.HashZip(base+".zip", dirhash.DefaultHash)
	if err != nil {
		return err
	}
	modSum, err := dirhash.DefaultHash([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return os.Open(base + ".mod") })
	if err != nil {
		return err
	}
	m.sums = []string{
		fmt.Sprintf("%s %s %s\n", m.path, t.version, zipSum),
		fmt.Sprintf("%s %s/go.mod %s\n", m.path, t.version, modSum),
	}
	return nil
}

// compare returns an error if the zip file lacks a file of the module. A module is built from
// its zip file alone: a missing file is noticed where it is used, or, if only a test or a
// reader wants it, never.
func (t *tree) compare(m *goMod, version module.Version, archive string) error {
	checked, err := zip.CheckZip(version, archive)
	if err != nil {
		return err
	}
	prefix := version.String() + "/"
	for _, file := range t.files {
		if t.moduleOf(file) != m {
			continue
		}
		name := strings.TrimPrefix(strings.TrimPrefix(file, m.name), "/")
		if !slices.Contains(checked.Valid, prefix+name) {
			return fmt.Errorf("%s is not in the zip file of %s, into which symbolic links, folders named vendor and what .gitattributes excludes do not go", file, version)
		}
	}
	return nil
}
