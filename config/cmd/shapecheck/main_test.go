package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shapecheck runs the program in the folder testdata.
func shapecheck(t *testing.T, stdin string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	if !strings.HasSuffix(folder(t), "testdata") {
		t.Chdir("testdata")
	}
	var out, problems bytes.Buffer
	status = run(args, strings.NewReader(stdin), &out, &problems)
	return status, out.String(), problems.String()
}

// folder returns the working directory.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	require.NoError(t, err)
	return dir
}

// file writes a file of limits for one test, and returns its path.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestStrictMakesWarningsFail(t *testing.T) {
	for _, c := range []struct {
		args []string
		want int
	}{
		{[]string{"-strict", "shaper.yaml"}, exitOK},
		{[]string{"shaper.yaml", "local.yaml", "-strict"}, exitFailed},
		// A warning about a rule that no KEY finds is of no concern.
		{[]string{"-strict", "shaper.yaml", "local.yaml", "api/premium/42"}, exitOK},
		{[]string{"-strict", "shaper.yaml", "local.yaml", "api/1"}, exitFailed},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			status, _, problems := shapecheck(t, "", c.args...)
			require.Equal(t, c.want, status, problems)
		})
	}
}

func TestAllMistakesOfAllFilesAreReported(t *testing.T) {
	status, out, problems := shapecheck(t, "", "wrong.yaml", "missing.yaml")
	require.Equal(t, exitFailed, status)
	require.Empty(t, out)
	lines := strings.Split(strings.TrimSpace(problems), "\n")
	require.Len(t, lines, 4, problems)
	require.Equal(t, `wrong.yaml:1:13: rule "default": rate 20/x: expected a unit: ns us ms s sec min h hour d day`, lines[0])
	require.Equal(t, `wrong.yaml:3:21: rule "api": burts: did you mean burst?`, lines[1])
	require.Contains(t, lines[2], "wrong.yaml:4:3: api//v2: ")
	require.Contains(t, lines[3], "missing.yaml: cannot be read: ")
}

func TestAKeyWithoutARuleFails(t *testing.T) {
	path := file(t, "f.yaml", "limits: {api: 5/s depth 3}")
	status, out, problems := shapecheck(t, "", path, "api/1", "login")
	require.Equal(t, exitFailed, status)
	require.Contains(t, out, "api/1: 5/s depth 3")
	require.Equal(t, path+": login: no rule matches this key, and there is no default\n", problems)
}

func TestItIsSaidThatThereIsNoDefault(t *testing.T) {
	const says = "There is no default: calls with a key that no rule matches fail.\n"
	_, out, _ := shapecheck(t, "", file(t, "f.yaml", "limits: {api: 5/s depth 3}"))
	require.True(t, strings.HasSuffix(out, "\n\n"+says), out)
	_, out, _ = shapecheck(t, "", file(t, "f.yaml", "limits: {}"))
	require.Equal(t, says, out)
}

func TestWrongInput(t *testing.T) {
	unreadable := file(t, "f.yaml", "default: 1/s")
	require.NoError(t, os.Chmod(unreadable, 0))
	for _, c := range []struct {
		name, want string
		args       []string
	}{
		{"missing", "no-such-file: cannot be read: ", []string{"no-such-file"}},
		{"folder", ".: cannot be read: ", []string{"."}},
		{"binary", ": byte 0xff is not UTF-8\n", []string{file(t, "f.yaml", "\x00\x01\xff\xfe")}},
		{"2 MiB", ": the file is larger than 1048576 bytes\n", []string{file(t, "f.yaml", strings.Repeat("# long\n", 1<<18))}},
		{"empty", `: the file says nothing, must have "default" or "limits"`, []string{file(t, "f.yaml", "")}},
		{"list", "no-such-list: cannot be read: ", []string{"-keys", "no-such-list", "shaper.yaml"}},
		{"no keys", ": has no keys, must have one on each line", []string{"-keys", file(t, "list", "\n\n"), "shaper.yaml"}},
		{"unreadable", ": cannot be read: permission denied", []string{unreadable}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "unreadable" && os.Getuid() <= 0 {
				t.Skip("root may read everything, and Windows has no such permission")
			}
			status, _, problems := shapecheck(t, "", c.args...)
			require.Equal(t, exitFailed, status)
			require.Contains(t, problems, c.want)
			require.Equal(t, 1, strings.Count(problems, "\n"), problems)
		})
	}
}

