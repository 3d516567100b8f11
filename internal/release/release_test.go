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
// library and a command, a nested module, and documents. It requires one module of
// others, whose sums are those of this repository.
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
		"LICENSE":   "As you like.\n",
		"README.md": "```\ngo get go.example/small/bucket\ngo install go.example/small/cmd/hello@latest\n```\n\n<!-- bucket/example_test.go -->\n```go\nfmt.Println(bucket.Slow)\n```\n",
		"docs/rules.md": "<!-- rules/example_test.go -->\n```go\npackage main\n\nimport \"go.example/small/rules\"\n\n" +
			"func main() { println(rules.Schema) }\n```\n",
		"go.mod":             "module go.example/small\n\ngo 1.26.0\n\nrequire golang.org/x/time " + version + "\n",
		"go.sum":             timeSums,
		"bucket/bucket.go":   "package bucket\n\nimport \"golang.org/x/time/rate\"\n\nconst Slow rate.Limit = 1\n",
		"internal/own/it.go": "package own\n\nconst It = 1\n",
		"bucket/example_test.go": "package bucket_test\n\nimport (\n\t\"fmt\"\n\n\t\"go.example/small/bucket\"\n)\n\n" +
			"func Example() {\n\tfmt.Println(bucket.Slow)\n\t// Output: 1\n}\n",
		"cmd/hello/main.go":     "package main\n\nimport \"flag\"\n\nfunc main() { flag.Parse() }\n",
		"rules/rules.go":        "package rules\n\nimport (\n\t_ \"embed\"\n\n\t\"go.example/small/bucket\"\n)\n\n//go:embed schema.json\nvar Schema string\n\nvar Slow = bucket.Slow\n",
		"rules/example_test.go": "package rules_test\n",
		"rules/schema.json":     "{}\n",
		"rules/go.mod": "module go.example/small/rules\n\ngo 1.26.0\n\nrequire go.example/small v0.0.0\n\n" +
			"require golang.org/x/time " + version + " // indirect\n\nreplace go.example/small => ../\n",
		"rules/go.sum": timeSums,
		"bench/go.mod": "module go.example/small/bench\n\ngo 1.26.0\n\nrequire go.example/small v0.0.0\n\n" +
			"require golang.org/x/time " + version + " // indirect\n\nreplace go.example/small => ../\n",
		"bench/go.sum":  timeSums,
		"bench/main.go": "package main\n\nimport \"go.example/small/bucket\"\n\nfunc main() { println(bucket.Slow) }\n",
		"go.work":       "go 1.26.0\n\nuse (\n\t.\n\t./bench\n\t./internal/release\n\t./rules\n)\n",
	}
}

