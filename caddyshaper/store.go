package caddyshaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"example.com/leakybucket/pgbucket"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper/shared"
)

// stores has the connections to stores, by their URLs. All lines with the same URL have the
// same ones.
var stores = caddy.NewUsagePool()

// A store keeps levels for several processes.
type store struct {
	url    string
	bucket shared.Bucket
	work   func() // runs beside the calls of the bucket, from the start on; nil: nothing
	end    func() // ends it, and closes the connections

	begun sync.Once
}

// begin begins the work of the store, when a configuration that uses it has started. One that
// is only validated, or is rejected, leaves the server alone.
func (s *store) begin() {
	if s.work != nil {
		s.begun.Do(s.work)
	}
}

// An opener connects to a store. It does not wait for the server: while that can't be asked, the
// fallback counts.
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
	return loadOrNew(stores, text, func() (*store, error) {
		open, err := parseStore(text)
		if err != nil {
			return nil, err
		}
		s := open(log)
		s.url = text
		return s, nil
	})
}

// CheckStore returns the mistake in the URL of a store, or in those of several servers with commas between them. Its error does
// not have their passwords.
func CheckStore(text string) error {
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
	return nil, fmt.Errorf("%q, must begin with redis://, rediss:// or postgres://, or with redis+cluster:// or redis+sentinel://", shown(u))
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

// shown returns a URL without its secrets: its password, and its query, which may have one too.
func shown(u *url.URL) string {
	plain := *u
	plain.RawQuery = ""
	return plain.Redacted()
}

// secrets returns the secrets in URLs: the text between the first colon after "://" and the last
// "@", and the values that the query calls passwords, both encoded and decoded. A password whose "/",
// "?" or "#" is not encoded ends there for [url.Parse], so its parts are secrets too.
func secrets(text string) (all []string) {
	add := func(written string, unescape func(string) (string, error)) {
		if written == "" {
			return
		}
		all = append(all, written)
		if meant, err := unescape(written); err == nil && meant != written {
			all = append(all, meant)
		}
	}
	urls := []string{text}
	if strings.Count(text, "://") > 1 {
		urls = strings.Split(text, ",")
	}
	for _, one := range urls {
		_, rest, _ := strings.Cut(one, "://")
		beforeQuery, query, _ := strings.Cut(rest, "?")
		for _, part := range []string{beforeQuery, rest} {
			if at := strings.LastIndexByte(part, '@'); at >= 0 {
				_, password, _ := strings.Cut(part[:at], ":")
				add(password, url.PathUnescape)
				for piece := range strings.FieldsFuncSeq(password, endsUserinfo) {
					add(piece, url.PathUnescape)
				}
			}
		}
		for field := range strings.SplitSeq(query, "&") {
			name, password, _ := strings.Cut(field, "=")
			if strings.Contains(strings.ToLower(name), "password") {
				add(password, url.QueryUnescape)
			}
		}
	}
	return all
}

// endsUserinfo reports whether user and password of a URL end before a character.
func endsUserinfo(r rune) bool { return strings.ContainsRune("/?#", r) }

// redact returns an error of the store that does not have its password.
func (s *store) redact(err error) error { return redact(s.url, err) }

// release ends one use of the store.
func (s *store) release() { _, _ = stores.Delete(s.url) }

// Destruct implements [caddy.Destructor].
func (s *store) Destruct() error {
	s.end()
	return nil
}

const (
	migrateEvery = 5 * time.Second // until the server can be asked
	sweepEvery   = time.Hour
)

// postgres is a server of PostgreSQL.
func postgres(u *url.URL) (opener, error) {
	config, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		return nil, err
	}
	return func(log *slog.Logger) *store {
		ctx, cancel := context.WithCancel(context.Background())
		db, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			// ParseConfig has made the config, and nothing is asked of the server yet.
			panic("caddyshaper: pgxpool refuses a config of its own: " + redact(u.String(), err).Error())
		}
		bucket := pgbucket.New(db)
		var work sync.WaitGroup
		keep := func() { keepTable(ctx, db, bucket, log.With("store", shown(u))) }
		return &store{bucket: bucket, work: func() { work.Go(keep) }, end: func() {
			cancel()
			work.Wait()
			db.Close()
		}}
	}, nil
}

// keepTable makes the table as soon as the server can be asked, and removes old rows from it
// now and then, until the context ends.
func keepTable(ctx context.Context, db *pgxpool.Pool, bucket *pgbucket.Bucket, log *slog.Logger) {
	text := db.Config().ConnString()
	for {
		err := pgbucket.Migrate(ctx, db)
		if err == nil {
			break
		}
		log.Warn("the table of the store could not be made; tried again", "in", migrateEvery, "error", redact(text, err))
		if !sleep(ctx, migrateEvery) {
			return
		}
	}
	for sleep(ctx, sweepEvery) {
		if _, err := bucket.Sweep(ctx); err != nil {
			log.Warn("old rows of the store could not be removed", "error", redact(text, err))
		}
	}
}

