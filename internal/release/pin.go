package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
)

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
