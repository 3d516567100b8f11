package shaper

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// A KeyFunc says whose bucket a request counts against. Requests with equal keys
// share one bucket. An error means that the function itself is set up wrongly:
// the request has no key, and must be refused rather than let pass.
//
// The ready ones are ByClientIP, ByHeader and ByRoute; By puts several together,
// and for one of your own Join makes the key. They can be called at the same
// time, and none fails for anything that a client sends: what is missing has the
// empty key, which is a key like any other, so that leaving something out is no
// way around a limit.
//
// A key is worth what its source is worth. Whoever may write a part of it freely
// gets a fresh bucket for each new value, that is no limit at all, and whoever
// can write somebody else's value spends from his bucket.
type KeyFunc func(*http.Request) (string, error)

// By returns the Join of what keys say of a request. The first error ends it:
//
//	shaper.By(shaper.ByRoute(mux), shaper.ByClientIP()) // POST %2Flogin/192.0.2.1
//
// Put what picks the rule first, and what the client can choose after it: the
// part before the first "/" is then the rule's name. Each part multiplies the
// keys, so that a client has a bucket of its own for every route: what all its
// requests are to share needs a second limit, by ByClientIP alone.
//
// Without keys everybody has the empty key. With a nil one all is an error.
func By(keys ...KeyFunc) KeyFunc {
	keys = slices.Clone(keys)
	for i, key := range keys {
		if key == nil {
			err := fmt.Errorf("shaper: By: keys[%d] is nil, must be a function", i)
			return func(*http.Request) (string, error) { return "", err }
		}
	}
	return func(r *http.Request) (string, error) {
		parts := make([]string, len(keys))
		for i, key := range keys {
			part, err := key(r)
			if err != nil {
				return "", err
			}
			parts[i] = part
		}
		return Join(parts...), nil
	}
}

// ByHeader returns the value of a header field, such as an API key or the name of
// a tenant. A missing field and an empty one have the empty key, and so has a
// field that comes in several lines: of two values a handler may go by the one
// and a key by the other, and then the other one could be made up anew each
// time. For "Host" it is the host that the request is for.
//
// The client writes its header: by itself this limits only those who do not
// mind. Use it where something in front has checked the value or set it, and
// elsewhere beside a limit by ByClientIP. Keys are shown in statistics; a value
// that is a secret should be replaced by the name of its owner first.
//
// A value longer than 256 bytes is cut as by Join. A name that is no field name
// (RFC 9110, section 5.1) is an error, of each call.
func ByHeader(name string) KeyFunc {
	if !isFieldName(name) {
		err := fmt.Errorf("shaper: ByHeader: name is %q, must be that of a header field", name)
		return func(*http.Request) (string, error) { return "", err }
	}
	if http.CanonicalHeaderKey(name) == "Host" {
		// net/http takes it out of the header: everybody's would be missing.
		return func(r *http.Request) (string, error) { return bounded(r.Host), nil }
	}
	return func(r *http.Request) (string, error) {
		if lines := r.Header.Values(name); len(lines) == 1 {
			return bounded(lines[0]), nil
		}
		return "", nil
	}
}

// isFieldName says whether name may stand before the colon of a header field.
func isFieldName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if !isDigit(c) && (c|0x20 < 'a' || c|0x20 > 'z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return name != ""
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// Join makes one key of several parts, with "/" between them:
//
//	Join("login", "192.0.2.1")    login/192.0.2.1
//	Join("login", "x/../premium") login/x%2F..%2Fpremium
//	Join("login", "")             login/-
//	Join("login", "-")            login/%2D
//
// Different parts make different keys. A "/" within a part becomes %2F and a "%"
// becomes %25, so that nothing a client sends can add a level or pick another
// rule; an empty part is "-", and a part that is just that is "%2D". Without
// parts the key is empty. url.PathUnescape turns a part back.
//
// Keys are kept in memory, and a client can send a megabyte. So of a part longer
// than 256 bytes only the first 192 are kept, followed by "~" and the SHA-256 of
// the whole in hexadecimal; it stays different from all others.
//
// Look a rule up by a Join too: that of the route "POST /login" is found under
// Join("POST /login"), which is what stands before the first "/" of a key.
func Join(parts ...string) string {
	var key strings.Builder
	for i, part := range parts {
		if i > 0 {
			key.WriteByte('/')
		}
		switch part {
		case "":
			key.WriteByte('-')
		case "-":
			key.WriteString("%2D")
		default:
			_, _ = escaper.WriteString(&key, bounded(part)) // A Builder takes everything.
		}
	}
	return key.String()
}

var escaper = strings.NewReplacer("%", "%25", "/", "%2F")

const (
	maxPart  = 256 // longest part of a key, in bytes, that is kept as it is
	keptPart = 192 // of a longer one: with the hash 257 bytes, which no part kept whole has
)

// bounded is the part itself, or if that is long its beginning and its hash.
func bounded(part string) string {
	if len(part) <= maxPart {
		return part
	}
	sum := sha256.Sum256([]byte(part))
	return part[:keptPart] + "~" + hex.EncodeToString(sum[:])
}
