package shaper_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// In HTTP/2 many requests share a connection. What happens to one must not affect
// the others.

func TestResetStreamFreesItsPlaceAndNoOther(t *testing.T) {
	for name, body := range map[string]func() io.Reader{
		"without a body": func() io.Reader { return nil },
		"unread body":    func() io.Reader { return bytes.NewReader(make([]byte, 1<<20)) },
	} {
		t.Run(name, func(t *testing.T) {
			var connections atomic.Int64
			s := stuckShaper(t, 2)
			client, url := http2Kind.open(t, shaper.Middleware(s)(echoBody), countConnections(&connections))
			stays := send(t.Context(), t, client, url, strings.NewReader("stays"))
			realtime.Until(t, inLine(s, 1), "the first waits")
			ctx, cancel := context.WithCancel(t.Context())
			leaves := send(ctx, t, client, url, body())
			realtime.Until(t, inLine(s, 2), "the line is full")

			cancel()
			require.Contains(t, realtime.Next(t, leaves), "context canceled")
			realtime.Until(t, inLine(s, 1), "the place is free")
			second := send(t.Context(), t, client, url, strings.NewReader("second"))
			realtime.Until(t, inLine(s, 2), "somebody has taken it")
			require.NoError(t, s.SetLimits(shaper.Limits{Rate: rate.Inf}))
			require.Equal(t, "200: stays", realtime.Next(t, stays))
			require.Equal(t, "200: second", realtime.Next(t, second))
			require.Equal(t, uint64(1), s.Stats().Abandoned)
			require.EqualValues(t, 1, connections.Load())
		})
	}
}

// In HTTP/2 even a read of no bytes waits until a part of the body has come, so the
// middleware must not read before the request is in line.
func TestWithheldUploadEntersTheLine(t *testing.T) {
	s := stuckShaper(t, 1)
	client, url := http2Kind.open(t, shaper.Middleware(s)(echoBody), func(s *http.Server) { s.ReadTimeout = enough })
	body, end := io.Pipe()
	r, err := http.NewRequest("POST", url, body)
	require.NoError(t, err)
	r.ContentLength = int64(len("late"))
	became := do(client, r)
	realtime.Until(t, inLine(s, 1), "it is in line")
	refused := send(t.Context(), t, client, url, nil)
	require.Contains(t, realtime.Next(t, refused), "429, retry ")
	require.NoError(t, s.SetLimits(shaper.Limits{Rate: rate.Inf}))
	_, _ = io.WriteString(end, "late")
	_ = end.Close()
	require.Equal(t, "200: late", realtime.Next(t, became))
}

// A refusal ends the stream, not the connection.
func TestRefusedUploadLeavesTheConnectionToTheOthers(t *testing.T) {
	var connections atomic.Int64
	client, url := http2Kind.open(t, refusingHandler(t), countConnections(&connections))
	for _, body := range bodySizes {
		for range 5 {
			became := send(t.Context(), t, client, url, bytes.NewReader(make([]byte, body.size)))
			require.Contains(t, realtime.Next(t, became), "429, retry ", body.name)
		}
	}
	require.EqualValues(t, 1, connections.Load())
}

// recommended are the settings that the documents recommend. The connection's window
// has room for what clients may send on all streams before a handler reads, so that
// requests that wait leave some of it to those that run. The window of a stream is
// 64 KiB: a client that has not read the settings yet would overrun a smaller one.
func recommended(s *http.Server) {
	s.HTTP2 = &http.HTTP2Config{
		MaxConcurrentStreams:          128,
		MaxReceiveBufferPerStream:     64 << 10,
		MaxReceiveBufferPerConnection: 128 * 64 << 10,
	}
}

func TestQueuedUploadsDoNotStallAnotherOnTheirConnection(t *testing.T) {
	const queued = 100
	const size = 1 << 20
	for _, row := range []struct {
		name      string
		configure func(*http.Server)
		passes    bool
	}{
		{"recommended settings", recommended, true},
		{"settings of net/http", func(*http.Server) {}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			var connections atomic.Int64
			s := stuckShaper(t, queued)
			free := shaper.WithCost(func(r *http.Request) int {
				if r.URL.Path == "/free" {
					return 0
				}
				return 1
			})
			length := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n, _ := io.Copy(io.Discard, r.Body)
				if n == size {
					_, _ = io.WriteString(w, "all came")
				}
			})
			client, url := http2Kind.open(t, shaper.Middleware(s, free)(length), row.configure, countConnections(&connections))
			content := make([]byte, size)
			require.Equal(t, "200: all came", realtime.Next(t, send(t.Context(), t, client, url+"/free", bytes.NewReader(content))))

			ctx, leave := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for range queued {
				became := send(ctx, t, client, url, bytes.NewReader(content))
				all.Go(func() { <-became })
			}
			realtime.Until(t, inLine(s, queued), "all wait")

			extra := send(ctx, t, client, url+"/free", bytes.NewReader(content))
			if row.passes {
				require.Equal(t, "200: all came", realtime.Next(t, extra))
			} else {
				// Were this to pass, net/http would no longer need the settings.
				select {
				case became := <-extra:
					t.Error("it passed without: " + became)
				case <-time.After(300 * ms):
				}
			}
			require.EqualValues(t, 1, connections.Load())
			leave()
			all.Wait()
		})
	}
}
