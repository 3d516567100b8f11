package shaper_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// A client that closes its sending half after its request, as nc -N and Node's
// socket.end(request) do, still reads the answer. net/http takes the end of the
// stream for the end of the client and cancels the request. If the request has not
// waited, the middleware must not treat its client as gone.

// halfClosing sends what is given on a connection of its own, closes the sending
// half, and returns how many answers of each status came. One of status 0 is added if they
// ended otherwise than with the end of the stream.
func halfClosing(t *testing.T, addr, requests string) map[int]int {
	t.Helper()
	statuses, err := endAfter(dial(t, addr), requests)
	require.NoError(t, err)
	return statuses
}

// endAfter does the same with a connection that is open, on any goroutine.
func endAfter(conn net.Conn, requests string) (map[int]int, error) {
	defer conn.Close()
	if _, err := io.WriteString(conn, requests); err != nil {
		return nil, err
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return nil, err
	}
	statuses := map[int]int{}
	for reader := bufio.NewReader(conn); ; {
		answer, err := readAnswer(reader)
		if err != nil {
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				statuses[0]++
			}
			return statuses, nil
		}
		statuses[answer.StatusCode]++
	}
}

// waitOfAnother is the time from which a call of another's limiter counts as a wait: only the
// clock tells. On a busy machine a call that did not wait may take as long.
const waitOfAnother = 20 * ms

// othersLimiters are those of openLimiters that do not say whether a request has waited.
var othersLimiters = map[string]bool{
	"x/time": true, "a Chain with x/time's": true, "a function": true, "a semaphore of one's own": true, "a Shaper in one's own type": true,
}

// openLimiters never make a request wait.
func openLimiters(t *testing.T) map[string]func(http.Handler) http.Handler {
	always := limitsOf(t, "inf")
	group := func(opts ...shaper.GroupOption) *shaper.Group[string] {
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return always, nil }, opts...)
		require.NoError(t, err)
		t.Cleanup(func() { _ = g.Close() })
		return g
	}
	of := func(l shaper.Limiter) func(http.Handler) http.Handler { return shaper.Middleware(l) }
	foreign := rate.NewLimiter(rate.Inf, 1)
	return map[string]func(http.Handler) http.Handler{
		"Shaper":                     of(mustMake(t, always)),
		"Shaper with a cap":          of(limitedInFlight(t, 10_000, 0)),
		"Group.Limiter":              of(group().Limiter("a")),
		"Group.Middleware":           group().Middleware(shaper.ByClientIP()),
		"Group in a dry run":         group(shaper.WithDryRun()).Middleware(shaper.ByClientIP()),
		"dry run":                    of(mustDryRun(t, "1 per 1h")),
		"x/time":                     of(foreign),
		"a Chain":                    of(shaper.Chain(mustMake(t, always), group().Limiter("a"))),
		"a Chain with x/time's":      of(shaper.Chain(foreign, mustMake(t, always))),
		"a function":                 of(failing(nil)),
		"a semaphore of one's own":   of(&semaphore{}),
		"a Shaper in one's own type": of(limiterFunc(mustMake(t, always).WaitN)),
	}
}

func TestAHalfClosedClientIsServedWhenNobodyWaits(t *testing.T) {
	const head = "POST / HTTP/1.1\r\nHost: a\r\n"
	for _, request := range []struct {
		name, text string
		clients    int
		each       int // requests of each client
	}{
		{"body with a length", head + "Content-Length: 5\r\n\r\nhello", 200, 1},
		{"chunked body", head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 200, 1},
		{"pipelined GETs", strings.Repeat(get("/"), 600), 1, 600},
	} {
		for _, hook := range hooks {
			for name, middleware := range openLimiters(t) {
				t.Run(strings.Join([]string{request.name, hook.name, name}, "/"), func(t *testing.T) {
					t.Parallel()
					clients := request.clients
					if name != "Shaper" && !long {
						clients = (clients + 9) / 10
					}
					shaped := middleware(http.HandlerFunc(echo))
					var delayed atomic.Bool // a request has taken so long that it may count as one that waited
					addr := openServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						begun := time.Now()
						shaped.ServeHTTP(w, r)
						if time.Since(begun) >= waitOfAnother {
							delayed.Store(true)
						}
					}), hook.set)
					want := map[int]int{http.StatusOK: request.each}
					for range clients {
						got := halfClosing(t, addr, request.text)
						for delayed.Swap(false) && !maps.Equal(got, want) && othersLimiters[name] {
							got = halfClosing(t, addr, request.text)
						}
						require.Equal(t, want, got)
					}
				})
			}
		}
	}
}

// A refusal that comes at once is answered, too, even if net/http has cancelled the request
// before.
func TestAHalfClosedClientIsToldThatItIsRefusedAtOnce(t *testing.T) {
	for name, refusal := range map[string]struct {
		by     shaper.Limiter
		status int
	}{
		"by a Shaper":   {mustMake(t, limitsOf(t, "1 per 1h")), 429},
		"by a function": {failing(errors.New("no")), 503},
	} {
		for _, hook := range hooks {
			t.Run(name+"/"+hook.name, func(t *testing.T) {
				t.Parallel()
				if s, ok := refusal.by.(*shaper.Shaper); ok {
					s.Allow()
				}
				refuse := shaper.Middleware(refusal.by)(http.NotFoundHandler())
				addr := openServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					<-r.Context().Done()
					refuse.ServeHTTP(w, r)
				}), hook.set)
				require.Equal(t, map[int]int{refusal.status: 1}, halfClosing(t, addr, get("/")))
			})
		}
	}
}

// A request that waits for the limits of its key, because another one has just asked for
// them, does not wait in a line.
func TestAHalfClosedClientIsServedThatWaitsForTheLimitsOfItsKey(t *testing.T) {
	const clients = 5
	for _, hook := range hooks {
		t.Run(hook.name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			g, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
				asked.Add(1)
				time.Sleep(300 * time.Millisecond)
				return shaper.Limits{Rate: 1, Burst: clients}, nil
			})
			require.NoError(t, err)
			t.Cleanup(func() { _ = g.Close() })
			addr := openServer(t, g.Middleware(shaper.ByClientIP())(http.HandlerFunc(echo)), hook.set)
			var all sync.WaitGroup
			for range clients {
				conn := dial(t, addr)
				all.Go(func() {
					got, err := endAfter(conn, post("/", "hello"))
					if err != nil || got[http.StatusOK] != 1 {
						t.Errorf("answers were %v, %v", got, err)
					}
				})
			}
			all.Wait()
			require.EqualValues(t, 1, asked.Load())
		})
	}
}

// After a wait the end of the stream counts, because net/http cannot tell such a client
// from one that has gone.
func TestAHalfClosedClientIsGoneAfterAWait(t *testing.T) {
	for _, hook := range hooks {
		for _, request := range []string{get("/"), post("/", "hello")} {
			for name, wait := range map[string]shaper.Limiter{
				"a function that waits for its context": limiterFunc(func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }),
				"one that does not look at it":          kept(longWait(serverTimeout), nil),
				"a Shaper":                              stuckShaper(t, 1),
			} {
				t.Run(strings.Join([]string{hook.name, request[:4], name}, "/"), func(t *testing.T) {
					t.Parallel()
					ran := false
					addr := openServer(t, shaper.Middleware(wait)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran = true })), hook.set)
					begun := time.Now()
					require.Equal(t, map[int]int{499: 1}, halfClosing(t, addr, request))
					require.False(t, ran)
					require.Less(t, time.Since(begun), enough/2)
				})
			}
		}
	}
}
