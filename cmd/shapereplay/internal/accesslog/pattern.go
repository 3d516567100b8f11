package accesslog

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"time"
)

// A pattern is a format of text: the fields of a line in their order, and the text
// between them. It is written like nginx's log_format, with names after a dollar. Beside
// nginx's variables there are the names of variables, and
//
//	$-   a field that is not wanted
//	$*   the same, to the last place of the text that follows it
//	$?   a line may end here, or behind any field that follows
//	$+   the fields of Options.Trailing, with a blank before each
//
// A field before a blank is a word: a blank in quotes is part of it, and so is one behind a
// comma, because lists of addresses are written so. Every other field ends where the text
// behind it comes for the first time.
type pattern struct {
	texts  *texts
	header []string // names of the header fields that are wanted
	stamp  Stamp
	plain  func([]byte) []byte // undoes the server's escaping of clients' texts; may change the bytes
	value  func([]byte) []byte // the same for header fields

	prefix []byte // before the first field
	fields []field
	least  int // a line has at least so many of them

	day       []byte // that the line, or one before it, has told
	dated     []byte // the day and the time of day
	lastStamp []byte // the last time that was parsed, as most lines have the time of the one before
	last      instant
}

// A field is one field of a pattern.
type field struct {
	variable
	until    []byte // the text behind it; empty: the next blank, or the end of the line
	last     bool   // the last place of until counts
	trailing bool   // of [Options.Trailing]: it may be missing, be "-", and have its name and "=" before it
}

// A variable gives the contents of a field.
type variable struct {
	what meaning
	unit time.Duration // of a duration
	name string        // of a header field
	rank int           // of several fields with one meaning, the one with the least rank counts
}

// A meaning is the part of a request that a field tells.
type meaning int

const (
	ofNothing meaning = iota
	ofWho             // the client, behind a virtual host and before the names of a user
	ofClient
	ofPeer // the client, with its port behind the last colon
	ofTime
	ofDay
	ofClock // the time of the day
	ofRequest
	ofMethod
	ofURI
	ofHost
	ofStatus
	ofDuration
	ofDurationOnly // a line without it is of another format
	ofDurations    // several durations with slashes between them, the last of which is the whole
	ofShare        // a part of the duration
	ofBegin        // when the request began, where the time is the end
	ofHeader
)

// variables are the names that fields of patterns may have: nginx's names, and the names in the table
// of formats.
var variables = map[string]variable{
	"remote_addr":          {what: ofClient},
	"http_x_real_ip":       {what: ofClient, name: "X-Real-Ip", rank: 1},
	"http_x_forwarded_for": {what: ofClient, name: "X-Forwarded-For", rank: 2},
	"msec":                 {what: ofTime},
	"time_iso8601":         {what: ofTime, rank: 1},
	"time_local":           {what: ofTime, rank: 2},
	"request":              {what: ofRequest},
	"request_method":       {what: ofMethod},
	"request_uri":          {what: ofURI},
	"uri":                  {what: ofURI, rank: 1},
	"document_uri":         {what: ofURI, rank: 1},
	"host":                 {what: ofHost},
	"http_host":            {what: ofHost},
	"server_name":          {what: ofHost, rank: 1},
	"status":               {what: ofStatus},
	"request_time":         {what: ofDuration, unit: time.Second},

	"-": {}, "*": {},
	"who":          {what: ofWho},
	"client":       {what: ofClient},
	"peer":         {what: ofPeer},
	"time":         {what: ofTime},
	"milliseconds": {what: ofDuration, unit: time.Millisecond},
	"only_ms":      {what: ofDurationOnly, unit: time.Millisecond},
	"durations_ms": {what: ofDurations, unit: time.Millisecond},
	"share":        {what: ofShare, unit: time.Second},
	"begin":        {what: ofBegin},
}

// variableOf returns nginx's variable with a name. A variable that is not in the table is not
// wanted.
func variableOf(name string) variable {
	v, known := variables[name]
	if header, ok := strings.CutPrefix(name, "http_"); ok && !known {
		v = variable{what: ofHeader, name: strings.ReplaceAll(header, "_", "-")}
	}
	return v
}

