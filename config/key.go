package config

import (
	"net/url"
	"strings"
	"unicode/utf8"

	"example.com/leakybucket/shaper"
)

// checkKey returns "" if [shaper.Join] makes keys that begin with key, else the mistake
// and how to write the key. A rule with a key that Join never makes would match
// nothing, and its author would not know.
func checkKey(key string) string {
	if key == "" {
		return `a key has at least one part: an empty part is written "-", and the rule for keys that match nothing else is "default", beside "limits"`
	}
	var reasons []string
	parts := strings.Split(key, "/")
	for i, part := range parts {
		written, reason := checkPart(part)
		parts[i] = written
		if reason != "" && (len(reasons) == 0 || reasons[len(reasons)-1] != reason) {
			reasons = append(reasons, reason)
		}
	}
	if reasons == nil {
		return ""
	}
	message := strings.Join(reasons, ", and ") + ": write " + quoted(shortened(strings.Join(parts, "/"), maxSuggestion))
	if len(reasons) == 1 && reasons[0] == emptyPart {
		// It may be a path such as /login, which is meant as one part.
		message += " or " + quoted(shortened(strings.ReplaceAll(key, "/", "%2F"), maxSuggestion))
	}
	return message
}

// maxSuggestion is how much of a right key is shown, in bytes: all of it, unless it is
// longer than what Join makes of one part and a name before it.
const maxSuggestion = 400

// emptyPart is the mistake of a key that has an empty part.
const emptyPart = `an empty part is written "-", and a "/" within a part is written "%2F"`

// checkPart returns the part as Join writes it, and the mistake if Join writes it in
// another way.
func checkPart(part string) (written, reason string) {
	plain, err := url.PathUnescape(part)
	escaped := err == nil && utf8.ValidString(plain)
	if !escaped {
		plain = part
	}
	switch {
	case part == "":
		return shaper.Join(""), emptyPart
	case part == shaper.Join(""):
		return part, ""
	case isBounded(plain) && unbounded(plain) == part:
		return part, ""
	}
	written = shaper.Join(plain)
	switch {
	case written == part:
		return part, ""
	case len(plain) > maxPart:
		return written, "of a part longer than 256 bytes a key has the beginning and a hash"
	case !escaped:
		return written, `a "%" is written "%25"`
	}
	return written, `within a part "%" is written "%25" and "/" is written "%2F", a part that is just "-" is written "%2D", and nothing else is escaped`
}

// These are the lengths that Join keeps of a part, as its comment has them.
const (
	maxPart  = 256
	keptPart = 192
	hashed   = keptPart + 1 + 64 // the kept bytes, "~", and SHA-256 in hexadecimal
)

// isBounded reports whether part can be what Join makes of a longer one.
func isBounded(part string) bool {
	return len(part) == hashed && part[keptPart] == '~' && strings.Trim(part[keptPart+1:], "0123456789abcdef") == ""
}

// unbounded returns Join's escaped form of a part that Join has bounded already.
func unbounded(part string) string {
	return strings.NewReplacer("%", "%25", "/", "%2F").Replace(part)
}
