package accesslog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// A Format is how the lines of a log are written: one of the names below, or a text with
// nginx's variables, as log_format has it.
type Format string

// The formats, and the meaning of their times.
const (
	Auto       Format = "auto"       // the format that fits the first lines of a file best, but never Usage
	Combined   Format = "combined"   // nginx, whose $time_local is the end, and Apache, whose %t is the arrival; also "common", and with a virtual host in front
	JSON       Format = "json"       // one object per line: taken for the end, as most programs log a request when it is done
	Caddy      Format = "caddy"      // ts is the end
	Traefik    Format = "traefik"    // both formats; StartUTC, and the time of the text, is the arrival
	HAProxy    Format = "haproxy"    // option httplog and httpslog; the arrival
	ALB        Format = "alb"        // AWS's Application Load Balancers; the time is the end, and request_creation_time the arrival
	ELB        Format = "elb"        // AWS's Classic Load Balancers; the arrival
	CloudFront Format = "cloudfront" // standard logs; the end
	Envoy      Format = "envoy"      // the default format; the arrival
	W3C        Format = "w3c"        // IIS, and others that name their fields in a line #Fields; the end
	Usage      Format = "usage"      // the usage log of a gateway of language models; the arrival
)

// A newParser makes the parser of a format for one file.
type newParser func(Options, *texts) (parser, error)

// formats are the formats that are read. More special ones stand before others. A format of
// text is a pattern, and one of JSON the names of its fields: a new one is a row here.
var formats = []struct {
	format    Format
	newParser newParser
}{
	{Caddy, ofJSON(caddyFormat)},
	{Traefik, newTraefik},
	{JSON, ofJSON(usualFormat)},

	// https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage#default-format-string
	// Quotes are not escaped.
	{Envoy, ofText(Arrival, asItIs, `[$time] "$request" $status $- $- $- $milliseconds $- "$client" "$http_user_agent" "$http_x_request_id" "$host"`)},

	// https://docs.aws.amazon.com/elasticloadbalancing/latest/application/load-balancer-access-logs.html#access-log-entry-syntax
	// Older logs lack request_creation_time. The client's port is behind its address.
	{ALB, ofText(End, unescape, `$- $time $- $peer $- $share $share $share $status $- $- $- "$request"$? "$http_user_agent" $- $- $- $- $- $- $- $begin `)},

	// https://docs.aws.amazon.com/elasticloadbalancing/latest/classic/access-log-collection.html#access-log-entry-format
	// There is no word for the protocol before the time.
	{ELB, ofText(Arrival, unescape, `$time $- $peer $- $share $share $share $status $- $- $- "$request"$? "$http_user_agent" `)},

	// https://docs.haproxy.org/2.6/configuration.html#8.2.3
	// The time has no zone. Captured header fields stand between the queues and the request.
	{HAProxy, ofText(Arrival, unmark('#'), `$peer [$time] $- $- $durations_ms $status $- "$request"`)},

	// https://www.w3.org/TR/WD-logfile.html, and
	// https://docs.aws.amazon.com/AmazonCloudFront/latest/DeveloperGuide/standard-logs-reference.html
	{W3C, newW3C(nil)},
	{CloudFront, newW3C(cloudFrontFields)},

	// Package llm/gateway writes it. It is replayed in another way than an access log, so it must
	// be named.
	{Usage, newUsageLog},

	// https://httpd.apache.org/docs/2.4/logs.html#accesslog, and
	// https://nginx.org/en/docs/http/ngx_http_log_module.html#log_format
	// A virtual host may stand before the address. The user agent and the referer may be
	// missing, which is the Common Log Format.
	{Combined, ofText("", unescape, `$who [$time] "$request" $status$? $- $http_referer $http_user_agent$+`)},
}

