package caddyshaper_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
)

func TestLevelsAreSharedByRedis(t *testing.T) {
	redis := servers.StartRedis(t)
	t.Setenv("SHAPER_TEST_PASSWORD", "s3cret")
	redis.MustDo("CONFIG", "SET", "requirepass", "s3cret")
	sharedLevels(t, "redis://:{env.SHAPER_TEST_PASSWORD}@"+redis.Addr)
}

func TestLevelsAreSharedByPostgres(t *testing.T) {
	server := servers.StartPostgres(t)
	sharedLevels(t, server.URL)
}

// sharedLevels has two processes with the same store.
func sharedLevels(t *testing.T, store string) {
	directives := fmt.Sprintf("shape line {\n limits 1/min\n key {query.user}\n site 1/min burst 2\n store %q\n}%s", store, proxied)
	one := serve(t, directives)
	require.Eventually(t, func() bool { return one.get("/?user=ann").status == 200 }, enough, tick)
	other := newSite(t)
	other.start(directives)
	require.Equal(t, 429, other.get("/?user=ann").status, "the other process has let her pass")
	require.Equal(t, 200, other.get("/?user=bob").status)
	require.Equal(t, 429, one.get("/?user=cid").status, "the site has let two pass")
}

func TestWithoutItsStoreALineGoesByTheFallback(t *testing.T) {
	redis := servers.StartRedis(t)
	redis.Kill()
	for fallback, status := range map[string]int{"closed": 503, "open": 200, "local 2": 200} {
		s := serve(t, fmt.Sprintf("shape line {\n limits 100/s burst 100\n store redis://%s\n fallback %s\n}%s", redis.Addr, fallback, proxied))
		require.Eventually(t, func() bool { return s.get("/").status == status }, enough, tick, "fallback %s", fallback)
		if status == 503 {
			require.NotEmpty(t, s.get("/").header.Get("Retry-After"))
		}
		s.stop()
	}
}

// A line on standard error has no time and no level, and a program that collects Caddy's log
// does not see it.
func TestWhatTheClientOfRedisTellsIsInCaddysLog(t *testing.T) {
	redis := servers.StartRedis(t)
	redis.Kill()
	s := serve(t, fmt.Sprintf("shape line {\n limits 100/s burst 100\n store redis://%s\n fallback open\n}%s", redis.Addr, proxied))
	require.NoError(t, s.get("/").err)
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(s.log + ".app")
		return err == nil && regexp.MustCompile(`(?m)^.*"level":"warn".*"logger":"shape\.redis".*`+regexp.QuoteMeta(redis.Addr)).Match(text)
	}, enough, tick)
}

// A refuser is a handler whose configuration fails, after a while in which those in front of it
// have been provisioned.
type refuser struct{}

func init() {
	caddy.RegisterModule(refuser{})
	httpcaddyfile.RegisterHandlerDirective("test_refuse", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		return refuser{}, nil
	})
	httpcaddyfile.RegisterDirectiveOrder("test_refuse", httpcaddyfile.After, "invoke")
}

func (refuser) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.test_refuse", New: func() caddy.Module { return new(refuser) }}
}

func (refuser) Provision(caddy.Context) error {
	time.Sleep(200 * time.Millisecond)
	return errors.New("test_refuse refuses")
}

func (refuser) ServeHTTP(http.ResponseWriter, *http.Request, caddyhttp.Handler) error { return nil }

// "shaperd validate" must make no table.
func TestAConfigurationThatIsNotStartedLeavesItsStoreAlone(t *testing.T) {
	server, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer server.Close()
	s := newSite(t)
	for _, store := range []string{"postgres://%s/db?sslmode=disable", "redis://%s"} {
		store = fmt.Sprintf(store, server.Addr())
		require.ErrorContains(t, s.load("shape line {\n limits 1/s\n site 1/s\n store "+store+"\n}\n	test_refuse"+proxied), "test_refuse refuses")
	}
	require.NoError(t, server.SetDeadline(time.Now().Add(tick)))
	_, err = server.Accept()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "somebody has called the server")
}
