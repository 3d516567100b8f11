package shaper_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// The server's timeouts are for slow clients. A client whose request waited in line for
// longer than a timeout is not slow.

// serverTimeout is that of the servers on a machine that is in time. The handshakes of all
// connections of a test begin at once, and each must end within it. Under the race detector on
// a busy machine, beside tests that compute, a second was too short.
var serverTimeout = map[bool]time.Duration{false: 800 * ms, true: 2000 * ms}[underRace]

// longWait is a wait in line that is longer than a timeout.
func longWait(timeout time.Duration) time.Duration { return timeout * 13 / 10 }

func readTimeout(timeout time.Duration) func(*http.Server) {
	return func(s *http.Server) { s.ReadTimeout = timeout }
}

func shortTimeouts(timeout time.Duration) func(*http.Server) {
	return func(s *http.Server) { s.ReadTimeout, s.WriteTimeout = timeout, timeout }
}

// kept returns a Limiter whose every call waits, and then returns err.
func kept(wait time.Duration, err error) limiterFunc {
	return func(ctx context.Context, _ int) error {
		select {
		case <-time.After(wait):
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// A claim is a call and what it should return.
type claim struct {
	name string
	call func() string
	want string
}

// holdAtOnce checks claims. It makes all calls at once, because they spend their
// time waiting.
func holdAtOnce(t testing.TB, claims []claim) {
	t.Helper()
	got := make([]string, len(claims))
	var wg sync.WaitGroup
	for i, c := range claims {
		wg.Go(func() { got[i] = c.call() })
	}
	wg.Wait()
	for i, c := range claims {
		require.Equal(t, c.want, got[i], c.name)
	}
}

func TestTimeInTheLineCostsAnAdmittedRequestNothing(t *testing.T) {
	t.Parallel()
	unlessLate(t, serverTimeout, timeInTheLineCostsAnAdmittedRequestNothing)
}

func timeInTheLineCostsAnAdmittedRequestNothing(t testing.TB, timeout time.Duration) {
	large := strings.Repeat("0123456789", 30_000)
	var claims []claim
	for _, k := range connectionKinds {
		running := make(chan struct{})
		h := shaper.Middleware(kept(longWait(timeout), nil))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/parts" {
				close(running)
			}
			echoBody(w, r)
		}))
		client, url := k.open(t, h, shortTimeouts(timeout))
		claims = append(claims,
			claim{k.name + ", no body", func() string { return postTo(client, url, nil) }, "200: "},
			claim{k.name + ", small body", func() string { return postTo(client, url, strings.NewReader("small")) }, "200: small"},
			claim{k.name + ", large body", func() string { return postTo(client, url, strings.NewReader(large)) }, "200: " + large},
			claim{k.name + ", body that comes in parts", func() string {
				r, w := io.Pipe()
				go func() {
					_, _ = io.WriteString(w, "before ")
					<-running
					_, _ = io.WriteString(w, "and after")
					_ = w.Close()
				}()
				return postTo(client, url+"/parts", r)
			}, "200: before and after"},
		)
	}
	holdAtOnce(t, claims)
}

// Here the length is known, and half of the body comes before the wait.
func TestBodyThatTricklesAfterTheWaitIsRead(t *testing.T) {
	t.Parallel()
	unlessLate(t, serverTimeout, bodyThatTricklesAfterTheWaitIsRead)
}

func bodyThatTricklesAfterTheWaitIsRead(t testing.TB, timeout time.Duration) {
	var claims []claim
	for _, k := range connectionKinds {
		if k.tls {
			continue // The raw client does not speak it.
		}
		running := make(chan struct{})
		h := shaper.Middleware(kept(longWait(timeout), nil))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			close(running)
			echoBody(w, r)
		}))
		_, url := k.open(t, h, shortTimeouts(timeout))
		conn := dial(t, strings.TrimPrefix(url, "http://"))
		claims = append(claims, claim{k.name, func() string {
			_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n01234")
			<-running
			_, _ = io.WriteString(conn, "56789")
			answer, err := readAnswer(bufio.NewReader(conn))
			if err != nil {
				return err.Error()
			}
			return inWords(answer)
		}, "200: 0123456789"})
	}
	holdAtOnce(t, claims)
}

