package shaper

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
)

// A KeyFunc returns the key of a request: requests with equal keys share one bucket. An
// error means that the function itself is set up wrongly: the request has no key, and
// must be refused rather than let pass.
//
// [ByClientIP], [ByHeader] and [ByRoute] are ready for use. [By] combines several, and
// [Join] makes the key in a function of your own. All of them are safe for concurrent
// use, and nothing that a client sends makes them fail. What a request lacks gives the
// empty key, which is a key like any other, so a client can't avoid a limit by leaving
// something out.
//
// A key is worth what its source is worth. A client that may write a part of it freely
// gets a fresh bucket for each new value, which is no limit at all. A client that can
// write the value of another client spends from that client's bucket.
type KeyFunc func(*http.Request) (string, error)

// By returns a [KeyFunc] that joins the keys of several by [Join]. The first error is
// its error:
//
//	shaper.By(shaper.ByRoute(mux), shaper.ByClientIP()) // POST %2Flogin/192.0.2.1
//
// Put what picks the rule first, and what the client can choose after it: the part
// before the first "/" is then the rule's name. In the example a client has a bucket of
// its own for every route. A limit that all requests of a client share needs a second
// limiter, by [ByClientIP] alone.
//
// Without arguments, every request has the empty key. If an argument is nil, every call
// returns an error.
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

// ByHeader returns a [KeyFunc] whose key is the value of a header field, such as an API
// key or the name of a tenant. A missing or empty field gives the empty key. So does a
// field that comes in several lines: if the handler used one of two values and the key
// were made of the other, a client could send a new value there each time. For "Host"
// the key is the host that the request is for.
//
// The client writes its header, so by itself this limits only honest clients. Use it
// where a proxy or an outer handler has checked or set the value, and elsewhere beside a
// limit by [ByClientIP]. Keys are shown in statistics: replace a secret value by the
// name of its owner first.
//
// A value longer than 256 bytes is cut as by [Join]. If name is no field name (RFC 9110,
// section 5.1), every call returns an error.
func ByHeader(name string) KeyFunc {
	if !isFieldName(name) {
		err := fmt.Errorf("shaper: ByHeader: name is %q, must be that of a header field", name)
		return func(*http.Request) (string, error) { return "", err }
	}
	if http.CanonicalHeaderKey(name) == "Host" {
		// net/http removes this field from the header.
		return func(r *http.Request) (string, error) { return bounded(r.Host), nil }
	}
	return func(r *http.Request) (string, error) {
		if lines := r.Header.Values(name); len(lines) == 1 {
			return bounded(lines[0]), nil
		}
		return "", nil
	}
}

// isFieldName reports whether name may stand before the colon of a header field.
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

// Join returns one key made of several parts, with "/" between them:
//
//	Join("login", "192.0.2.1")    login/192.0.2.1
//	Join("login", "x/../premium") login/x%2F..%2Fpremium
//	Join("login", "")             login/-
//	Join("login", "-")            login/%2D
//
// Different parts make different keys. A "/" within a part becomes %2F and a "%"
// becomes %25, so that nothing a client sends can add a level or pick another rule. An
// empty part becomes "-", and the part "-" becomes "%2D". Without parts the key is
// empty. url.PathUnescape undoes the escaping of a part.
//
// Keys are kept in memory, and a client can send a megabyte. So a part longer than 256
// bytes is replaced by its first 192, "~", and the SHA-256 of the whole part in
// hexadecimal. The key still differs from all others.
//
// Look up a rule by a Join too: the rule of the route "POST /login" is found under
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
	keptPart = 192 // bytes kept of a longer part; "~" and the hash make it 257, longer than any part kept whole
)

// bounded returns a part, or if it is too long its beginning and its hash.
func bounded(part string) string {
	if len(part) <= maxPart {
		return part
	}
	sum := sha256.Sum256([]byte(part))
	return part[:keptPart] + "~" + hex.EncodeToString(sum[:])
}

// ByRoute returns a [KeyFunc] whose key is the pattern that mux matches for a request,
// such as "POST /login" or "/orders/{id}". The key is the pattern as it was registered,
// without anything that the client sent: each route has limits under its own name, and
// the requests for all orders share one key.
//
// A request without a route, which mux answers itself with 404 or 405, has the empty
// key. So has a CONNECT that mux redirects to the path with a trailing slash. With other
// methods, a request that mux redirects, to a trailing slash or to the clean path, has
// the key of the route to which the redirect leads. Limit the empty key as well, or
// clients may ask as often as they like for what does not exist.
//
// The mux must see the request as this function does. If a handler in between changes
// the method, the host or the path, as [http.StripPrefix] does, the two disagree, and a
// client may get a route under the limit of another route. Then put the limit behind
// that handler. Routes can be added to mux later. If mux is nil, every call returns an
// error.
func ByRoute(mux *http.ServeMux) KeyFunc {
	return func(r *http.Request) (string, error) {
		if mux == nil {
			return "", errNoMux
		}
		handler, pattern := mux.Handler(r)
		if r.Method == http.MethodConnect && reflect.TypeOf(handler) == redirect {
			// For this redirect the mux returns, instead of a pattern, the path to which
			// it leads. The client chose that path, and it could be the name of a rule.
			return "", nil
		}
		return pattern, nil
	}
}

var errNoMux = errors.New("shaper: ByRoute: mux is nil, must be the ServeMux whose routes are meant")

// redirect is the type of the handlers with which a mux redirects.
var redirect = reflect.TypeOf(http.RedirectHandler("/", http.StatusTemporaryRedirect))
