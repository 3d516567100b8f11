package servers

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// redisDo sends one command to a server and returns its answer: a string for each simple
// or bulk string and each integer, nil for null, and a []any for an array. A client of its
// own keeps this package free of dependencies, and does not hide what the server says.
func redisDo(addr string, args ...string) (any, error) {
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	var command strings.Builder
	fmt.Fprintf(&command, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&command, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(conn, command.String()); err != nil {
		return nil, err
	}
	return readReply(bufio.NewReader(conn))
}

func readReply(r *bufio.Reader) (any, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	kind, rest := line[:min(1, len(line))], line[min(1, len(line)):]
	switch kind {
	case "+", ":":
		return rest, nil
	case "-":
		return nil, errors.New(rest)
	case "$", "*":
		size, err := strconv.Atoi(rest)
		if err != nil || size < 0 {
			return nil, err
		}
		if kind == "$" {
			text := make([]byte, size+len("\r\n"))
			_, err := io.ReadFull(r, text)
			return string(text[:size]), err
		}
		array := make([]any, size)
		for i := range array {
			if array[i], err = readReply(r); err != nil {
				return nil, err
			}
		}
		return array, nil
	}
	return nil, fmt.Errorf("the server answers %q", line)
}
