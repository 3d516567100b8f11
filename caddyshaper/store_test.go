package caddyshaper_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
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

// callTimeout is after what time package shaper gives up a call of a store.
const callTimeout = 250 * time.Millisecond

// sharedLevels has two processes with the same store. A call that is given up may have counted
// all the same, so where a request took so long nothing else is sure: then it is tried again,
// with lines of other names.
func sharedLevels(t *testing.T, store string) {
	one := newSite(t)
	for attempt := 1; ; attempt++ {
		directives := fmt.Sprintf("shape /warm warm {\n limits 100/s burst 100\n store %[1]q\n}\n"+
			"shape /line line%[2]d {\n limits 1/h\n key {query.user}\n site 1/h burst 2\n store %[1]q\n}\n", store, attempt) + proxied
		one.reload(directives)
		other := newSite(t)
		second := other.start(directives)
		for _, s := range []*site{one, other} { // The first call makes a connection, if not a table.
			realtime.Until(t, func() bool { return s.get("/warm").status == 200 }, "a request leaves by the store")
		}
		var longest time.Duration
		status := func(s *site, user string) int {
			begun := time.Now()
			defer func() { longest = max(longest, time.Since(begun)) }()
			return s.get("/line?user=" + user).status
		}
		// The other process knows that she has passed, and both that two have passed the site.
		want := []int{200, 429, 200, 429}
		got := []int{status(one, "ann"), status(other, "ann"), status(other, "bob"), status(one, "cid")}
		if !slices.Equal(want, got) && longest > callTimeout*4/5 && attempt < 8 {
			t.Logf("%v, but a request took %v", got, longest)
			second.Kill()
			continue
		}
		require.Equal(t, want, got)
		return
	}
}

func TestWithoutItsStoreALineGoesByTheFallback(t *testing.T) {
	redis := servers.StartRedis(t)
	redis.Kill()
	for fallback, status := range map[string]int{"closed": 503, "open": 200, "local 2": 200} {
		s := serve(t, fmt.Sprintf("shape line {\n limits 100/s burst 100\n store redis://%s\n fallback %s\n}%s", redis.Addr, fallback, proxied))
		realtime.Until(t, func() bool { return s.get("/").status == status }, "what comes is answered as with fallback "+fallback)
		if status == 503 {
			require.NotEmpty(t, s.get("/").header.Get("Retry-After"))
		}
		s.stop()
	}
}

// Without a bound a request in line hangs for as long as the store is away, as it has no deadline
// but the patience of its client.
func TestNoRequestInLineHangsWhenTheStoreIsAway(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) (store string, away func()){
		"Redis is killed": func(t *testing.T) (string, func()) {
			redis := servers.StartRedis(t)
			return "redis://" + redis.Addr, redis.Kill
		},
		"PostgreSQL does not answer": func(t *testing.T) (string, func()) {
			postgres := servers.StartPostgres(t)
			proxy := servers.StartProxy(t, postgres.Addr)
			return strings.Replace(postgres.URL, postgres.Addr, proxy.Addr, 1), func() { proxy.BlackHole(true) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			store, away := start(t)
			s := serve(t, fmt.Sprintf("shape line {\n limits 1/s depth 100 wait 1min\n store %q\n patience 1s\n}%s", store, proxied))
			realtime.Until(t, func() bool { return s.get("/").status == 200 }, "a request leaves by the store")
			answers := make(chan answer, 30)
			for range cap(answers) {
				go func() { answers <- s.get("/") }()
			}
			require.Equal(t, 200, (<-answers).status, "the others wait, each for a second more")
			away()
			refused := 0
			for range cap(answers) - 1 {
				switch a := <-answers; a.status {
				case 503:
					require.NotEmpty(t, a.header.Get("Retry-After"))
					refused++
				default:
					require.Equal(t, 200, a.status, "it has had its slot already")
				}
			}
			require.Greater(t, refused, 20)
		})
	}
}

// A line on standard error has no time and no level, and a program that collects Caddy's log
// does not see it.
func TestWhatTheClientOfRedisTellsIsInCaddysLog(t *testing.T) {
	redis := servers.StartRedis(t)
	redis.Kill()
	s := serve(t, fmt.Sprintf("shape line {\n limits 100/s burst 100\n store redis://%s\n fallback open\n}%s", redis.Addr, proxied))
	require.NoError(t, s.get("/").err)
	realtime.Until(t, func() bool {
		text, err := os.ReadFile(s.log + ".app")
		return err == nil && regexp.MustCompile(`(?m)^.*"level":"warn".*"logger":"shape\.redis".*`+regexp.QuoteMeta(redis.Addr)).Match(text)
	}, "the log has the line")
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
