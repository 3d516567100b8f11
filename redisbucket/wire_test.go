package redisbucket_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// How a wire loses an answer.
const (
	keep    = iota
	swallow // it never comes
	cut     // the connection is closed when it is about to come
)

// A wire is what lies between clients and a server. It counts the scripts that clients
// want to be run, and can lose their answers.
type wire struct {
	server   string
	listener net.Listener

	mu      sync.Mutex
	scripts int // EVALSHA and EVAL
	loses   int
	conns   []net.Conn
}

func newWire(t testing.TB, server string) *wire {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wire{server: server, listener: l}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { w.join(client) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		w.mu.Lock()
		for _, c := range w.conns {
			_ = c.Close()
		}
		w.mu.Unlock()
		running.Wait()
	})
	return w
}

func (w *wire) addr() string { return w.listener.Addr().String() }

// lose sets what becomes of answers of scripts from now on, and counts anew.
func (w *wire) lose(how int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loses, w.scripts = how, 0
}

func (w *wire) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.scripts
}

// join carries what one client and the server say, until one of them ends it.
func (w *wire) join(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", w.server)
	if err != nil {
		return
	}
	defer server.Close()
	w.mu.Lock()
	w.conns = append(w.conns, client, server)
	w.mu.Unlock()

	var mu sync.Mutex
	loses := keep // on this connection, from the next answer on
	var answers sync.WaitGroup
	answers.Go(func() {
		defer client.Close()
		chunk := make([]byte, 1<<16)
		for {
			n, err := server.Read(chunk)
			if err != nil {
				return
			}
			mu.Lock()
			how := loses
			mu.Unlock()
			switch how {
			case keep:
				if _, err := client.Write(chunk[:n]); err != nil {
					return
				}
			case cut:
				return
			}
		}
	})
	defer answers.Wait()
	defer server.Close()
	in := bufio.NewReader(client)
	for {
		name, command, err := readCommand(in)
		if err != nil {
			return
		}
		if strings.HasPrefix(name, "eval") {
			w.mu.Lock()
			w.scripts++
			how := w.loses
			w.mu.Unlock()
			mu.Lock()
			loses = how
			mu.Unlock()
		}
		if _, err := io.WriteString(server, command); err != nil {
			return
		}
	}
}

// readCommand reads a command as clients send it, and returns its name and its text.
func readCommand(in *bufio.Reader) (name, text string, err error) {
	head, err := in.ReadString('\n')
	if err != nil {
		return "", "", err
	}
	count, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(head, "*")))
	if err != nil {
		return "", "", err
	}
	text = head
	for i := range count {
		size, err := in.ReadString('\n')
		if err != nil {
			return "", "", err
		}
		n, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(size, "$")))
		if err != nil {
			return "", "", err
		}
		word := make([]byte, n+len("\r\n"))
		if _, err := io.ReadFull(in, word); err != nil {
			return "", "", err
		}
		if i == 0 {
			name = strings.ToLower(string(word[:n]))
		}
		text += size + string(word)
	}
	return name, text, nil
}

// through returns a dialer that goes through the wire of a server, if it has one.
func through(wires ...*wire) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		for _, w := range wires {
			if addr == w.server {
				addr = w.addr()
			}
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, fmt.Errorf("through the wire: %w", err)
		}
		return conn, nil
	}
}
