package accesslog

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// A parser reads the lines of one format. It may change the bytes of a line, and keeps
// none of them. The reason is "" for a line that has a request. One parser serves one
// file.
type parser interface {
	parse(line []byte, e *entry) Reason

	// subtracts reports whether there may be entries whose stamp is their end and whose
	// duration is known.
	subtracts() bool
}

// combined reads the format of Apache and nginx, and what others share with it:
//
//	192.0.2.1 - alice [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 2326 "-" "curl/8"
//
// A virtual host may stand before the address. The user agent and the referer may be
// missing, which is the Common Log Format.
type combined struct {
	texts    *texts
	header   []string // names of the header fields that are wanted
	trailing []trailing
	stamp    Stamp

	lastStamp []byte // the last time that was parsed, as most lines have the time of the one before
	last      instant
}

// A trailing is what a field after the user agent has.
type trailing struct {
	what string // "", "time", "duration", "host", "client" or "header"
	unit time.Duration
	name string // of the header field
}

var units = map[string]time.Duration{
	"": time.Second, "s": time.Second, "ms": time.Millisecond, "us": time.Microsecond, "µs": time.Microsecond, "ns": time.Nanosecond,
}

func newCombined(o Options, t *texts) (*combined, error) {
	c := &combined{texts: t, header: o.Header, stamp: o.Stamp}
	for _, word := range o.Trailing {
		what, detail, _ := strings.Cut(word, ":")
		field := trailing{what: what}
		ok := detail == ""
		switch what {
		case "-":
			field.what = ""
		case "time", "host", "client":
		case "duration":
			field.unit, ok = units[detail]
			if o.Stamp == "" {
				return nil, &OptionError{"Trailing", fmt.Sprintf("%q, so Stamp must say what the time is: arrival (Apache) or end (nginx)", word)}
			}
		case "header":
			field.name, ok = detail, detail != ""
		default:
			ok = false
		}
		if !ok {
			return nil, &OptionError{"Trailing", fmt.Sprintf("%q, must be -, time, duration:UNIT (s, ms, us, ns), host, client or header:NAME", word)}
		}
		c.trailing = append(c.trailing, field)
	}
	return c, nil
}

func (c *combined) subtracts() bool { return c.stamp == End && len(c.trailing) > 0 }

func (c *combined) parse(line []byte, e *entry) Reason {
	e.isEnd = c.stamp == End
	rest, reason := c.parseHead(line, e)
	if reason != "" || len(c.header) == 0 && len(c.trailing) == 0 {
		return reason
	}
	referer, rest := cutWord(rest)
	agent, rest := cutWord(rest)
	e.Header = make([]string, len(c.header))
	c.setHeader(e, "Referer", referer)
	c.setHeader(e, "User-Agent", agent)
	return c.parseTrailing(rest, e)
}

// parseHead reads the line up to the number of bytes, and returns what follows.
func (c *combined) parseHead(line []byte, e *entry) (rest []byte, reason Reason) {
	open := bytes.Index(line, []byte(" ["))
	if open < 0 {
		return nil, NotFormat
	}
	who, rest := line[:open], line[open+len(" ["):]
	closing := bytes.IndexByte(rest, ']')
	if closing < 0 || closing+2 >= len(rest) || rest[closing+1] != ' ' || rest[closing+2] != '"' {
		return nil, NotFormat
	}
	stamp, rest := rest[:closing], rest[closing+2:]
	request, rest, ok := cutQuoted(rest)
	if !ok || len(rest) == 0 || rest[0] != ' ' {
		return nil, NotFormat
	}
	status, rest := cutWord(rest[1:])
	_, rest = cutWord(rest) // the bytes that were sent

	c.setWho(who, e)
	if !c.setStamp(stamp, e) {
		return nil, NoTime
	}
	if !e.setRequestLine(unescape(request), c.texts) {
		return nil, NoRequest
	}
	if len(status) != 3 && !isDash(status) || !e.setStatus(status) { // One digit is what remains of a line that was cut.
		return nil, BadStatus
	}
	return rest, ""
}

// setWho takes the client from what stands before the time: the address, or the virtual
// host and the address, then the user's names by identd and by password. Names may have
// blanks. The second field is the address if it is one, as no identd gives that. A list of
// addresses stands for one address; each but the last has a comma behind it.
func (c *combined) setWho(who []byte, e *entry) {
	first, rest := cutList(who)
	second, _ := cutList(rest)
	if len(second) > 1 && (second[0]-'0' <= 9 || bytes.IndexByte(second, ':') >= 0) {
		leading, _, _ := bytes.Cut(second, []byte(","))
		if _, err := netip.ParseAddr(address(leading)); err == nil {
			e.Host = c.texts.hosts.of(first)
			e.setClient(second, c.texts)
			return
		}
	}
	e.setClient(first, c.texts)
}

// cutList is cutWord, but a word that ends with a comma goes on to the end of the next one.
func cutList(text []byte) (list, rest []byte) {
	list, rest = cutWord(text)
	if n := len(list); n == 0 || list[n-1] != ',' {
		return list, rest
	}
	for from := text; ; {
		word, after := cutWord(from)
		if n := len(word); n == 0 || word[n-1] != ',' || len(after) == 0 {
			return bytes.TrimSuffix(text[:len(text)-len(after)], []byte(" ")), after
		}
		from = after
	}
}