func TestFilesAndKeysAreToldApart(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("there", nil, 0o600))
	require.NoError(t, os.Mkdir("folder", 0o700))
	for _, c := range []struct {
		args, files, keys, err string
	}{
		{args: "a.yaml", files: "a.yaml"},
		{args: "a", files: "a"},
		{args: "a.yaml b.yml c.json d.YAML", files: "a.yaml b.yml c.json d.YAML"},
		{args: "a.yaml api api/1", files: "a.yaml", keys: "api api/1"},
		{args: "a.yaml folder", files: "a.yaml", keys: "folder"},
		{args: "a.yaml -", files: "a.yaml", keys: "-"},
		{args: "-", files: "-"},
		{args: "-strict - api", files: "-", keys: "api"},
		{args: "- a.yaml - -- -", err: `"-" is given twice, but standard input can be read only once`},
		{args: "-keys - -", err: `"-" is given twice, but standard input can be read only once`},
		{args: "a.yaml - -- -", files: "a.yaml -", keys: "-"},
		{args: "a.yaml -json api -strict", files: "a.yaml", keys: "api"},
		{args: "a there -- b", files: "a there", keys: "b"},
		{args: "a.yaml -- there b.yaml -json --", files: "a.yaml", keys: "there b.yaml -json --"},
		{args: "a.yaml --", files: "a.yaml"},
		{args: "", err: "no FILE is given"},
		{args: "-- api", err: "no FILE is given"},
		{args: "-json", err: "no FILE is given"},
		{args: "a.yaml there", err: `is "there" a FILE or a KEY? Write -- before the first key`},
		{args: "a.yaml api b.yaml", err: `is "b.yaml" a FILE or a KEY? Write -- before the first key`},
		{args: "a.yaml -colour", err: "flag provided but not defined: -colour"},
		{args: "a.yaml -keys", err: "flag needs an argument: -keys"},
	} {
		a, err := parseArguments(strings.Fields(c.args))
		if c.err != "" {
			require.EqualError(t, err, c.err, c.args)
			continue
		}
		require.NoError(t, err, c.args)
		require.Equal(t, strings.Fields(c.files), append([]string{}, a.files...), c.args)
		require.Equal(t, strings.Fields(c.keys), append([]string{}, a.keys...), c.args)
	}
	_, err := parseArguments([]string{"a.yaml", ""})
	require.EqualError(t, err, `"" is neither a file nor a key`)
}

func TestWrongUsageIsTwo(t *testing.T) {
	status, out, problems := shapecheck(t, "")
	require.Equal(t, exitUsage, status)
	require.Empty(t, out)
	require.Equal(t, "shapecheck: no FILE is given (-h shows examples)\n", problems)
}

func TestHelpIsOnStandardOutput(t *testing.T) {
	status, out, problems := shapecheck(t, "", "shaper.yaml", "-h")
	require.Equal(t, exitOK, status)
	require.Equal(t, usage, out)
	require.Empty(t, problems)
}

func TestRulesThatNoKeyInUseReaches(t *testing.T) {
	// A program on another system may have written the list.
	const list = "\ufeffapi/192.168.11.3\r\napi/premium/1\napi/premium\n\nunknown"
	status, out, problems := shapecheck(t, list, "-keys", "-", "shaper.yaml")
	require.Equal(t, exitOK, status)
	require.Contains(t, out, "api: 50/s depth 100")
	require.Equal(t, `shaper.yaml:4: warning: api: never reached: every key below it has a rule of its own
shaper.yaml:6: warning: login: never reached: there is no such key
`, problems)
}

func TestKeysInUseWithoutARuleFail(t *testing.T) {
	path := file(t, "f.yaml", "limits: {api: 5/s depth 3}")
	status, _, problems := shapecheck(t, "x\napi/1\nx\n", "-keys", "-", path)
	require.Equal(t, exitFailed, status)
	require.Equal(t, path+": x: no rule matches this key, which is in use, and there is no default\n", problems)
	status, _, problems = shapecheck(t, "x\napi/1\ny\nx\nz", "-keys", "-", path)
	require.Equal(t, exitFailed, status)
	require.Equal(t, path+": x: no rule matches this key and 2 others, which are in use, and there is no default\n", problems)
}

