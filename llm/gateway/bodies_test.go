package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/shaper"
)

// bodyOf returns a body of so many bytes for an answer of 1,000 tokens, which is said at its end.
func bodyOf(size int) string {
	const begin, end = `{"messages":[{"role":"user","content":"`, `"}],"max_tokens":1000}`
	return begin + strings.Repeat("x", size-len(begin)-len(end)) + end
}

// post returns a call with a body.
func post(t testing.TB, ctx context.Context, body io.Reader, size int) *http.Request {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://llm.test/v1/chat/completions", body)
	require.NoError(t, err)
	r.ContentLength, r.GetBody = int64(size), nil
	return r
}

// held returns what is held of bodies.
func (g *rig) held() int64 { return g.Ledger().Status(time.Now(), 0).BodyBytes }

// dialer serves a handler over connections in memory.
func dialer(t *testing.T, h http.Handler) (dial func() net.Conn) {
	listener := pipe{make(chan net.Conn)}
	server := &http.Server{Handler: h, ReadTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return func() net.Conn {
		client, conn := net.Pipe()
		listener.conns <- conn
		return client
	}
}

// head is that of a call of a team.
func head(team string, size int) string {
	return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: llm.test\r\nX-Team: %s\r\nContent-Length: %d\r\n\r\n", team, size)
}

// statusOf reads an answer from a connection.
func statusOf(t *testing.T, conn net.Conn) (int, string) {
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Error(err)
	}
	return answer.StatusCode, string(body)
}

// Once the answer has begun nothing can be sent again. A stream that lasts for minutes keeps nothing of its call.
func TestNoBodyIsKeptWhileItsAnswerStreams(t *testing.T) {
	const calls, size = 30, 1 << 20
	long := bodyOf(2 * size)
	for name, change := range map[string]func(r *http.Request){
		"whole":                  func(*http.Request) {},
		"longer than is read":    func(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(strings.NewReader(long)), 2*size },
		"of unknown length":      func(r *http.Request) { r.ContentLength = -1 },
		"refused the first time": func(r *http.Request) { r.Header.Set("Refused", "1") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				end := make(chan bool)
				refused := &sync.Map{}
				next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, err := io.Copy(io.Discard, r.Body)
					require.NoError(t, err)
					if _, again := refused.LoadOrStore(r.Header.Get("Call"), true); !again && r.Header.Get("Refused") != "" {
						w.WriteHeader(429)
						return
					}
					_, _ = io.WriteString(w, "data: {}\n\n")
					<-end
				})
				g := newRig(t, "openai", llm.Quota{Requests: 60_000}, next, func(c *gateway.Config, _ *shaper.Limits) { c.Bodies = 2 * calls * size })
				text := bodyOf(size)
				before := heap()
				for i := range calls {
					r := post(t, t.Context(), strings.NewReader(text), size)
					r.Header.Set("Call", fmt.Sprint(i))
					change(r)
					go g.call("gold", r)
				}
				time.Sleep(5 * time.Second)
				synctest.Wait()
				require.Zero(t, g.held())
				each := (int64(heap()) - int64(before)) / calls
				t.Logf("%d bytes for each call", each)
				require.Less(t, each, int64(32<<10))
				runtime.KeepAlive(text)
				close(end)
				synctest.Wait()
				require.Equal(t, calls, g.ended())
			})
		})
	}
}

