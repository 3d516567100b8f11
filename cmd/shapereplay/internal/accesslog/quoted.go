package accesslog

import "bytes"

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