func TestTimeInTheLineCostsARefusalNothing(t *testing.T) {
	t.Parallel()
	unlessLate(t, serverTimeout, timeInTheLineCostsARefusalNothing)
}

func timeInTheLineCostsARefusalNothing(t testing.TB, timeout time.Duration) {
	s, err := shaper.New(shaper.Limits{Rate: rate.Every(time.Hour), Depth: 99})
	require.NoError(t, err)
	require.True(t, s.Allow())
	limiters := map[string]shaper.Limiter{
		"/full": kept(longWait(timeout), &shaper.RejectError{Reason: shaper.ErrQueueFull}),
		"/down": kept(longWait(timeout), errors.New("engine is down")),
		"/deadline": limiterFunc(func(ctx context.Context, n int) error {
			ctx, cancel := context.WithTimeout(ctx, longWait(timeout))
			defer cancel()
			<-ctx.Done()
			return ctx.Err()
		}),
		"/closed": limiterFunc(func(ctx context.Context, n int) error {
			defer time.AfterFunc(longWait(timeout), func() { _ = s.Close() }).Stop()
			return s.WaitN(ctx, n)
		}),
	}
	want := map[string]string{
		"/full":     `429, retry 1: {"title":"Too Many Requests","status":429,"detail":"Too many requests are waiting already."}`,
		"/down":     `503, retry 1: {"title":"Service Unavailable","status":503,"detail":"The request could not be admitted."}`,
		"/deadline": `503, retry 1: {"title":"Service Unavailable","status":503,"detail":"The time for the request ran out while it waited."}`,
		"/closed":   `503, retry 1: {"title":"Service Unavailable","status":503,"detail":"The server takes no more requests."}`,
	}
	var claims []claim
	for _, k := range connectionKinds {
		site := http.NewServeMux()
		for path, l := range limiters {
			site.Handle(path, shaper.Middleware(l)(echoBody))
		}
		client, url := k.open(t, site, shortTimeouts(timeout))
		for path := range limiters {
			for _, body := range []string{"", "small"} {
				claims = append(claims, claim{
					fmt.Sprintf("%s, %s, body %q", k.name, path, body),
					func() string { return postTo(client, url+path, strings.NewReader(body)) },
					want[path] + "\n",
				})
			}
		}
	}
	holdAtOnce(t, claims)
}

// net/http reads in the background while a handler runs. A read deadline that passes
// meanwhile would cancel the request's context.
func TestHandlerIsNotCancelledByTheReadTimeout(t *testing.T) {
	t.Parallel()
	unlessLate(t, serverTimeout, handlerIsNotCancelledByTheReadTimeout)
}

func handlerIsNotCancelledByTheReadTimeout(t testing.TB, timeout time.Duration) {
	outerReads := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if r.URL.Path == "/put-back" {
				r.Body = io.NopCloser(bytes.NewReader(body))
			}
			h.ServeHTTP(w, r)
		})
	}
	h := shaper.Middleware(kept(longWait(timeout), nil))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
			fmt.Fprint(w, "cancelled")
		case <-time.After(2 * timeout):
			fmt.Fprint(w, "ran to its end")
		}
	}))
	var claims []claim
	for _, k := range connectionKinds {
		client, url := k.open(t, h, readTimeout(timeout))
		outerClient, outer := k.open(t, outerReads(h), readTimeout(timeout))
		const want = "200: ran to its end"
		claims = append(claims,
			claim{k.name + ", no body", func() string { return postTo(client, url, nil) }, want},
			claim{k.name + ", body that the handler reads",
				func() string { return postTo(client, url, strings.NewReader("small")) }, want},
			claim{k.name + ", body that an outer handler has read",
				func() string { return postTo(outerClient, outer, strings.NewReader("small")) }, want},
			claim{k.name + ", and put back",
				func() string { return postTo(outerClient, outer+"/put-back", strings.NewReader("small")) }, want},
			claim{k.name + ", of unknown length, and put back",
				func() string {
					return postTo(outerClient, outer+"/put-back", io.MultiReader(strings.NewReader("small")))
				}, want},
		)
	}
	holdAtOnce(t, claims)
}

