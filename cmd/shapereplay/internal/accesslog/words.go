package accesslog

import "bytes"

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
// a list of addresses stands for one address.
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

// cutWord returns what stands before the next blank, and what follows it. A blank in
// quotes is part of a word, as in name="two words". A word that is quoted as a whole is
// returned without its quotes, also if it has quotes that are not escaped.
func cutWord(text []byte) (word, rest []byte) {
	end := bytes.IndexByte(text, ' ')
	if end >= 0 && bytes.IndexByte(text[:end], '"') < 0 {
		return text[:end], text[end+1:] // as nearly all are
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

// unescape undoes the escaping of most text formats: \xHH, and what Apache has beside it.
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
			if c, ok := hexByte(text[i+1:]); ok {
				to = append(to, c)
				i += 2
				continue
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

// unmark returns a function that undoes an escaping with a mark and two hexadecimal digits,
// in place.
func unmark(mark byte) func([]byte) []byte {
	return func(text []byte) []byte {
		from := bytes.IndexByte(text, mark)
		if from < 0 {
			return text
		}
		to := text[:from]
		for i := from; i < len(text); i++ {
			if text[i] == mark {
				if c, ok := hexByte(text[i+1:]); ok {
					to = append(to, c)
					i += 2
					continue
				}
			}
			to = append(to, text[i])
		}
		return to
	}
}

// hexByte returns the byte that two hexadecimal digits are, if text begins with them.
func hexByte(text []byte) (c byte, ok bool) {
	if len(text) < 2 {
		return 0, false
	}
	for _, digit := range text[:2] {
		switch {
		case '0' <= digit && digit <= '9':
			c = c<<4 | (digit - '0')
		case 'a' <= digit|0x20 && digit|0x20 <= 'f':
			c = c<<4 | (digit | 0x20 - 'a' + 10)
		default:
			return 0, false
		}
	}
	return c, true
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
