package house_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// documents returns the files that people read, from this package's folder.
func documents(t *testing.T) []string {
	t.Helper()
	guides, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, guides)
	return append(guides, "../../README.md", "../../ARCHITECTURE.md", "../../CONTRIBUTING.md", "../../CHANGELOG.md", "../../loadtest/README.md")
}

// Each Go snippet of a document is part of a program or an example that these
// tests compile: of the file that the comment above it names.
func TestSnippetsOfDocumentsAreCompiled(t *testing.T) {
	snippet := regexp.MustCompile("(?s)(<!-- ([^ ]+) -->\n)?```go\n(.*?)```")
	for _, document := range documents(t) {
		found := snippet.FindAllStringSubmatch(read(t, document), -1)
		require.Len(t, regexp.MustCompile(`(?m)^<!-- \S+\.go -->$`).FindAllString(read(t, document), -1), len(found), "%s names a file and shows nothing of it", document)
		if filepath.Base(document) == "README.md" && filepath.Dir(document) == root {
			require.NotEmpty(t, found)
		}
		for _, m := range found {
			require.NotEmpty(t, m[2], "%s: which file is this of?\n%s", document, m[3])
			source := read(t, "../../"+m[2])
			require.Contains(t, unindented(source), unindented(m[3]), "%s, %s", document, m[2])
			require.NotContains(t, source, rootModule+"/internal/", "%s, %s: readers can't import it", document, m[2])
			whole := m[3]
			if !strings.HasPrefix(whole, "package") {
				whole = "package p\nfunc f() {\n" + whole + "\n}"
			}
			_, err := parser.ParseFile(token.NewFileSet(), m[2], whole, 0)
			require.NoError(t, err, "a snippet ends where a statement does")
		}
	}
}

// unindented lets a snippet stand further left than its source.
func unindented(text string) string {
	return regexp.MustCompile(`(?m)^[\t ]+`).ReplaceAllString(text, "")
}

// Every test and benchmark that a document names is there, and all that it
// links to, headings included.
func TestDocumentsNameWhatIsThere(t *testing.T) {
	var code strings.Builder
	for _, file := range treeFiles(t) {
		if strings.HasSuffix(file, "_test.go") {
			code.WriteString(read(t, file))
		}
	}
	for _, document := range documents(t) {
		text := read(t, document)
		for _, m := range regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w+`).FindAllString(text, -1) {
			require.Truef(t, strings.Contains(code.String(), "func "+m+"("), "%s names %s, which is not there", document, m)
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#]*)(#[^)]*)?\)`).FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(m[1], "http") {
				continue
			}
			target := document
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(document), m[1])
				_, err := os.Stat(target)
				require.NoError(t, err, document)
			}
			if m[2] != "" {
				require.Contains(t, anchors(read(t, target)), m[2][1:], "%s links to %s%s", document, m[1], m[2])
			}
		}
	}
}

// A command that names no test or benchmark runs none, and says that all is well. What is taken for a number that it
// measures is then nobody's. A package outside of go.work is not found without the other workspace.
func TestCommandsOfDocumentsRunSomething(t *testing.T) {
	kinds := map[string]*regexp.Regexp{
		"run":   regexp.MustCompile(`(?m)^func ((?:Test|Example|Fuzz)\w*)\(`),
		"bench": regexp.MustCompile(`(?m)^func (Benchmark\w*)\(`),
		"fuzz":  regexp.MustCompile(`(?m)^func (Fuzz\w*)\(`),
	}
	command := regexp.MustCompile("[^\n`|]*\\bgo test\\b[^\n`|]*|`[^`\n]*-(?:run|bench|fuzz)\\b[^`\n]*`")
	named := regexp.MustCompile(`-(run|bench|fuzz)[= ](?:'([^']*)'|"([^"]*)"|(\S+))`)
	inUse := workspaceDirs(t, "go.work")
	found := 0
	for _, document := range treeFiles(t) {
		if filepath.Ext(document) != ".md" && filepath.Base(filepath.Dir(document)) != "deploy" {
			continue
		}
		var packages []string // of the latest command that names any: what stands alone is for these, too
		whole, flags := read(t, document), 0
		for _, text := range command.FindAllString(whole, -1) {
			if strings.Contains(text, "go test ") {
				packages = regexp.MustCompile(` \./[\w./]+`).FindAllString(text, -1)
				for i, p := range packages {
					packages[i] = filepath.Join(root, strings.TrimSuffix(strings.TrimSpace(p), "/..."))
					require.DirExists(t, packages[i], "%s: %s", document, text)
					require.True(t, strings.Contains(text, "all.work") || slices.Contains(inUse, moduleOf(packages[i])), "%s: %s is not in go.work: %s", document, p, text)
				}
			}
			for _, m := range named.FindAllStringSubmatch(text, -1) {
				flags++
				pattern := m[2] + m[3] + strings.Trim(m[4], "`)")
				switch {
				case pattern == "NAME": // which stands for any
				case pattern == "^$":
					require.Regexp(t, "-(bench|fuzz)=", text, document)
				default:
					require.NotEmpty(t, packages, "%s: of which package is %s?", document, text)
					pattern, _, _ = strings.Cut(pattern, "/")
					for _, p := range packages {
						require.Truef(t, hasFunc(t, p, kinds[m[1]], regexp.MustCompile(pattern)), "%s: %s has nothing for -%s=%s", document, p, m[1], pattern)
						found++
					}
				}
			}
		}
		require.Len(t, named.FindAllString(whole, -1), flags, "%s has a flag in no command, or in one that is on two lines", document)
	}
	require.Greater(t, found, 4)
}

