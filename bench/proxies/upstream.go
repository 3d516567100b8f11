package proxies

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// An upstream answers every request, and notes when those with a number arrived.
type upstream struct {
	address     string
	listener    net.Listener
	serviceTime time.Duration // for each request
	holds       bool          // it answers none
	began       time.Time
	serving     sync.WaitGroup

	mu       sync.Mutex
	arrivals []arrival
	open     map[net.Conn]bool
	closed   bool
	trouble  error // the first
}

// An arrival is a request as the upstream saw it.
type arrival struct {
	number int           // in the order in which requests were sent, from 1
	at     time.Duration // since the upstream began
}

const upstreamResponse = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nok\n"

func startUpstream(serviceTime time.Duration, holds bool) (*upstream, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("the upstream: %w", err)
	}
	u := &upstream{
		address: listener.Addr().String(), listener: listener, serviceTime: serviceTime, holds: holds, began: time.Now(), open: map[net.Conn]bool{},
	}
	u.serving.Go(u.accept)
	return u, nil
}

// close returns when all its goroutines have gone.
func (u *upstream) close() {
	u.mu.Lock()
	u.closed = true
	_ = u.listener.Close()
	for conn := range u.open {
		_ = conn.Close()
	}
	u.mu.Unlock()
	u.serving.Wait()
}

func (u *upstream) accept() {
	for {
		conn, err := u.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			u.report(err)
			return
		}
		if !u.admit(conn) {
			return
		}
		u.serving.Go(func() { u.serve(conn) })
	}
}

// admit notes a connection, so that close closes it too.
func (u *upstream) admit(conn net.Conn) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		_ = conn.Close()
		return false
	}
	u.open[conn] = true
	return true
}

// serve answers until the proxy closes the connection.
func (u *upstream) serve(conn net.Conn) {
	defer func() {
		u.mu.Lock()
		delete(u.open, conn)
		u.mu.Unlock()
		_ = conn.Close()
	}()
	r := bufio.NewReaderSize(conn, 1024)
	response, request := []byte(upstreamResponse), new(fasthttp.Request)
	for {
		err := request.Read(r)
		at := time.Since(u.began)
		if err != nil {
			return // A proxy that ends closes its connections.
		}
		path := string(request.Header.RequestURI())
		number, err := strconv.Atoi(strings.TrimPrefix(path, "/"))
		if err != nil && path != "/" {
			u.report(fmt.Errorf("the upstream was asked for %q", path))
			return
		}
		if number > 0 {
			u.mu.Lock()
			u.arrivals = append(u.arrivals, arrival{number: number, at: at})
			u.mu.Unlock()
		}
		if u.holds {
			continue
		}
		pause(u.serviceTime)
		if _, err := conn.Write(response); err != nil {
			return
		}
	}
}

func (u *upstream) report(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.trouble == nil {
		u.trouble = err
	}
}

// take returns the requests that have arrived since the call before.
func (u *upstream) take() ([]arrival, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	arrivals := u.arrivals
	u.arrivals = nil
	return arrivals, u.trouble
}
