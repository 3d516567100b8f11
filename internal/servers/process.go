package servers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A Process is a program that runs until it ends itself, or the test ends. [Start] and [Listening] make one. Its methods are
// for the goroutine of the test, and fail the test if the program does not do what they wait for.
type Process struct {
	Command *exec.Cmd // as it was started

	t     testing.TB
	name  string
	log   string         // the file with the output of the process
	ended chan struct{}  // closed when the process has ended
	guard *exec.Cmd      // ends the process if this one is killed
	alive io.WriteCloser // tells the guard that this process lives
}

// Start starts a program, and kills it when the test ends, if it still runs. A test that fails logs the end of
// the program's output.
func Start(t testing.TB, command *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Command: command, t: t, name: filepath.Base(command.Path), log: filepath.Join(t.TempDir(), "log"), ended: make(chan struct{})}
	// A file, as a pipe would not end before the children of a program that is killed.
	file, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
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
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%q has printed\n%s", command.Args, p.lastOutput())
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Listening is [Start] for a program that listens on an address. It returns as soon as the program does. When the test
// ends, the program is asked to end.
func Listening(t testing.TB, address string, command *exec.Cmd) *Process {
	t.Helper()
	p := Start(t, command)
	t.Cleanup(func() { p.Stop(syscall.SIGTERM) })
	p.eventually(func() error { return canConnect(address) })
	return p
}

// watch starts a guard that ends the process when this one ends without having done so,
// as after a panic or a timeout of the test. It reads from a pipe which ends with this
// process. It is there before the process, and is told the number of it: were it started
// later, a test that is killed in between would leave the process behind.
func (p *Process) watch() (err error) {
	// nginx ends its workers when it is asked to end, and leaves them behind when it is killed.
	p.guard = exec.Command("sh", "-c", `read -r process && { read -r _ || { kill "$process"; sleep 1; kill -9 "$process"; }; }`)
	if p.alive, err = p.guard.StdinPipe(); err != nil {
		return err
	}
	return p.guard.Start()
}

// running reports whether the process runs, or has been paused.
func (p *Process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Kill ends the process at once, if it still runs, and returns when it has ended.
func (p *Process) Kill() {
	if p.guard != nil && p.guard.Process != nil { // The guard first: the number may soon be another's.
		_ = p.guard.Process.Kill() // It may have ended.
		_ = p.guard.Wait()
		_ = p.alive.Close()
		p.guard = nil
	}
	_ = p.Command.Process.Kill() // It may have ended.
	<-p.ended
}

// Signal sends a signal to the process. One that has ended needs none.
func (p *Process) Signal(signal os.Signal) {
	p.t.Helper()
	if err := p.Command.Process.Signal(signal); err != nil && p.running() {
		p.t.Fatalf("%s: %v: %v", p.name, signal, err)
	}
}

// Wait returns the exit status of the process when it has ended. It is killed if that takes too long.
func (p *Process) Wait() (status int) {
	p.t.Helper()
	defer p.Kill()
	select {
	case <-p.ended:
		return p.Command.ProcessState.ExitCode()
	case <-time.After(patience):
		p.t.Fatalf("%s has not ended after %v", p.name, patience)
		return -1
	}
}

// Stop asks the process with a signal to end, and is [Process.Wait] then.
func (p *Process) Stop(signal os.Signal) (status int) {
	p.t.Helper()
	p.Signal(signal)
	return p.Wait()
}

// Says waits until the process has printed a text.
func (p *Process) Says(text string) {
	p.t.Helper()
	p.Until(func() bool { return strings.Contains(p.Output(), text) }, "it says "+text)
}

// Until waits until a condition holds. The test fails, and says what never came true, if that takes too long
// or the process has ended.
func (p *Process) Until(is func() bool, what string) {
	p.t.Helper()
	p.eventually(func() error {
		if is() {
			return nil
		}
		return errors.New("never: " + what)
	})
}

// eventually calls is until it returns nil, and fails the test with its last error if
// that takes too long, or at once if the process has ended.
func (p *Process) eventually(is func() error) {
	p.t.Helper()
	if err := p.until(is); err != nil {
		p.t.Fatal(err)
	}
}

// until calls is until it returns nil. It returns an error if that takes too long, or the
// process has ended.
func (p *Process) until(is func() error) error {
	began := time.Now()
	for {
		running := p.running() // What it does last counts.
		err := is()
		switch {
		case err == nil:
			return nil
		case !running:
			return fmt.Errorf("%s has ended: %w\n%s", p.name, err, p.lastOutput())
		case time.Since(began) > patience:
			return fmt.Errorf("%s runs for %v: %w", p.name, patience, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Output returns all that the process has printed so far, to its standard output and as errors.
func (p *Process) Output() string {
	p.t.Helper()
	text, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}

// lastOutput returns the end of the output.
func (p *Process) lastOutput() string {
	text := p.Output()
	return text[max(0, len(text)-8000):]
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
