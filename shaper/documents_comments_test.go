package shaper_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// A doc comment of a library package that mentions an exported name of that package
// links to it, once at least: as [Name] or as [Type.Member].
//
// It needs no link to what it documents itself, nor to the type that this belongs to, nor
// to the members of that type, which stand beside it. Code and headings have no links.
// A word with one capital letter is mostly no name at the beginning of a sentence (By, All),
// nor for a field or a method in the comment of what is not exported (Close, Key): there it
// needs no link. Comments at the end of a line are no doc comments.
func TestNamesInDocCommentsAreLinks(t *testing.T) {
	t.Parallel()
	var packages, missing []string
	for _, file := range treeFiles(t) {
		if strings.HasSuffix(filepath.ToSlash(file), "/testdata/api.txt") { // each library package has one
			packages = append(packages, filepath.Dir(filepath.Dir(file)))
		}
	}
	require.NotEmpty(t, packages)
	for _, dir := range packages {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		require.NoError(t, err)
		fset := token.NewFileSet()
		var parsed []*ast.File
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				f, err := parser.ParseFile(fset, file, nil, parser.ParseComments)
				require.NoError(t, err)
				parsed = append(parsed, f)
			}
		}
		missing = append(missing, missingDocLinks(fset, parsed)...)
	}
	require.Emptyf(t, missing, "write these names as doc links, such as [Name] or [Type.Member]:\n%s", strings.Join(missing, "\n"))
}

// The check finds what it is there for, and nothing else.
func TestNamesWithoutLinksAreFound(t *testing.T) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "p.go", `// Package p has a Door, and its Door.Knock. It links [Other], so Other is no fault.
//
// # Of Other
//
//	Other is code.
package p

// Door is a Door, with Knock and Width. See Other, but not this package's other.
// By default, MakeDoor and UseKey make one, and rest.Other is of another package.
type Door struct {
	// Width is in front of Door. No Size.
	Width int // an Other
}

// Knock has a Width. It is like Other-wise and "Other"; [Other.Nothing] and [Other.Size].
//   - Knock again, or By.
func (d *Door) Knock() {}

// Other is a Door.
type Other struct{ Size, UseKey int }

// A hidden is an Other, as an [Other] is, but Size is a word, and UseKey is none.
type hidden struct{}

// MakeDoor is called by New. New is a word.
func MakeDoor() {}

// By and New are constants. All of them have a Size.
const (
	By  = 1 // of Other
	New = 2
	// They follow New, and MakeDoor.
	Last = 3
)
`, parser.ParseComments)
	require.NoError(t, err)
	require.Equal(t, []string{
		"p.go:1: Door", "p.go:1: Door.Knock",
		"p.go:8: MakeDoor", "p.go:8: Other", "p.go:8: UseKey",
		"p.go:11: Size",
		"p.go:15: By", "p.go:15: Other", "p.go:15: [Other.Nothing] is not there",
		"p.go:19: Door",
		"p.go:22: UseKey",
		"p.go:25: New",
		"p.go:28: Size",
		"p.go:32: MakeDoor", "p.go:32: New",
	}, missingDocLinks(fset, []*ast.File{file}))
}

// exportedNames has the exported names of a package: Name, Type.Member and, for a member
// without its type, .Member.
type exportedNames map[string]bool

// A docComment is a doc comment, the names that its declaration declares, the type to which
// it belongs, if any, and whether Go's documentation shows it.
type docComment struct {
	group *ast.CommentGroup
	owner string
	names []string
	shown bool
}

// missingDocLinks returns where doc comments of a package mention exported names without
// a link.
func missingDocLinks(fset *token.FileSet, files []*ast.File) (missing []string) {
	known := exportedNames{}
	var comments []docComment
	for _, file := range files {
		comments = append(comments, docComment{group: file.Doc, shown: true})
		for _, d := range file.Decls {
			comments = append(comments, known.declare(d)...)
		}
	}
	for _, c := range comments {
		if c.group != nil {
			at := fset.Position(c.group.Pos())
			found := known.unlinked(c)
			slices.SortStableFunc(found, cmp.Compare[string])
			for _, name := range found {
				missing = append(missing, fmt.Sprintf("%s:%d: %s", at.Filename, at.Line, name))
			}
		}
	}
	return missing
}

// declare adds the exported names of a declaration, and returns its doc comments.
func (e exportedNames) declare(d ast.Decl) (comments []docComment) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		owner := ""
		if d.Recv != nil {
			owner = receiverOf(d.Recv.List[0].Type)
		}
		e.add(owner, d.Name.Name)
		shown := d.Name.IsExported() && (owner == "" || ast.IsExported(owner))
		return []docComment{{group: d.Doc, owner: owner, names: []string{d.Name.Name}, shown: shown}}
	case *ast.GenDecl:
		whole := docComment{group: d.Doc}
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				e.add("", s.Name.Name)
				whole.owner, whole.shown = s.Name.Name, whole.shown || s.Name.IsExported()
				comments = append(comments, docComment{group: s.Doc, owner: s.Name.Name, shown: s.Name.IsExported()})
				comments = append(comments, e.declareMembers(s)...)
			case *ast.ValueSpec:
				own := docComment{group: s.Doc}
				for _, n := range s.Names {
					e.add("", n.Name)
					own.names, own.shown = append(own.names, n.Name), own.shown || n.IsExported()
				}
				whole.names, whole.shown = append(whole.names, own.names...), whole.shown || own.shown
				comments = append(comments, own)
			}
		}
		return append([]docComment{whole}, comments...)
	}
	return nil
}