// After the wait the timeouts start anew, and are as long as before.
func TestServersTimeoutsHoldAfterTheWait(t *testing.T) {
	t.Parallel()
	unlessLate(t, serverTimeout, serversTimeoutsHoldAfterTheWait)
}

func serversTimeoutsHoldAfterTheWait(t testing.TB, timeout time.Duration) {
	var claims []claim
	for name, l := range map[string]shaper.Limiter{"a wait": kept(longWait(timeout), nil), "no wait": failing(nil)} {
		for _, k := range connectionKinds {
			read := make(chan error, 1)
			h := shaper.Middleware(l)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, err := io.Copy(io.Discard, r.Body)
				read <- err
			}))
			client, url := k.open(t, h, readTimeout(timeout))
			body, end := io.Pipe()
			t.Cleanup(func() { _ = end.Close() })
			r, err := http.NewRequest("POST", url, io.MultiReader(strings.NewReader("a part"), body))
			require.NoError(t, err)
			r.ContentLength = 100
			claims = append(claims, claim{k.name + ", " + name, func() string {
				go func() {
					if answer, err := client.Do(r); err == nil {
						_ = answer.Body.Close()
					}
				}()
				select {
				case err := <-read:
					return fmt.Sprint(errors.Is(err, os.ErrDeadlineExceeded))
				case <-time.After(enough):
					return "the handler still waits for the body"
				}
			}, "true"})
		}
	}
	holdAtOnce(t, claims)
}

func TestKeepAliveObeysTheServersTimeoutsAfterAWait(t *testing.T) {
	t.Parallel()
	unlessLate(t, serverTimeout, keepAliveObeysTheServersTimeoutsAfterAWait)
}

func keepAliveObeysTheServersTimeoutsAfterAWait(t testing.TB, timeout time.Duration) {
	var claims []claim
	for _, request := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nsmall",
	} {
		for _, hook := range hooks {
			conn := dial(t, openServer(t, shaper.Middleware(kept(longWait(timeout), nil))(echoBody), shortTimeouts(timeout), hook.set))
			claims = append(claims, claim{request + hook.name, func() (saw string) {
				reader := bufio.NewReader(conn)
				for range 2 { // The deadlines of one request don't break the next.
					_, _ = io.WriteString(conn, request)
					answer, err := readAnswer(reader)
					if err != nil {
						return err.Error()
					}
					saw += statusLine(answer) + ", "
				}
				_, err := reader.ReadByte() // IdleTimeout, which is ReadTimeout, ends the connection.
				return saw + err.Error()
			}, "200, 200, EOF"})
		}
	}
	holdAtOnce(t, claims)
}

// Without this, the other tests would prove nothing: the same server breaks the same
// uploads when the handler itself waits.
func TestTimeoutsBreakUploadsWithoutMiddleware(t *testing.T) {
	t.Parallel()
	unlessLate(t, serverTimeout, timeoutsBreakUploadsWithoutMiddleware)
}

func timeoutsBreakUploadsWithoutMiddleware(t testing.TB, timeout time.Duration) {
	var claims []claim
	for _, k := range connectionKinds {
		client, url := k.open(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = kept(longWait(timeout), nil).WaitN(r.Context(), 1)
			echoBody(w, r)
		}), shortTimeouts(timeout))
		claims = append(claims, claim{k.name, func() string {
			status, _, _ := strings.Cut(postTo(client, url, strings.NewReader("small")), ":")
			return fmt.Sprint(status == "200")
		}, "false"})
	}
	holdAtOnce(t, claims)
}