var variableName = regexp.MustCompile(`\$(?:\{(\w+)\}|(\w+|[-*?+]))`)

// newEmptyPattern returns a pattern without fields.
func newEmptyPattern(o Options, t *texts, stamp Stamp) *pattern {
	return &pattern{texts: t, header: o.Header, stamp: cmp.Or(o.Stamp, stamp), plain: unescape, value: unescape}
}

// newPattern returns the pattern with a text. The error names the fault of the text.
func newPattern(o Options, t *texts, stamp Stamp, text string) (*pattern, error) {
	p := newEmptyPattern(o, t, stamp)
	from := 0
	for _, at := range variableName.FindAllStringSubmatchIndex(text, -1) {
		name := text[max(at[2], at[4]):max(at[3], at[5])]
		p.follow(text[from:at[0]])
		from = at[1]
		switch name {
		case "?":
			p.least = len(p.fields)
			continue
		case "+":
			if err := p.addTrailing(o); err != nil {
				return nil, err
			}
			continue
		}
		f := field{variable: variableOf(name), last: name == "*"}
		if n := len(p.fields); n > 0 && len(p.fields[n-1].until) == 0 {
			joined, err := join(&p.fields[n-1], f, name)
			if err != nil {
				return nil, err
			}
			if joined {
				continue
			}
		}
		p.fields = append(p.fields, f)
	}
	p.follow(text[from:])
	return p, p.check()
}

// follow adds text that stands behind the last field.
func (p *pattern) follow(text string) {
	if n := len(p.fields); n > 0 {
		p.fields[n-1].until = append(p.fields[n-1].until, text...)
	} else {
		p.prefix = append(p.prefix, text...)
	}
}

// trailingWords are the words of [Options.Trailing], some of which have a detail behind a colon.
var trailingWords = map[string]meaning{"-": ofNothing, "time": ofTime, "host": ofHost, "client": ofClient, "duration": ofDuration, "header": ofHeader}

// addTrailing adds the fields that [Options.Trailing] names.
func (p *pattern) addTrailing(o Options) error {
	for _, word := range o.Trailing {
		name, detail, _ := strings.Cut(word, ":")
		what, ok := trailingWords[name]
		f := field{variable: variable{what: what}, trailing: true}
		switch what {
		case ofDuration:
			f.unit, ok = units[detail]
			if o.Stamp == "" {
				return &OptionError{"Trailing", fmt.Sprintf("%q, so stamp must say what the time is: arrival (Apache) or end (nginx)", word)}
			}
		case ofHeader:
			f.name, ok = detail, detail != ""
		default:
			ok = ok && detail == ""
		}
		if !ok {
			return &OptionError{"Trailing", fmt.Sprintf("%q, must be -, time, duration:UNIT (s, ms, us, ns), host, client or header:NAME", word)}
		}
		p.follow(" ")
		p.fields = append(p.fields, f)
	}
	return nil
}

var units = map[string]time.Duration{
	"": time.Second, "s": time.Second, "ms": time.Millisecond, "us": time.Microsecond, "µs": time.Microsecond, "ns": time.Nanosecond,
}

// join reports whether a field right behind another one is part of it. It is an error if nothing
// marks the end of the first.
func join(f *field, next field, name string) (part bool, err error) {
	switch {
	case next.what == ofNothing && (f.what == ofNothing || f.what == ofURI):
		return true, nil // as $is_args and $args behind $uri
	case next.what == ofURI:
		f.until = []byte("/")
		return false, nil
	}
	return false, fmt.Errorf("nothing stands before $%s, so nobody can tell where it begins", name)
}