func TestTheDefaultIsNeverReachedIfAllKeysHaveRules(t *testing.T) {
	list := file(t, "keys", strings.Repeat("api/1\n", 3)+strings.Repeat("x", 1<<17)+"\nlogin")
	_, _, problems := shapecheck(t, "", "-keys", list, file(t, "f.yaml", "default: 1/s depth 2\nlimits: {api: 1/s depth 2, login: 1/s depth 2, "+strings.Repeat("x", 200)+": 1/s depth 2}"))
	require.NotContains(t, problems, "(default)")
	_, _, problems = shapecheck(t, "api\nlogin", "-keys", "-", file(t, "f.yaml", "default: 1/s depth 2\nlimits: {api: 1/s depth 2, login: 1/s depth 2}"))
	require.Contains(t, problems, ":1: warning: (default): never reached: every key has a rule of its own\n")
}

func TestKeysThatDoNoHarmToATerminal(t *testing.T) {
	_, out, problems := shapecheck(t, "", file(t, "f.yaml", `limits: {"\e[31m": 1/s, " a ": 1/s depth 3, "é l": 1/s depth 3}`))
	require.Contains(t, out, `"\x1b[31m": 1/s depth 0`)
	require.Contains(t, out, `" a ": 1/s depth 3`)
	require.Contains(t, out, "é l: 1/s depth 3")
	require.Contains(t, problems, `: warning: "\x1b[31m": no depth`)
	require.NotContains(t, out+problems, "\x1b")
}

// The rate that is in force does not say what was promised. The slack that is written out is no slack that anybody wrote.
func TestThePromiseOfAWindowIsSaid(t *testing.T) {
	status, out, problems := shapecheck(t, "default: 100 in 1min burst 20\nlimits:\n  a: {rate: 01000 in 1sec, depth: 9, wait: 10ms, candidate: 30 in  1.5h burst 2}\n", "-strict", "-")
	require.Equal(t, exitOK, status, problems)
	require.Equal(t, `(default): 1 per 750250us burst 20 depth 0 slack 20ms  (-:1)
    at most 100 leave in any 1min; 20 requests leave at once, then one every 750 ms
    none may wait; request 21 of a simultaneous burst is refused

a: 333 per 340ms depth 9 wait 10ms slack 20ms  (-:3)
    at most 1000 leave in any 1sec; one request leaves every 1.02 ms
    9 may wait, the last for 9.19 ms; request 11 of a simultaneous burst is refused
    candidate 7 per 1350005ms burst 2 depth 0 slack 20ms
        at most 30 leave in any 1.5h; 2 requests leave at once, then one every 3.21 min
        none may wait; request 3 of a simultaneous burst is refused
`, out)
	_, _, problems = shapecheck(t, "default: 100 in 1min depth 3 wait 2s slack 3s", "-")
	require.Contains(t, problems, "slack longer than the wait")
}