// moduleOf returns the folder of the module that a folder is of.
func moduleOf(dir string) string {
	for ; dir != root; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
	}
	return dir
}

// hasFunc reports whether the tests of a package have a function of a kind with a name that fits.
func hasFunc(t *testing.T, dir string, kind, name *regexp.Regexp) bool {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	return slices.ContainsFunc(files, func(file string) bool {
		return slices.ContainsFunc(kind.FindAllStringSubmatch(read(t, file), -1), func(m []string) bool { return name.MatchString(m[1]) })
	})
}

// anchors returns the names by which links reach the headings of a document, as
// GitHub makes them: lower case, without punctuation, a hyphen for each blank.
func anchors(text string) (names []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		names = append(names, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, m[1]))
	}
	return names
}

// What works with a cap and without is what README shows before all else.
func TestReadmeShowsFirstWhatWorksWithACapToo(t *testing.T) {
	use := regexp.MustCompile(`\b(?:s|shaper)\.(Do|Acquire|Middleware|Transport|Wait|WaitN|Allow|AllowN)[({]`)
	var first []string
	for _, found := range use.FindAllStringSubmatch(read(t, "../../README.md"), -1) {
		if !slices.Contains(first, found[1]) {
			first = append(first, found[1])
		}
	}
	require.ElementsMatch(t, []string{"Do", "Middleware", "Transport"}, first)
}

// A reader who looks for a file of the engine finds it in the table of ARCHITECTURE.md, and none
// there that is gone.
func TestTheDocumentedTableOfFilesHasThemAll(t *testing.T) {
	_, table, found := strings.Cut(read(t, "../../ARCHITECTURE.md"), "| files of `shaper/` |")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("`([^`/]+\\.go)`").FindAllStringSubmatch(table, -1) {
		files, err := filepath.Glob("../../shaper/" + m[1])
		require.NoError(t, err)
		require.NotEmptyf(t, files, "the table has %s, which is not there", m[1])
		for _, file := range files {
			listed[file] = true
		}
	}
	files, err := filepath.Glob("../../shaper/*.go")
	require.NoError(t, err)
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") && filepath.Base(file) != "doc.go" {
			require.Truef(t, listed[file], "the table does not have %s", file)
		}
	}
}

// A reader of ARCHITECTURE.md learns of each module what it brings.
func TestTheDocumentedTableOfModulesHasThemAll(t *testing.T) {
	_, table, found := strings.Cut(read(t, "../../ARCHITECTURE.md"), "| module | its dependency |\n|---|---|\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	var listed []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| .+ \\|$").FindAllStringSubmatch(table, -1) {
		listed = append(listed, filepath.Join(root, m[1]))
	}
	require.ElementsMatch(t, moduleDirs(t), listed)
}

