package inspect_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/shaper"
)

const (
	patience = 30 * time.Second      // for what should have happened long before
	tick     = 10 * time.Millisecond // between two looks at it
)

// request returns a request of a client of the same machine, with changes made to it.
func request(method, target string, edits ...func(*http.Request)) *http.Request {
	r := httptest.NewRequest(method, target, nil)
	r.Host, r.RemoteAddr = "localhost:8080", "127.0.0.1:4000"
	for _, edit := range edits {
		edit(r)
	}
	return r
}

// command returns a request that changes something, with changes made to it.
func command(path, body string, edits ...func(*http.Request)) *http.Request {
	r := request(http.MethodPost, path)
	r.Body = io.NopCloser(strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+token)
	for _, edit := range edits {
		edit(r)
	}
	return r
}

// ask returns the answer to a GET request, without a network.
func ask(i http.Handler, target string, edits ...func(*http.Request)) *httptest.ResponseRecorder {
	return recorded(i, request(http.MethodGet, target, edits...))
}

// told reads the answer to a GET request into value. It must be as the document of the API says.
func told(t *testing.T, i http.Handler, target string, value any) {
	t.Helper()
	w := ask(i, target)
	require.Equal(t, http.StatusOK, w.Code, "%s: %s", target, w.Body)
	requireDescribed(t, "get", target, w)
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), value))
}

func recorded(i http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	i.ServeHTTP(w, r)
	return w
}

type (
	bucket = inspect.Bucket
	list   = inspect.List
	frame  = inspect.Point
)

// keysOf returns the keys of the buckets of a list, in their order.
func keysOf(l list) []string {
	keys := []string{}
	for _, b := range l.Buckets {
		keys = append(keys, b.Key)
	}
	return keys
}

// listOf returns the answer to a request for a list, which must be one.
func listOf(t *testing.T, i http.Handler, query string) (l list) {
	t.Helper()
	return listIn(t, ask(i, "/api/buckets?"+query))
}

// listIn returns the list that an answer holds.
func listIn(t *testing.T, w *httptest.ResponseRecorder) (l list) {
	t.Helper()
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &l))
	return l
}

// blank returns an Inspector without a source, until the test ends.
func blank(t testing.TB, opts ...inspect.Option) *inspect.Inspector {
	i := inspect.New(opts...)
	t.Cleanup(func() { require.NoError(t, i.Close()) })
	return i
}

// show returns an Inspector that shows a source under a name, until the test ends.
func show(t testing.TB, name string, source inspect.Source, opts ...inspect.Option) *inspect.Inspector {
	i := blank(t, opts...)
	i.Add(name, source)
	return i
}

// lineUp lets n calls with a key wait until the test ends, in a bubble.
func lineUp(t *testing.T, g *shaper.Group[string], key string, n int) {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	for range n {
		go func() { _ = g.Wait(ctx, key) }()
		synctest.Wait()
	}
}

// A reader is a client that reads the stream of events over a connection without any
// memory in between: bytes that it does not read hold up the writer.
type reader struct {
	t      *testing.T
	events *bufio.Scanner
	conn   net.Conn
	cancel context.CancelFunc
	ended  chan struct{} // closed when the Inspector has done with the request
	status int           // after ended
	header http.Header   // after an event
}

// streamWriter is the answer to a reader.
type streamWriter struct {
	net.Conn
	r *reader
}

func (w streamWriter) Header() http.Header    { return w.r.header }
func (w streamWriter) WriteHeader(status int) { w.r.status = status }
func (w streamWriter) FlushError() error      { return nil }

// listen begins to read a stream.
func listen(t *testing.T, i http.Handler, target string) *reader {
	ctx, cancel := context.WithCancel(t.Context())
	client, server := net.Pipe()
	r := &reader{t: t, events: bufio.NewScanner(client), conn: client, cancel: cancel, ended: make(chan struct{}), header: http.Header{}}
	r.events.Buffer(nil, 1<<20)
	go func() {
		defer close(r.ended)
		defer server.Close()
		i.ServeHTTP(streamWriter{server, r}, request(http.MethodGet, target).WithContext(ctx))
	}()
	t.Cleanup(r.leave)
	return r
}

// leave closes the connection of a reader, and waits for the end of its stream.
func (r *reader) leave() {
	r.cancel()
	_ = r.conn.Close()
	<-r.ended
}

// An event is one of a stream; a comment has the name ":".
type event struct {
	name string
	data string
}

// next returns the next event. The stream must not be at its end.
func (r *reader) next() event {
	r.t.Helper()
	e, err := r.tryNext()
	require.NoError(r.t, err)
	return e
}

func (r *reader) tryNext() (e event, err error) {
	for r.events.Scan() {
		line := r.events.Text()
		switch {
		case strings.HasPrefix(line, "event: "):
			e.name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			e.data = line[len("data: "):]
		case strings.HasPrefix(line, ":"):
			e.name = ":"
		case line == "":
			return e, nil
		}
	}
	if err := r.events.Err(); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		return e, err
	}
	return e, io.EOF
}

// until returns the data of the next event of a name.
func (r *reader) until(name string, data any) {
	r.t.Helper()
	for {
		if e := r.next(); e.name == name {
			require.NoError(r.t, json.Unmarshal([]byte(e.data), data))
			return
		}
	}
}

// after returns the instant of a frame since began.
func after(began time.Time, f frame) time.Duration { return time.UnixMilli(f.AtMS).Sub(began) }

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