// write writes the files to a new folder, with changes on top: an empty text removes a file.
func write(t *testing.T, files, changes map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	maps.Copy(files, changes)
	for name, text := range files {
		if text != "" {
			require.NoError(t, writeFile(filepath.Join(dir, filepath.FromSlash(name)), []byte(text)))
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
	require.Len(t, lines, 5)
	require.Regexp(t, "^library go.example/small ", lines[0])
	require.Regexp(t, "^library go.example/small/rules ", lines[1])

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
		"compiled program": {
			map[string]string{"cmd/hello/hello": "\x7fELF and more"},
			"cmd/hello/hello is a compiled program",
		},
		"snippet of no file": {
			map[string]string{"docs/more.md": "# More\n\n```go\nx := 1\n```\n"},
			"docs/more.md:4: the comment above this snippet must name the file",
		},
		"snippet of a file that is not there": {
			map[string]string{"docs/more.md": "<!-- bucket/gone_test.go -->\n```go\nx := 1\n```\n"},
			`"bucket/gone_test.go" is none`,
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

// What go.sum said of an earlier release of this tree is not so of this one.
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

// The script itself, on the small tree: it passes where all is right, and for a fault it stops
// with a sentence. It compiles everything several times, so it runs with SHAPER_LONG=1 only.
func TestReleaseCheck(t *testing.T) {
	if os.Getenv("SHAPER_LONG") == "" {
		t.Skip("SHAPER_LONG=1 runs .ci/release-check on a small tree, for minutes")
	}
	if runtime.GOOS == "windows" {
		t.Skip("the script is for bash")
	}
	requireGit(t)
	main := func(body string) string {
		return "package main\n\nimport (\n\t\"flag\"\n\t\"os\"\n)\n\nfunc main() {\n\t" + body + "\n}\n\nvar _, _ = flag.Parse, os.Exit\n"
	}
	for name, test := range map[string]struct {
		changes map[string]string
		says    string // "": nothing is wrong
	}{
		"all is right": {},
		"file that git does not track": {
			map[string]string{".gitignore": "schema.json\n"},
			"go.example/small/rules does not build outside of the workspace, from the files that git tracks",
		},
		"line of go.sum missing": {
			map[string]string{"rules/go.sum": ""},
			"the go.mod or go.sum of go.example/small/rules is not complete outside of the workspace",
		},
		"command that knows no -h": {
			map[string]string{"cmd/hello/main.go": main("os.Exit(3)")},
			"go.example/small/cmd/hello -h exits with 3, not 0",
		},
		"snippet that only the tree can compile": {
			map[string]string{"bucket/example_test.go": "package bucket_test\n\nimport _ \"go.example/small/internal/own\"\n"},
			"a file that README.md or docs/ shows a part of does not compile outside of the tree",
		},
		"program of a document that fails": {
			map[string]string{"docs/more.md": "<!-- cmd/hello/main.go -->\n```go\npackage main\n\nfunc main() { panic(1) }\n```\n"},
			"this program of README.md or docs/ fails",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := smallTree(t)
			sources, err := filepath.Glob("*.*")
			require.NoError(t, err)
			for _, source := range append(sources, "../../.ci/release-check", "../../.ci/rename-module") {
				text, err := os.ReadFile(source)
				require.NoError(t, err)
				files[strings.TrimPrefix(filepath.ToSlash(filepath.Join("internal/release", source)), "../")] = string(text)
			}
			if name != "all is right" { // The last step is for that one.
				files[".ci/rename-module"] = ""
			}
			dir := write(t, files, test.changes)
			small := &tree{dir: dir}
			require.NoError(t, small.initRepository())
			require.NoError(t, small.git("add", "--all"))

			cmd := exec.Command("bash", filepath.Join(dir, ".ci", "release-check"))
			out, err := cmd.CombinedOutput()
			if test.says == "" {
				require.NoErrorf(t, err, "%s", out)
				require.Contains(t, string(out), "others can use this tree")
				return
			}
			require.Errorf(t, err, "%s", out)
			last := strings.Split(strings.TrimSpace(string(out)), "\n")
			require.Contains(t, last[len(last)-1], ".ci/release-check: "+test.says, "%s", out)
		})
	}
}

// A path that the go command cannot fetch must not be in every file before that is noticed.
func TestRenameModuleRefusesAPathThatNobodyCanFetch(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the script is for bash")
	}
	script, err := os.ReadFile("../../.ci/rename-module")
	require.NoError(t, err)
	mod := "module go.example/old\n"
	for _, test := range []struct {
		args   []string
		status int
		says   string
	}{
		{nil, 2, "usage: .ci/rename-module NEWPATH\n"},
		{[]string{"leakybucket"}, 1, ".ci/rename-module: leakybucket does not begin with the name of a host, so nobody could fetch it\n"},
		{[]string{"go.example/with blank"}, 1, ".ci/rename-module: go.example/with blank is no module path\n"},
		{[]string{"go.example/a;b"}, 1, ".ci/rename-module: go.example/a;b is no module path\n"},
	} {
		dir := write(t, map[string]string{".ci/rename-module": string(script), "go.mod": mod}, nil)
		cmd := exec.Command("bash", append([]string{filepath.Join(dir, ".ci", "rename-module")}, test.args...)...)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, test.status, exit.ExitCode())
		require.True(t, strings.HasSuffix(string(out), test.says), "%s", out)
		after, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		require.NoError(t, err)
		require.Equal(t, mod, string(after))
	}
}

// A path that only begins or ends like that of the module is another one.
func TestRenameModuleLeavesOtherPathsAlone(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the script is for bash")
	}
	script, err := os.ReadFile("../../.ci/rename-module")
	require.NoError(t, err)
	dir := write(t, map[string]string{
		".ci/rename-module": string(script),
		"go.mod":            "module go.example/old\n",
		"a.md":              "go.example/old. https://go.example/old/x `go.example/old@v1` go.example/old2 go.example/old-er my-go.example/old\n",
	}, nil)
	out, err := exec.Command("bash", filepath.Join(dir, ".ci", "rename-module"), "host.example/new").CombinedOutput()
	require.NoError(t, err, "%s", out)
	text, err := os.ReadFile(filepath.Join(dir, "a.md"))
	require.NoError(t, err)
	require.Equal(t, "host.example/new. https://host.example/new/x `host.example/new@v1` go.example/old2 go.example/old-er my-go.example/old\n", string(text))
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	require.NoError(t, err)
	require.Equal(t, "module host.example/new\n", string(mod))
}
