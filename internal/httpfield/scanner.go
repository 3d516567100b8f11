package httpfield

import (
	"encoding/base64"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A scanner reads a RateLimit field from left to right, by the grammar of structured
// fields (RFC 9651). It is strict, so that a malformed field holds no request. What has
// been read is taken off rest.
type scanner struct{ rest string }

// A rateLimitItem is one item of a RateLimit field.
type rateLimitItem struct{ remaining, reset int64 } // -1: missing, or not an integer ≥ 0

// item reads one item: the name of a policy and its parameters. Only the parameters r
// and t matter. If a parameter is there twice, the last one counts.
//
// The name is a string. In older drafts the name was a bare word, because the field was
// a dictionary whose keys had no values. Both are read alike.
func (s *scanner) item() (item rateLimitItem, ok bool) {
	item = rateLimitItem{-1, -1}
	if s.next() == '"' {
		ok = s.quoted()
	} else {
		ok = s.token()
	}
	for ok && s.eat(';') {
		s.skip(" ")
		var key string
		if key, ok = s.key(); !ok {
			break
		}
		value := int64(-1) // Without "=" a parameter is the boolean true.
		if s.eat('=') {
			value, ok = s.bareItem()
		}
		switch key {
		case "r":
			item.remaining = value
		case "t":
			item.reset = value
		}
	}
	return item, ok
}

// bareItem reads the value of a parameter. n is -1 if the value is not an integer ≥ 0.
func (s *scanner) bareItem() (n int64, ok bool) {
	switch c := s.next(); {
	case isDigit(c) || c == '-':
		return s.number()
	case c == '"':
		return -1, s.quoted()
	case c == ':':
		return -1, s.byteSequence()
	case c == '?':
		return -1, s.boolean()
	case c == '@':
		return -1, s.date()
	case c == '%':
		return -1, s.displayString()
	default:
		return -1, s.token()
	}
}

// number reads an integer of up to 15 digits, or a decimal with up to 12 digits before
// the point and up to 3 after it.
func (s *scanner) number() (n int64, ok bool) {
	negative := s.eat('-')
	digits := s.run(isDigit)
	if s.eat('.') {
		fraction := s.run(isDigit)
		return -1, 1 <= len(digits) && len(digits) <= 12 && 1 <= len(fraction) && len(fraction) <= 3
	}
	if len(digits) > 15 {
		return -1, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if negative && n != 0 {
		n = -1
	}
	return n, err == nil
}

// quoted reads a string, which is printable ASCII in quotes.
func (s *scanner) quoted() bool {
	s.eat('"')
	for s.rest != "" {
		switch c := s.take(); {
		case c == '"':
			return true
		case c == '\\':
			if !s.eat('"') && !s.eat('\\') {
				return false
			}
		case !isPrintable(c):
			return false
		}
	}
	return false
}

// byteSequence reads base64 between colons, which is the form of the parameter pk, the
// partition key. The padding may be missing and its bits may be set: RFC 9651 asks
// parsers to accept both.
func (s *scanner) byteSequence() bool {
	s.eat(':')
	text, rest, ok := strings.Cut(s.rest, ":")
	s.rest = rest
	_, padded := base64.StdEncoding.DecodeString(text)
	_, unpadded := base64.RawStdEncoding.DecodeString(text)
	return ok && (padded == nil || unpadded == nil) && !strings.ContainsAny(text, "\r\n") // Package base64 skips these two.
}

// boolean reads ?0 or ?1.
func (s *scanner) boolean() bool {
	s.eat('?')
	return s.eat('0') || s.eat('1')
}

// date reads an integer number of seconds since 1970 after an "@".
func (s *scanner) date() bool {
	s.eat('@')
	text := s.rest
	_, ok := s.number()
	return ok && !strings.Contains(text[:len(text)-len(s.rest)], ".")
}

// displayString reads a Unicode string: a quoted one after a "%", with the bytes that
// are not printable ASCII as "%" and two hexadecimal digits in lower case.
func (s *scanner) displayString() bool {
	s.eat('%')
	if !s.eat('"') {
		return false
	}
	var text []byte
	for s.rest != "" {
		c := s.take()
		switch {
		case c == '"':
			return utf8.Valid(text)
		case c == '%':
			if len(s.rest) < 2 || !isLowerHex(s.rest[0]) || !isLowerHex(s.rest[1]) {
				return false
			}
			b, _ := strconv.ParseUint(s.rest[:2], 16, 8) // Two hexadecimal digits cannot fail.
			s.rest = s.rest[2:]
			c = byte(b)
		case !isPrintable(c):
			return false
		}
		text = append(text, c)
	}
	return false
}

// token reads a bare word (RFC 9651, section 3.3.4).
func (s *scanner) token() bool {
	if c := s.next(); !isLetter(c) && c != '*' {
		return false
	}
	s.run(func(c byte) bool {
		return isLetter(c) || isDigit(c) || strings.IndexByte("!#$%&'*+-.^_`|~:/", c) >= 0
	})
	return true
}

// key reads the name of a parameter.
func (s *scanner) key() (key string, ok bool) {
	if c := s.next(); !isLower(c) && c != '*' {
		return "", false
	}
	return s.run(func(c byte) bool {
		return isLower(c) || isDigit(c) || strings.IndexByte("_-.*", c) >= 0
	}), true
}

// next returns the next character without reading it. At the end it returns 0, which no
// field contains.
func (s *scanner) next() byte {
	if s.rest == "" {
		return 0
	}
	return s.rest[0]
}

// take reads the next character, which must be there.
func (s *scanner) take() byte {
	c := s.rest[0]
	s.rest = s.rest[1:]
	return c
}

// eat reads the next character if it is c, and reports whether it is.
func (s *scanner) eat(c byte) bool {
	if s.rest == "" || s.rest[0] != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

// run reads and returns the characters up to the first for which is reports false.
func (s *scanner) run(is func(c byte) bool) (read string) {
	i := 0
	for i < len(s.rest) && is(s.rest[i]) {
		i++
	}
	read, s.rest = s.rest[:i], s.rest[i:]
	return read
}

// skip reads the characters of cutset that come next, such as blanks.
func (s *scanner) skip(cutset string) { s.rest = strings.TrimLeft(s.rest, cutset) }

func isDigit(c byte) bool     { return '0' <= c && c <= '9' }
func isLower(c byte) bool     { return 'a' <= c && c <= 'z' }
func isLetter(c byte) bool    { return isLower(c | 0x20) }
func isLowerHex(c byte) bool  { return isDigit(c) || 'a' <= c && c <= 'f' }
func isPrintable(c byte) bool { return 0x20 <= c && c <= 0x7e }
