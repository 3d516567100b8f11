package servers

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// A Proxy stands between clients and a server, and behaves like a bad network. StartProxy
// returns one, which forwards everything at once until it is told otherwise; clients connect
// to Addr. It does not read the bytes that it forwards: a reply is whatever the server has
// written at once, be it the answer to a call or to the greeting of a new connection. All
// methods may be called at any time, from any goroutine.
//
// Toxiproxy would be a dependency of the root module, whose tests need this too. It has nothing
// that loses one reply, and its silence (a timeout of 0) drops the bytes sent meanwhile.
type Proxy struct {
	Addr string // where it listens, as "127.0.0.1:6379"

	listener net.Listener
	running  sync.WaitGroup

	mu           sync.Mutex
	target       string
	open         context.Context // of the connections that are open; its end resets them
	reset        context.CancelFunc
	base, jitter time.Duration // of a round trip
	hole         chan struct{} // closed when the black hole ends; nil if there is none
	lose, cut    int           // how many of the next replies
}

// StartProxy returns a proxy for the server at the address target, which ends with the test.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("servers: no proxy: %v", err)
	}
	p := &Proxy{Addr: listener.Addr().String(), listener: listener, target: target}
	p.open, p.reset = context.WithCancel(context.Background())
	p.running.Go(p.accept)
	t.Cleanup(p.Close)
	return p
}

// Close ends the proxy and all its connections.
func (p *Proxy) Close() {
	p.listener.Close()
	p.mu.Lock()
	p.reset()
	p.mu.Unlock()
	p.running.Wait()
}

// FailOver resets all connections, and makes those that are opened from now on go to another
// server.
func (p *Proxy) FailOver(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reset()
	p.target = target
	p.open, p.reset = context.WithCancel(context.Background())
}

// SetDelay makes a round trip take base ± jitter longer than without the proxy: each
// direction takes half of base, and up to half of jitter more or less at random. What is
// sent earlier still arrives earlier.
func (p *Proxy) SetDelay(base, jitter time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.base, p.jitter = base, jitter
}

// BlackHole makes the network silent, or ends the silence. While it lasts nothing arrives
// in either direction, and a new connection opens but gets no answer. Bytes sent into it
// arrive when it ends, even from clients that have closed their connections since, as TCP
// repeats bytes that were not confirmed.
func (p *Proxy) BlackHole(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case on && p.hole == nil:
		p.hole = make(chan struct{})
	case !on && p.hole != nil:
		close(p.hole)
		p.hole = nil
	}
}

// LoseReplies makes the next n replies disappear, each with all that would come after it on
// its connection, which stays open. The server has carried out the command; the client can
// only wait until its patience ends.
func (p *Proxy) LoseReplies(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = n
}

// CutReplies makes the next n replies disappear, and resets their connections. The server
// has carried out the command; the client learns at once that there will be no answer.
func (p *Proxy) CutReplies(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = n
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		open := p.open
		p.mu.Unlock()
		p.running.Go(func() { p.serve(open, client.(*net.TCPConn)) })
	}
}

// delay returns how long one direction takes.
func (p *Proxy) delay() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.base / 2
	if p.jitter > 0 {
		d += rand.N(p.jitter+1) - p.jitter/2
	}
	return d
}

// fate says what becomes of a reply.
func (p *Proxy) fate() (lost, cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.lose > 0:
		p.lose--
		return true, false
	case p.cut > 0:
		p.cut--
		return false, true
	}
	return false, false
}

// outOfHole waits while there is a black hole. It reports whether the connection is still open.
func (p *Proxy) outOfHole(open context.Context) bool {
	for {
		p.mu.Lock()
		hole := p.hole
		p.mu.Unlock()
		if hole == nil {
			return true
		}
		select {
		case <-hole:
		case <-open.Done():
			return false
		}
	}
}

// serve forwards between a client and the server until both have closed their connections, or
// the context open ends, which resets them.
func (p *Proxy) serve(open context.Context, client *net.TCPConn) {
	open, reset := context.WithCancel(open)
	defer resetWhenDone(open, client)()
	defer reset()
	if !p.outOfHole(open) {
		return
	}
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	conn, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	server := conn.(*net.TCPConn)
	defer resetWhenDone(open, server)()

	var directions sync.WaitGroup
	directions.Go(func() { p.forward(open, reset, client, server, false) })
	directions.Go(func() { p.forward(open, reset, server, client, true) })
	directions.Wait()
}

// resetWhenDone resets a connection when the context ends, or when the function that it returns is
// called.
func resetWhenDone(open context.Context, c *net.TCPConn) (now func()) {
	reset := sync.OnceFunc(func() {
		c.SetLinger(0)
		c.Close()
	})
	context.AfterFunc(open, reset)
	return reset
}

// A chunk has the bytes written at once. The last of a connection has no bytes.
type chunk struct {
	bytes []byte
	due   time.Time
}

// forward copies from one connection to the other, with all that the network does to it,
// until the first ends or both are reset.
func (p *Proxy) forward(open context.Context, reset func(), from, to *net.TCPConn, replies bool) {
	// So many chunks can be under way. If there are more, the sender is not read from for a
	// while, as TCP does when its window is full.
	underWay := make(chan chunk, 256)
	var reading sync.WaitGroup
	defer reading.Wait()
	reading.Go(func() {
		defer close(underWay)
		var due time.Time
		for buffer := make([]byte, 32<<10); ; {
			n, err := from.Read(buffer)
			if now := time.Now().Add(p.delay()); now.After(due) {
				due = now
			}
			select {
			case underWay <- chunk{append([]byte(nil), buffer[:n]...), due}:
			case <-open.Done():
				return
			}
			if err == io.EOF {
				return
			}
			if err != nil {
				reset()
				return
			}
		}
	})

	lost := false
	for c := range underWay {
		select {
		case <-time.After(time.Until(c.due)):
		case <-open.Done():
			return
		}
		if !p.outOfHole(open) {
			return
		}
		if replies && !lost && len(c.bytes) > 0 {
			cut := false
			if lost, cut = p.fate(); cut {
				reset()
				return
			}
		}
		if lost {
			continue
		}
		if _, err := to.Write(c.bytes); err != nil {
			reset()
			return
		}
	}
	if !lost {
		to.CloseWrite()
	}
}
