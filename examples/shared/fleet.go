package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// A fleet is the processes that share the rate. Each is this program once more.
type fleet struct {
	processes []*process
	reports   chan report
	done      chan struct{} // closed when reports are not read any more
	reading   sync.WaitGroup
}

type process struct {
	command   *exec.Cmd
	stdin     io.Closer
	complaint bytes.Buffer // what it has printed as errors
}

// A report is what a process tells when a call of it has left, or of a process that it has
// ended.
type report struct {
	process    int
	at         time.Time
	roundTrips int64 // of the process up to now
	lateness   time.Duration
	ended      error
}

// startFleet starts processes. The fleet must be stopped, even after an error.
func startFleet(count int, t task) (*fleet, error) {
	f := &fleet{reports: make(chan report), done: make(chan struct{})}
	program, err := os.Executable()
	if err != nil {
		return f, err
	}
	text, err := json.Marshal(t)
	if err != nil {
		return f, err
	}
	for i := range count {
		p := &process{command: exec.Command(program)}
		p.command.Env = append(os.Environ(), taskVariable+"="+string(text))
		p.command.Stderr = &p.complaint
		out, err := p.command.StdoutPipe()
		if err != nil {
			return f, err
		}
		if p.stdin, err = p.command.StdinPipe(); err != nil {
			return f, err
		}
		if err := p.command.Start(); err != nil {
			return f, err
		}
		f.processes = append(f.processes, p)
		f.reading.Go(func() { f.read(i, p, out) })
	}
	return f, nil
}

// read reports what a process tells, until it has ended.
func (f *fleet) read(i int, p *process, out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		r := report{process: i}
		var at int64
		if _, err := fmt.Sscan(lines.Text(), &at, &r.roundTrips, &r.lateness); err == nil {
			r.at = time.Unix(0, at)
			f.send(r)
		}
	}
	err := p.command.Wait()
	f.send(report{process: i, ended: fmt.Errorf("process %c has ended: %v %s", letters[i], err, bytes.TrimSpace(p.complaint.Bytes()))})
}

func (f *fleet) send(r report) {
	select {
	case f.reports <- r:
	case <-f.done:
	}
}

// kill ends one process without letting it do anything more (SIGKILL).
func (f *fleet) kill(i int) error { return f.processes[i].command.Process.Kill() }

// stop ends all processes, and returns when they have ended.
func (f *fleet) stop() {
	close(f.done)
	for _, p := range f.processes {
		_ = p.stdin.Close()
		defer time.AfterFunc(2*time.Second, func() { _ = p.command.Process.Kill() }).Stop()
	}
	f.reading.Wait()
}
