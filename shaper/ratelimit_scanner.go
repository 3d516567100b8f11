package shaper

import (
	"encoding/base64"
	"strconv"
	"strings"
)

// A fieldScanner reads a RateLimit field from left to right: of the structured
// fields of RFC 9651 what such a field may be made of, and that strictly, so that
// nothing is held for what only looks like one. What is read is taken off rest.
type fieldScanner struct{ rest string }

// quota is one item of a RateLimit field.
type quota struct{ remaining, seconds int64 } // -1: not there, or no integer

// quota reads an item: the name of a policy, and its parameters, of which all
// but two are of no interest. Of a parameter that is there twice the last counts.
//
// The name is a string. It was a bare word in older drafts, where the field was a
// dictionary of keys without values, which reads the same.
func (f *fieldScanner) quota() (q quota, ok bool) {
	q = quota{-1, -1}
	switch {
	case f.rest == "":
		return q, false
	case f.rest[0] == '"':
		ok = f.str()
	default:
		ok = f.word()
	}
	for ok && f.eat(';') {
		f.skip(" ")
		var key string
		if key, ok = f.key(); !ok {
			break
		}
		value := int64(-1)
		if f.eat('=') {
			value, ok = f.bareItem()
		}
		switch key {
		case "r":
			q.remaining = value
		case "t":
			q.seconds = value
		}
	}
	return q, ok
}

// bareItem reads the value of a parameter. n is -1 if it is no integer ≥ 0.
func (f *fieldScanner) bareItem() (n int64, ok bool) {
	if f.rest == "" {
		return -1, false
	}
	switch c := f.rest[0]; {
	case isDigit(c) || c == '-':
		return f.number()
	case c == '"':
		return -1, f.str()
	case c == ':':
		return -1, f.bytes()
	case c == '?':
		f.rest = f.rest[1:]
		return -1, f.eat('0') || f.eat('1')
	default:
		return -1, f.word()
	}
}

// number reads an integer of up to 15 digits, or a decimal of up to 12 and 3.
func (f *fieldScanner) number() (n int64, ok bool) {
	negative := f.eat('-')
	digits := f.run(isDigit)
	if f.eat('.') {
		fraction := f.run(isDigit)
		return -1, 1 <= len(digits) && len(digits) <= 12 && 1 <= len(fraction) && len(fraction) <= 3
	}
	if len(digits) == 0 || len(digits) > 15 {
		return -1, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if negative && n != 0 {
		n = -1
	}
	return n, err == nil
}

// str reads a string: printable ASCII in quotes.
func (f *fieldScanner) str() bool {
	f.eat('"')
	for f.rest != "" {
		c := f.rest[0]
		f.rest = f.rest[1:]
		switch {
		case c == '"':
			return true
		case c == '\\':
			if !f.eat('"') && !f.eat('\\') {
				return false
			}
		case c < 0x20 || c > 0x7e:
			return false
		}
	}
	return false
}

// bytes reads a byte sequence, as a partition key is: base64 between colons.
func (f *fieldScanner) bytes() bool {
	f.eat(':')
	text, rest, ok := strings.Cut(f.rest, ":")
	f.rest = rest
	_, err := base64.StdEncoding.DecodeString(text)
	return ok && err == nil && !strings.ContainsAny(text, "\r\n") // Which base64 skips.
}

// word reads a bare word (RFC 9651, section 3.3.4).
func (f *fieldScanner) word() bool {
	if f.rest == "" || !isLetter(f.rest[0]) && f.rest[0] != '*' {
		return false
	}
	f.run(func(c byte) bool {
		return isLetter(c) || isDigit(c) || strings.IndexByte("!#$%&'*+-.^_`|~:/", c) >= 0
	})
	return true
}

// key reads the name of a parameter.
func (f *fieldScanner) key() (key string, ok bool) {
	if f.rest == "" || isDigit(f.rest[0]) {
		return "", false
	}
	key = f.run(func(c byte) bool {
		return 'a' <= c && c <= 'z' || isDigit(c) || strings.IndexByte("_-.*", c) >= 0
	})
	return key, key != "" && key[0] != '_' && key[0] != '-' && key[0] != '.'
}

// eat reads one character, if it is the next.
func (f *fieldScanner) eat(c byte) bool {
	if f.rest == "" || f.rest[0] != c {
		return false
	}
	f.rest = f.rest[1:]
	return true
}

// run reads as many characters as there are of a kind.
func (f *fieldScanner) run(is func(c byte) bool) (read string) {
	i := 0
	for i < len(f.rest) && is(f.rest[i]) {
		i++
	}
	read, f.rest = f.rest[:i], f.rest[i:]
	return read
}

// skip reads characters of no meaning.
func (f *fieldScanner) skip(cutset string) { f.rest = strings.TrimLeft(f.rest, cutset) }

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
