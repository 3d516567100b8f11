package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/leakybucket/shaper"
)

// Teams knows the teams that have a token of the gateway, from a file of lines such as
//
//	gold: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
//
// with the SHA-256 of the team's token in hexadecimal. A team may have several lines, to change its token. Empty lines and
// lines that begin with # are ignored. A file that changes is read again, within a second of the next call; if it has
// a mistake then, the earlier teams stay. Teams is safe for concurrent use.
type Teams struct {
	path string
	log  *slog.Logger

	named atomic.Pointer[map[[sha256.Size]byte]string] // a new map each time that the file is read

	looking sync.Mutex // held by the call that checks the file, which may take long; no other waits for it
	looked  time.Time
	read    os.FileInfo
	said    string // the mistake that was told last; "" if there has been none since
}

// OpenTeams reads a file. The mistakes of later versions go to log, unless it is nil.
func OpenTeams(path string, log *slog.Logger) (*Teams, error) {
	t := &Teams{path: path, log: log}
	if err := t.readFile(); err != nil {
		return nil, err
	}
	return t, nil
}

// everySoOften is the least time between two looks at a file.
const everySoOften = time.Second

// Of returns the team whose token a call has, and removes the token, which the provider must not see. The token may stand
// wherever a key of a provider may: in Authorization, X-Api-Key, X-Goog-Api-Key, Api-Key, or as the parameter key.
func (t *Teams) Of(r *http.Request) (team string, ok bool) {
	t.refresh()
	query := r.URL.Query()
	bearer := r.Header.Get("Authorization")
	if scheme, token, _ := strings.Cut(bearer, " "); strings.EqualFold(scheme, "Bearer") {
		bearer = strings.TrimLeft(token, " ") // RFC 9110, section 11.1: at least one blank.
	}
	for _, token := range []string{bearer, r.Header.Get("X-Api-Key"), r.Header.Get("X-Goog-Api-Key"), r.Header.Get("Api-Key"), query.Get("key")} {
		if team, ok = t.owner(token); ok {
			break
		}
	}
	if !ok {
		return "", false
	}
	for _, field := range []string{"Authorization", "X-Api-Key", "X-Goog-Api-Key", "Api-Key"} {
		r.Header.Del(field)
	}
	if query.Has("key") {
		r.URL.RawQuery = withoutKey(r.URL.RawQuery)
	}
	return team, true
}

// withoutKey returns a query without the parameter key. The others stay as they are, byte for byte.
func withoutKey(query string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(query, "&"), func(parameter string) bool {
		name, _, _ := strings.Cut(parameter, "=")
		plain, err := url.QueryUnescape(name)
		return err == nil && plain == "key"
	}), "&")
}

func (t *Teams) owner(token string) (team string, ok bool) {
	if token == "" {
		return "", false
	}
	team, ok = (*t.named.Load())[sha256.Sum256([]byte(token))]
	return team, ok
}

// refresh reads the file again if it has changed. While another call does so, the earlier teams stay: a slow disk must not
// hold up all calls.
func (t *Teams) refresh() {
	if !t.looking.TryLock() {
		return
	}
	defer t.looking.Unlock()
	if time.Since(t.looked) < everySoOften {
		return
	}
	t.looked = time.Now()
	now, err := os.Stat(t.path)
	if err == nil && now.ModTime().Equal(t.read.ModTime()) && now.Size() == t.read.Size() {
		return
	}
	if err == nil {
		err = t.readFile()
		t.read = now // A file with a mistake is read again when it has changed.
	}
	said := ""
	if err != nil {
		said = err.Error()
		if said != t.said && t.log != nil {
			t.log.Error("the teams stay as they were", "error", err)
		}
	}
	t.said = said
}

func (t *Teams) readFile() error {
	info, err := os.Stat(t.path)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(t.path)
	if err != nil {
		return err
	}
	named := map[[sha256.Size]byte]string{}
	lines := bufio.NewScanner(bytes.NewReader(bytes.TrimPrefix(text, []byte("\ufeff")))) // Some editors write a byte order mark.
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		team, sum, err := parseTeam(line)
		if _, twice := named[sum]; err == nil && twice {
			err = errors.New("the token of another line")
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %w", t.path, n, err) // It does not quote the line, which may be a token by mistake.
		}
		named[sum] = team
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", t.path, err)
	}
	if len(named) == 0 {
		return fmt.Errorf("%s: it has no team", t.path)
	}
	t.named.Store(&named)
	t.read = info
	return nil
}

func parseTeam(line string) (team string, sum [sha256.Size]byte, err error) {
	team, text, ok := strings.Cut(line, ":")
	if team = strings.TrimSpace(team); !ok || team == "" {
		return "", sum, errors.New(`it must read "team: sha256"`)
	}
	decoded, err := hex.DecodeString(strings.TrimSpace(text))
	if err != nil || len(decoded) != len(sum) {
		return "", sum, errors.New("the value after the team must be a SHA-256: 64 hexadecimal digits, as sha256sum prints")
	}
	return team, [sha256.Size]byte(decoded), nil
}

// A Model is the gateway for the calls of some models, which have a quota of their own: OpenAI, Anthropic and Gemini have limits
// for each model, or class of models. Its line, holds, and what is left are of these models alone.
type Model struct {
	Pattern string // of the models' names, in which * stands for any characters, as in claude-sonnet-*; "": any model
	*Gateway
}