func TestJSON(t *testing.T) {
	path := file(t, "f.yaml", "default: 1/s\nlimits: {api: {rate: 50/s, depth: 1, candidate: inf}}")
	quoted, err := json.Marshal(path)
	require.NoError(t, err)
	status, out, problems := shapecheck(t, "", "-json", path)
	require.Equal(t, exitOK, status)
	require.Empty(t, problems)
	require.JSONEq(t, strings.ReplaceAll(`{
		"errors": [],
		"warnings": [{"file": FILE, "line": 1, "key": "", "code": "refuses-second",
			"message": "no depth and burst 1: of two requests within 1 s one is refused"}],
		"rules": [
			{"key": "", "file": FILE, "line": 1, "limits": "1/s depth 0", "candidate": null, "words": [
				"one request leaves every 1 s", "none may wait", "request 2 of a simultaneous burst is refused"]},
			{"key": "api", "file": FILE, "line": 2, "limits": "50/s depth 1", "words": [
				"one request leaves every 20 ms", "one may wait, for 20 ms", "request 3 of a simultaneous burst is refused"],
				"candidate": {"limits": "inf depth 0", "words": ["every request leaves at once; none waits and none is refused"]}}
		],
		"keys": [],
		"fair": null,
		"adapt": null
	}`, "FILE", string(quoted)), out)

	status, out, _ = shapecheck(t, "", "-json", path, "--", "api/<1>")
	require.Equal(t, exitOK, status)
	require.Contains(t, out, `"key": "api/<1>"`)
	require.Contains(t, out, `"rules": []`)
	require.Contains(t, out, `"warnings": []`)

	status, out, problems = shapecheck(t, "", "-json", "wrong.yaml")
	require.Equal(t, exitFailed, status)
	require.Empty(t, problems)
	var r report
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Equal(t, &config.Error{File: "wrong.yaml", Line: 1, Column: 13, Rule: "default", Field: "rate", Text: "20/x",
		Message: "expected a unit: ns us ms s sec min h hour d day"}, r.Errors[0])

	status, out, _ = shapecheck(t, "", "-json", file(t, "f.yaml", "limits: {}"), "x")
	require.Equal(t, exitFailed, status)
	require.Contains(t, out, `"rule": null`)
	require.Contains(t, out, `"text": "x"`)
}

// What a program writes is checked before it is in any file.
func TestStandardInputIsAFile(t *testing.T) {
	status, out, problems := shapecheck(t, "default: 5/s depth 3\nlimits: {api: 5/s}", "-")
	require.Equal(t, exitOK, status)
	require.True(t, strings.HasPrefix(out, "(default): 5/s depth 3  (-:1)\n"), out)
	require.Equal(t, "-:2: warning: api: no depth and burst 1: of two requests within 200 ms one is refused\n", problems)

	status, out, _ = shapecheck(t, "limits: {api: 5/s depth 7}", "shaper.yaml", "-", "--", "api/x")
	require.Equal(t, exitOK, status)
	require.True(t, strings.HasPrefix(out, "api/x: 5/s depth 7  (rule api, -:1)\n"), out)

	status, _, problems = shapecheck(t, "limits: {api: 5/x}", "-")
	require.Equal(t, exitFailed, status)
	require.Equal(t, `-:1:17: rule "api": rate 5/x: expected a unit: ns us ms s sec min h hour d day`+"\n", problems)
	status, _, problems = shapecheck(t, "#"+strings.Repeat("x", 1<<20), "-")
	require.Equal(t, exitFailed, status)
	require.Equal(t, "-: the file is larger than 1048576 bytes\n", problems)
	status, _, problems = shapecheck(t, "", "-")
	require.Equal(t, exitFailed, status)
	require.Contains(t, problems, "-: the file says nothing")
}

func TestWhatFairMeansIsSaid(t *testing.T) {
	const text = "default: 5/s depth 3\nfair:\n  by: header X-Team\n  weights: {gold: 4}\n"
	status, out, problems := shapecheck(t, text, "-")
	require.Equal(t, exitOK, status)
	require.Empty(t, problems)
	require.Equal(t, `(default): 5/s depth 3  (-:1)
    one request leaves every 200 ms
    3 may wait, the last for 600 ms; request 5 of a simultaneous burst is refused

fair: by header X-Team  (-:2)
    all keys share that rate and wait in one line, in which they take turns
    gold has the weight 4  (-:4)
    all other keys have the weight 1
`, out)
	_, out, _ = shapecheck(t, text, "-", "gold")
	require.Equal(t, `gold: 5/s depth 3  (the default, -:1)
    one request leaves every 200 ms
    3 may wait, the last for 600 ms; request 5 of a simultaneous burst is refused
    in one line with all other keys, with the weight 4  (-:2)
`, out)
	_, out, _ = shapecheck(t, text, "-json", "-", "silver")
	var r report
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Equal(t, &fair{"header X-Team", "-", 2, []weight{{"gold", 4, 4}}}, r.Fair)
	require.Equal(t, 1, r.Keys[0].Weight)

	status, out, problems = shapecheck(t, text+"adapt: {min: 1/s, slow: 300ms}\n", "-")
	require.Equal(t, exitOK, status)
	require.Empty(t, problems)
	require.Contains(t, out, "    all other keys have the weight 1\n\nadapt: min 1/s slow 300ms  (-:5)\n    the rate follows what the upstream answers, within these bounds\n")
	_, out, _ = shapecheck(t, text+"adapt: {}\n", "-json", "-")
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Equal(t, &adapts{"", "-", 5}, r.Adapt)
	status, _, problems = shapecheck(t, text+"adapt: {min: 6/s}\n", "-")
	require.Equal(t, exitFailed, status)
	require.Equal(t, "-:5:1: adapt: can't be: Config.Min is 6, must be at most Max, which is 5\n", problems)

	// What a file lacks may stand in another that could not be read.
	status, _, problems = shapecheck(t, "fair: {by: host}", "missing.yaml", "-", "--")
	require.Equal(t, exitFailed, status)
	require.Regexp(t, "^missing.yaml: cannot be read: [^\n]*\n$", problems)
}

