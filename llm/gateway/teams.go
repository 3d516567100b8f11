package gateway

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
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