// The lines of README.md for somebody with a clone make the packages be found, in a module of
// theirs that has nothing else.
func TestTheDocumentedReplaceLinesAreEnough(t *testing.T) {
	_, text, found := strings.Cut(read(t, "../../README.md"), "With a clone instead")
	require.True(t, found)
	_, text, _ = strings.Cut(text, "```\n")
	lines, _, _ := strings.Cut(text, "```")
	clone, err := filepath.Abs(root)
	require.NoError(t, err)
	parent := t.TempDir()
	require.NoError(t, os.Symlink(clone, filepath.Join(parent, "leakybucket")))
	own := filepath.Join(parent, "own")
	require.NoError(t, os.Mkdir(own, 0o700))
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(own, name), []byte(text), 0o600))
	}
	write("go.mod", "module own.test\n\ngo "+goLine+"\n")
	program := "package main\n\nimport (\n"
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		require.Equal(t, []string{"go", "mod", "edit", "-replace"}, words[:4])
		goCommandAlone(t, own, words[1:]...)
		module, _, _ := strings.Cut(words[4], "=")
		if module == rootModule {
			module += "/shaper"
		}
		program += "\t_ \"" + module + "\"\n"
	}
	require.Contains(t, program, "redisbucket", "one of a module of its own")
	write("main.go", program+")\n\nfunc main() {}\n")
	// Not go mod tidy: it asks for what the tests of others need, which no cache has on a fresh machine.
	goCommandAlone(t, own, "list", "-mod=mod", "-deps", ".")
}