// FormatNames returns the names of all formats, in words.
func FormatNames() string {
	var names []string
	for _, f := range formats {
		names = append(names, string(f.format))
	}
	slices.Sort(names)
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// parsers returns the parsers of a format, which are all for Auto.
func (f Format) parsers(o Options, t *texts) (all []parser, err error) {
	if strings.Contains(string(f), "$") {
		p, err := newPattern(o, t, End, unquotedFormat(string(f)))
		return []parser{p}, err
	}
	for _, row := range formats {
		if f != row.format && (f != Auto || row.format == Usage) {
			continue
		}
		p, err := row.newParser(o, t)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("must be auto, %s, or a log_format of nginx such as '$remote_addr [$time_local] \"$request\" $status'", FormatNames())
	}
	return all, nil
}

// statement is a log_format as it stands in the configuration of nginx, whole or only its
// texts in quotes.
var (
	statement   = regexp.MustCompile(`^\s*(?:log_format\s+\S+\s+(?:escape=\w+\s+)?)?(?:(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\s*)+;?\s*$`)
	quotedTexts = regexp.MustCompile(`'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"`)
	quotedSign  = regexp.MustCompile(`\\(['"\\])`)
)

// unquotedFormat returns the text of a log_format, which nginx joins if it has several parts.
func unquotedFormat(text string) string {
	if !statement.MatchString(text) {
		return text
	}
	all := ""
	for _, part := range quotedTexts.FindAllString(text, -1) {
		all += quotedSign.ReplaceAllString(part[1:len(part)-1], "$1")
	}
	return all
}

// ofJSON returns the maker of parsers of JSON with the names of fields.
func ofJSON(format jsonFormat) newParser {
	return func(o Options, t *texts) (parser, error) { return newJSONLines(o, format, t), nil }
}

// ofText returns the maker of parsers of a pattern. plain undoes the server's escaping of
// clients' texts.
func ofText(stamp Stamp, plain func([]byte) []byte, text string) newParser {
	return func(o Options, t *texts) (parser, error) {
		p, err := newPattern(o, t, stamp, text)
		if err == nil {
			p.plain, p.value = plain, plain
		}
		return p, err
	}
}

// newTraefik reads both of Traefik's formats. Its text is the combined format with four more
// fields; the last one is the duration. As Traefik does not escape
// quotes, the duration is looked for at the end of the line.
func newTraefik(o Options, t *texts) (parser, error) {
	const text = `$who [$time] "$request" $status $- $http_referer $http_user_agent $* ${only_ms}ms`
	p, err := ofText(Arrival, unescape, text)(o, t)
	return &traefik{p, newJSONLines(o, traefikFormat, t)}, err
}

type traefik struct{ text, object parser }

func (p *traefik) subtracts() bool { return true } // its JSON without StartUTC

func (p *traefik) parse(line []byte, e *entry) Reason {
	if line[0] == '{' {
		return p.object.parse(line, e)
	}
	return p.text.parse(line, e)
}

// sampled is how many lines at most tell the format of a file.
const sampled = 50

// choose sets the parser of a source to the parser of its format, and finds the heads of
// its lines. If the format is Auto, it is the most special one in which at least half as
// many of the first lines have requests as in any other: a line of Traefik that was cut is
// still one of the combined format.
func (s *source) choose(o Options, t *texts) error {
	parsers, err := o.Format.parsers(o, t)
	if err != nil {
		return err
	}
	sample, err := s.sample()
	if err != nil {
		return err
	}
	fits, requests := fitting(parsers, sample)
	// A line of syslog can be taken for one of a client called Nov. So the lines that have
	// heads count as such, if there are requests behind them. The last head may be none, as
	// the lines of some formats begin with a time.
	for chain := headsOf(sample); len(chain) > 0; chain = chain[:len(chain)-1] {
		with, without := chain.cutAll(sample)
		behind, requestsBehind := fitting(parsers, with)
		if _, others := fitting(parsers, without); requestsBehind > others {
			s.heads, s.headNames, fits, requests = chain, chain.String(), behind, requestsBehind
			break
		}
	}
	if requests == 0 && len(sample) > 0 {
		is := unreadFormat(sample)
		if is != "" || o.Format == Auto {
			return &FormatError{s.name, is, beginning(sample[0])}
		}
	}
	most := slices.Max(fits)
	s.parser = parsers[slices.IndexFunc(fits, func(n int) bool { return 2*n >= most })]
	return nil
}

// fitting returns how many of the lines each of the parsers can read, and how many any of them
// can.
func fitting(parsers []parser, lines [][]byte) (fits []int, requests int) {
	fits = make([]int, len(parsers))
	for _, line := range lines {
		found := false
		for i, p := range parsers {
			if len(line) == 0 {
				continue
			}
			if reason := p.parse(bytes.Clone(line), &entry{}); reason == "" || reason == noRequestMeant {
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
	s.lines.skipNULs()
	head, err := s.lines.from.Peek(readAhead)
	atEnd := errors.Is(err, io.EOF)
	if err != nil && !atEnd && !errors.Is(err, bufio.ErrBufferFull) {
		return nil, s.failed(err)
	}
	head = bytes.TrimPrefix(head, []byte("\xef\xbb\xbf"))
	for len(head) > 0 && len(all) < sampled {
		line, rest, whole := bytes.Cut(head, []byte("\n"))
		if !whole && !atEnd && len(all) > 0 {
			break // It goes on beyond the bytes that were read ahead.
		}
		if line = bytes.TrimSuffix(line, []byte("\r")); len(line) > 0 {
			all = append(all, line)
		}
		head = rest
	}
	return all, nil
}

// A FormatError is a log in a format that is not read.
type FormatError struct {
	File   string // as it was given to Open
	Is     string // its name and a way to use it; "" if it is unknown
	Begins string // the first 120 characters of its first line; "" if they tell nothing
}

func (e *FormatError) Error() string {
	if e.Is != "" {
		return e.File + ": " + e.Is
	}
	return fmt.Sprintf("%s: the format is none of %s; it begins with %s", e.File, FormatNames(), e.Begins)
}

// unread are formats that are known and not read, by their lines.
var unread = []struct {
	line *regexp.Regexp
	is   string
}{
	{regexp.MustCompile(`^\s*\[\s*(?:\{|$)`), `it is a JSON array, and JSON is read with one object on each line: jq -c '.[]' FILE makes such lines`},
	{regexp.MustCompile(`^\{"log":".*"stream":"std`), `it is the file of Docker's driver json-file, which is not read: docker logs NAME prints its lines`},
	{regexp.MustCompile(`^\{.*"__REALTIME_TIMESTAMP"`), `it is journald's JSON, which is not read: journalctl -o cat prints the lines`},
	{regexp.MustCompile(`^\{"time":".*"estimate":\{"input":\d`), `it is the usage log of a gateway of language models, which is replayed under a quota: -format usage`},
	{regexp.MustCompile(`(?:\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}[\t ]+(?:\x1b\[\d+m)?(?i:debug|info|warn|error)\b|[\t ]handled request[\t ]+\{)`),
		`it is the console format of Caddy's logger, which is not read: "format json" in the directive log makes lines that are, and of those that are there already they are made by ` +
			`sed -nE 's|^[^{]*([0-9]{4}/../.. [0-9:.]+)[^{]*handled request[^{]*\{|{"ts":"\1",|p' FILE | shapereplay …`},
	{regexp.MustCompile(`^\s*\{\s*$`), `its JSON objects take several lines, and each must stand on one: jq -c . FILE makes such lines`},
	{regexp.MustCompile(` ?\S+:\d+ \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d\.\d{3}\] \S+ `), `it is HAProxy's log of connections, which tells no request: with "option httplog" HAProxy writes one line for each`},
}

// unreadFormat names the format of the first lines of a file if it is one that is known and
// not read, or returns "". There is at least one line.
func unreadFormat(lines [][]byte) string {
	for _, u := range unread {
		matches := 0
		for _, line := range lines {
			if u.line.Match(line) {
				matches++
			}
		}
		if 2*matches > len(lines) || u.line.Match(lines[0]) {
			return u.is
		}
	}
	return ""
}

// A w3c reads W3C's extended format, which names its fields in a line of its own: maybe
// several times, and others each time.
type w3c struct {
	o     Options
	texts *texts
	names []string // of the fields
	day   []byte   // of the line #Date, for lines that tell the time only
	text  *pattern // nil: no line has come since the names
}

// cloudFrontFields are the fields of a log of CloudFront that has lost its first lines.
var cloudFrontFields = strings.Fields(`date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer)
	cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes time-taken x-forwarded-for`)

// w3cFields are the fields that are read. cs(NAME) is a header field, and so may be any other.
var w3cFields = map[string]variable{
	"date":          {what: ofDay},
	"time":          {what: ofClock},
	"c-ip":          {what: ofClient},
	"cs-method":     {what: ofMethod},
	"cs-uri-stem":   {what: ofURI},
	"cs-uri":        {what: ofURI, rank: 1},
	"x-host-header": {what: ofHost}, // CloudFront's cs(Host) is its own name
	"cs-host":       {what: ofHost, rank: 1},
	"cs(Host)":      {what: ofHost, rank: 2},
	"sc-status":     {what: ofStatus},
	"time-taken":    {what: ofDuration},
}

func newW3C(names []string) newParser {
	return func(o Options, t *texts) (parser, error) { return &w3c{o: o, texts: t, names: names}, nil }
}

func (w *w3c) subtracts() bool { return w.o.Stamp != Arrival }

func (w *w3c) parse(line []byte, e *entry) Reason {
	if line[0] == '#' {
		name, value, ok := bytes.Cut(line, []byte(":"))
		switch {
		case !ok:
			return NotFormat
		case string(name) == "#Fields":
			w.names, w.text = strings.Fields(string(value)), nil
		case string(name) == "#Date":
			w.day, _ = cutWord(bytes.Clone(bytes.TrimSpace(value)))
		}
		return noRequestMeant
	}
	if w.text == nil && !w.begin(line) {
		return NoFields
	}
	return w.text.parse(line, e)
}

// begin makes the pattern of the lines. The first line tells which character separates fields.
func (w *w3c) begin(line []byte) bool {
	between, value := " ", plus
	if bytes.IndexByte(line, '\t') >= 0 {
		between, value = "\t", unmark('%') // as CloudFront writes it
	}
	p := newEmptyPattern(w.o, w.texts, End)
	p.plain, p.value, p.day = asItIs, value, w.day
	for i, name := range w.names {
		v, known := w3cFields[name]
		if !known {
			v = variable{what: ofHeader, name: strings.TrimSuffix(strings.TrimPrefix(name, "cs("), ")")}
		}
		if i > 0 {
			p.follow(between)
		}
		p.fields = append(p.fields, field{variable: v})
	}
	if p.check() != nil {
		return false
	}
	w.text = p
	return true
}

// A head is text that a collector of logs writes before each line.
type head struct {
	name string
	re   *regexp.Regexp
}

// rfc3339 is the time that collectors write.
const rfc3339 = `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)`

// The loggers of Go's and Python's standard libraries write these, before a name that may follow: package log, with a
// prefix and the level of log/slog, and logging's attributes in the orders that are usual.
const (
	goLog = `^(?:[^\s\d"{][^\s"{]* ?)?\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d{6})? (?:\S+\.go:\d+: )?(?:(?:DEBUG|INFO|WARN|ERROR)(?:[+-]\d+)? )?`

	asctime   = `\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`
	between   = ` (?:[-|:] )?`
	level     = `(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)`
	pythonLog = `^\[?` + asctime + `(?:,\d{3})?\]?` + between + `(?:\[?[A-Za-z_][\w.]*\]?` + between + `)??\[?` + level + `\]?(?: in [\w.]+)?`
)

// heads are the known heads. The longer of two that begin alike stands first.
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

	{"Go's log", regexp.MustCompile(goLog + `[A-Za-z][\w.-]*: `)},
	{"Go's log", regexp.MustCompile(goLog)},
	{"Python's logging", regexp.MustCompile(pythonLog + between + `[A-Za-z_][\w.]*: `)},
	{"Python's logging", regexp.MustCompile(pythonLog + `(?:: ?|` + between + `)`)},
	{"Python's logging", regexp.MustCompile(`^(?:` + level + `:[\w.]*:|\[?` + asctime + `,\d{3}\]?` + between + `)`)},
	{"timestamps", regexp.MustCompile(`^` + rfc3339 + `(?: |$)`)}, // docker logs -t, kubectl logs --timestamps
}

// mostHeads is how many heads a line has at most, as of kubectl logs --prefix --timestamps.
const mostHeads = 3

// A headChain is the heads that the lines of a file have, one after the other.
type headChain []*head

// headsOf returns the heads that most of the lines have.
func headsOf(lines [][]byte) (chain headChain) {
	for len(chain) < mostHeads {
		next := slices.IndexFunc(heads, func(h head) bool {
			with, without := headChain{&h}.cutAll(lines)
			return len(with) > len(without)
		})
		if next < 0 {
			break
		}
		chain = append(chain, &heads[next])
		lines, _ = headChain{&heads[next]}.cutAll(lines)
	}
	return chain
}

// cut returns the rest of a line behind its heads, and reports whether it has them.
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

// cutAll cuts the heads off the lines that have them, and returns the other lines as well.
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