// Models are gateways to one provider. A call waits in the line of the first whose pattern its model matches. A call that names a
// model for which there is none is refused with status 404, and told which there are. A request that names no model, or asks for
// a list or a stored answer, waits in the line of any model; if there is none, in the first.
type Models []Model

// Wrap is [Gateway.Wrap] for several of them. The first reads the bodies of all calls, within its [Config].Bodies.
func (m Models) Wrap(next http.Handler) http.Handler {
	enter := map[*Gateway]http.Handler{}
	for _, of := range m {
		lineOf := of.inLine(next)
		enter[of.Gateway] = of.behindSeats(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			l, c := lineOf(), callOf(r.Context())
			if c.line = l.line; of.config.TeamInFlight > 0 {
				c.bringRest(r)
			}
			l.ServeHTTP(w, r)
		}))
	}
	first := m[0].Gateway
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isPreflight(r) {
			next.ServeHTTP(w, r)
			return
		}
		c := &call{models: m, g: first, request: r, arrived: time.Now(), body: &body{of: &first.config.Ledger.bodies}}
		outer := r.Context()
		// Handlers around this one may look at the request that they have made, as Caddy's do.
		*r = *r.WithContext(context.WithValue(outer, callKey{}, c))
		defer func() {
			*r = *r.WithContext(outer)
			c.end(r)
		}()
		if err := c.read(w, r); err != nil {
			if !errors.Is(err, shaper.ErrBody) && !errors.Is(err, errNoRoom) { // After these a deadline has passed.
				giveUpBody(w, r)
			}
			c.g.refuse(w, r, err)
			return
		}
		c.entered = time.Now()
		enter[c.g].ServeHTTP(w, r)
	})
}

// behindSeats returns a handler behind the seats of teams, if there is a cap for each.
func (g *Gateway) behindSeats(next http.Handler) http.Handler {
	if g.config.TeamInFlight == 0 {
		return next
	}
	seats := g.config.Ledger.seatsOf()
	return seats.Middleware(teamOf, shaper.WithErrorHandler(g.refuse), shaper.WithLogger(g.config.Refusals))(next)
}

// restOfWait is the field of a request in which the gateway tells the line for how long a call may still wait, as the line and the
// seats each bound only the wait in themselves. The provider does not get it.
const restOfWait = "X-Shaper-Rest-Of-Wait"

// bringRest tells the line for how long the call may still wait after it has waited for a seat of its team.
func (c *call) bringRest(r *http.Request) {
	r.Header.Del(restOfWait)
	if most := c.line.Limits().MaxWait; most > 0 {
		rest := max(0, most-time.Since(c.entered))
		r.Header.Set(restOfWait, strconv.FormatFloat(rest.Seconds(), 'f', 9, 64))
	}
}

// seatsOf returns the seats of teams. They are a bucket for each team that lets all pass, but for its cap: a team at its cap waits
// there, and not in the line, where it would hold up others.
func (l *Ledger) seatsOf() *shaper.Group[string] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seats == nil {
		// The limits are valid: those of the line, but for the rate.
		l.seats, _ = shaper.NewGroup(func(string) (shaper.Limits, error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.of.seats, nil
		}, shaper.WithName("seats of teams"), shaper.WithLineTimeout(0))
	}
	return l.seats
}

// Waiting returns how many calls wait for a seat of their team ([Config].TeamInFlight).
func (l *Ledger) Waiting() int {
	l.mu.Lock()
	seats := l.seats
	l.mu.Unlock()
	if seats == nil {
		return 0
	}
	return seats.Stats().Waiting
}

// Close refuses the calls that wait for a seat of their team, and all that come.
func (l *Ledger) Close() {
	l.mu.Lock()
	seats := l.seats
	l.mu.Unlock()
	if seats != nil {
		_ = seats.Close() // It always returns nil.
	}
}

// isPreflight reports whether a browser asks whether a page may make a call (fetch.spec.whatwg.org, CORS-preflight request). The
// browser sends no token with that, it is the provider's to answer, and it is no call: it neither waits nor counts.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// of returns the gateway of a call's model. With an error it is the first.
func (m Models) of(model string, r *http.Request) (*Gateway, error) {
	fallback := (*Gateway)(nil)
	for _, of := range m {
		switch {
		case of.Pattern == "":
			fallback = of.Gateway
		case matches(of.Pattern, model), matches(of.Pattern, strings.TrimPrefix(model, "models/")): // as Gemini names its own in bodies
			return of.Gateway, nil
		}
	}
	switch {
	case fallback != nil:
		return fallback, nil
	case model == "" || r.Method != http.MethodPost:
		return m[0].Gateway, nil
	}
	return m[0].Gateway, &unknownModelError{m}
}

// An unknownModelError is for a call of a model that no pattern matches.
type unknownModelError struct{ Models }

func (*unknownModelError) Error() string {
	return "gateway: there is no quota for the model of the call"
}

// told returns the error as callers are told it.
func (e *unknownModelError) told() string {
	var patterns []string
	for _, of := range e.Models {
		patterns = append(patterns, of.Pattern)
	}
	return "The gateway has no quota for the model of the call; it has quotas for " + strings.Join(patterns, ", ") + "."
}

// matches reports whether a name matches a pattern, in which each * stands for any characters.
func matches(pattern, name string) bool {
	begin, rest, several := strings.Cut(pattern, "*")
	if !several {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, begin)
	for ok {
		var part string
		if part, rest, several = strings.Cut(rest, "*"); !several {
			return strings.HasSuffix(name, part)
		}
		_, name, ok = strings.Cut(name, part)
	}
	return false
}
