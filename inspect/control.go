package inspect

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"example.com/leakybucket/shaper"
)

// The bounds of "for": a shorter change nobody would see, and a longer one belongs into the
// program's own settings.
const (
	shortestChange = time.Second
	longestChange  = 24 * time.Hour
)

// maxWho is how long a caller's name for itself may be, in bytes.
const maxWho = 100

// changing returns a handler of requests that change a bucket, with the named fields.
func changing(do func(*controller, command) (change, error), named ...string) func(*Inspector, http.ResponseWriter, *http.Request, query) error {
	return func(i *Inspector, w http.ResponseWriter, r *http.Request, _ query) error {
		want, err := i.readCommand(w, r, named)
		if err != nil {
			return err
		}
		done, err := do(i.controller, want)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, done)
		return nil
	}
}

// A command is a change that somebody wants: a bucket, and the fields of the request.
type command struct {
	of     target
	ref    bucketRef
	who    string
	limits shaper.Limits // of the field "limits"
	text   string        // the field itself
	span   time.Duration // of the field "for"

	from, until time.Time // of a change that is resumed; zero: it is a new one, for span
}

// end returns when the change is to end.
func (c *command) end() time.Time {
	if !c.until.IsZero() {
		return c.until
	}
	return time.Now().Add(c.span)
}

// readCommand returns the command in a request that may change something. It has the named fields,
// beside the fields that say which bucket is meant and who asks.
func (i *Inspector) readCommand(w http.ResponseWriter, r *http.Request, named []string) (want command, err error) {
	if err := i.authorize(w, r); err != nil {
		return command{}, err
	}
	fields, err := readFields(w, r, slices.Concat(named, []string{"source", "key", "id", "who"}))
	if err != nil {
		return command{}, err
	}
	for _, name := range slices.Concat([]string{"source"}, named) {
		if fields[name] == "" {
			return command{}, missing(name)
		}
	}
	if who := fields["who"]; len(who) > maxWho {
		return command{}, wrong("who", who, "must be at most %d bytes", maxWho)
	}
	want = command{who: whoIs(r, fields["who"]), text: fields["limits"]}
	if want.of, want.ref, err = i.bucketOf(r.Context(), fields); err != nil {
		return command{}, err
	}
	if slices.Contains(named, "limits") {
		if want.limits, err = parseLimits(want.text); err != nil {
			return command{}, err
		}
	}
	if slices.Contains(named, "for") {
		want.span, err = spanOf(fields["for"])
	}
	return want, err
}

// parseLimits returns the limits of the field or parameter "limits".
func parseLimits(text string) (shaper.Limits, error) {
	l, err := shaper.ParseLimits(text)
	if err != nil {
		return l, &failure{http.StatusBadRequest, "limits", text, err.Error()}
	}
	return l, nil
}

// bucketOf returns the bucket that fields name: by its source and, in a group, by its key
// or its id.
func (i *Inspector) bucketOf(ctx context.Context, fields map[string]string) (of target, ref bucketRef, err error) {
	source, err := i.sourceNamed(fields["source"])
	if err != nil {
		return target{}, nil, err
	}
	key, ofKey := fields["key"]
	id, ofID := fields["id"]
	switch {
	case ofKey && ofID:
		return target{}, nil, &failure{http.StatusBadRequest, "id", id, "id is given beside key; one of them is enough"}
	case ofID:
		if key, err = keyOf(id); err != nil {
			return target{}, nil, &failure{http.StatusBadRequest, "id", id, err.Error()}
		}
	case !ofKey && source.source.kind() == "group":
		return target{}, nil, &failure{http.StatusBadRequest, "key", "", "key, or id, is missing: the source is a group, and one of its buckets is meant"}
	}
	of = target{source: source, key: key}
	if ref = i.controller.refOf(of); ref != nil { // Its key may have no bucket now, and be unknown.
		return of, ref, nil
	}
	ref, err = source.bucket(ctx, key)
	return of, ref, err
}

// spanOf returns for how long the field "for" lets a change last.
func spanOf(text string) (time.Duration, error) {
	span, err := time.ParseDuration(text)
	if err != nil || span < shortestChange || span > longestChange {
		return 0, wrong("for", text, `must be a duration from 1s to 24h, such as "10m"`)
	}
	return span, nil
}

// whoIs says who has sent a request: the address, and the name that the caller has given
// itself. The token proves that the caller may change things, and nothing proves the name.
func whoIs(r *http.Request, name string) string {
	if name == "" {
		return r.RemoteAddr
	}
	return strconv.Quote(name) + " at " + r.RemoteAddr
}

// maxBody is the size of the largest body that is read, in bytes.
const maxBody = 64 << 10

