package accesslog

import (
	"regexp"
	"strings"
)

// A head is text that a collector of logs writes before each line.
type head struct {
	name string
	re   *regexp.Regexp
}

// rfc3339 is the time that collectors write.
const rfc3339 = `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)`

// heads are the known heads. One that begins like another stands before it.
var heads = []head{
	{"syslog, RFC 5424", regexp.MustCompile(
		`^(?:<\d{1,3}>)?1 (?:-|` + rfc3339 + `) \S+ \S+ \S+ \S+ (?:-|(?:\[(?:[^\]"]|"(?:[^"\\]|\\.)*")*\])+)(?: \x{feff}?|$)`)},
	{"Kubernetes CRI", regexp.MustCompile(`^` + rfc3339 + ` (?:stdout|stderr) [FP](?::\S+)?(?: |$)`)},
	{"kubectl logs --prefix", regexp.MustCompile(`^\[pod/[^\]\s]+\] `)},
	{"docker compose", regexp.MustCompile(`^(?:\x1b\[[\d;]*m)?[\w.@-]+ +\|(?: |$)(?:\x1b\[[\d;]*m)?`)},
	{"syslog or journald", regexp.MustCompile(`^(?:<\d{1,3}>)?(?:` + strings.Join([]string{
		rfc3339,
		`[A-Z][a-z]{2} [ \d]\d (?:\d{4} )?\d\d:\d\d:\d\d(?:\.\d+)?`,                       // RFC 3164, with a year as Cisco's and some BSDs', journald's short and short-precise
		`[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? (?:[A-Z]+|[+-]\d\d:?\d*)`, // short-full
		`\d{9,10}\.\d{6}`, `\[ *\d+\.\d{6}\]` /* short-unix, short-monotonic */}, `|`) + `) ` +
		`(?:[^\s"]*[^\s":] )?[^\s":\[\]#][^\s":\[\]]*(?:\[[^\]\s]*\])?:(?: +|$)`)}, // the host, and the program with its number
	{"timestamps", regexp.MustCompile(`^` + rfc3339 + `(?: |$)`)}, // docker logs -t, kubectl logs --timestamps
}

// mostHeads is how many heads a line has at most, as of kubectl logs --prefix --timestamps.
const mostHeads = 3

// A headChain is the heads that the lines of a file have, one after the other.
type headChain []*head

// headsOf returns the heads that most of the lines have.
func headsOf(lines [][]byte) (chain headChain) {
	for len(chain) < mostHeads {
		next := headOf(lines)
		if next == nil {
			break
		}
		chain = append(chain, next)
		lines, _ = headChain{next}.cutAll(lines)
	}
	return chain
}

// headOf returns the first head that most of the lines have, or nil.
func headOf(lines [][]byte) *head {
	for i := range heads {
		if with, without := (headChain{&heads[i]}).cutAll(lines); len(with) > len(without) {
			return &heads[i]
		}
	}
	return nil
}

// cut returns what follows the heads of a line, and reports whether it has them.
func (c headChain) cut(line []byte) (rest []byte, ok bool) {
	for _, h := range c {
		at := h.re.FindIndex(line)
		if at == nil {
			return nil, false
		}
		line = line[at[1]:]
	}
	return line, true
}

// cutAll returns what follows the heads of the lines that have them, and the other lines.
func (c headChain) cutAll(lines [][]byte) (with, without [][]byte) {
	for _, line := range lines {
		if rest, ok := c.cut(line); ok {
			with = append(with, rest)
		} else {
			without = append(without, line)
		}
	}
	return with, without
}

// String returns the names of the heads.
func (c headChain) String() string {
	var names []string
	for _, h := range c {
		names = append(names, h.name)
	}
	return strings.Join(names, ", then ")
}
