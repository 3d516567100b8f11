package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

const maxBytes = 1 << 20 // of a file

var maxRules = 100_000 // in a file; tests lower it

// Parse returns the rules that text says, as the only layer; name stands for the file
// in errors and in [Rule].File. Parse reads no file and watches nothing. The package
// comment describes the format. If the text has mistakes, the error is [Errors] and holds
// all of them.
func Parse(name string, text []byte) (*Rules, error) {
	return ParseLayers(Layer{name, text})
}

// A Layer is the text of one file. Name stands for the file in errors and in [Rule].File.
type Layer struct {
	Name string
	Text []byte
}

// ParseLayers is [Parse] for several texts, each a layer over those before it, as the files of
// [Open] are. It takes files with and without fair.
func ParseLayers(layers ...Layer) (*Rules, error) {
	read := make([]layer, len(layers))
	var mistakes Errors
	for i, l := range layers {
		var errs Errors
		read[i], errs = parseLayer(l.Name, l.Text)
		mistakes = append(mistakes, errs...)
	}
	if mistakes != nil {
		return nil, mistakes
	}
	return merged(read)
}

// parseLayer returns the layer of a file, or all mistakes of the file.
func parseLayer(name string, text []byte) (layer, Errors) {
	p := parser{name: name}
	if len(text) > maxBytes {
		p.report(0, 0, "", fmt.Sprintf("the file is larger than %d bytes", maxBytes))
		return layer{}, p.errs
	}
	text = bytes.TrimPrefix(text, []byte("\uFEFF")) // which some editors begin a file with
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	p.lines = strings.Split(string(text), "\n")
	if root := p.document(text); root != nil {
		p.refuseReferences(root)
		p.top(root)
	}
	sortErrors(p.errs)
	return p.layer, p.errs
}

// A parser turns the YAML nodes of one file into a layer, and collects all mistakes on
// the way.
type parser struct {
	name  string
	lines []string
	layer layer
	errs  Errors

	// inRule and inField say where the parser is, as in [Error].
	inRule, inField string

	// Where rest looked last: in lines[line-1], at the byte offset of that column.
	line, column, offset int
}

// report adds a mistake.
func (p *parser) report(line, column int, text, message string) {
	p.errs = append(p.errs, &Error{
		File: p.name, Line: line, Column: column, Rule: shortened(p.inRule, maxText), Field: p.inField, Text: shortened(text, maxText), Message: message,
	})
}

// within calls do. All mistakes that do reports are of the rule, and of its field.
func (p *parser) within(rule, field string, do func()) {
	outerRule, outerField := p.inRule, p.inField
	p.inRule, p.inField = rule, field
	do()
	p.inRule, p.inField = outerRule, outerField
}

// reportAt adds a mistake that is the whole node.
func (p *parser) reportAt(n *yaml.Node, message string) {
	p.report(n.Line, n.Column, p.textOf(n), message)
}

// textOf returns what stands in the file where the node begins.
func (p *parser) textOf(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode && n.Value != "" {
		return n.Value
	}
	return strings.TrimSpace(shortened(p.rest(n), 2*maxText))
}

// rest returns the line of a node from its column on. It is empty if there is no such
// line, as the YAML reader knows more line breaks than "\n".
func (p *parser) rest(n *yaml.Node) string {
	if n.Line < 1 || n.Line > len(p.lines) {
		return ""
	}
	line := p.lines[n.Line-1]
	// Mistakes come mostly in the order in which they stand in the file, so going on
	// from the last one keeps a long line with many of them from taking quadratic time.
	if n.Line != p.line || n.Column < p.column {
		p.line, p.column, p.offset = n.Line, 1, 0
	}
	for ; p.column < n.Column && p.offset < len(line); p.column++ {
		_, size := utf8.DecodeRuneInString(line[p.offset:])
		p.offset += size
	}
	return line[p.offset:]
}

// document returns the root of the only document in the text, or nil after a mistake.
func (p *parser) document(text []byte) *yaml.Node {
	if !utf8.Valid(text) || bytes.ContainsFunc(text, isForbidden) {
		p.reportCharacter(utf8.Valid(text))
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(asYAML11(text)))
	if err != nil {
		p.report(0, 0, "", err.Error())
		return nil
	}
	var first, second yaml.Node
	if err := loader.Load(&first); err == nil {
		err = loader.Load(&second)
		if err == nil {
			p.report(second.Line, second.Column, "---", "a second document begins, a file has one")
			return nil
		}
		if err != io.EOF {
			p.reportSyntax(err)
			return nil
		}
	} else if err != io.EOF {
		p.reportSyntax(err)
		return nil
	}
	if len(first.Content) == 0 || isNull(first.Content[0]) {
		p.report(0, 0, "", `the file says nothing, must have "default" or "limits"`)
		return nil
	}
	return first.Content[0]
}

