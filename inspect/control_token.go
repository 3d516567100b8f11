package inspect

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/shaper"
)

// unguessable is from how many bytes on the log does not warn of a token. A random one of
// that length can't be guessed.
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

	mu    sync.Mutex // makes of a look at wrong, a comparison and a change of wrong one step
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
	if _, err := k.wrong.Forecast(peer, 1); err != nil {
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

// peerOf returns where a request comes from: an address of IPv4, or a network of IPv6, as
// one machine has as many of its addresses as it likes. It is the zero Prefix for a
// socket that has no address.
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
