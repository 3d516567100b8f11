package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

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

// initRepository makes the tree a git repository: the go command makes the zip file of a
// module of a commit, and obeys the attributes of .gitattributes.
func (t *tree) initRepository() error { return t.git("init", "--quiet") }

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