// check keeps one field for each meaning, and drops the fields behind the last that is wanted.
// It returns an error if the pattern tells no request.
func (p *pattern) check() error {
	best, wanted := map[meaning]int{}, 0
	for i, f := range p.fields {
		if j, told := best[f.what]; !f.trailing && (!told || f.rank < p.fields[j].rank) {
			best[f.what] = i
		}
	}
	_, line := best[ofRequest]
	for i := range p.fields {
		f := &p.fields[i]
		switch f.what {
		case ofClient, ofTime, ofHost, ofDuration, ofRequest, ofMethod, ofURI:
			if !f.trailing && (best[f.what] != i || line && (f.what == ofMethod || f.what == ofURI)) {
				f.what = ofNothing
			}
		}
		if f.what == ofNothing && f.name != "" {
			f.what = ofHeader
		}
		if f.what == ofHeader && !p.wants(f.name) {
			f.what = ofNothing
		}
		if f.what != ofNothing {
			wanted = i + 1
		}
	}
	p.fields = p.fields[:wanted]
	if p.least == 0 || p.least > wanted {
		p.least = wanted
	}
	tells := func(m meaning) bool { _, ok := best[m]; return ok }
	switch {
	case !tells(ofTime) && !tells(ofClock):
		return fmt.Errorf("no field has the time, as $time_local, $time_iso8601 and $msec do")
	case !line && !(tells(ofMethod) && tells(ofURI)):
		return fmt.Errorf("no field has the request, as $request does, or $request_method and $request_uri")
	}
	return nil
}

// wants reports whether a header field is wanted.
func (p *pattern) wants(name string) bool {
	for _, wanted := range p.header {
		if strings.EqualFold(wanted, name) {
			return true
		}
	}
	return false
}

func (p *pattern) subtracts() bool {
	for _, f := range p.fields {
		switch f.what {
		case ofDuration, ofDurationOnly, ofDurations, ofShare, ofBegin:
			return p.stamp == End
		}
	}
	return false
}

func (p *pattern) parse(line []byte, e *entry) Reason {
	rest, ok := bytes.CutPrefix(line, p.prefix)
	if !ok {
		return NotFormat
	}
	e.isEnd = p.stamp == End
	if len(p.header) > 0 {
		e.Header = make([]string, len(p.header))
	}
	for i := range p.fields {
		var value []byte
		if ok = len(rest) > 0; ok {
			value, rest, ok = p.fields[i].cut(rest)
		}
		if !ok {
			if i < p.least {
				return NotFormat
			}
			break
		}
		if reason := p.set(&p.fields[i], value, e); reason != "" {
			return reason
		}
	}
	switch {
	case e.stamp == instant{}:
		return NoTime
	case e.Method == "":
		return NoRequest
	}
	return ""
}

// cut returns the value of a field, and the rest of the line behind it and its separator.
func (f *field) cut(text []byte) (value, rest []byte, ok bool) {
	if len(f.until) == 0 {
		value, rest = cutList(text)
		return value, rest, true
	}
	i := -1
	switch {
	case f.last:
		i = bytes.LastIndex(text, f.until)
	case f.until[0] == ' ' && f.what != ofWho:
		value, rest = cutList(text)
		if bytes.HasPrefix(rest, f.until[1:]) {
			return value, rest[len(f.until)-1:], true
		}
		i = bytes.Index(text, f.until) // The value has blanks, as a name may have.
	case f.until[0] == '"':
		i = indexUnescaped(text, f.until)
	case f.until[0] == '/' && len(f.until) == 1:
		if i = bytes.IndexByte(text, '/'); i >= 0 {
			return text[:i], text[i:], true // The path begins with it.
		}
	default:
		i = bytes.Index(text, f.until)
	}
	if i < 0 {
		return nil, nil, false
	}
	return text[:i], text[i+len(f.until):], true
}

