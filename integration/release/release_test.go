package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// smallTree returns the files of a repository that can be released: a root module with a
// library and a command, and a nested module. It requires one module of others, whose sums
// stand in this repository.
func smallTree(t *testing.T) map[string]string {
	t.Helper()
	sums, err := os.ReadFile("../../go.sum")
	require.NoError(t, err)
	var timeSums string
	for line := range strings.Lines(string(sums)) {
		if strings.HasPrefix(line, "golang.org/x/time ") {
			timeSums += line
		}
	}
	version := strings.Fields(timeSums)[1]
	return map[string]string{
		"LICENSE":           "As you like.\n",
		"go.mod":            "module go.example/small\n\ngo 1.26.0\n\nrequire golang.org/x/time " + version + "\n",
		"go.sum":            timeSums,
		"bucket/bucket.go":  "package bucket\n\nimport \"golang.org/x/time/rate\"\n\nconst Slow rate.Limit = 1\n",
		"cmd/hello/main.go": "package main\n\nimport \"flag\"\n\nfunc main() { flag.Parse() }\n",
		"rules/rules.go":    "package rules\n\nimport (\n\t_ \"embed\"\n\n\t\"go.example/small/bucket\"\n)\n\n//go:embed schema.json\nvar Schema string\n\nvar Slow = bucket.Slow\n",
		"rules/schema.json": "{}\n",
		"rules/go.mod": "module go.example/small/rules\n\ngo 1.26.0\n\nrequire go.example/small v0.0.0\n\n" +
			"require golang.org/x/time " + version + " // indirect\n\nreplace go.example/small => ../\n",
		"rules/go.sum": timeSums,
		"bench/go.mod": "module go.example/small/bench\n\ngo 1.26.0\n\nrequire go.example/small v0.0.0\n\n" +
			"require golang.org/x/time " + version + " // indirect\n\nreplace go.example/small => ../\n",
		"bench/go.sum":  timeSums,
		"bench/main.go": "package main\n\nimport \"go.example/small/bucket\"\n\nfunc main() { println(bucket.Slow) }\n",
	}
}

// write writes the files to a new folder, with changes on top: an empty text removes a file.
func write(t *testing.T, files, changes map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	maps.Copy(files, changes)
	for name, text := range files {
		if text != "" {
			file := filepath.Join(dir, filepath.FromSlash(name))
			require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
			require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		}
	}
	return dir
}

func publishSmall(t *testing.T, changes map[string]string) (out string, lines []string, err error) {
	t.Helper()
	requireGit(t)
	out = t.TempDir()
	lines, err = publish(write(t, smallTree(t), changes), "v0.1.0", out)
	return out, lines, err
}

func requireGit(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil && os.Getenv("SHAPER_REQUIRE_ALL") != "1" {
		t.Skip("git is missing")
	}
}

func TestLibrariesAreServedWithoutReplaceLines(t *testing.T) {
	out, lines, err := publishSmall(t, nil)
	require.NoError(t, err)
	require.Len(t, lines, 2)
	require.Regexp(t, "^go.example/small ", lines[0])
	require.Regexp(t, "^go.example/small/rules ", lines[1])

	proxy := filepath.Join(out, "proxy", "go.example", "small")
	mod, err := os.ReadFile(filepath.Join(proxy, "rules", "@v", "v0.1.0.mod"))
	require.NoError(t, err)
	require.Contains(t, string(mod), "require go.example/small v0.1.0\n")
	require.NotContains(t, string(mod), "replace")
	_, err = os.Stat(filepath.Join(proxy, "bench"))
	require.True(t, os.IsNotExist(err))
}

