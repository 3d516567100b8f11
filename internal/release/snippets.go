package main

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// A snippet is a block of Go in a document.
type snippet struct {
	at   string // its document and line
	file string // that the comment above it names
	text string
}

// snippetPattern matches a block of Go and the comment above it that names its file.
// The block may stand further right, in a list.
var snippetPattern = regexp.MustCompile("(?ms)(?:^[ \t]*<!-- ([^ ]+) -->\n)?^[ \t]*```go[^\n]*\n(.*?)^[ \t]*```")

// findSnippets returns those of README.md and docs/*.md.
func (t *tree) findSnippets() (all []snippet, err error) {
	for _, file := range t.files {
		if folder, _ := filepath.Split(file); file != "README.md" && (folder != "docs/" || filepath.Ext(file) != ".md") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(t.dir, filepath.FromSlash(file)))
		if err != nil {
			return nil, err
		}
		for _, m := range snippetPattern.FindAllSubmatchIndex(text, -1) {
			s := snippet{text: string(text[m[4]:m[5]])}
			s.at = fmt.Sprintf("%s:%d", file, 1+strings.Count(string(text[:m[4]]), "\n"))
			if m[2] >= 0 {
				s.file = string(text[m[2]:m[3]])
			}
			if !slices.Contains(t.files, s.file) {
				return nil, fmt.Errorf("%s: the comment above this snippet must name the file that it is of: <!-- shaper/example_test.go -->; %q is none", s.at, s.file)
			}
			all = append(all, s)
		}
	}
	return all, nil
}

// writeSnippets writes to OUT/snippets the modules that hold the files of which snippets
// are, and returns the lines about them. A snippet that is a whole program becomes a
// package of its own.
func (t *tree) writeSnippets(out string) (lines []string, err error) {
	all, err := t.findSnippets()
	if err != nil {
		return nil, err
	}
	folders := map[*goMod]string{}
	for i, s := range all {
		m := t.moduleOf(s.file)
		if folders[m] == "" {
			folders[m] = filepath.Join(out, "snippets", fmt.Sprint(len(folders)))
			if err := t.writeUser(m, folders[m]); err != nil {
				return nil, err
			}
			lines = append(lines, "snippets "+folders[m])
		}
		if err := t.copyUser(m, s.file, folders[m]); err != nil {
			return nil, err
		}
		if !strings.HasPrefix(s.text, "package ") {
			continue
		}
		program := filepath.Join(folders[m], fmt.Sprintf("program%d", i))
		if err := writeFile(filepath.Join(program, "main.go"), []byte(s.text)); err != nil {
			return nil, err
		}
		lines = append(lines, "program "+program)
	}
	return lines, nil
}

// writeUser writes, to an empty folder, the module from which files of m are compiled.
// What is published is used from another module. What is not has been pinned, and is
// used as it is.
func (t *tree) writeUser(m *goMod, folder string) error {
	if !m.library {
		return t.copyFolder(m, m.name, folder, func(string) bool { return true })
	}
	text, err := os.ReadFile(filepath.Join(m.dir, "go.mod"))
	if err != nil {
		return err
	}
	// The versions are those of m, so that what is compiled today is tomorrow.
	user, err := modfile.Parse("go.mod", text, nil)
	if err != nil {
		return err
	}
	if err := user.AddModuleStmt("user.test/snippets"); err != nil {
		return err
	}
	if err := user.AddRequire(m.path, t.version); err != nil {
		return err
	}
	sums, err := os.ReadFile(filepath.Join(m.dir, "go.sum"))
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := writeFile(filepath.Join(folder, "go.sum"), sums); err != nil {
		return err
	}
	if err := writeMod(folder, user); err != nil {
		return err
	}
	all := m.sums
	for _, r := range m.file.Require {
		if required := t.module(r.Mod.Path); required != nil {
			all = slices.Concat(all, required.sums)
		}
	}
	return t.setSums(folder, all)
}

// copyUser copies a file of m to the module in folder, with what it needs of its own
// folder: nothing, if it is a test from outside its package.
func (t *tree) copyUser(m *goMod, file, folder string) error {
	if !m.library {
		return nil // It is there already.
	}
	source := filepath.Join(t.dir, filepath.FromSlash(file))
	parsed, err := parser.ParseFile(token.NewFileSet(), source, nil, parser.PackageClauseOnly)
	if err != nil {
		return err
	}
	own := strings.TrimSuffix(file, filepath.Base(file))
	return t.copyFolder(m, strings.TrimSuffix(own, "/"), filepath.Join(folder, filepath.FromSlash(own)), func(name string) bool {
		return name == file || !strings.HasSuffix(parsed.Name.Name, "_test") && !strings.HasSuffix(name, "_test.go")
	})
}

// copyFolder copies the files of m below a folder of the tree that want accepts.
func (t *tree) copyFolder(m *goMod, from, to string, want func(name string) bool) error {
	for _, file := range t.files {
		below, ok := file, true
		if from != "" {
			below, ok = strings.CutPrefix(file, from+"/")
		}
		if !ok || t.moduleOf(file) != m || !want(file) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(t.dir, filepath.FromSlash(file)))
		if err != nil {
			return err
		}
		if err := writeFile(filepath.Join(to, filepath.FromSlash(below)), text); err != nil {
			return err
		}
	}
	return nil
}

// writeFile writes a file and makes its folder.
func writeFile(file string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, text, fs.FileMode(0o644))
}