// readFields reads the body of a request: a JSON object whose values are strings. Fields
// that known does not name are wrong, as are fields that come twice: encoding/json alone
// would take the latter, and would not mind upper case either.
func readFields(w http.ResponseWriter, r *http.Request, known []string) (map[string]string, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		w.Header().Set("Accept-Post", "application/json")
		return nil, &failure{http.StatusUnsupportedMediaType, "Content-Type", r.Header.Get("Content-Type"), "the body must be application/json"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &failure{Status: http.StatusRequestEntityTooLarge, Message: fmt.Sprintf("the body is larger than %d bytes", maxBody)}
	case err != nil:
		return nil, badBody("it can't be read: %v", err)
	case !utf8.Valid(body):
		return nil, badBody("it is not UTF-8 (a key that is not can be given by its id)")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if begin, err := d.Token(); err != nil || begin != json.Delim('{') {
		return nil, badBody("it is not a JSON object")
	}
	fields := map[string]string{}
	for d.More() {
		name, value, err := readField(d, known)
		if err != nil {
			return nil, err
		}
		if _, twice := fields[name]; twice {
			return nil, &failure{http.StatusBadRequest, name, value, name + " is given twice"}
		}
		fields[name] = value
	}
	if _, err := d.Token(); err != nil { // the closing brace
		return nil, badBody("it is not JSON: %v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, badBody("something follows the JSON object")
	}
	return fields, nil
}

// readField reads one field of an object.
func readField(d *json.Decoder, known []string) (name, value string, err error) {
	token, err := d.Token()
	if err != nil {
		return "", "", badBody("it is not JSON: %v", err)
	}
	name, _ = token.(string)
	if !slices.Contains(known, name) {
		return "", "", &failure{http.StatusBadRequest, shorten(name), "", fmt.Sprintf("%q is not a field here", shorten(name))}
	}
	if token, err = d.Token(); err != nil {
		return "", "", badBody("it is not JSON: %v", err)
	}
	value, isText := token.(string)
	if !isText {
		return "", "", &failure{http.StatusBadRequest, name, "", name + " must be a string"}
	}
	return name, value, nil
}

func badBody(format string, args ...any) *failure {
	return &failure{Status: http.StatusBadRequest, Parameter: "body", Message: "the body is wrong: " + fmt.Sprintf(format, args...)}
}

// unguessable is the length of a token, in bytes, from which on the log does not warn. A random
// token of that length can't be guessed.
const unguessable = 16

// guessLimits says how many wrong tokens an address may send. Beyond that its requests are
// refused unread, so that even a token that is a word can't be found by trying.
var guessLimits = shaper.Limits{Rate: 5, Burst: 20}

// maxGuessers is how many addresses have a bucket of their own.
const maxGuessers = 1000

// A doorkeeper knows who may change things. It keeps the hash of the token, so that the
// token can't come to light by a mistake.
type doorkeeper struct {
	origin *http.CrossOriginProtection

	mu    sync.Mutex // joins a look at wrong, a comparison and a change of wrong to one step
	wrong *shaper.Group[netip.Prefix]
}

func newDoorkeeper() *doorkeeper {
	wrong, err := shaper.NewGroup(func(netip.Prefix) (shaper.Limits, error) { return guessLimits, nil },
		shaper.WithName("wrong tokens"), shaper.WithMaxKeys(maxGuessers))
	if err != nil {
		panic(err) // The limits are constant.
	}
	return &doorkeeper{origin: http.NewCrossOriginProtection(), wrong: wrong}
}

// authorize returns nil if the sender of a request may change things.
func (i *Inspector) authorize(w http.ResponseWriter, r *http.Request) error {
	if !i.mayControl() {
		why := "nothing can be changed here: the Inspector was made without WithControl"
		if i.control {
			why = "nothing can be changed here: " + i.err.Error()
		}
		return &failure{Status: http.StatusForbidden, Message: why}
	}
	if err := i.doorkeeper.origin.Check(r); err != nil {
		return &failure{Status: http.StatusForbidden, Message: "a page of another origin may not change anything here"}
	}
	token, given := bearer(r)
	if !given {
		w.Header().Set("WWW-Authenticate", `Bearer realm="inspect"`)
		return &failure{Status: http.StatusUnauthorized, Parameter: "Authorization", Message: "a token is missing: send \"Authorization: Bearer TOKEN\""}
	}
	right, again := i.doorkeeper.try(peerOf(r), sha256.Sum256([]byte(token)), i.tokenHash)
	switch {
	case again > 0:
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(again.Seconds()))))
		return &failure{Status: http.StatusTooManyRequests, Message: "too many wrong tokens have come from this address"}
	case !right:
		i.logger.Warn("inspect: a wrong token was sent", "from", r.RemoteAddr, "path", r.URL.Path)
		w.Header().Set("WWW-Authenticate", `Bearer realm="inspect", error="invalid_token"`)
		return &failure{Status: http.StatusUnauthorized, Parameter: "Authorization", Message: "the token is wrong"}
	}
	return nil
}

// try reports whether a token is the right one, by the hashes of both. If again is above
// 0, the peer has sent too many wrong ones: the token was not looked at, and may be sent
// again after that time.
func (k *doorkeeper) try(peer netip.Prefix, given, want [sha256.Size]byte) (right bool, again time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, err := k.wrong.Limiter(peer).Forecast(1); err != nil {
		var refusal *shaper.RejectError
		if errors.As(err, &refusal) {
			return false, max(refusal.RetryAfter, time.Millisecond)
		}
	}
	if subtle.ConstantTimeCompare(given[:], want[:]) == 1 {
		return true, 0
	}
	k.wrong.Allow(peer)
	return false, 0
}

// bearer returns the token of a request.
func bearer(r *http.Request) (token string, given bool) {
	fields := r.Header.Values("Authorization")
	if len(fields) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(fields[0], " ")
	token = strings.TrimSpace(token)
	return token, strings.EqualFold(scheme, "Bearer") && token != ""
}

// peerOf returns the origin of a request: an IPv4 address, or an IPv6 network, as one machine
// has as many addresses of its network as it likes. It is the zero Prefix for a socket
// without an address.
func peerOf(r *http.Request) netip.Prefix {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Prefix{}
	}
	addr, bits := peer.Addr().Unmap().WithZone(""), 32
	if addr.Is6() {
		bits = 64
	}
	prefix, _ := addr.Prefix(bits)
	return prefix
}