// version12 is all until the number of a version directive at the head of a file.
var version12 = regexp.MustCompile(`\A(?:[ \t]*(?:#.*)?\n|%.*\n)*%YAML[ \t]+1\.2(?:[ \t]|\n)`)

// asYAML11 returns text with the directive %YAML 1.1 in place of %YAML 1.2. The two versions do not differ in
// anything that a file of rules may have, but the reader refuses the newer number.
func asYAML11(text []byte) []byte {
	end := len(version12.Find(text))
	if end == 0 {
		return text
	}
	text = slices.Clone(text)
	text[end-2] = '1'
	return text
}

// isForbidden reports whether a character must not stand in a file: a control character,
// or one at which some programs end a line and others do not, so that a part of a comment
// could be a rule.
func isForbidden(r rune) bool {
	switch r {
	case '\t', '\n':
		return false
	case '\ufffe', '\uffff':
		return true
	}
	return endsLines(r) || unicode.IsControl(r)
}

// endsLines reports whether some programs end a line at a character, and others do not. The line
// breaks \r\n have been replaced by \n before.
func endsLines(r rune) bool {
	return r == '\r' || r == '\u0085' || r == '\u2028' || r == '\u2029'
}

// reportCharacter reports the first forbidden character, or if the text is not valid
// UTF-8 the first byte that is not.
func (p *parser) reportCharacter(valid bool) {
	for i, line := range p.lines {
		column := 1
		for at, r := range line {
			_, size := utf8.DecodeRuneInString(line[at:])
			switch {
			case !valid && r == utf8.RuneError && size <= 1:
				p.report(i+1, column, "", fmt.Sprintf("byte %#x is not UTF-8", line[at]))
				return
			case valid && endsLines(r):
				p.report(i+1, column, string(r), fmt.Sprintf("not allowed: some programs end a line at the character %U, and others do not", r))
				return
			case valid && isForbidden(r):
				p.report(i+1, column, string(r), fmt.Sprintf("not YAML: control characters are not allowed, and this is %U", r))
				return
			}
			column++
		}
	}
}

// reportSyntax reports an error of the YAML reader.
func (p *parser) reportSyntax(err error) {
	e, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		p.report(0, 0, "", err.Error())
		return
	}
	n := yaml.Node{Line: e.Mark.Line, Column: e.Mark.Column}
	if p.rest(&n) == "" && e.ContextMsg != "" {
		// The end of the file says less than the beginning of the unfinished node.
		n.Line, n.Column = e.ContextMark.Line, e.ContextMark.Column
	}
	message := "not YAML: " + e.Message
	if e.ContextMsg != "" {
		message += " (" + e.ContextMsg + fmt.Sprintf(", line %d)", e.ContextMark.Line)
	}
	p.report(n.Line, n.Column, strings.TrimSpace(p.rest(&n)), message)
}

// refuseReferences reports all that makes a node stand for something that is written
// elsewhere. A few hundred bytes of aliases can stand for gigabytes, and none of this is
// needed to write rules. path has the names in the mappings above the node.
func (p *parser) refuseReferences(n *yaml.Node, path ...string) {
	rule, field := "", ""
	switch {
	case len(path) > 0 && path[0] == "default":
		rule, field = "default", strings.Join(path[1:], ".")
	case len(path) > 1 && path[0] == "limits":
		rule, field = ruleNamed(path[1]), strings.Join(path[2:], ".")
	case len(path) > 0 && (path[0] == "fair" || path[0] == "adapt"):
		field = strings.Join(path[:min(len(path), 2)], ".")
	}
	p.within(rule, field, func() { p.refuseReference(n) })
	for i, child := range n.Content {
		below := path
		if n.Kind == yaml.MappingNode && i%2 == 1 && len(path) < len(deepest) {
			below = append(slices.Clip(path), n.Content[i-1].Value)
		}
		p.refuseReferences(child, below...)
	}
}

// deepest is a path of the greatest depth that a file has.
var deepest = []string{"limits", "api", "candidate", "rate"}

// refuseReference is refuseReferences for one node, without the nodes below it.
func (p *parser) refuseReference(n *yaml.Node) {
	switch {
	case n.Kind == yaml.AliasNode:
		p.report(n.Line, n.Column, "*"+n.Value, "aliases are not allowed: write it out")
	case n.Anchor != "":
		p.report(n.Line, n.Column, "&"+n.Anchor, "anchors are not allowed: write it out")
	case n.Style&yaml.TaggedStyle != 0 || n.Tag == "!": // The latter makes a text of what follows, such as ~.
		p.report(n.Line, n.Column, n.Tag, "tags are not allowed")
	}
}

