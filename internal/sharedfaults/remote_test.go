package sharedfaults_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// A call is what a worker sends to a Memory in the process of the test: Take, or GiveBack
// if there is an End.
type call struct {
	Take shaper.Take
	End  *shaper.Instant
}

// A reply is the answer to a call.
type reply struct {
	Taken shaper.Taken
	Err   string
}

// startRemote serves a Memory to the workers, as lines of JSON, until the test ends. It
// returns the address.
func startRemote(t *testing.T, m *buckettest.Memory) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { serveRemote(t.Context(), c, m) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		serving.Wait()
	})
	return listener.Addr().String()
}

func serveRemote(ctx context.Context, c net.Conn, m *buckettest.Memory) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	calls, replies := json.NewDecoder(c), json.NewEncoder(c)
	for {
		var asked call
		if calls.Decode(&asked) != nil {
			return
		}
		var r reply
		var err error
		if asked.End == nil {
			r.Taken, err = m.Take(ctx, asked.Take)
		} else {
			err = m.GiveBack(ctx, asked.Take, *asked.End)
		}
		if err != nil {
			r.Err = err.Error()
		}
		if replies.Encode(r) != nil {
			return
		}
	}
}

// A remoteBucket is the Memory of [startRemote] as a worker sees it.
type remoteBucket struct {
	addr string

	mu   sync.Mutex // held during a call: there is one at a time
	conn net.Conn   // nil if there is none
}

// Take implements [shaper.Bucket].
func (b *remoteBucket) Take(ctx context.Context, t shaper.Take) (shaper.Taken, error) {
	r, err := b.call(ctx, call{Take: t})
	return r.Taken, err
}

// GiveBack implements [shaper.Bucket].
func (b *remoteBucket) GiveBack(ctx context.Context, t shaper.Take, end shaper.Instant) error {
	_, err := b.call(ctx, call{t, &end})
	return err
}

func (b *remoteBucket) call(ctx context.Context, asked call) (r reply, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn == nil {
		if b.conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", b.addr); err != nil {
			b.conn = nil
			return r, err
		}
	}
	// After an error the connection is of no use: the answer may still come.
	defer func() {
		if err != nil {
			b.conn.Close()
			b.conn = nil
		}
	}()
	deadline, _ := ctx.Deadline() // The zero time means none.
	if err := b.conn.SetDeadline(deadline); err != nil {
		return r, err
	}
	conn := b.conn
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	if err := json.NewEncoder(b.conn).Encode(asked); err != nil {
		return r, err
	}
	if err := json.NewDecoder(b.conn).Decode(&r); err != nil {
		return r, err
	}
	if r.Err != "" {
		return r, errors.New(r.Err)
	}
	return r, nil
}