// Calls that find no room are served all the same, by their length: they keep nothing, and are not sent again.
func TestWhatCallsInLineKeepIsBounded(t *testing.T) {
	const calls, size, most = 100, 1 << 20, 8 << 20
	for _, said := range []int{size, -1} {
		synctest.Test(t, func(t *testing.T) {
			attempts := 0
			next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				attempts++
				text, err := io.ReadAll(r.Body)
				require.NoError(t, err)
				require.Len(t, text, size)
				w.Header().Set("Retry-After-Ms", "1")
				w.WriteHeader(429)
			})
			g := newRig(t, "anthropic", llm.Quota{Requests: 600}, next, func(c *gateway.Config, l *shaper.Limits) { c.Bodies, l.InFlight = most, 1 })
			g.line.Hold(time.Minute)
			text := bodyOf(size)
			before := heap()
			for range calls {
				go g.call("gold", post(t, t.Context(), strings.NewReader(text), said))
				synctest.Wait()
			}
			require.Equal(t, calls, g.line.Stats().Waiting, "none is refused")
			st := g.Ledger().Status(time.Now(), 0)
			require.EqualValues(t, most, st.MostBodyBytes)
			require.LessOrEqual(t, st.BodyBytes, st.MostBodyBytes)
			if said == size {
				require.EqualValues(t, 7*(size+1), st.BodyBytes, "a call that does not fit keeps nothing")
			}
			kept := int64(heap()) - int64(before)
			t.Logf("%d bytes for %d calls", kept, calls)
			require.Less(t, kept, int64(most+calls*32<<10))
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			require.Equal(t, calls, g.ended())
			whole := 0
			for _, r := range g.records {
				require.Equal(t, 429, r.Status)
				require.Equal(t, gateway.Used{Input: size / 4, Output: 1000}, r.Estimate, "the whole counts when it has passed")
				if r.HeldByProvider {
					whole++
				}
			}
			require.Equal(t, most/size-1, whole, "a byte shows that a body is not longer") // 7 of 1 MiB and a byte.
			require.Equal(t, calls+whole, attempts, "those that are kept are sent again")
			require.Zero(t, g.held())
			require.Contains(t, g.log.String(), "there is no room for the bodies of calls")
		})
	}
}

// Of calls under way bodies are kept for one case alone. Those that come need their room more, except from a call that will be sent again.
func TestACallThatComesTakesTheRoomOfOneUnderWay(t *testing.T) {
	const size = 1000
	for _, c := range []struct {
		name     string
		room     int
		attempts int // of the first call
	}{{"there is room for all", 3 * (size + 1), 2}, {"there is room for one", size + 1, 1}} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			attempts := map[string]int{}
			g := newRig(t, "openai", llm.Quota{Requests: 6000}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				text, err := io.ReadAll(r.Body)
				require.NoError(t, err)
				require.Equal(t, bodyOf(size), string(text))
				mu.Lock()
				team := r.Header.Get("X-Team")
				attempts[team]++
				again := attempts[team] > 1
				mu.Unlock()
				if again {
					return
				}
				time.Sleep(time.Second)
				w.Header().Set("Retry-After", "10")
				w.WriteHeader(429)
			}), func(c2 *gateway.Config, _ *shaper.Limits) { c2.Bodies = int64(c.room) })
			for _, team := range []string{"first", "second"} {
				go g.call(team, post(t, t.Context(), strings.NewReader(bodyOf(size)), size))
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(2 * time.Second) // The second call waits to be sent again, and a third comes.
			go g.call("third", post(t, t.Context(), strings.NewReader(bodyOf(size)), size))
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Equal(t, c.attempts, attempts["first"], c.name)
			require.Equal(t, 2, attempts["second"], c.name)
			require.Equal(t, 3, g.ended())
			require.Equal(t, c.attempts, attempts["third"], "for a call that found no room nothing is kept")
			for _, r := range g.records {
				require.Equal(t, 1000, r.Estimate.Output, "of %s: %s", r.Team, c.name)
			}
			require.Zero(t, g.held())
		})
	}
}

