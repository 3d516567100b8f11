package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// A Process is a server that runs beside an experiment. [StartProcess] makes one.
type Process struct {
	Cmd   *exec.Cmd
	Ended chan struct{} // closed when it has

	cancel  context.CancelFunc
	err     error        // with which it has ended; to be read after that
	printed bytes.Buffer // likewise
}

const (
	readyWithin = time.Minute // The machine may be busy.
	goneWithin  = time.Minute // then it is killed
)

// StartProcess runs a command, which ends with ctx, with some input, and returns
// when something listens on address. The process must be stopped.
func StartProcess(ctx context.Context, address string, input []byte, command func(context.Context) (*exec.Cmd, error)) (*Process, error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd, err := command(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	p := &Process{Cmd: cmd, cancel: cancel, Ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.printed, &p.printed
	// nginx ends its workers when it is asked to end, and leaves them behind
	// when it is killed.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = goneWithin
	// A child of this program ends when this pipe does, and so also when this process is killed.
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	_, _ = stdin.Write(input) // If the process has gone, listens says why.
	go func() {
		p.err = cmd.Wait()
		close(p.Ended)
	}()
	if err := p.listens(ctx, address); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

// listens waits until the process listens on an address.
func (p *Process) listens(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("%s does not listen on %s within %v", p.Cmd.Path, address, readyWithin))
	defer cancel()
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-p.Ended:
			return fmt.Errorf("%s: %w: %s", p.Cmd.Path, errors.Join(errors.New("it ended at once"), p.err), bytes.TrimSpace(p.printed.Bytes()))
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Stop ends the process and waits until it has gone.
func (p *Process) Stop() {
	p.cancel()
	<-p.Ended
}

// Ports are taken from below those that the system hands out to clients (from 32768 on
// Linux): a client could get one before the server listens there, or even be connected to
// itself.
const firstPort, ports = 20_000, 10_000

var given = struct {
	mu sync.Mutex
	is map[int]bool
}{is: map[int]bool{}}

// FreeAddress returns an address on loopback on which nobody listens, and another one with
// each call. Another program may take it before it is used.
func FreeAddress() (string, error) {
	given.mu.Lock()
	defer given.mu.Unlock()
	for range ports {
		port := firstPort + rand.IntN(ports)
		if given.is[port] {
			continue
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		listener, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		given.is[port] = true
		return address, listener.Close()
	}
	return "", errors.New("no free port was found")
}

// AtFreeAddress starts something on a free address. As another program may take the address
// in between, it tries three.
func AtFreeAddress[T any](start func(address string) (T, error)) (started T, err error) {
	for range 3 {
		var address string
		if address, err = FreeAddress(); err != nil {
			break
		}
		if started, err = start(address); err == nil {
			break
		}
	}
	return started, err
}
