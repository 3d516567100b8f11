package http

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"example.com/leakybucket/bench/internal/run"
)

// A callersInput says which requests a process sends.
type callersInput struct {
	Address     string
	Body        bool
	Connections int
}

const callersChild = "http-callers"

func init() { run.Register(callersChild, callAndWait) }

// callAndWait opens connections and sends a request on each. It ends when its input does.
func callAndWait(in io.Reader, _ io.Writer) error {
	var wanted callersInput
	if err := gob.NewDecoder(in).Decode(&wanted); err != nil {
		return err
	}
	for i := range wanted.Connections {
		conn, err := net.Dial("tcp", wanted.Address)
		if err != nil {
			return fmt.Errorf("connection %d of %d: %w", i+1, wanted.Connections, err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, requestText(wanted.Body)); err != nil {
			return fmt.Errorf("connection %d of %d: %w", i+1, wanted.Connections, err)
		}
	}
	_, err := io.Copy(io.Discard, in)
	return err
}

// startCallers starts the process. stop ends it and returns what went wrong there.
func startCallers(wanted callersInput) (stop func() error, err error) {
	cmd, err := run.Command(context.Background(), callersChild)
	if err != nil {
		return nil, err
	}
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	// The callers end when this pipe does, and so also when this process is killed.
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	stop = sync.OnceValue(func() error {
		_ = stdin.Close()
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("the callers: %w: %s", err, bytes.TrimSpace(complaint.Bytes()))
		}
		return nil
	})
	if err := gob.NewEncoder(stdin).Encode(wanted); err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}
