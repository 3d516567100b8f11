package house_test

// The walls inside package shaper: in which order its files are read, and which of them may name a feature.

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// readingOrder has all files of package shaper in the order in which they are read, so that each uses what
// is declared above it: the engine; a bucket for each key; what is shown; what takes any Limiter; features;
// HTTP.
var readingOrder = strings.Fields(`
	errors limits options
	bucket queue flow dispatcher linetimeout inflight decide announce ticker wait shutdown shaper
	change limits_text
	group group_limits group_table group_calls group_change group_shutdown
	histogram departures watch stats publication snapshot
	limiter chain key
	block dryrun reservations reserve fair meters
	shared_options shared_levels shared_flow shared_pump shared_hold shared_meter shared_seats
	middleware_options middleware_reserve middleware transport
`)

// engineFiles are read by whoever wants to know how a Shaper without options works.
var engineFiles = strings.Fields("limits bucket queue flow dispatcher decide ticker wait inflight shutdown shaper")

// featureFiles are the files that each feature has for itself. A feature bends the engine. It is attached by
// interfaces that the engine declares.
var featureFiles = map[string][]string{
	"blocks":        {"block"},
	"dry run":       {"dryrun"},
	"fair queueing": {"fair"},
	"meters":        {"meters"},
	"departures":    {"departures"},
	"reservations":  {"reserve", "reservations"},
	"shared levels": {"shared_options", "shared_flow", "shared_meter", "shared_pump", "shared_hold", "shared_seats", "shared_levels"},
}

// The constructors attach the features, and these two files have each option and each figure of Stats, so
// they may name features.
var (
	constructors = strings.Fields("New NewGroup dispatcher.prepare options")
	allFeatures  = strings.Fields("options stats")
)

// At 71eb3d8, before the engine had its seams, 472 arrows ran back in this order, 69 names of features stood in
// files of the engine and of other features, and a feature was named in up to 12 files outside its own.
const (
	mostArrowsBack  = 188 // 40 % of those
	mostExceptions  = 10
	mostFilesNaming = 3
)

// wallExceptions are names of features that stand in a file of the engine or of another feature, as "file: name",
// with the reason of each.
var wallExceptions = map[string]string{}

// featureOf returns the feature whose file it is; "" if it is none's.
func featureOf(file string) string {
	for feature, files := range featureFiles {
		if slices.Contains(files, file) {
			return feature
		}
	}
	return ""
}

// Whoever reads the files in their order has read what a file uses when they come to it. An arrow is a use of
// an identifier that another file declares; it runs back if that file comes later.
func TestFilesUseWhatIsDeclaredAboveThem(t *testing.T) {
	t.Parallel()
	all, place := namings(t), map[string]int{}
	for i, file := range readingOrder {
		place[file] = i
	}
	pairs, back, total := map[string]int{}, map[string]int{}, 0
	for _, n := range all {
		require.Containsf(t, place, n.file, "readingOrder must name each file of shaper once")
		pair := n.file + " names what is declared in " + n.declaredIn
		pairs[pair]++
		if place[n.file] < place[n.declaredIn] {
			back[pair]++
			total++
		}
	}
	for _, pair := range slices.Sorted(maps.Keys(back)) {
		t.Logf("%4d: %s", back[pair], pair)
	}
	t.Logf("%d of %d arrows run back. They join %d of %d pairs of files", total, len(all), len(back), len(pairs))
	require.LessOrEqualf(t, total, mostArrowsBack, "the arrows that run back; -v shows them")
}

// The engine is read without its features, and each feature without the others.
func TestTheEngineNamesNoFeature(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, n := range namings(t) {
		of := featureOf(n.declaredIn)
		isWalled := slices.Contains(engineFiles, n.file) || featureOf(n.file) != ""
		if of == "" || of == featureOf(n.file) || !isWalled || slices.Contains(constructors, n.within) {
			continue
		}
		name := n.file + ": " + n.name
		used[name] = true
		require.NotEmptyf(t, wallExceptions[name], "%s is of %s: ask for it through an interface that the engine declares, or give the reason of an exception", name, of)
	}
	require.LessOrEqual(t, len(wallExceptions), mostExceptions)
	for name := range wallExceptions {
		require.Containsf(t, used, name, "an exception that nobody needs any more")
	}
}

// Whoever changes a feature finds all of it in its own files.
func TestFewFilesNameAFeature(t *testing.T) {
	t.Parallel()
	files := map[string]map[string]bool{}
	for _, n := range namings(t) {
		of := featureOf(n.declaredIn)
		if of == "" || of == featureOf(n.file) || slices.Contains(allFeatures, n.file) || slices.Contains(constructors, n.within) {
			continue
		}
		if files[of] == nil {
			files[of] = map[string]bool{}
		}
		files[of][n.file] = true
	}
	for feature := range featureFiles {
		names := slices.Sorted(maps.Keys(files[feature]))
		t.Logf("%s: %d files name it: %s", feature, len(names), strings.Join(names, " "))
		require.LessOrEqualf(t, len(names), mostFilesNaming, "the files that name %s", feature)
	}
}

// A naming is a use, in a file and a function of it, of an identifier that another file declares.
type naming struct{ file, within, declaredIn, name string }

// namings returns where files of package shaper name what other files of it declare.
func namings(t *testing.T) []naming {
	namingsOnce.Do(func() { foundNamings = findNamings(t) })
	return foundNamings
}

var (
	namingsOnce  sync.Once
	foundNamings []naming
)

func findNamings(t *testing.T) (all []naming) {
	packages, info := apiPackages{}, &types.Info{Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
	var files []*ast.File
	fset := token.NewFileSet()
	for d := json.NewDecoder(bytes.NewReader(goCommand(t, root, "list", "-deps", "-json=ImportPath,Name,Dir,GoFiles,ImportMap", "./shaper"))); d.More(); {
		var p apiPackage
		require.NoError(t, d.Decode(&p))
		if p.ImportPath != rootModule+"/shaper" {
			packages.check(t, p)
			continue
		}
		files = p.parse(t, fset)
		packages.checkFiles(t, p, fset, files, info)
	}
	fileOf := func(at token.Pos) string { return strings.TrimSuffix(filepath.Base(fset.Position(at).Filename), ".go") }
	for _, file := range files {
		in := fileOf(file.Package)
		for _, decl := range file.Decls {
			within := ""
			if f, ok := decl.(*ast.FuncDecl); ok {
				if within = f.Name.Name; f.Recv != nil {
					within = receiver(f.Recv.List[0].Type) + "." + within
				}
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				id, ok := n.(*ast.Ident)
				if !ok {
					return true
				}
				if used := info.Uses[id]; used != nil && used.Pkg() != nil && used.Pkg().Path() == rootModule+"/shaper" {
					if from := fileOf(used.Pos()); from != in {
						all = append(all, naming{in, within, from, used.Name()})
					}
				}
				return true
			})
		}
	}
	return all
}
