package llm

import (
	"bytes"
	"fmt"
	"strings"
)

// A tree has the places in JSON documents that a walker looks for. A place is a path of names, such as
// choices.*.delta.content; * is each element of an array, and a path that begins with ** may stand anywhere in the document.
type tree struct {
	next  map[edge]int16
	found []int     // by node: 1 + the number of the place that is there; 0: none is
	begin [256]bool // the first bytes of the names that may stand anywhere: most names need no search
}

type edge struct {
	from int16
	name string
}

// The first nodes of a tree.
const (
	nowhere  int16 = iota
	anywhere       // the parent of the places that may stand anywhere
	root           // the document; of an array each element is one
)

func newTree(places ...string) *tree {
	t := &tree{next: map[edge]int16{{root, "*"}: root}, found: make([]int, root+1)}
	for i, place := range places {
		node := root
		path, isAnywhere := strings.CutPrefix(place, "**.")
		if isAnywhere {
			node = anywhere
			t.begin[path[0]] = true
		}
		for name := range strings.SplitSeq(path, ".") {
			child := t.next[edge{node, name}]
			if child == nowhere {
				child = int16(len(t.found))
				t.next[edge{node, name}] = child
				t.found = append(t.found, 0)
			}
			node = child
		}
		if t.found[node] != 0 {
			panic(fmt.Sprintf("llm: the place %s is there twice", place))
		}
		t.found[node] = i + 1
	}
	return t
}

// child returns the node of a name within a node.
func (t *tree) child(of int16, name []byte) int16 {
	if of != nowhere {
		if n := t.next[edge{of, string(name)}]; n != nowhere {
			return n
		}
	}
	if len(name) == 0 || !t.begin[name[0]] {
		return nowhere
	}
	return t.next[edge{anywhere, string(name)}]
}

// A finder takes the values at the places of a tree, which are known by their numbers.
type finder interface {
	// text takes the next piece of a text as it is written, with its escapes. whole says that it has ended.
	text(place int, piece []byte, whole bool)
	// number takes a number as it is written.
	number(place int, written []byte)
}

// deepest is how deep a document may be nested; one that is deeper is not walked.
const deepest = 128

// A walker finds the values at the places of a tree while a JSON document passes in pieces. It is no judge of the document: it
// allocates nothing, and its size does not depend on the document. Texts, which are nearly all of a request, are passed
// over at the speed of [bytes.IndexByte].
type walker struct {
	tree *tree
	on   finder

	depth   int
	nodes   [deepest + 1]int16 // of the objects around, and of the elements of the arrays around
	isArray [deepest + 1]bool
	value   int16 // the node of the next value of an object
	isLost  bool  // the document is nested too deep

	wantsName bool // the next text of an object is a name
	inText    bool
	isName    bool
	escaping  bool // the piece before has ended within an escape
	name      [48]byte
	nameLen   int // above the size of name: no place has such a name

	inNumber  bool
	found     int // of the place of the number
	digits    [40]byte
	digitsLen int
}

// reset begins another document.
func (w *walker) reset() { *w = walker{tree: w.tree, on: w.on} }

func (w *walker) write(p []byte) {
	for len(p) > 0 && !w.isLost {
		switch {
		case w.inText:
			p = p[w.textIn(p):]
		case w.inNumber:
			p = p[w.numberIn(p):]
		default:
			p = p[w.between(p):]
		}
	}
}

// between passes what is between texts and numbers, and returns its length.
func (w *walker) between(p []byte) int {
	for i, c := range p {
		switch c {
		case '"':
			w.inText, w.isName, w.nameLen = true, w.wantsName && !w.isArray[w.depth], 0
			return i + 1
		case '{', '[':
			node := w.node()
			if w.depth++; w.depth > deepest {
				w.isLost = true
				return len(p)
			}
			if w.isArray[w.depth] = c == '['; w.isArray[w.depth] && node != nowhere {
				node = w.tree.next[edge{node, "*"}]
			}
			w.nodes[w.depth], w.wantsName = node, true
		case '}', ']':
			w.depth, w.wantsName = max(0, w.depth-1), false
		case ',':
			w.wantsName = true
		case ':':
			w.wantsName = false
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			w.inNumber, w.digitsLen, w.found = true, 0, w.tree.found[w.node()]
			return i
		}
	}
	return len(p)
}

// node returns the node of the value that begins.
func (w *walker) node() int16 {
	switch {
	case w.depth == 0:
		return root
	case w.isArray[w.depth]:
		return w.nodes[w.depth]
	}
	return w.value
}

// textIn passes the part of a text in p, and returns its length, with the quotation mark that ends it.
func (w *walker) textIn(p []byte) int {
	for from := 0; ; {
		i := bytes.IndexByte(p[from:], '"')
		if i < 0 {
			w.escaping = w.escapes(p)
			w.piece(p, false)
			return len(p)
		}
		end := from + i
		if !w.escapes(p[:end]) {
			w.inText, w.escaping = false, false
			w.piece(p[:end], true)
			return end + 1
		}
		from = end + 1
	}
}

// escapes reports whether what follows p is escaped: behind an odd number of backslashes.
func (w *walker) escapes(p []byte) bool {
	n := len(p)
	for n > 0 && p[n-1] == '\\' {
		n--
	}
	isOdd := (len(p)-n)%2 == 1
	return isOdd != (n == 0 && w.escaping)
}

// piece takes a piece of a text.
func (w *walker) piece(p []byte, whole bool) {
	if !w.isName {
		if found := w.tree.found[w.node()]; found != 0 {
			w.on.text(found-1, p, whole)
		}
		return
	}
	copy(w.name[min(w.nameLen, len(w.name)):], p)
	w.nameLen += len(p)
	if whole {
		if w.value = nowhere; w.nameLen <= len(w.name) {
			w.value = w.tree.child(w.nodes[w.depth], w.name[:w.nameLen])
		}
	}
}

// numberIn passes the part of a number in p, and returns its length.
func (w *walker) numberIn(p []byte) int {
	for i, c := range p {
		switch c {
		case '-', '+', '.', 'e', 'E', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			if w.found == 0 {
				continue
			}
			if w.digitsLen < len(w.digits) {
				w.digits[w.digitsLen] = c
			}
			w.digitsLen++
		default:
			w.inNumber = false
			if w.found != 0 && w.digitsLen <= len(w.digits) {
				w.on.number(w.found-1, w.digits[:w.digitsLen])
			}
			return i
		}
	}
	return len(p)
}
