package servers

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A process is a program that runs until the test ends.
type process struct {
	name    string
	command *exec.Cmd
	log     string // the file with the output of the process

	ended chan struct{}  // closed when the process has ended
	guard *exec.Cmd      // ends the process if this one is killed
	alive io.WriteCloser // tells the guard that this process lives
}

// start starts a program whose output goes to the file log, and kills it when the test
// ends.
func start(t testing.TB, log string, command *exec.Cmd) *process {
	t.Helper()
	p := &process{name: filepath.Base(command.Path), command: command, log: log, ended: make(chan struct{})}
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() // The process has its own.
	command.Stdout, command.Stderr = file, file
	if err := p.watch(); err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		_ = p.alive.Close() // The guard ends.
		t.Fatal(err)
	}
	_, err = fmt.Fprintln(p.alive, command.Process.Pid)
	go func() {
		_ = command.Wait() // A status that is not 0 is no error: most are killed.
		close(p.ended)
	}()
	t.Cleanup(p.kill)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Listening starts a program that listens on an address, and returns its number as soon as it does. When the test ends,
// the program is asked to end. Its output goes to the file log.
func Listening(t testing.TB, address, log string, command *exec.Cmd) (pid int) {
	t.Helper()
	p := start(t, log, command)
	t.Cleanup(func() { p.stop(t, syscall.SIGTERM) })
	eventually(t, p, func() error { return canConnect(address) })
	return command.Process.Pid
}

// watch starts a guard that ends the process when this one ends without having done so,
// as after a panic or a timeout of the test. It reads from a pipe which ends with this
// process. It is there before the process, and is told the number of it: were it started
// later, a test that is killed in between would leave the process behind.
func (p *process) watch() (err error) {
	// nginx ends its workers when it is asked to end, and leaves them behind when it is killed.
	p.guard = exec.Command("sh", "-c", `read -r process && { read -r _ || { kill "$process"; sleep 1; kill -9 "$process"; }; }`)
	if p.alive, err = p.guard.StdinPipe(); err != nil {
		return err
	}
	return p.guard.Start()
}

// running reports whether the process runs, or has been paused.
func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// kill ends the process at once, if it still runs, and returns when it has ended.
func (p *process) kill() {
	if p.guard != nil && p.guard.Process != nil { // The guard first: the number may soon be another's.
		_ = p.guard.Process.Kill() // It may have ended.
		_ = p.guard.Wait()
		_ = p.alive.Close()
		p.guard = nil
	}
	_ = p.command.Process.Kill() // It may have ended.
	<-p.ended
}

// stop asks the process with a signal to end, and returns when it has. It is killed if that
// takes too long.
func (p *process) stop(t testing.TB, signal os.Signal) {
	t.Helper()
	defer p.kill()
	p.signal(t, signal)
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Errorf("%s has not ended %v after %v: %s", p.name, patience, signal, p.output())
	}
}

// signal sends a signal to the process. One that has ended needs none.
func (p *process) signal(t testing.TB, signal os.Signal) {
	t.Helper()
	if err := p.command.Process.Signal(signal); err != nil && p.running() {
		t.Fatalf("%s: %v: %v", p.name, signal, err)
	}
}

// output returns the end of the process's output.
func (p *process) output() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return fmt.Sprint(err)
	}
	return string(text[max(0, len(text)-2000):])
}

// An Output is the output of a program while a test reads it. The zero Output is empty.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements [io.Writer].
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String returns all that has been printed so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
