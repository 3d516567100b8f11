package sharedfaults_test

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper"
)

// openBucket returns the shared bucket of a plan, and what closes it.
func openBucket(p plan) (b shaper.Bucket, closeBucket func(), err error) {
	switch p.Engine {
	case redisEngine, clusterEngine, sentinelEngine:
		o := &redis.UniversalOptions{
			Addrs: p.Addrs, IsClusterMode: p.Engine == clusterEngine, MasterName: p.Master,
			ContextTimeoutEnabled: true, DialTimeout: time.Second, DialerRetries: 1, MaxRetries: -1,
		}
		client := redis.NewUniversalClient(o)
		return redisbucket.New(client), func() { client.Close() }, nil
	case postgresEngine:
		return openPostgres(p)
	case remoteEngine:
		return &remoteBucket{addr: p.Addrs[0]}, func() {}, nil
	}
	return nil, nil, fmt.Errorf("no such engine: %q", p.Engine)
}

// open returns the shared bucket of a plan for a test of one process.
func open(t *testing.T, p plan) shaper.Bucket {
	t.Helper()
	b, closeBucket, err := openBucket(p)
	require.NoError(t, err)
	t.Cleanup(closeBucket)
	return b
}

// startEngine starts a server and returns its address, or URL.
func startEngine(t *testing.T, e engine) string {
	t.Helper()
	if e == postgresEngine {
		return startPostgres(t).URL
	}
	return startRedis(t).Addr
}

func startRedis(t *testing.T, options ...string) *servers.Redis {
	t.Helper()
	return servers.StartRedis(t, options...)
}

// info returns a number or text that a server of Redis tells about itself.
func info(t *testing.T, r *servers.Redis, section, name string) string {
	t.Helper()
	for line := range strings.Lines(r.MustDo("INFO", section).(string)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return value
		}
	}
	return ""
}

// hostPort returns the parts of an address.
func hostPort(t *testing.T, addr string) (host, port string) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	return host, port
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