// sleep reports whether the context has not ended in a time.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func init() { redis.SetLogger(newRedisLog(slog.New(newLatestLog("shape.redis")))) }

// redisLog writes the messages of go-redis, such as about connections that fail, to Caddy's log: at
// most one line a second, as in an outage there is one for each of them. go-redis has one logger for
// the process, which writes to standard error otherwise.
type redisLog struct{ lines seldom[string] }

func newRedisLog(log *slog.Logger) *redisLog {
	return &redisLog{lines: seldom[string]{tell: func(count int, latest string) { log.Warn(latest, "lines", count) }}}
}

func (l *redisLog) Printf(_ context.Context, format string, args ...any) {
	l.lines.note(fmt.Sprintf(format, args...))
}

// redisServer is one server of Redis or Valkey.
func redisServer(u *url.URL) (opener, error) {
	options, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, err
	}
	if err := checkServers(options.DB, options.Addr); err != nil {
		return nil, err
	}
	options.ContextTimeoutEnabled = true
	return oneClient(func() redis.UniversalClient { return redis.NewClient(options) }), nil
}

// redisCluster is a cluster; further nodes than the host are named by addr, as often as
// needed.
func redisCluster(u *url.URL) (opener, error) {
	options, err := redis.ParseClusterURL(plainScheme(u))
	if err != nil {
		return nil, err
	}
	if err := checkServers(0, options.Addrs...); err != nil {
		return nil, err
	}
	options.ContextTimeoutEnabled = true
	return oneClient(func() redis.UniversalClient { return redis.NewClusterClient(options) }), nil
}

// redisSentinel is a server that sentinels watch. The host is one of the sentinels; master_name is
// the name that they know it by.
func redisSentinel(u *url.URL) (opener, error) {
	options, err := redis.ParseFailoverURL(plainScheme(u))
	if err != nil {
		return nil, err
	}
	if options.MasterName == "" {
		return nil, fmt.Errorf("%q has no ?master_name=", shown(u))
	}
	if err := checkServers(options.DB, options.SentinelAddrs...); err != nil {
		return nil, err
	}
	options.ContextTimeoutEnabled = true
	return oneClient(func() redis.UniversalClient { return redis.NewFailoverClient(options) }), nil
}

// checkServers returns an error for a number that no database can have, and for an address
// whose port no server can have, which go-redis finds only when it dials.
func checkServers(db int, addresses ...string) error {
	if db < 0 {
		return fmt.Errorf("database \"%d\", must be a number from 0", db)
	}
	for _, address := range addresses {
		_, text, err := net.SplitHostPort(address)
		if err != nil {
			return fmt.Errorf("%q is no address: %w", address, err)
		}
		if port, err := strconv.ParseUint(text, 10, 16); err != nil || port == 0 {
			return fmt.Errorf("%q, the port must be from 1 to 65535", address)
		}
	}
	return nil
}

// plainScheme returns a URL with the scheme redis or rediss.
func plainScheme(u *url.URL) string {
	plain := *u
	plain.Scheme, _, _ = strings.Cut(u.Scheme, "+")
	return plain.String()
}

func oneClient(dial func() redis.UniversalClient) opener {
	return func(*slog.Logger) *store {
		client := dial()
		return &store{bucket: redisbucket.New(client), end: func() { _ = client.Close() }}
	}
}

// redisRing spreads keys over several servers that do not know of each other.
func redisRing(texts []string) (opener, error) {
	options := map[string]*redis.Options{}
	for _, text := range texts {
		u, err := parseURL(strings.TrimSpace(text))
		if err != nil {
			return nil, err
		}
		if u.Scheme != "redis" && u.Scheme != "rediss" {
			return nil, fmt.Errorf("%q, must begin with redis:// or rediss://, as there are several", shown(u))
		}
		one, err := redis.ParseURL(u.String())
		if err != nil {
			return nil, err
		}
		if err := checkServers(one.DB, one.Addr); err != nil {
			return nil, err
		}
		if options[one.Addr] != nil {
			return nil, fmt.Errorf("%q is named twice", one.Addr)
		}
		one.ContextTimeoutEnabled = true
		options[one.Addr] = one
	}
	return func(*slog.Logger) *store {
		clients := make(map[string]redis.UniversalClient, len(options))
		for name, one := range options {
			clients[name] = redis.NewClient(one)
		}
		return &store{bucket: redisbucket.NewRing(clients), end: func() {
			for _, client := range clients {
				_ = client.Close()
			}
		}}
	}, nil
}