func (c *combined) setStamp(text []byte, e *entry) bool {
	if len(text) > 0 && bytes.Equal(text, c.lastStamp) {
		e.stamp = c.last
		return true
	}
	stamp, ok := parseTime(text)
	if ok {
		c.lastStamp, c.last = append(c.lastStamp[:0], text...), stamp
	}
	e.stamp = stamp
	return ok
}

// setHeader sets the value of a header field, if it is wanted.
func (c *combined) setHeader(e *entry, name string, value []byte) {
	for i, wanted := range c.header {
		if strings.EqualFold(wanted, name) {
			e.Header[i] = e.headerValue(unescape(value), c.texts)
		}
	}
}

// parseTrailing reads the fields after the user agent.
func (c *combined) parseTrailing(rest []byte, e *entry) Reason {
	for _, field := range c.trailing {
		var word []byte
		word, rest = cutWord(rest)
		if isDash(word) || len(word) == 0 {
			continue
		}
		value := word
		if i := bytes.IndexByte(word, '='); i >= 0 && field.what != "header" {
			value, _ = cutWord(word[i+1:])
		}
		switch field.what {
		case "time":
			stamp, ok := parseTime(value)
			if !ok {
				return NoTime
			}
			e.stamp = stamp
		case "duration":
			e.setDuration(value, field.unit)
		case "host":
			e.Host = c.texts.hosts.of(value)
		case "client":
			e.setClient(unescape(value), c.texts)
		case "header":
			c.setHeader(e, field.name, value)
		}
	}
	return ""
}

// cutQuoted returns what stands between a quote at the beginning of the text and the next
// one that has no backslash before it, and what follows.
func cutQuoted(text []byte) (inside, rest []byte, ok bool) {
	if len(text) == 0 || text[0] != '"' {
		return nil, nil, false
	}
	for from := 1; ; {
		i := bytes.IndexByte(text[from:], '"')
		if i < 0 {
			return nil, nil, false
		}
		i += from
		backslashes := 0
		for text[i-1-backslashes] == '\\' { // It ends at the first quote.
			backslashes++
		}
		if backslashes%2 == 0 {
			return text[1:i], text[i+1:], true
		}
		from = i + 1
	}
}

// cutWord returns what stands before the next blank, and what follows it. A blank in
// quotes is part of a word, as in name="two words". A word that is quoted as a whole is
// returned without its quotes, also if it has quotes that are not escaped.
func cutWord(text []byte) (word, rest []byte) {
	if inside, rest, ok := cutQuoted(text); ok && (len(rest) == 0 || rest[0] == ' ') {
		return inside, bytes.TrimPrefix(rest, []byte(" "))
	}
	unclosed := false // A quote that is not closed closes nothing further on either.
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == ' ':
			return unquote(text[:i]), text[i+1:]
		case text[i] == '"' && !unclosed:
			inside, _, ok := cutQuoted(text[i:])
			if unclosed = !ok; ok {
				i += len(inside) + 1
			}
		}
	}
	return unquote(text), nil
}

func unquote(word []byte) []byte {
	if n := len(word); n > 1 && word[0] == '"' && word[n-1] == '"' {
		return word[1 : n-1]
	}
	return word
}

// unescape undoes the escaping of the text formats: \xHH, and what Apache has beside it.
// It changes the bytes in place, as they never become more.
func unescape(text []byte) []byte {
	from := bytes.IndexByte(text, '\\')
	if from < 0 {
		return text
	}
	to := text[:from]
	for i := from; i < len(text); i++ {
		if text[i] != '\\' || i+1 == len(text) {
			to = append(to, text[i])
			continue
		}
		i++
		switch text[i] {
		case 'n':
			to = append(to, '\n')
		case 'r':
			to = append(to, '\r')
		case 't':
			to = append(to, '\t')
		case 'x':
			if i+2 < len(text) {
				high, ok1 := hexDigit(text[i+1])
				low, ok2 := hexDigit(text[i+2])
				if ok1 && ok2 {
					to = append(to, high<<4|low)
					i += 2
					continue
				}
			}
			to = append(to, '\\', 'x')
		case '"', '\\':
			to = append(to, text[i])
		default:
			to = append(to, '\\', text[i])
		}
	}
	return to
}

func hexDigit(c byte) (value byte, ok bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10, true
	}
	return 0, false
}

// traefik reads both of Traefik's formats. Its text is the combined format with four more
// fields, of which the last is the duration:
//
//	… "curl/8" 12 "shop@docker" "http://10.0.0.5:80" 3ms
//
// The time is the arrival. As Traefik does not escape quotes, the duration is looked for
// at the end of the line.
type traefik struct {
	text   *combined
	object *jsonLines
}

func newTraefik(o Options, t *texts) (parser, error) {
	o.Trailing = nil
	if o.Stamp == "" {
		o.Stamp = Arrival
	}
	text, err := newCombined(o, t)
	return &traefik{text, newJSONLines(o, traefikNames(), t)}, err
}

func (p *traefik) subtracts() bool { return true } // its JSON without StartUTC

func (p *traefik) parse(line []byte, e *entry) Reason {
	if line[0] == '{' {
		return p.object.parse(line, e)
	}
	// Before the rest is parsed, because that may change the bytes.
	i := bytes.LastIndexByte(line, ' ')
	elapsed, ok := bytes.CutSuffix(line[i+1:], []byte("ms"))
	if i < 0 || !ok {
		return NotFormat
	}
	if e.setDuration(elapsed, time.Millisecond); !e.timed {
		return NotFormat
	}
	return p.text.parse(line[:i], e)
}
