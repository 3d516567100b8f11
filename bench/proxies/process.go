package proxies

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"syscall"
	"time"
)

// A process is a proxy that runs.
type process struct {
	cmd     *exec.Cmd
	cancel  context.CancelFunc
	done    chan struct{} // closed when it has ended
	ended   error         // with what; to be read after that
	printed bytes.Buffer  // likewise
}

const (
	readyWithin = time.Minute // The machine may be busy.
	goneWithin  = time.Minute // then it is killed
)

// startProcess runs a command, which ends with ctx, with some input, and returns
// when something listens on address. The process must be stopped.
func startProcess(ctx context.Context, address string, input []byte, command func(context.Context) (*exec.Cmd, error)) (*process, error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd, err := command(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	p := &process{cmd: cmd, cancel: cancel, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.printed, &p.printed
	// nginx ends its workers when it is asked to end, and leaves them behind
	// when it is killed.
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = goneWithin
	// Our proxy ends when this pipe does, and so also when this process is killed.
	stdin, err := p.cmd.StdinPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	_, _ = stdin.Write(input) // If the process has gone, ready says why.
	go func() {
		p.ended = p.cmd.Wait()
		close(p.done)
	}()
	if err := p.ready(ctx, address); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// ready waits until the process listens.
func (p *process) ready(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("%s does not listen on %s within %v", p.cmd.Path, address, readyWithin))
	defer cancel()
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s: %w: %s", p.cmd.Path, errors.Join(errors.New("it ended at once"), p.ended), bytes.TrimSpace(p.printed.Bytes()))
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// stop ends the process and waits until it has gone.
func (p *process) stop() {
	p.cancel()
	<-p.done
}