// declareMembers is declare for the fields of a struct and the methods of an interface.
func (e exportedNames) declareMembers(s *ast.TypeSpec) (comments []docComment) {
	var members *ast.FieldList
	switch t := s.Type.(type) {
	case *ast.StructType:
		members = t.Fields
	case *ast.InterfaceType:
		members = t.Methods
	default:
		return nil
	}
	for _, m := range members.List {
		own := docComment{group: m.Doc, owner: s.Name.Name}
		for _, n := range m.Names {
			e.add(s.Name.Name, n.Name)
			own.shown = own.shown || n.IsExported() && s.Name.IsExported()
		}
		comments = append(comments, own)
	}
	return comments
}

func (e exportedNames) add(owner, name string) {
	switch {
	case !ast.IsExported(name) || owner != "" && !ast.IsExported(owner):
	case owner == "":
		e[name] = true
	default:
		e[owner+"."+name], e["."+name] = true, true
	}
}

// receiverOf returns the name of a receiver's type, without its type parameters.
func receiverOf(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiverOf(t.X)
	case *ast.IndexExpr:
		return receiverOf(t.X)
	case *ast.IndexListExpr:
		return receiverOf(t.X)
	}
	return t.(*ast.Ident).Name
}

// A wordOfComment may be a name, with the name of a package or a type before it.
var wordOfComment = regexp.MustCompile(`\[?\*?[\pL_][\pL\d_-]*(?:\.[\pL_][\pL\d_]*)*\]?`)

// unlinked returns the names that a comment mentions and does not link to.
func (e exportedNames) unlinked(c docComment) (found []string) {
	linked := map[string]bool{c.owner: true}
	for _, name := range c.names {
		linked[name] = true
	}
	texts := e.textsOf(c.group)
	for _, text := range texts {
		for _, part := range text {
			if link, ok := part.(*comment.DocLink); ok && link.ImportPath == "" {
				linked[link.Name] = true
				linked[link.Recv+"."+link.Name] = true
			}
		}
	}
	mention := func(word string, startsSentence bool) {
		owner, _, isQualified := strings.Cut(word, ".")
		isWord := capitals(word) == 1
		isMember := e["."+word]
		switch {
		case strings.HasPrefix(word, "["): // The parser has found no such name.
			if name := strings.Trim(word, "[]*"); ast.IsExported(name) && strings.HasSuffix(word, "]") {
				found = append(found, word+" is not there")
			}
			return
		case linked[word]:
			return
		case isQualified && (!e[word] || owner == c.owner):
			return
		case !isQualified && (!e[word] && !isMember || isWord && startsSentence):
			return
		case isMember && (c.owner != "" && e[c.owner+"."+word] || isWord && !c.shown && !e[word]):
			return
		}
		found = append(found, word)
		linked[word] = true // Once is enough.
	}
	for _, text := range texts {
		before := "." // The text begins a sentence.
		for _, part := range text {
			plain, ok := part.(comment.Plain)
			if !ok {
				before = "]"
				continue
			}
			for _, m := range wordOfComment.FindAllStringIndex(string(plain), -1) {
				mention(string(plain)[m[0]:m[1]], startsSentence(before+string(plain)[:m[0]]))
			}
		}
	}
	return found
}

// textsOf returns the paragraphs and the items of the lists of a comment.
func (e exportedNames) textsOf(group *ast.CommentGroup) (texts [][]comment.Text) {
	parser := comment.Parser{LookupSym: func(owner, name string) bool {
		if owner != "" {
			name = owner + "." + name
		}
		return e[name]
	}}
	var collect func(blocks []comment.Block)
	collect = func(blocks []comment.Block) {
		for _, block := range blocks {
			switch block := block.(type) {
			case *comment.Paragraph:
				texts = append(texts, block.Text)
			case *comment.List:
				for _, item := range block.Items {
					collect(item.Content)
				}
			}
		}
	}
	collect(parser.Parse(group.Text()).Content)
	return texts
}

// startsSentence reports whether a word begins a sentence that has this text before it.
func startsSentence(before string) bool {
	before = strings.TrimRight(before, " \n\t(\"")
	return strings.HasSuffix(before, ".") || strings.HasSuffix(before, ":") || strings.HasSuffix(before, "?")
}

func capitals(word string) (n int) {
	for _, r := range word {
		if unicode.IsUpper(r) {
			n++
		}
	}
	return n
}
