package caddyshaper

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// teams knows the tokens of teams: it reads them from a file that is read again when it has changed.
// A token is never kept, only its SHA-256.
type teams struct {
	path     string
	provider string
	log      *slog.Logger

	mu     sync.Mutex
	byHash map[[sha256.Size]byte]string
	looked time.Time   // when the file was last looked at
	read   os.FileInfo // of the file as it was when it was last read
	said   string      // the mistake that was logged last; "" if the file has been read since
}

// teamsAge is how old what is known of the file may be.
const teamsAge = time.Second

// openTeams reads a file of lines such as
//
//	gold: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
//
// with the name of a team and the SHA-256 of a token in hexadecimal. A team may have several tokens, each in
// a line of its own. Empty lines and lines that begin with # are skipped.
func openTeams(path, provider string, log *slog.Logger) (*teams, error) {
	t := &teams{path: path, provider: provider, log: log}
	if err := t.readLocked(time.Now()); err != nil {
		return nil, err
	}
	return t, nil
}

// readLocked reads the file. If anything is wrong with it, what was known stays.
func (t *teams) readLocked(now time.Time) error {
	t.looked = now
	info, err := os.Stat(t.path)
	if err != nil {
		return fmt.Errorf("teams: %w", err)
	}
	text, err := os.ReadFile(t.path)
	if err != nil {
		return fmt.Errorf("teams: %w", err)
	}
	t.read = info // A file with a mistake is read again when it has changed, and not before.
	byHash, err := parseTeams(t.path, text)
	if err != nil {
		return err
	}
	t.byHash = byHash
	return nil
}

// parseTeams reads the lines of a file. Its errors do not quote what stands in place of a hash, as that may be a token.
func parseTeams(path string, text []byte) (map[[sha256.Size]byte]string, error) {
	byHash := map[[sha256.Size]byte]string{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		at := strings.LastIndexByte(line, ':')
		if at < 1 {
			return nil, fmt.Errorf("teams: %s:%d: must be the name of a team, a colon and the SHA-256 of its token", path, n)
		}
		team, hash := strings.TrimSpace(line[:at]), strings.TrimSpace(line[at+1:])
		sum, err := hex.DecodeString(hash)
		if err != nil || len(sum) != sha256.Size {
			return nil, fmt.Errorf("teams: %s:%d: what stands after the team %q has %d characters, must be the SHA-256 of its token, which is 64 hexadecimal digits", path, n, team, len(hash))
		}
		if other, ok := byHash[[sha256.Size]byte(sum)]; ok && other != team {
			return nil, fmt.Errorf("teams: %s:%d: the team %q has the token of the team %q", path, n, team, other)
		}
		byHash[[sha256.Size]byte(sum)] = team
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("teams: %s: %w", path, err)
	}
	if len(byHash) == 0 {
		return nil, fmt.Errorf("teams: %s: there is no team in it", path)
	}
	return byHash, nil
}

// of returns the team whose token a request has, and takes the token out of the request. ok is false if the
// request has none, or one that no team has.
func (t *teams) of(r *http.Request) (team string, ok bool) {
	token := takeToken(r, t.provider)
	if token == "" {
		return "", false
	}
	hash := sha256.Sum256([]byte(token))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.followLocked(time.Now())
	team, ok = t.byHash[hash]
	return team, ok
}

// followLocked reads the file again if it has changed. It logs each mistake once.
func (t *teams) followLocked(now time.Time) {
	if now.Sub(t.looked) < teamsAge {
		return
	}
	t.looked = now
	info, err := os.Stat(t.path)
	if err == nil && info.ModTime().Equal(t.read.ModTime()) && info.Size() == t.read.Size() && os.SameFile(info, t.read) {
		return
	}
	said := ""
	if err := t.readLocked(now); err != nil {
		if said = err.Error(); said != t.said {
			t.log.Error("the tokens of the teams stay what they were", "error", err)
		}
	}
	t.said = said
}

// tokenFields are the fields in which the clients of the providers send a key.
var tokenFields = [...]string{"Authorization", "X-Api-Key", "X-Goog-Api-Key", "Api-Key"}

// takeToken removes each key from a request, and returns the first.
func takeToken(r *http.Request, provider string) (token string) {
	for _, field := range tokenFields {
		value := r.Header.Get(field)
		if r.Header.Del(field); field == "Authorization" {
			if scheme, rest, _ := strings.Cut(value, " "); strings.EqualFold(scheme, "Bearer") {
				value = strings.TrimSpace(rest)
			} else {
				value = ""
			}
		}
		if token == "" {
			token = value
		}
	}
	if query := r.URL.Query(); provider == "gemini" && query.Has("key") {
		if token == "" {
			token = query.Get("key")
		}
		query.Del("key")
		r.URL.RawQuery = query.Encode()
	}
	return token
}

// setProviderKey gives a request the key of the account at a provider.
func setProviderKey(r *http.Request, provider, key string) {
	switch provider {
	case "anthropic":
		r.Header.Set("X-Api-Key", key)
	case "gemini":
		r.Header.Set("X-Goog-Api-Key", key)
	default:
		r.Header.Set("Authorization", "Bearer "+key)
	}
}
