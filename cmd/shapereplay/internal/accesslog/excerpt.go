package accesslog

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

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
