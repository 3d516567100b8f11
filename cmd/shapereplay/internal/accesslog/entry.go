package accesslog

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// A parser reads the lines of one format. It may change the bytes of a line, and keeps
// none of them. The reason is "" for a line that has a request, and [noRequestMeant] for one
// that says something of the log. One parser serves one file.
type parser interface {
	parse(line []byte, e *entry) Reason

	// subtracts reports whether there may be entries whose stamp is their end and whose
	// duration is known.
	subtracts() bool
}

// An entry has the contents of a line: a Record, and the parts of its At.
type entry struct {
	Record

	stamp    instant
	isEnd    bool // the stamp is the end of the request
	timed    bool // the line tells the duration
	list     bool // the client is told by a list of addresses
	pair     bool // the line begins with several addresses, none of which is said to be the client
	redacted int  // values that the server has replaced
}

// held is about how much memory an entry needs.
func (e *entry) held() int {
	const fixed = 256
	n := fixed + len(e.Host) + len(e.Path) + len(e.Client)
	if e.Call != nil {
		n += 128 // Its team is held once for all calls.
	}
	for _, value := range e.Header {
		n += len(value) + 16
	}
	return n
}

// Texts makes the strings of entries.
type texts struct {
	methods, hosts, paths, clients, values *interner
}

func newTexts() *texts {
	plain := func(b []byte) string { return string(b) }
	return &texts{
		methods: newInterner(plain),
		hosts:   newInterner(plain),
		paths:   newInterner(plain),
		clients: newInterner(address),
		values:  newInterner(plain),
	}
}

// address returns the usual notation of an address without its port. An IPv4 address that
// is mapped to IPv6 is the IPv4 address. Any other text stays as it is.
func address(b []byte) string {
	text := string(b)
	if addr, err := netip.ParseAddr(text); err == nil {
		return addr.Unmap().String()
	}
	if ported, err := netip.ParseAddrPort(text); err == nil {
		return ported.Addr().Unmap().String()
	}
	if addr, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return addr.Unmap().String()
	}
	return text
}

// setRequestLine takes the method, the path and maybe the host from "GET /path HTTP/1.1",
// and reports whether that is a request.
func (e *entry) setRequestLine(line []byte, t *texts) bool {
	method, rest, ok := bytes.Cut(line, []byte(" "))
	if !ok {
		return false
	}
	// A path may have blanks if the server does not mind. Behind the last one is the protocol,
	// which HTTP/0.9 does not have.
	if i := bytes.LastIndexByte(rest, ' '); i >= 0 && bytes.HasPrefix(rest[i+1:], []byte("HTTP/")) {
		rest = rest[:i]
	}
	return e.setMethod(method, t) && e.setURI(rest, t)
}

// setLine is setRequestLine for text that may be a path alone.
func (e *entry) setLine(line []byte, t *texts) bool {
	return bytes.IndexByte(line, ' ') > 0 && line[0] != '/' && e.setRequestLine(line, t)
}

