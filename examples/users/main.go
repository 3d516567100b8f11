// Command users is a program of docs/keys.md: a server that knows its users by a cookie or a token, limits each
// user wherever the request comes from, each stranger by address, and all of them together.
package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"example.com/leakybucket/shaper"
)

func main() {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /orders", func(http.ResponseWriter, *http.Request) {})

	perUser, err := shaper.NewGroup(func(key string) (shaper.Limits, error) {
		if strings.HasPrefix(key, "user/") {
			return shaper.Limits{Rate: 1, Burst: 3}, nil
		}
		return shaper.Limits{Rate: 0.1, Burst: 1}, nil // strangers
	})
	if err != nil {
		panic(err)
	}
	defer perUser.Close()
	site, err := shaper.New(shaper.Limits{Rate: 200, Burst: 20, Depth: 500})
	if err != nil {
		panic(err)
	}
	defer site.Close()
	limit := both(perUser, site)
	server := authenticate(limit(mux)) // In this order: the key is made of what authenticate has found.

	for _, request := range []struct{ from, field, value string }{
		{"192.0.2.1", "Cookie", "session=4711"},
		{"192.0.2.1", "Cookie", "session=4711"},
		{"198.51.100.7", "Authorization", "Bearer " + tokenOf("ann")}, // the same user, elsewhere
		{"198.51.100.7", "Authorization", "Bearer " + tokenOf("ann")},
		{"198.51.100.7", "Authorization", "Bearer " + tokenOf("bob")},
		{"203.0.113.9", "Authorization", "Bearer " + tokenOf("ann") + "x"}, // forged
		{"203.0.113.9", "Cookie", "session=1"},                             // made up
	} {
		r := httptest.NewRequest(http.MethodGet, "/orders", nil)
		r.RemoteAddr = request.from + ":1234"
		r.Header.Set(request.field, request.value)
		answer := httptest.NewRecorder()
		server.ServeHTTP(answer, r)
		fmt.Println(answer.Header().Get("X-User"), answer.Code)
	}
}

// both is one middleware for the limits of each user and of the site. The request waits for its user's limit first,
// so that what is refused there costs the site nothing.
func both(perUser *shaper.Group[string], site *shaper.Shaper) func(http.Handler) http.Handler {
	users, all := perUser.Middleware(byUser), shaper.Middleware(site)
	return func(next http.Handler) http.Handler { return users(all(next)) }
}

// userKey is the key of a user's name in the context of a request.
type userKey struct{}

// byUser is a [shaper.KeyFunc]. It believes only what authenticate has put into the context, and nothing of the header.
func byUser(r *http.Request) (string, error) {
	if user, ok := r.Context().Value(userKey{}).(string); ok {
		return shaper.Join("user", user), nil
	}
	address, err := shaper.ByClientIP()(r)
	return shaper.Join("stranger", address), err
}

// authenticate puts the name of the user into the context of a request, if there is one.
func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, ok := userOfCookie(r)
		if !ok {
			user, ok = userOfToken(r)
		}
		if !ok {
			w.Header().Set("X-User", "stranger")
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("X-User", user)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	})
}

// sessions has the users by the numbers of their sessions. It stands for a store of sessions.
var sessions = map[string]string{"4711": "ann"}

func userOfCookie(r *http.Request) (user string, ok bool) {
	cookie, err := r.Cookie("session")
	if err != nil {
		return "", false
	}
	user, ok = sessions[cookie.Value] // A number that nobody was given is nobody's.
	return user, ok
}

// secret signs tokens. It stands for the key of whoever issues them.
var secret = []byte("a secret of at least 32 bytes, as HS256 wants it")

// signature is that of a JSON Web Token (RFC 7519) with the algorithm HS256.
func signature(signed string) string {
	mac := hmac.New(sha256.New, secret)
	_, _ = mac.Write([]byte(signed)) // It takes everything.
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func tokenOf(user string) string {
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + encode(fmt.Appendf(nil, `{"sub":%q}`, user))
	return signed + "." + signature(signed)
}

// userOfToken checks the signature before it looks at anything else. A library for JSON Web Tokens does that, and
// asks when the token expires and whom it is for.
func userOfToken(r *http.Request) (user string, ok bool) {
	token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	last := strings.LastIndexByte(token, '.')
	if !found || last < 0 || !hmac.Equal([]byte(token[last+1:]), []byte(signature(token[:last]))) {
		return "", false
	}
	_, payload, _ := strings.Cut(token[:last], ".")
	text, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		return "", false
	}
	var claims struct {
		Subject string `json:"sub"`
	}
	if json.Unmarshal(text, &claims) != nil {
		return "", false
	}
	return claims.Subject, claims.Subject != ""
}