// A full disk must not look like a file without mistakes.
func TestOutputThatCannotBeWrittenFails(t *testing.T) {
	for _, args := range [][]string{{"testdata/shaper.yaml"}, {"-json", "testdata/shaper.yaml"}} {
		var problems bytes.Buffer
		require.Equal(t, exitFailed, run(args, nil, fullDisk{}, &problems))
		require.Equal(t, "shapecheck: disk full\n", problems.String())
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("disk full") }

const guide = "../../../docs/limits-file.md"

// What docs/limits-file.md shows of shapecheck is what shapecheck prints about the files
// that the guide shows. If SHAPER_UPDATE_DOCS is 1, it is written there.
func TestTheGuideShowsWhatIsPrinted(t *testing.T) {
	path, err := filepath.Abs(guide)
	require.NoError(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	t.Chdir(t.TempDir())
	for _, shown := range regexp.MustCompile("(?s)```ya?ml\n(# ([a-z]+\\.yaml)\n.*?)```").FindAllSubmatch(text, -1) {
		require.NoError(t, os.WriteFile(string(shown[2]), shown[1], 0o600))
	}

	commands := 0
	want := regexp.MustCompile("(?s)```\n(\\$ [^\n]*shapecheck [^\n]*\n)(.*?)```").ReplaceAllFunc(text, func(block []byte) []byte {
		commands++
		command, _, _ := strings.Cut(strings.TrimPrefix(string(block), "```\n"), "\n")
		return []byte("```\n" + command + "\n" + printed(t, command) + "```")
	})
	require.Equal(t, 2, commands)
	if os.Getenv("SHAPER_UPDATE_DOCS") == "1" {
		require.NoError(t, os.WriteFile(path, want, 0o644))
		return
	}
	require.Equal(t, string(want), string(text))
}

// printed returns the output of a command, which may get its standard input from printf.
func printed(t *testing.T, command string) string {
	m := regexp.MustCompile(`^\$ (?:printf '(.*)' \| )?shapecheck (.*?)( >/dev/null)?$`).FindStringSubmatch(command)
	require.NotNil(t, m, command)
	var out, problems bytes.Buffer
	run(strings.Fields(m[2]), strings.NewReader(strings.ReplaceAll(m[1], `\n`, "\n")), &out, &problems)
	if m[3] != "" {
		out.Reset()
	}
	return out.String() + problems.String()
}

// The line that editors look for is a comment to shapecheck.
func TestTheLineForEditorsIsAComment(t *testing.T) {
	text, err := os.ReadFile(guide)
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^# yaml-language-server: \$schema=\S+$`).Find(text)
	require.NotEmpty(t, line)
	status, _, problems := shapecheck(t, "", file(t, "f.yaml", string(line)+"\ndefault: 1/s depth 3\n"))
	require.Equal(t, exitOK, status, problems)
}

// Operators copy these files, and take a warning about one for a mistake of theirs.
func TestTheFilesThatAreShippedHaveNoWarnings(t *testing.T) {
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	for _, shipped := range []string{"deploy/shaper.yaml", "examples/limitsfile/shaper.yaml"} {
		status, _, problems := shapecheck(t, "", "-strict", filepath.Join(root, shipped))
		require.Equal(t, exitOK, status, problems)
		require.Empty(t, problems, shipped)
	}
}