// setMethod reports whether the bytes are a method.
func (e *entry) setMethod(method []byte, t *texts) bool {
	const longest = 32 // of the registered ones UPDATEREDIRECTREF has the most letters, 17
	if len(method) == 0 || len(method) > longest || isDash(method) {
		return false
	}
	for _, c := range method {
		if (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	e.Method = t.methods.of(method)
	return true
}

// setURI takes the path, and the host if there is one, from the target in the first line
// of a request, and reports whether it can. The method is set already.
func (e *entry) setURI(uri []byte, t *texts) bool {
	if i := bytes.IndexAny(uri, "?#"); i >= 0 {
		uri = uri[:i]
	}
	switch {
	case len(uri) == 0:
		return false
	case uri[0] == '/', len(uri) == 1 && uri[0] == '*':
		e.Path = t.paths.of(uri)
		return true
	}
	if i := bytes.Index(uri, []byte("://")); i > 0 {
		rest := uri[i+len("://"):]
		e.Path = "/"
		if i := bytes.IndexByte(rest, '/'); i >= 0 {
			rest, e.Path = rest[:i], t.paths.of(rest[i:])
		}
		e.Host = t.hosts.of(rest)
		return len(rest) > 0
	}
	if e.Method == "CONNECT" {
		e.Host, e.Path = t.hosts.of(uri), ""
		return true
	}
	return false
}

// setStatus reports whether the bytes are a status. "-" is none.
func (e *entry) setStatus(status []byte) bool {
	if isDash(status) {
		e.Status = 0
		return true
	}
	if len(status) > 3 || len(status) == 0 {
		return false
	}
	e.Status = 0
	for _, c := range status {
		if c < '0' || c > '9' {
			return false
		}
		e.Status = e.Status*10 + int(c-'0')
	}
	return true
}

// setTextStatus takes the status from a line of text. One digit may be the rest of a line that was
// cut. Envoy writes 0, and HAProxy -1, if there was no answer.
func (e *entry) setTextStatus(status []byte) Reason {
	if none := string(status); none == "0" || none == "-1" {
		return ""
	}
	if len(status) != 3 && !isDash(status) || !e.setStatus(status) {
		return BadStatus
	}
	return ""
}

// setDuration takes the duration from the bytes, if it is one.
func (e *entry) setDuration(text []byte, unit time.Duration) {
	e.Duration, e.timed = parseDuration(text, unit)
	if !e.timed {
		e.Duration = 0
	}
}

// setClient takes the client from the bytes, which may be several addresses, as of X-Forwarded-For.
func (e *entry) setClient(client []byte, t *texts) {
	e.pair = false
	e.list = bytes.IndexByte(client, ',') >= 0
	if blank := bytes.LastIndexByte(client, ' '); blank >= 0 && !e.list {
		_, e.list = t.leading(client[blank+1:]) // Other text with blanks is a name.
	}
	switch {
	case e.list:
		e.Client = lastOfList(client, t)
	case !isDash(client):
		e.Client = t.clients.of(client)
	}
}

// leading returns the address that a word begins with, alone or before a comma, and reports whether it does.
func (t *texts) leading(word []byte) (addr netip.Addr, ok bool) {
	if len(word) < 2 || word[0]-'0' > 9 && bytes.IndexByte(word, ':') < 0 {
		return addr, false
	}
	first, _, _ := bytes.Cut(word, []byte(","))
	addr, err := netip.ParseAddr(t.clients.of(first))
	return addr, err == nil
}

// lastOfList returns the last address of a list that is not private: each proxy appends the address that it sees, so private
// ones at the end are proxies, and the client may have made up those further in front. If all are private, it is the last.
func lastOfList(list []byte, t *texts) (last string) {
	for rest, more := list, true; more; {
		i := bytes.LastIndexAny(rest, ", ")
		one := rest[i+1:]
		if more = i >= 0; more {
			rest = rest[:i]
		}
		if len(one) == 0 || isDash(one) {
			continue
		}
		text := t.clients.of(one)
		if last == "" {
			last = text
		}
		addr, err := netip.ParseAddr(text)
		if err != nil {
			break // No proxy has written that.
		}
		if !isPrivate(addr) {
			return text
		}
	}
	return last
}

// isPrivate reports whether an address is one of a network that nobody reaches from outside.
func isPrivate(addr netip.Addr) bool {
	return addr.IsPrivate() || addr.IsLoopback() || addr.IsLinkLocalUnicast()
}

// isDash reports whether a field has nothing.
func isDash(field []byte) bool { return len(field) == 1 && field[0] == '-' }

// headerValue returns a value of a header field, "" if the server has redacted it.
func (e *entry) headerValue(value []byte, t *texts) string {
	if isDash(value) {
		return ""
	}
	if string(value) == "REDACTED" {
		e.redacted++
		return ""
	}
	return t.values.of(value)
}

// A Record is one request.
type Record struct {
	At     time.Time // when it arrived, in UTC
	Method string
	Host   string // as the request or the virtual host names it, maybe with a port; "" if the log does not tell
	Path   string // as it was sent, with its percent-encoding but without the query; "*" for OPTIONS *, "" for CONNECT
	Client string // its address in the usual notation without a port, or the log's text in its place; "" if it does not tell

	Status   int           // 0 if the log does not tell
	Duration time.Duration // 0 if the log does not tell, or tells 0

	// Call is a call of the format Usage; else nil.
	Call *Call

	// Header has the values of the fields that Options.Header names, in their order.
	// A value is "" if the log does not tell it.
	Header []string
}

const (
	internBytes   = 16 << 20 // of all strings that are remembered together
	internLongest = 512      // longer ones seldom come again
)

// An interner makes strings of bytes. The same few clients, hosts and paths stand in most
// lines of a log, so it remembers the strings and returns them again, which saves the
// allocation. When it holds 16 MiB it begins anew.
type interner struct {
	convert func([]byte) string // makes a string of new bytes, and returns its own results unchanged

	kept map[string]string // by the bytes as they stand in the log
	size int               // bytes of its keys and values
	last string            // that was returned; most lines have the method and the host of the line before
}

func newInterner(convert func([]byte) string) *interner {
	return &interner{convert: convert, kept: map[string]string{}}
}

// of returns the string that the bytes are converted to.
func (in *interner) of(b []byte) string {
	if string(b) == in.last {
		return in.last
	}
	s, ok := in.kept[string(b)]
	if ok {
		in.last = s
		return s
	}
	s = in.convert(b)
	if len(b) > internLongest {
		return s
	}
	if in.size += len(b) + len(s); in.size > internBytes {
		clear(in.kept)
		in.size = len(b) + len(s)
	}
	in.kept[string(b)] = s
	return s
}

// indexUnescaped returns the index of the first until, which begins with a quote, that has
// no backslash before it, or -1.
func indexUnescaped(text, until []byte) int {
	for from := 0; ; {
		i := bytes.Index(text[from:], until)
		if i < 0 {
			return -1
		}
		i += from
		backslashes := 0
		for backslashes < i && text[i-1-backslashes] == '\\' {
			backslashes++
		}
		if backslashes%2 == 0 {
			return i
		}
		from = i + 1
	}
}

// cutList is cutWord, but a word that ends with a comma goes on to the end of the next one:
// a list of addresses stands for one address. A time as $time_local has its zone behind a blank.
func cutList(text []byte) (list, rest []byte) {
	list, rest = cutWord(text)
	if n := len(commonTime); len(list) == n && list[2] == '/' && list[6] == '/' {
		if zone, after := cutWord(rest); len(zone) == len("-0700") && (zone[0] == '+' || zone[0] == '-') {
			return text[:n+len(" -0700")], after
		}
	}
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

// cutWord returns the word before the next blank, and the rest behind it. A blank in
// quotes is part of a word, as in name="two words". A word that is quoted as a whole is
// returned without its quotes, also if it has quotes that are not escaped.
func cutWord(text []byte) (word, rest []byte) {
	for i, c := range text {
		if c == ' ' {
			return text[:i], text[i+1:] // the usual case
		}
		if c == '"' {
			break
		}
	}
	unclosed := false // A quote that is not closed closes nothing further on either.
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == ' ':
			return unquote(text[:i]), text[i+1:]
		case text[i] == '"' && !unclosed:
			end := indexUnescaped(text[i+1:], []byte{'"'})
			if unclosed = end < 0; !unclosed {
				i += end + 1
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

// unmark returns a function that undoes an escaping with a mark. It changes the bytes in place, as they never
// become more.
func unmark(mark byte) func([]byte) []byte {
	return func(text []byte) []byte {
		from := bytes.IndexByte(text, mark)
		if from < 0 {
			return text
		}
		to := text[:from]
		for i := from; i < len(text); i++ {
			c := text[i]
			if c == mark {
				if escaped, n := escapedByte(mark, text[i+1:]); n > 0 {
					c, i = escaped, i+n
				}
			}
			to = append(to, c)
		}
		return to
	}
}

// unescape undoes the escaping of most text formats: \xHH, and Apache's further escapes.
var unescape = unmark('\\')

// escapedByte returns the byte that stands behind a mark, and how many bytes tell it; 0 if none is told.
func escapedByte(mark byte, text []byte) (c byte, n int) {
	if mark == '\\' && len(text) > 0 {
		switch text[0] {
		case 'n':
			return '\n', 1
		case 'r':
			return '\r', 1
		case 't':
			return '\t', 1
		case '"', '\\':
			return text[0], 1
		case 'x':
			if c, ok := hexByte(text[1:]); ok {
				return c, 3
			}
		}
		return 0, 0
	}
	if c, ok := hexByte(text); ok {
		return c, 2
	}
	return 0, 0
}

// hexByte returns the byte that two hexadecimal digits are, if text begins with them.
func hexByte(text []byte) (c byte, ok bool) {
	if len(text) < 2 {
		return 0, false
	}
	var decoded [1]byte
	_, err := hex.Decode(decoded[:], text[:2])
	return decoded[0], err == nil
}

// plus undoes how IIS writes blanks, in place.
func plus(text []byte) []byte {
	for i, c := range text {
		if c == '+' {
			text[i] = ' '
		}
	}
	return text
}

func asItIs(text []byte) []byte { return text }

// Clients write part of a log, so a line or a name in it may be a mebibyte long, or have control characters for the
// terminal of the reader. All outputs quote a log by the functions of this file.

const (
	beginningWidth = 120 // characters of a line, as they are shown
	beginningBytes = beginningWidth * utf8.UTFMax
	nameWidth      = 72 // bytes of a name, as they are shown
	nameEnd        = 24 // of these for its end
)

// escaped returns a character as it may be shown on a terminal. size is how many bytes it has.
func escaped(r rune, size int, first byte) string {
	switch {
	case r == utf8.RuneError && size == 1:
		return fmt.Sprintf(`\x%02x`, first)
	case !unicode.IsPrint(r):
		return strings.Trim(fmt.Sprintf("%+q", r), "'")
	}
	return string(r)
}

// beginning returns the beginning of a line as it may be shown on a terminal.
func beginning(line []byte) string {
	var b strings.Builder
	for width := 0; len(line) > 0; {
		r, size := utf8.DecodeRune(line)
		shown := escaped(r, size, line[0])
		if width += utf8.RuneCountInString(shown); width > beginningWidth-1 {
			return b.String() + "…"
		}
		b.WriteString(shown)
		line = line[size:]
	}
	return b.String()
}

// ShortName returns a name of a client, or one that is made of it as a key is: whole unless it is long, and else both of
// its ends, as keys often differ only there. It is not escaped, but as short where it will be.
func ShortName(name string) string {
	begin, width := 0, 0 // how much of it fits beside its end
	for at := 0; at < len(name); {
		r, size := utf8.DecodeRuneInString(name[at:])
		width += len(escaped(r, size, name[at]))
		at += size
		if width <= nameWidth-nameEnd-len("…") {
			begin = at
		}
		if width > nameWidth {
			end := len(name)
			for width = 0; ; {
				r, size := utf8.DecodeLastRuneInString(name[:end])
				if width += len(escaped(r, size, name[end-1])); width > nameEnd {
					return name[:begin] + "…" + name[end:]
				}
				end -= size
			}
		}
	}
	return name
}
