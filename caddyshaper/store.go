package caddyshaper

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"example.com/leakybucket/shaper"
)

// stores has the connections to stores, by their URLs. All lines with the same URL have the
// same ones.
var stores = caddy.NewUsagePool()

// A store keeps levels for several processes.
type store struct {
	url    string
	bucket shaper.Bucket
	end    func() // closes the connections
}

// An opener connects to a store. It does not wait for the server: while that can't be asked,
// the fallback says what happens.
type opener func(*slog.Logger) *store

// schemes are the beginnings of URLs of stores.
var schemes = map[string]func(*url.URL) (opener, error){
	"redis":           redisServer,
	"rediss":          redisServer,
	"redis+cluster":   redisCluster,
	"rediss+cluster":  redisCluster,
	"redis+sentinel":  redisSentinel,
	"rediss+sentinel": redisSentinel,
	"postgres":        postgres,
	"postgresql":      postgres,
}

// acquireStore returns the store of a URL, with one more user.
func acquireStore(text string, log *slog.Logger) (*store, error) {
	got, _, err := stores.LoadOrNew(text, func() (caddy.Destructor, error) {
		open, err := parseStore(text)
		if err != nil {
			return nil, err
		}
		s := open(log)
		s.url = text
		return s, nil
	})
	if err != nil {
		return nil, err
	}
	return got.(*store), nil
}

// checkStore returns what is wrong with the URL of a store.
func checkStore(text string) error {
	_, err := parseStore(text)
	return err
}

// parseStore reads a URL, or several with commas between them. Its errors do not have the
// passwords of the URLs.
func parseStore(text string) (open opener, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("store: %w", redact(text, err))
		}
	}()
	if strings.Count(text, "://") > 1 {
		return redisRing(strings.Split(text, ","))
	}
	u, err := parseURL(text)
	if err != nil {
		return nil, err
	}
	if parse := schemes[u.Scheme]; parse != nil {
		return parse(u)
	}
	return nil, fmt.Errorf("%q, must begin with redis://, rediss:// or postgres://, or with redis+cluster:// or redis+sentinel://", u.Redacted())
}

// parseURL is [url.Parse], but its error does not have the URL.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return nil, fmt.Errorf("it is no URL: %w", failed.Err)
	}
	return u, err
}

// redact returns an error that does not have the passwords of URLs.
func redact(text string, err error) error {
	message := err.Error()
	for _, secret := range secrets(text) {
		message = strings.ReplaceAll(message, secret, "xxxxx")
	}
	if message == err.Error() {
		return err
	}
	return errors.New(message)
}

// secrets returns what may not be told of URLs: what stands between the first colon after
// "://" and the last "@", as it is written and as it is meant.
func secrets(text string) (all []string) {
	for one := range strings.SplitSeq(text, ",") {
		_, rest, _ := strings.Cut(one, "://")
		at := strings.LastIndexByte(rest, '@')
		if at < 0 {
			continue
		}
		_, password, _ := strings.Cut(rest[:at], ":")
		if password == "" {
			continue
		}
		all = append(all, password)
		if plain, err := url.PathUnescape(password); err == nil && plain != password {
			all = append(all, plain)
		}
	}
	return all
}

// redact returns an error of the store that does not have its password.
func (s *store) redact(err error) error { return redact(s.url, err) }

// release ends one use of the store.
func (s *store) release() { _, _ = stores.Delete(s.url) }

// Destruct implements [caddy.Destructor].
func (s *store) Destruct() error {
	s.end()
	return nil
}