// set enters the value of a field.
func (p *pattern) set(f *field, value []byte, e *entry) Reason {
	if f.trailing {
		if isDash(value) || len(value) == 0 {
			return ""
		}
		if i := bytes.IndexByte(value, '='); i >= 0 && f.what != ofHeader {
			value, _ = cutWord(value[i+1:])
		}
	}
	switch f.what {
	case ofNothing:
	case ofWho:
		p.setWho(value, e)
	case ofClient:
		e.setClient(p.plain(value), p.texts)
	case ofPeer:
		if i := bytes.LastIndexByte(value, ':'); i >= 0 {
			value = value[:i]
		}
		e.setClient(value, p.texts)
	case ofDay:
		p.day = append(p.day[:0], value...)
	case ofClock:
		p.dated = append(append(append(p.dated[:0], p.day...), ' '), value...)
		return p.setStamp(p.dated, e)
	case ofTime:
		return p.setStamp(value, e)
	case ofRequest:
		if !e.setRequestLine(p.plain(value), p.texts) {
			return NoRequest
		}
	case ofMethod:
		if !e.setMethod(value, p.texts) {
			return NoRequest
		}
	case ofURI:
		if !e.setURI(p.plain(value), p.texts) {
			return NoRequest
		}
	case ofHost:
		if len(value) > 0 && !isDash(value) {
			e.Host = p.texts.hosts.of(value)
		}
	case ofStatus:
		return e.setTextStatus(value)
	case ofHeader:
		for i, wanted := range p.header {
			if strings.EqualFold(wanted, f.name) {
				e.Header[i] = e.headerValue(p.value(value), p.texts)
			}
		}
	default:
		return p.setDuration(f, value, e)
	}
	return ""
}

// setDuration enters the value of a field for the duration.
func (p *pattern) setDuration(f *field, value []byte, e *entry) Reason {
	before := e.Duration
	switch f.what {
	case ofBegin:
		if begin, ok := parseTime(value); ok {
			e.Duration, e.timed = time.Duration(max(0, e.stamp.ns-begin.ns)), true
		}
		return ""
	case ofDurations:
		if bytes.IndexByte(value, '/') < 0 {
			return NotFormat
		}
		value = bytes.TrimPrefix(value[bytes.LastIndexByte(value, '/')+1:], []byte("+"))
	}
	unit := f.unit
	if unit == 0 { // Of W3C's format: seconds with decimals, or IIS's whole milliseconds.
		unit = time.Millisecond
		if bytes.IndexByte(value, '.') >= 0 {
			unit = time.Second
		}
	}
	e.setDuration(value, unit)
	switch {
	case f.what == ofDurationOnly && !e.timed:
		return NotFormat
	case f.what == ofShare:
		e.Duration = before + e.Duration
	}
	return ""
}

// setStamp takes the time.
func (p *pattern) setStamp(text []byte, e *entry) Reason {
	if len(text) == 0 || !bytes.Equal(text, p.lastStamp) {
		stamp, ok := parseTime(text)
		if !ok {
			return NoTime
		}
		p.lastStamp, p.last = append(p.lastStamp[:0], text...), stamp
	}
	e.stamp = p.last
	return ""
}

// setWho takes the client from the text before the time: the address, or the virtual
// host and the address, then the user's names by identd and by password. Names may have
// blanks. The second field is the client if it is an address, as no identd gives one. If both are addresses, one of them is the
// server's, as a virtual host or behind the client, or they are a list.
func (p *pattern) setWho(who []byte, e *entry) {
	first, rest := cutList(who)
	next, rest := cutList(rest)
	addr, more := p.texts.leading(next)
	if _, isAddress := p.texts.leading(first); more && !isAddress {
		e.Host = p.texts.hosts.of(first)
		first = next
		next, rest = cutList(rest)
		addr, more = p.texts.leading(next)
	}
	e.setClient(first, p.texts)
	for ; more; addr, more = p.texts.leading(next) {
		e.pair = true
		if last, err := netip.ParseAddr(lastOfList(next, p.texts)); err == nil {
			addr = last
		}
		if so, err := netip.ParseAddr(e.Client); err != nil || isPrivate(so) || !isPrivate(addr) {
			e.Client = addr.String()
			if e.Host == "" {
				e.Host = p.texts.hosts.of(first)
			}
		}
		next, rest = cutList(rest)
	}
}