// A release is used where none of the files around it are: what its author has at hand,
// and its users not, must not stay unnoticed.
func TestNoReleaseOfATreeWithAFault(t *testing.T) {
	for fault, test := range map[string]struct {
		changes map[string]string
		says    string
	}{
		"replace line": {
			map[string]string{"go.mod": "module go.example/small\n\ngo 1.26.0\n\nreplace golang.org/x/time => ../time\n"},
			"the go.mod of go.example/small replaces golang.org/x/time by ../time",
		},
		"replace line in a block": {
			map[string]string{"rules/go.mod": "module go.example/small/rules\n\nreplace (\n\tgo.example/small => ../\n\tgo.example/fork v1.0.0 => go.example/other v1.0.0\n)\n"},
			"the go.mod of go.example/small/rules replaces go.example/fork by go.example/other",
		},
		"exclude line": {
			map[string]string{"go.mod": "module go.example/small\n\nexclude golang.org/x/time v0.1.0\n"},
			"the go.mod of go.example/small excludes golang.org/x/time@v0.1.0",
		},
		"requires what is not published": {
			map[string]string{"rules/go.mod": "module go.example/small/rules\n\nrequire go.example/small/bench v0.0.0\n"},
			"the go.mod of go.example/small/rules requires go.example/small/bench, which is not published",
		},
		"circle": {
			map[string]string{"go.mod": "module go.example/small\n\nrequire go.example/small/rules v0.0.0\n"},
			"require each other in a circle",
		},
		"file left out of the zip file": {
			map[string]string{".gitattributes": "*.json export-ignore\n"},
			"rules/schema.json is not in the zip file of go.example/small/rules@v0.1.0",
		},
		"no module": {
			map[string]string{"go.mod": ""},
			"has no go.mod",
		},
	} {
		t.Run(fault, func(t *testing.T) {
			_, _, err := publishSmall(t, test.changes)
			require.ErrorContains(t, err, test.says)
		})
	}
}

// The sums of an earlier release of this tree are wrong for this one.
func TestSumsOfEarlierReleasesGo(t *testing.T) {
	files := smallTree(t)
	dir := write(t, files, map[string]string{
		"rules/go.sum": "go.example/small v0.0.9 h1:x=\ngo.example/small v0.0.9/go.mod h1:x=\n" + files["rules/go.sum"],
	})
	requireGit(t)
	_, err := publish(dir, "v0.1.0", t.TempDir())
	require.NoError(t, err)
	sums, err := os.ReadFile(filepath.Join(dir, "rules", "go.sum"))
	require.NoError(t, err)
	require.Regexp(t, `^go.example/small v0.1.0 h1:\S+\ngo.example/small v0.1.0/go.mod h1:\S+\ngolang.org/x/time`, string(sums))
	require.Equal(t, 4, strings.Count(string(sums), "\n"))
}

// rename runs .ci/rename-module in a tree of two files, and returns its status, its output, and
// the files afterwards.
func rename(t *testing.T, document string, args ...string) (status int, said, mod, after string) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the script is for bash")
	}
	script, err := os.ReadFile("../../.ci/rename-module")
	require.NoError(t, err)
	dir := write(t, map[string]string{".ci/rename-module": string(script), "go.mod": "module go.example/old\n", "a.md": document}, nil)
	cmd := exec.Command("bash", append([]string{filepath.Join(dir, ".ci", "rename-module")}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
	}
	goMod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(dir, "a.md"))
	require.NoError(t, err)
	return cmd.ProcessState.ExitCode(), string(out), string(goMod), string(text)
}

// A path that the go command cannot fetch must not be in every file before that is noticed.
func TestRenameModuleRefusesAPathThatNobodyCanFetch(t *testing.T) {
	for _, test := range []struct {
		args   []string
		status int
		says   string
	}{
		{nil, 2, "usage: .ci/rename-module NEWPATH\n"},
		{[]string{"leakybucket"}, 1, ".ci/rename-module: leakybucket does not begin with the name of a host, so nobody could fetch it\n"},
		{[]string{"go.example/a;b"}, 1, ".ci/rename-module: go.example/a;b is no module path\n"},
	} {
		status, said, mod, _ := rename(t, "go.example/old\n", test.args...)
		require.Equal(t, test.status, status)
		require.True(t, strings.HasSuffix(said, test.says), said)
		require.Equal(t, "module go.example/old\n", mod)
	}
}

// A path that only begins or ends as the path of the module does is another one.
func TestRenameModuleLeavesOtherPathsAlone(t *testing.T) {
	status, said, mod, text := rename(t, "go.example/old. https://go.example/old/x `go.example/old@v1` go.example/old2 go.example/old-er my-go.example/old\n",
		"host.example/new")
	require.Zero(t, status, said)
	require.Equal(t, "host.example/new. https://host.example/new/x `host.example/new@v1` go.example/old2 go.example/old-er my-go.example/old\n", text)
	require.Equal(t, "module host.example/new\n", mod)
}
