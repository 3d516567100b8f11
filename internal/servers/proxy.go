package servers

import (
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
	base, jitter time.Duration // of a round trip
	hole         chan struct{} // closed when the black hole ends; nil if there is none
	lose, cut    int           // how many of the next replies
	closed       bool
	links        map[*link]struct{}
}

// StartProxy returns a proxy for the server at the address target, which ends with the test.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("servers: no proxy: %v", err)
	}
	p := &Proxy{Addr: listener.Addr().String(), listener: listener, target: target, links: map[*link]struct{}{}}
	p.running.Go(p.accept)
	t.Cleanup(p.Close)
	return p
}

// Close ends the proxy and all its connections.
func (p *Proxy) Close() {
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.resetAllLocked()
	p.mu.Unlock()
	p.running.Wait()
}

// FailOver resets all connections, and makes those that are opened from now on go to another
// server.
func (p *Proxy) FailOver(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
	p.resetAllLocked()
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

func (p *Proxy) resetAllLocked() {
	for l := range p.links {
		l.reset()
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
		l := &link{proxy: p, client: client.(*net.TCPConn), ended: make(chan struct{})}
		p.mu.Lock()
		if p.closed {
			client.Close()
		} else {
			p.links[l] = struct{}{}
			p.running.Go(l.run)
		}
		p.mu.Unlock()
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

// A link is one connection of a client, and the one to the server that belongs to it.
type link struct {
	proxy  *Proxy
	client *net.TCPConn
	server *net.TCPConn // nil until it is open; guarded by proxy.mu
	ended  chan struct{}
	once   sync.Once
}

// reset ends both connections at once, with a reset. The caller holds proxy.mu.
func (l *link) reset() {
	l.once.Do(func() {
		close(l.ended)
		for _, c := range []*net.TCPConn{l.client, l.server} {
			if c != nil {
				c.SetLinger(0)
				c.Close()
			}
		}
	})
}

func (l *link) run() {
	defer func() {
		l.proxy.mu.Lock()
		defer l.proxy.mu.Unlock()
		delete(l.proxy.links, l)
		l.reset()
	}()
	if !l.outOfHole() {
		return
	}
	l.proxy.mu.Lock()
	target := l.proxy.target
	l.proxy.mu.Unlock()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	l.proxy.mu.Lock()
	l.server = server.(*net.TCPConn)
	select {
	case <-l.ended:
		server.Close()
	default:
	}
	l.proxy.mu.Unlock()

	var directions sync.WaitGroup
	directions.Go(func() { l.forward(l.client, l.server, false) })
	directions.Go(func() { l.forward(l.server, l.client, true) })
	directions.Wait()
}

// outOfHole waits while there is a black hole. It reports whether the link is still open.
func (l *link) outOfHole() bool {
	for {
		l.proxy.mu.Lock()
		hole := l.proxy.hole
		l.proxy.mu.Unlock()
		if hole == nil {
			return true
		}
		select {
		case <-hole:
		case <-l.ended:
			return false
		}
	}
}

// A chunk has the bytes written at once. The last of a connection has no bytes.
type chunk struct {
	bytes []byte
	due   time.Time
}

// forward copies from one connection to the other, with all that the network does to it,
// until the first ends or the link does.
func (l *link) forward(from, to *net.TCPConn, replies bool) {
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
			if now := time.Now().Add(l.proxy.delay()); now.After(due) {
				due = now
			}
			select {
			case underWay <- chunk{append([]byte(nil), buffer[:n]...), due}:
			case <-l.ended:
				return
			}
			if err == io.EOF {
				return
			}
			if err != nil {
				l.end()
				return
			}
		}
	})

	lost := false
	for c := range underWay {
		select {
		case <-time.After(time.Until(c.due)):
		case <-l.ended:
			return
		}
		if !l.outOfHole() {
			return
		}
		if replies && !lost && len(c.bytes) > 0 {
			cut := false
			if lost, cut = l.proxy.fate(); cut {
				l.end()
				return
			}
		}
		if lost {
			continue
		}
		if _, err := to.Write(c.bytes); err != nil {
			l.end()
			return
		}
	}
	if !lost {
		to.CloseWrite()
	}
}

// end ends the link with a reset.
func (l *link) end() {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	l.reset()
}