// goCommandAlone runs the go command for a module outside of all workspaces. What the module
// needs beside ours is in the cache, as the workspace needs it, too.
func goCommandAlone(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOPROXY=off", "GOSUMDB=off")
	text, err := cmd.CombinedOutput()
	require.NoErrorf(t, err, "go %s: %s", strings.Join(args, " "), text)
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

// committedRuns are the files that the last full run of `go run ./bench` has written, and
// the files of `go run ./bench -only shared -out docs/bench/shared` and of the same with
// proxies, which need a quiet machine for processes beside servers. No figure is in two of
// them.
var committedRuns = []string{
	"../../docs/bench/results.bench.txt", "../../docs/bench/shared/results.bench.txt", "../../docs/bench/proxies/results.bench.txt",
}

// sources says for the figures of each document where they are found.
const sources = "../../docs/bench/sources.md"

// A place is where figures stand in a document: a row of a table, named by its first cell, or a
// sentence with a … for each figure.
type place struct {
	text string
	from []string // for each figure the name of a benchmark and its unit, or two of them with " / " between
}

var (
	figurePattern = regexp.MustCompile(`(\d+(?:,\d{3})*(?:\.\d+)?)( (?:ns|µs|ms|s)\b)?`) // A figure and, of a time, its unit.
	rowOfSources  = regexp.MustCompile("(?m)^\\| ([^|]+) \\| `([^`]+)` \\|$")
	alternatives  = regexp.MustCompile(`\{([^}]+)\}`)
)

// rateOf matches a rate at which something was measured.
var rateOf = regexp.MustCompile(`\d[\d,]*/s\b`)

// placesOf returns the places with figures of a document.
func placesOf(t *testing.T, document string) (places []place) {
	t.Helper()
	name := strings.TrimPrefix(document, "../../")
	_, table, found := strings.Cut(read(t, sources), "\n## "+name+"\n")
	if !found {
		return nil
	}
	table, _, _ = strings.Cut(table, "\n## ")
	for _, m := range rowOfSources.FindAllStringSubmatch(table, -1) {
		at := place{text: m[1]}
		for source := range strings.SplitSeq(m[2], "; ") {
			at.from = append(at.from, eachOf(source)...)
		}
		places = append(places, at)
	}
	require.NotEmpty(t, places, document)
	return places
}

// eachOf returns the sources that one with braces stands for: a{b,c}d stands for abd and acd.
func eachOf(source string) (each []string) {
	braces := alternatives.FindStringSubmatch(source)
	if braces == nil {
		return []string{source}
	}
	for value := range strings.SplitSeq(braces[1], ",") {
		each = append(each, strings.ReplaceAll(source, braces[0], value))
	}
	return each
}

// find returns where the figures of a place begin and end in a document: of each the text, the figure and its unit.
func (p place) find(t *testing.T, document, text string) (figures [][]int) {
	t.Helper()
	pattern := strings.ReplaceAll(regexp.QuoteMeta(p.text), " ", `\s+`)
	row := !strings.Contains(p.text, "…")
	if row {
		pattern = `(?m)^\| ` + pattern + ` \|.*$`
	} else {
		pattern = strings.ReplaceAll(pattern, "…", figurePattern.String())
	}
	found := regexp.MustCompile(pattern).FindAllStringSubmatchIndex(text, -1)
	require.Lenf(t, found, 1, "%s: one place is %q", document, p.text)
	if !row {
		for i := 2; i < len(found[0]); i += 4 {
			figures = append(figures, found[0][i:i+4])
		}
		return figures
	}
	begin := found[0][0] + strings.Index(text[found[0][0]:], " | ") // Behind the cell that says what is measured.
	for _, m := range figurePattern.FindAllStringSubmatchIndex(text[begin:found[0][1]], -1) {
		figure := slices.Clone(m[2:6])
		for i := range figure {
			if figure[i] >= 0 {
				figure[i] += begin
			}
		}
		figures = append(figures, figure)
	}
	return figures
}

// Each figure in README and docs that somebody measured is the one of a committed
// run, rounded to the digits that are shown. SHAPER_UPDATE_FIGURES=1 puts the
// figures of a new run in.
func TestFiguresAreThoseOfTheCommittedRun(t *testing.T) {
	measured := map[string]float64{}
	for _, file := range committedRuns {
		for name, value := range figuresOf(t, file) {
			_, twice := measured[name] // NotContains of testify compares with each of the thousands of names.
			require.Falsef(t, twice, "%s and another committed run have %s", file, name)
			measured[name] = value
		}
	}
	update := os.Getenv("SHAPER_UPDATE_FIGURES") != ""
	rows := len(rowOfSources.FindAllString(read(t, sources), -1))
	for _, document := range documents(t) {
		text := read(t, document)
		fresh := text
		for _, at := range placesOf(t, document) {
			rows--
			figures := at.find(t, document, fresh)
			require.Lenf(t, figures, len(at.from), "%s: a source for each figure of %q", document, at.text)
			for i, m := range slices.Backward(figures) { // A figure that is longer moves those behind it.
				shown, unit := fresh[m[0]:m[1]], ""
				if m[2] >= 0 {
					unit = fresh[m[2]:m[3]]
				}
				want := lookUp(t, measured, at.from[i]) / perUnit(unit, at.from[i])
				if update {
					fresh = fresh[:m[0]] + rounded(want) + fresh[m[1]:]
					continue
				}
				value, digits := parseFigure(t, shown)
				require.InDeltaf(t, want, value, 0.500001*math.Pow10(-digits), "%s: %q shows %s%s; the committed run has %.4g in %s", document, at.text, shown, unit, want, at.from[i])
			}
		}
		if update && fresh != text {
			require.NoError(t, os.WriteFile(document, []byte(fresh), 0o644))
		}
	}
	require.Zero(t, rows, "sources of no document")
}

// A table of a benchmark has no figure that is not checked.
func TestTablesOfBenchmarksAreChecked(t *testing.T) {
	// The section ends at the heading, or with the document.
	for document, end := range map[string]string{"../../README.md": "Documentation", "../../docs/benchmarks.md": ""} {
		_, section, ok := strings.Cut(read(t, document), "# How it compares\n")
		require.True(t, ok, document)
		if end != "" {
			section, _, ok = strings.Cut(section, "\n## "+end+"\n")
			require.True(t, ok, document)
		}
		places := placesOf(t, document)
		lines := strings.Split(section, "\n")
		for i, line := range lines[:len(lines)-1] {
			cells := strings.Split(line, "|")
			if len(cells) < 4 || strings.HasPrefix(line, "|---") || strings.HasPrefix(lines[i+1], "|---") {
				continue
			}
			if regexp.MustCompile(`\d`).MatchString(rateOf.ReplaceAllString(strings.Join(cells[2:], "|"), "")) {
				named := slices.ContainsFunc(places, func(p place) bool { return p.text == strings.TrimSpace(cells[1]) })
				require.Truef(t, named, "%s: %s has no source of the figures in %q", document, sources, line)
			}
		}
	}
}

// Who runs a gateway looks the metrics of the board up, so each stands in its document, as far as the program has it.
func TestTheDocumentedTableOfAGatewaysMetricsHasThemAll(t *testing.T) {
	metrics := func(file string) []string {
		names := regexp.MustCompile(`\bshaper_llm_\w+`).FindAllString(read(t, file), -1)
		slices.Sort(names)
		return slices.Compact(names)
	}
	told := metrics("../../llm/promledger/promledger.go")
	require.NotEmpty(t, told)
	require.Equal(t, told, metrics("../../docs/gateway.md"))
	require.Subset(t, told, metrics("../../deploy/grafana/shaper.json"))
}

// figuresOf returns the median of every figure in a file of benchmark results, by the
// name of its benchmark and its unit, with a space between them; and with "lowest " or
// "highest " before that name, what its lowest and its highest round have.
func figuresOf(t *testing.T, file string) map[string]float64 {
	t.Helper()
	samples, figures := map[string][]float64{}, map[string]float64{}
	for line := range strings.Lines(read(t, file)) {
		words := strings.Fields(line) // Benchmark… 1 value unit value unit …
		if len(words) < 4 || !strings.HasPrefix(words[0], "Benchmark") {
			continue
		}
		for i := 2; i+1 < len(words); i += 2 {
			value, err := strconv.ParseFloat(words[i], 64)
			require.NoError(t, err, line)
			name := strings.TrimPrefix(words[0], "Benchmark") + " " + words[i+1]
			samples[name] = append(samples[name], value)
		}
	}
	for name, of := range samples {
		slices.Sort(of)
		figures[name] = (of[(len(of)-1)/2] + of[len(of)/2]) / 2
		figures["lowest "+name], figures["highest "+name] = of[0], of[len(of)-1]
	}
	return figures
}

// lookUp returns a figure, or the ratio of two.
func lookUp(t *testing.T, figures map[string]float64, source string) float64 {
	t.Helper()
	of := func(name string) float64 {
		value, ok := figures[name]
		require.Truef(t, ok, "the committed runs have no figure %q", name)
		return value
	}
	if a, b, isRatio := strings.Cut(source, " / "); isRatio {
		return of(a) / of(b)
	}
	return of(source)
}

// perUnit is how much of the figure's unit in the run one of its unit in the document
// is: times are in nanoseconds there.
func perUnit(shown, source string) float64 {
	unit := source[strings.LastIndex(source, " ")+1:] // The name may have "ns" in it.
	if strings.Contains(source, " / ") || !strings.Contains(unit, "ns") {
		return 1
	}
	return map[string]float64{"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[strings.TrimSpace(shown)]
}

// parseFigure returns a figure and how many decimals it has.
func parseFigure(t *testing.T, text string) (value float64, decimals int) {
	t.Helper()
	text = strings.ReplaceAll(text, ",", "")
	value, err := strconv.ParseFloat(text, 64)
	require.NoError(t, err)
	if _, fraction, ok := strings.Cut(text, "."); ok {
		decimals = len(fraction)
	}
	return value, decimals
}

// rounded shows a figure with two digits, and whole from 10 on.
func rounded(value float64) string {
	switch {
	case value >= 9.95:
		whole := strconv.FormatFloat(math.Round(value), 'f', -1, 64)
		for i := len(whole) - 3; i > 0; i -= 3 {
			whole = whole[:i] + "," + whole[i:]
		}
		return whole
	case value >= 0.995 || value == 0:
		return fmt.Sprintf("%.1f", value)
	}
	return fmt.Sprintf("%.2g", value)
}

// The list of words has names that are there: of the public API, of Prometheus and of OpenTelemetry.
func TestTheNamesInTheListOfWordsAreInUse(t *testing.T) {
	api := read(t, "../../shaper/testdata/api.txt") + read(t, "../../shaper/shared/testdata/api.txt") + read(t, "../../shaper/watch/testdata/api.txt")
	inUse := []struct{ name, file string }{
		{`shaper_\w+`, "../../promshaper/doc.go"},
		{`shaper\.[a-z_.]+`, "../../otelshaper/doc.go"},
	}
	found := 0
	for _, m := range regexp.MustCompile("`([^` ]+)`").FindAllStringSubmatch(read(t, "../../docs/words.md"), -1) {
		name := m[1]
		for _, of := range inUse {
			if regexp.MustCompile(`^` + of.name + `$`).MatchString(name) {
				require.Contains(t, read(t, of.file), name)
				found++
			}
		}
		switch owner, method, dotted := strings.Cut(name, "."); {
		case !unicode.IsUpper(rune(name[0])) || name == "Store": // which is the name that there might have been
		case dotted:
			require.Regexp(t, `(?m)^(field `+owner+`\.`+method+` |method \(\*?`+owner+`\) `+method+`\()`, api)
			found++
		default:
			require.Regexp(t, `(?m)^(type|func|var) `+name+`\b`, api)
			found++
		}
	}
	require.Greater(t, found, 25)
}
