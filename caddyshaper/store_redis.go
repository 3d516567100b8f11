package caddyshaper

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"example.com/leakybucket/redisbucket"
)

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
