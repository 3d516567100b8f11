package accesslog

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"
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
		`(?:[^\s"]*[^\s":] )?[^\s":\[\]]+(?:\[[^\]\s]*\])?:(?: +|$)`)}, // the host, and the program with its number
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

// sampled is how many lines at most tell the format of a file.
const sampled = 50

// choose sets the parser of a source to the parser of its format, and finds the heads of
// its lines. If the format is Auto, it is the most special one in which at least half as
// many of the first lines have requests as in any other: a line of Traefik that was cut is
// still one of the combined format.
func (s *source) choose(o Options, t *texts) error {
	var parsers []parser
	for _, f := range formats {
		if o.Format != Auto && o.Format != f.format {
			continue
		}
		p, err := f.newParser(o, t)
		if err != nil {
			return err
		}
		parsers = append(parsers, p)
	}
	sample, err := s.sample()
	if err != nil {
		return err
	}
	fits, requests := fitting(parsers, sample)
	if chain := headsOf(sample); len(chain) > 0 {
		// A line of syslog can be taken for one of a client called Nov. So the lines that have
		// heads count as such, if there are requests behind them.
		with, without := chain.cutAll(sample)
		behind, requestsBehind := fitting(parsers, with)
		if _, others := fitting(parsers, without); requestsBehind > others {
			s.heads, s.headNames, fits, requests = chain, chain.String(), behind, requestsBehind
		}
	}
	if requests == 0 && len(sample) > 0 {
		is := unreadFormat(sample)
		if is != "" || o.Format == Auto {
			return &FormatError{s.name, is, excerpt(sample[0])}
		}
	}
	most := slices.Max(fits)
	s.parser = parsers[slices.IndexFunc(fits, func(n int) bool { return 2*n >= most })]
	return nil
}

// fitting returns in how many of the lines each of the parsers finds a request, and in how
// many any of them does.
func fitting(parsers []parser, lines [][]byte) (fits []int, requests int) {
	fits = make([]int, len(parsers))
	for _, line := range lines {
		found := false
		for i, p := range parsers {
			if len(line) > 0 && p.parse(bytes.Clone(line), &entry{}) == "" {
				fits[i]++
				found = true
			}
		}
		if found {
			requests++
		}
	}
	return fits, requests
}

// sample returns the first lines that are not empty, without reading them.
func (s *source) sample() (all [][]byte, err error) {
	head, err := s.lines.from.Peek(readAhead)
	atEnd := errors.Is(err, io.EOF)
	if err != nil && !atEnd && !errors.Is(err, bufio.ErrBufferFull) {
		return nil, s.failed(err)
	}
	head = bytes.TrimPrefix(head, []byte("\xef\xbb\xbf"))
	for len(head) > 0 && len(all) < sampled {
		line, rest, whole := bytes.Cut(head, []byte("\n"))
		if !whole && !atEnd && len(all) > 0 {
			break // It goes on beyond what was read ahead.
		}
		if line = bytes.TrimSuffix(line, []byte("\r")); len(line) > 0 {
			all = append(all, line)
		}
		head = rest
	}
	return all, nil
}