// A body that does not come is refused in the form of the provider, and the client is told as it still keeps the rest back.
func TestABodyThatDoesNotComeEndsInTime(t *testing.T) {
	for provider, code := range map[string]string{
		"openai": `"invalid_request_error"`, "anthropic": `"timeout_error"`, "gemini": `"DEADLINE_EXCEEDED"`, "bedrock": "did not come",
	} {
		for _, size := range []int{100, 1 << 20} {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, provider, llm.Quota{Requests: 60}, http.NotFoundHandler(), func(c *gateway.Config, _ *shaper.Limits) { c.BodyTimeout = 20 * time.Second })
				conn := dialer(t, g)()
				_, err := io.WriteString(conn, head("gold", size)+bodyOf(size)[:size-1])
				require.NoError(t, err)
				status, body := statusOf(t, conn)
				require.Equal(t, 408, status)
				require.Contains(t, body, code)
				require.Contains(t, body, "The body of the request did not come.")
				require.Equal(t, 20*time.Second, time.Since(epoch))
				require.Equal(t, 408, g.last(t).Status)
				require.Zero(t, g.line.Stats().Departed)
				require.Zero(t, g.held())
				require.NoError(t, conn.Close())
			})
		}
	}
}

// Whoever has no token is told so even while it keeps its body back.
func TestAStrangerThatKeepsItsBodyBackIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, "openai", llm.Quota{Requests: 60}, http.NotFoundHandler(), func(c *gateway.Config, _ *shaper.Limits) {
			c.Team = func(*http.Request) (string, bool) { return "", false }
		})
		conn := dialer(t, g)()
		_, err := io.WriteString(conn, head("gold", 100)+"{")
		require.NoError(t, err)
		status, _ := statusOf(t, conn)
		require.Equal(t, 401, status)
		require.Equal(t, 100*time.Millisecond, time.Since(epoch))
		require.NoError(t, conn.Close())
	})
}

// As issue 38 demands: a thousand connections keep back the last byte of 1 MiB. They take what the bound allows, all of them end, and
// calls beside them are read whole and leave.
func TestAThousandBodiesThatDoNotComeHarmNobody(t *testing.T) {
	const bad, size = 1000, 1 << 20
	synctest.Test(t, func(t *testing.T) {
		next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
		g := newRig(t, "anthropic", llm.Quota{Requests: 600}, next, func(_ *gateway.Config, l *shaper.Limits) { l.Depth = 10 })
		dial, text := dialer(t, g), bodyOf(size)
		before := heap()
		var ends sync.WaitGroup
		var mu sync.Mutex
		said := map[int]int{} // how many were told a status
		for range bad {
			conn := dial()
			go func() { // It ends when the server has closed the connection.
				_, _ = io.WriteString(conn, head("bad", size))
				_, _ = io.WriteString(conn, text[:size-1])
			}()
			ends.Go(func() {
				answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					said[answer.StatusCode]++
				} else {
					said[0]++
				}
				_ = conn.Close() // It never fails.
			})
		}
		time.Sleep(2 * time.Second)
		taken := int64(heap()) - int64(before)
		t.Logf("%d bytes for %d connections", taken, bad)
		require.Less(t, taken, int64(gateway.DefaultBodies+bad*48<<10))
		require.LessOrEqual(t, g.held(), int64(gateway.DefaultBodies))
		for range 20 {
			conn, begun := dial(), time.Now()
			go func() { _, _ = io.WriteString(conn, head("good", size)+text) }()
			status, _ := statusOf(t, conn)
			require.Equal(t, 200, status)
			require.Less(t, time.Since(begun), 2*time.Second)
			require.NoError(t, conn.Close())
		}
		ends.Wait()
		t.Log(said)
		require.Less(t, time.Since(epoch), 2*time.Minute)
		require.Positive(t, said[408], "they were too slow")
		require.Positive(t, said[503], "they had to make room")
		require.Positive(t, said[429], "there was no room for them, nor in the line")
		synctest.Wait()
		require.Zero(t, g.held())
		for _, r := range g.records {
			if r.Team == "good" {
				require.Equal(t, 1000, r.Estimate.Output, "it was read whole")
			}
		}
	})
}

