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

// Auto stands for the format that fits the first lines of a file best. What is replayed of a usage log is not
// what is replayed of an access log, so that must be named.
const (
	Auto       Format = "auto"
	Combined   Format = "combined"
	JSON       Format = "json"
	Caddy      Format = "caddy"
	Traefik    Format = "traefik"
	HAProxy    Format = "haproxy"
	ALB        Format = "alb"
	ELB        Format = "elb"
	CloudFront Format = "cloudfront"
	Envoy      Format = "envoy"
	W3C        Format = "w3c"
	Usage      Format = "usage" // of a gateway of language models; never what Auto stands for
)

// A newParser makes the parser of a format for one file.
type newParser func(Options, *texts) (parser, error)

// formats are the formats that are read. More special ones stand before others. A format of
// text is a pattern, and one of JSON the names of its fields: a new one is a row here.
var formats = []struct {
	format    Format
	newParser newParser
}{
	{Caddy, ofJSON(func(Options) fieldNames { return caddyNames() })},
	{Traefik, newTraefik},
	{JSON, ofJSON(func(o Options) fieldNames { return jsonNames(o.Fields) })},

	// https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage#default-format-string
	// The time is the arrival. Quotes are not escaped.
	{Envoy, ofText(Arrival, asItIs, `[$time] "$request" $status $- $- $- $milliseconds $- "$client" "$http_user_agent" "$http_x_request_id" "$host"`)},

	// https://docs.aws.amazon.com/elasticloadbalancing/latest/application/load-balancer-access-logs.html#access-log-entry-syntax
	// The time is the time of the answer; request_creation_time, which older logs lack, is the arrival. The
	// target's port is behind the client's.
	{ALB, ofText(End, unescape, `$- $time $- $peer $- $share $share $share $status $- $- $- "$request"$? "$http_user_agent" $- $- $- $- $- $- $- $begin `)},

	// https://docs.aws.amazon.com/elasticloadbalancing/latest/classic/access-log-collection.html#access-log-entry-format
	// The time is the arrival, and there is no word for the protocol before it.
	{ELB, ofText(Arrival, unescape, `$time $- $peer $- $share $share $share $status $- $- $- "$request"$? "$http_user_agent" `)},

	// https://docs.haproxy.org/2.6/configuration.html#8.2.3
	// The time is the arrival, without a zone. Captured header fields stand between the
	// queues and the request.
	{HAProxy, ofText(Arrival, unmark('#'), `$peer [$time] $- $- $durations_ms $status $- "$request"`)},

	// https://www.w3.org/TR/WD-logfile.html, and
	// https://docs.aws.amazon.com/AmazonCloudFront/latest/DeveloperGuide/standard-logs-reference.html
	{W3C, newW3C(nil)},
	{CloudFront, newW3C(cloudFrontFields)},

	// What a gateway of package llm/gateway writes. The time is the arrival.
	{Usage, newUsageLog},

	// https://httpd.apache.org/docs/2.4/logs.html#accesslog, and
	// https://nginx.org/en/docs/http/ngx_http_log_module.html#log_format
	// A virtual host may stand before the address. The user agent and the referer may be
	// missing, which is the Common Log Format.
	{Combined, ofText("", unescape, `$who [$time] "$request" $status$? $- $http_referer $http_user_agent$+`)},
}

// formatNames are the names of the formats for people, in the order of the alphabet.
func formatNames() []string {
	names := []string{}
	for _, f := range formats {
		names = append(names, string(f.format))
	}
	slices.Sort(names)
	return names
}

// FormatNames returns the names of all formats, in words.
func FormatNames() string {
	names := formatNames()
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
func ofJSON(names func(Options) fieldNames) newParser {
	return func(o Options, t *texts) (parser, error) { return newJSONLines(o, names(o), t), nil }
}

// ofText returns the maker of parsers of a pattern. plain undoes how the server writes what
// clients sent.
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
// fields; the last one is the duration. The time is the arrival. As Traefik does not escape
// quotes, the duration is looked for at the end of the line.
func newTraefik(o Options, t *texts) (parser, error) {
	const text = `$who [$time] "$request" $status $- $http_referer $http_user_agent $* ${only_ms}ms`
	p, err := ofText(Arrival, unescape, text)(o, t)
	return &traefik{p, newJSONLines(o, traefikNames(), t)}, err
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
			return &FormatError{s.name, is, excerpt(sample[0])}
		}
	}
	most := slices.Max(fits)
	s.parser = parsers[slices.IndexFunc(fits, func(n int) bool { return 2*n >= most })]
	return nil
}

// fitting returns in how many of the lines each of the parsers finds what its format has, and
// in how many any of them does.
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
