package inspect_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
)

// A reader is a client that reads the stream of events over a connection without any
// memory in between: what it does not read holds up the writer.
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
func listen(t *testing.T, i *inspect.Inspector, target string) *reader {
	ctx, cancel := context.WithCancel(t.Context())
	client, server := net.Pipe()
	r := &reader{t: t, events: bufio.NewScanner(client), conn: client, cancel: cancel, ended: make(chan struct{}), header: http.Header{}}
	r.events.Buffer(nil, 1<<20)
	go func() {
		defer close(r.ended)
		defer server.Close()
		i.ServeHTTP(streamWriter{server, r}, request(http.MethodGet, target).WithContext(ctx))
	}()
	t.Cleanup(func() {
		cancel()
		_ = client.Close()
		<-r.ended
	})
	return r
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

// A frame is what tests look at of a point of a history.
type frame struct {
	At         int64 `json:"at_ms"`
	Arrivals   float64
	Departures float64
	Refusals   float64
	Abandoned  float64
	Waiting    int
	Level      *float64
	Rate       *float64
	Depth      *int
	Held       bool
	DryRun     bool `json:"dry_run"`
}

// at is the instant of a frame since began.
func (f frame) since(began time.Time) time.Duration {
	return time.UnixMilli(f.At).Sub(began)
}
