package main

import (
	"bufio"
	"context"
	"math"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"
)

// An impatient client disconnects after a part of its predicted wait between
// these two. The parts are less than half, because the line gets shorter when
// clients disconnect: if half of them do, a client that stays for half of its
// predicted wait is served before it disconnects.
const (
	minPatience = 0.10
	maxPatience = 0.40
)

// An impatientClient is a client of the burst that closes its connection before
// its turn if it has to wait. The shaper's hooks tell it that it waits and at which
// place in the line, which a real client does not know: otherwise it might close the
// connection of a request that does not have to wait.
//
// Its methods may be called from any goroutine. A nil impatientClient is a
// patient client, whose methods do nothing.
type impatientClient struct {
	log              *requestLogs  // of the proxy that it calls
	upload           bool          // it sends a body, which the server does not read while the request waits
	patiencePerPlace time.Duration // it waits that long times its place in the line, 1 being the head

	mu           sync.Mutex
	conn         net.Conn
	timer        *time.Timer // nil: it does not wait
	disconnected time.Time   // zero: it has not disconnected
}

// chooseImpatient makes percent of n clients impatient, evenly spread over the
// burst, and returns them by index. Their patience varies. Every second one
// sends a body, as net/http alone does not notice when such a client disconnects.
func chooseImpatient(n, percent int, info limitsInfo, requests *requestLogs) map[int]*impatientClient {
	const steps = 7 // odd, so that clients with and without a body are equally patient
	chosen := map[int]*impatientClient{}
	for i := range n {
		if (i+1)*percent/100 == i*percent/100 {
			continue
		}
		k := len(chosen)
		patience := minPatience + (maxPatience-minPatience)*float64(3*k%steps)/(steps-1)
		chosen[i] = &impatientClient{log: requests, upload: k%2 == 1, patiencePerPlace: time.Duration(patience * info.interval * float64(time.Second))}
	}
	return chosen
}

// send sends a request on a connection of its own, and reads the response,
// unless the client disconnects before.
func (c *impatientClient) send(ctx context.Context, target string) result {
	r, err := c.request(ctx, target)
	if err != nil {
		return result{}
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", r.URL.Host)
	if err != nil {
		return result{}
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	c.mu.Lock()
	c.conn = conn
	c.mu.Unlock()
	c.log.expectImpatient(conn.LocalAddr().String(), c)
	defer c.stopWaiting()
	var got result
	if r.Write(conn) == nil {
		got = readResult(http.ReadResponse(bufio.NewReader(conn), r))
	}
	// A client may be out of patience before it has sent the end of its request.
	if !c.disconnectedAt().IsZero() {
		return result{disconnected: true}
	}
	return got
}

func (c *impatientClient) request(ctx context.Context, target string) (*http.Request, error) {
	if !c.upload {
		return http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, target, strings.NewReader("a body that the server does not read while the request waits\n"))
	if err == nil && runtime.GOOS == "linux" {
		// A body of unknown length is not read ahead, so that only
		// shaper.ConnContext can notice that the client has disconnected. It works
		// on Linux; elsewhere the body should be read ahead.
		r.ContentLength = -1
	}
	return r, err
}

// startWaiting tells a client that it has entered the line, in which that many
// requests, its own included, are waiting now.
func (c *impatientClient) startWaiting(waiting int) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	patience := min(float64(c.patiencePerPlace)*float64(waiting), math.MaxInt64/2)
	c.timer = time.AfterFunc(time.Duration(patience), c.disconnect)
}

// stopWaiting tells a client that its wait is over.
func (c *impatientClient) stopWaiting() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}

// disconnect closes the connection of a client that still waits.
func (c *impatientClient) disconnect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer == nil {
		return // Its turn came after the timer had fired.
	}
	c.disconnected = time.Now() // Taken before anyone can have noticed.
	_ = c.conn.Close()
}

// disconnectedAt returns when the client disconnected, or the zero time.
func (c *impatientClient) disconnectedAt() time.Time {
	if c == nil {
		return time.Time{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.disconnected
}