// top reads the root: "default", "limits", "fair" and "adapt".
func (p *parser) top(root *yaml.Node) {
	names := []string{"default", "limits", "fair", "adapt"}
	if root.Kind != yaml.MappingNode {
		if root.Kind != yaml.AliasNode {
			p.reportAt(root, `expected "default" and "limits"`)
		}
		return
	}
	if len(root.Content) == 0 {
		p.reportAt(root, `the file says nothing, must have "default" or "limits"`)
	}
	p.fields(root, names, func(name string, key, value *yaml.Node) {
		switch name {
		case "default":
			p.rule("", key, value)
		case "limits":
			p.rules(value, key)
		case "fair":
			p.fair(key, value)
		default:
			p.adapts(key, value)
		}
	})
}

// rules reads what stands below "limits".
func (p *parser) rules(n, name *yaml.Node) {
	switch n.Kind {
	case yaml.AliasNode:
	case yaml.MappingNode:
		p.keys(n, "rules", func(key, value *yaml.Node, _ bool) { p.rule(key.Value, key, value) })
	default:
		p.report(name.Line, name.Column, name.Value, "expected rules below it, as in api: 50/s depth 100 (or {} for none)")
	}
}

// keys calls do for each key of a mapping of rules or weights, which kind says, but not for a key that
// has come before. right reports whether the key is one that [shaper.Join] makes.
func (p *parser) keys(n *yaml.Node, kind string, do func(key, value *yaml.Node, right bool)) {
	if len(n.Content)/2 > maxRules {
		p.reportAt(n.Content[2*maxRules], fmt.Sprintf("a file may have %d %s, this is one more", maxRules, kind))
		return
	}
	seen := make(map[string]int, len(n.Content)/2) // line of each key
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if !p.isName(key) {
			continue
		}
		wrong := checkKey(key.Value)
		if wrong != "" {
			p.reportAt(key, wrong)
			// What it should have been is not known, so it is no duplicate.
		} else if !p.isFirst(seen, key) {
			continue
		}
		do(key, value, wrong == "")
	}
}

// fields calls do for each field of a mapping whose name is one of names.
func (p *parser) fields(n *yaml.Node, names []string, do func(name string, key, value *yaml.Node)) {
	seen := map[string]int{}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if !p.isName(key) || !p.isFirst(seen, key) {
			continue
		}
		if slices.Contains(names, key.Value) {
			do(key.Value, key, value)
		} else if name := nearest(key.Value, names); name != "" {
			p.reportAt(key, "did you mean "+name+"?")
		} else {
			p.reportAt(key, "unknown, expected "+either(names))
		}
	}
}

// isName reports whether a node can be the key of a mapping here, and reports it if
// not. A plain word such as 404 or yes is its text, not a number or a truth value.
func (p *parser) isName(key *yaml.Node) bool {
	switch {
	case key.Kind == yaml.AliasNode:
		return false
	case key.Kind != yaml.ScalarNode:
		p.reportAt(key, "expected a key, which is a single text")
		return false
	case isNull(key), key.Tag == "!!merge":
		p.reportAt(key, `expected a key; this has a meaning of its own in YAML unless it stands in quotes`)
		return false
	}
	return true
}

// isFirst reports whether the key has not been met before, and reports it if it has.
func (p *parser) isFirst(seen map[string]int, key *yaml.Node) bool {
	if line, twice := seen[key.Value]; twice {
		p.reportAt(key, "stands on line "+strconv.Itoa(line)+" already")
		return false
	}
	seen[key.Value] = key.Line
	return true
}

// rule reads the rule for keys that begin with prefix.
func (p *parser) rule(prefix string, key, value *yaml.Node) {
	if isNull(value) {
		if value.Value == "" {
			// A file that is cut off here must not take a rule away.
			p.reportAt(key, "has no limits: write some, such as 50/s depth 100, or ~ to take the rule away")
			return
		}
		p.layer.gone = append(p.layer.gone, prefix)
		return
	}
	name := "default"
	if prefix != "" {
		name = ruleNamed(prefix)
	}
	p.within(name, "", func() {
		if rule, ok := p.limits(value, ""); ok {
			rule.Key, rule.File, rule.Line = prefix, p.name, key.Line
			p.layer.rules = append(p.layer.rules, rule)
		}
	})
}

// ruleNamed returns how an [Error] calls the rule for keys that begin with prefix. No key begins with
// a slash, so "/default" stands for no other rule.
func ruleNamed(prefix string) string {
	if prefix == "default" {
		return "/default"
	}
	return prefix
}

// isNull reports whether a node is ~, null, or nothing at all.
func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// either returns the words as a list: "a, b or c".
func either(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