// However bodies come, be they slow, cut off or of unknown length, each call has one end, its body is whole, and no room is lost.
func TestManyBodiesInLittleRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text, err := io.ReadAll(r.Body)
			if err != nil {
				w.WriteHeader(http.StatusTeapot)
				return
			}
			if len(text)%7 == 0 && r.Header.Get("Tried") == "" {
				r.Header.Set("Tried", "1") // It is not seen by the second attempt.
				w.Header().Set("Retry-After-Ms", "1")
				w.WriteHeader([]int{429, 503, 200}[len(text)%3])
			}
			_, _ = w.Write(text)
		})
		g := newRig(t, "anthropic", llm.Quota{Requests: 6000}, next, func(c *gateway.Config, _ *shaper.Limits) {
			c.Bodies, c.BodyTimeout = 300<<10, 10*time.Second
		})
		dial := dialer(t, g)
		said := map[int]int{}
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range 300 {
			all.Go(func() {
				random := rand.New(rand.NewPCG(7, uint64(i)))
				text := bodyOf(100 + random.IntN(64<<10))
				time.Sleep(time.Duration(random.IntN(5000)) * time.Millisecond)
				conn := dial()
				defer conn.Close()
				go func() {
					pieces := strings.NewReader(head("gold", len(text)) + text)
					chunked := i%5 == 0
					if chunked {
						pieces = strings.NewReader(fmt.Sprintf("POST / HTTP/1.1\r\nHost: llm.test\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(text), text))
					}
					for n := 1 + random.IntN(4); n > 0; n-- {
						_, _ = io.CopyN(conn, pieces, int64(pieces.Len()/n))
						time.Sleep(time.Duration(random.IntN(3)*random.IntN(2000)) * time.Millisecond)
					}
					if i%11 == 0 { // The client goes.
						_ = conn.Close()
					}
				}()
				answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
				status := 0
				if err == nil {
					status = answer.StatusCode
					body, err := io.ReadAll(answer.Body)
					if status == 200 && i%11 != 0 && (err != nil || string(body) != text) {
						t.Errorf("the body was changed: %d bytes of %d, %v", len(body), len(text), err)
					}
				}
				mu.Lock()
				defer mu.Unlock()
				said[status]++
			})
		}
		all.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		t.Log(said)
		require.Equal(t, 300, g.ended())
		require.Zero(t, g.held())
		require.Zero(t, g.line.Stats().Reserved)
		require.Greater(t, said[200], 100)
		require.Positive(t, said[503])
	})
}

// Over HTTP/2, where a deadline ends the body and not the connection, it is the same, and a call beside it is served.
func TestABodyThatDoesNotComeOverHTTP2EndsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, "openai", llm.Quota{Requests: 60}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }), nil)
		client, conn := net.Pipe()
		accepted := pipe{make(chan net.Conn, 1)} // one connection
		accepted.conns <- conn
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		server := &http.Server{Handler: g, Protocols: protocols}
		go func() { _ = server.Serve(accepted) }()
		transport := &http.Transport{
			Protocols:   protocols,
			DialContext: func(context.Context, string, string) (net.Conn, error) { return client, nil },
		}
		rest, body := io.Pipe()
		ended := make(chan int)
		go func() {
			answer, err := transport.RoundTrip(post(t, t.Context(), io.MultiReader(strings.NewReader("{"), rest), -1))
			if err != nil {
				t.Error(err)
			} else {
				ended <- answer.StatusCode
			}
			close(ended)
		}()
		time.Sleep(time.Second)
		answer, err := transport.RoundTrip(post(t, t.Context(), strings.NewReader(bodyOf(5000)), 5000))
		require.NoError(t, err)
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.Equal(t, bodyOf(5000), string(text))
		require.Equal(t, 408, <-ended)
		require.Equal(t, gateway.DefaultBodyTimeout, time.Since(epoch))
		require.NoError(t, body.Close())
		synctest.Wait()
		require.Zero(t, g.held())
		transport.CloseIdleConnections()
		require.NoError(t, server.Close())
	})
}
