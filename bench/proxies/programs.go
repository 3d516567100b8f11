package proxies

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"

	"example.com/leakybucket/bench/internal/run"
)

// programs are those that are compared, by the names of the rivals that need them.
// [findPrograms] makes them.
type programs struct {
	dir      string            // for what they write, and for shaperd
	files    int               // so many each of them may have open
	paths    map[string]string // empty if the program is missing
	versions map[string]string
	missing  []error // says what is, and how to get it
}

// A candidate is a program that rivals need.
type candidate struct {
	rivals []string
	find   func(context.Context) (path string, err error)
	// asked are the arguments that make it print its version; the pattern matches the version in
	// its output.
	asked   []string
	version *regexp.Regexp
}

// findPrograms looks for programs in the folders of a PATH and builds shaperd into dir.
// A program that is missing is no error.
func findPrograms(ctx context.Context, o run.Options, dir, path string) *programs {
	p := &programs{dir: dir, files: openFiles(), paths: map[string]string{}, versions: map[string]string{}}
	inPath := func(name, debian string) func(context.Context) (string, error) {
		return func(context.Context) (string, error) { return findProgram(path, name, debian) }
	}
	for _, c := range []candidate{
		{[]string{nginx}, inPath("nginx", "nginx-light"), []string{"-v"}, regexp.MustCompile(`nginx/\S+`)},
		{[]string{haproxySessions, haproxyMaxconn}, inPath("haproxy", "haproxy"), []string{"-v"}, regexp.MustCompile(`HAProxy version \S+`)},
		{[]string{ours, caddy}, func(ctx context.Context) (string, error) { return buildShaperd(ctx, o, dir) }, []string{"version"}, regexp.MustCompile(`v\d\S+`)},
	} {
		program, err := c.find(ctx)
		said := ""
		if err == nil {
			said, err = c.askVersion(ctx, program)
		}
		if err != nil {
			p.missing = append(p.missing, err)
			continue
		}
		for _, name := range c.rivals {
			p.paths[name], p.versions[name] = program, said
		}
	}
	return p
}

// has reports whether a rival can be measured.
func (p *programs) has(name string) bool {
	return name == middleware || name == direct || p.paths[name] != ""
}

// askVersion asks a program for its version.
func (c candidate) askVersion(ctx context.Context, program string) (string, error) {
	said, err := exec.CommandContext(ctx, program, c.asked...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, c.asked[0], err, said)
	}
	version := c.version.FindString(string(said))
	if version == "" {
		return "", fmt.Errorf("%s %s says %q", program, c.asked[0], said)
	}
	return version, nil
}

// findProgram looks for a program in the folders of a PATH, and in the sbin beside each,
// where Debian puts servers and which only root has in its PATH.
func findProgram(path, name, debian string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		for _, dir := range []string{dir, filepath.Join(filepath.Dir(dir), "sbin")} {
			if !filepath.IsAbs(dir) {
				continue
			}
			if program, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
				return program, nil
			}
		}
	}
	return "", fmt.Errorf("%s is missing; to get it, on Debian: apt-get install %s", name, debian)
}

// shaperd is the package of Caddy with the shaper. It is built, not imported: this module
// has nothing to do with the many that Caddy requires.
const shaperd = "example.com/leakybucket/cmd/shaperd"

const shaperdMissing = "shaperd is missing; it is built with Go from within this project's tree"

func buildShaperd(ctx context.Context, o run.Options, dir string) (string, error) {
	o.Logf("builds shaperd, which takes minutes the first time")
	program := filepath.Join(dir, "shaperd")
	said, err := exec.CommandContext(ctx, "go", "env", "GOWORK").CombinedOutput()
	if err == nil {
		inUse := string(bytes.TrimSpace(said))
		if !filepath.IsAbs(inUse) {
			return "", fmt.Errorf("%s; go env GOWORK prints %q here", shaperdMissing, inUse)
		}
		// The file beside go.work that uses every module, also Caddy's.
		workspace := filepath.Join(filepath.Dir(inUse), "all.work")
		build := exec.CommandContext(ctx, "go", "build", "-o", program, shaperd)
		build.Env = append(os.Environ(), "GOWORK="+workspace)
		said, err = build.CombinedOutput()
	}
	if ctx.Err() != nil {
		return "", ctx.Err() // The build was interrupted.
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", shaperdMissing, err, bytes.TrimSpace(said))
	}
	return program, nil
}

// required returns an error if a program is missing although none may be.
func (p *programs) required() error {
	if os.Getenv("SHAPER_REQUIRE_ALL") != "1" {
		return nil
	}
	return errors.Join(p.missing...)
}
