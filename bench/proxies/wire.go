package proxies

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
)

// The load generator and the upstream speak HTTP/1.1 by themselves. net/http's
// client and server would use more of the processors than a fast proxy does, and
// would then be what is measured.

// A head is what is of interest in the head of a request or a response.
type head struct {
	first  string // its first line
	length int    // of the body; 0 if there is none
}

// readHead reads a head. The body stays in r.
func readHead(r *bufio.Reader) (head, error) {
	line, err := readLine(r)
	if err != nil {
		return head{}, err
	}
	h := head{first: string(line)}
	for {
		line, err := readLine(r)
		if err != nil {
			return head{}, fmt.Errorf("in the head of %q: %w", h.first, err)
		}
		if len(line) == 0 {
			return h, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			h.length, err = strconv.Atoi(string(value))
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			err = errors.New("a body without a length is not understood")
		}
		if err != nil {
			return head{}, fmt.Errorf("%q of %q: %w", line, h.first, err)
		}
	}
}

func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	return bytes.TrimRight(line, "\r\n"), err
}

// status returns the status of a response.
func (h head) status() (int, error) {
	if len(h.first) < len("HTTP/1.1 200") {
		return 0, fmt.Errorf("%q is no response", h.first)
	}
	return strconv.Atoi(h.first[9:12])
}

// A caller is an open connection to a proxy.
type caller struct {
	conn net.Conn
	r    *bufio.Reader
}

func (c caller) send(path string) error {
	_, err := c.conn.Write([]byte("GET " + path + " HTTP/1.1\r\nHost: bench\r\n\r\n"))
	return err
}

// receive reads a response and returns its status.
func (c caller) receive() (int, error) {
	h, err := readHead(c.r)
	if err != nil {
		return 0, err
	}
	if _, err := c.r.Discard(h.length); err != nil {
		return 0, err
	}
	return h.status()
}
