package http

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

// A waitingInput is connections, each with one request that waits.
type waitingInput struct {
	Middleware  string // or bareHandler, whose handler waits itself
	ConnContext bool   // the server has ours
	Body        bool   // the request has one, which has not been read
	Connections int
}

// A waitingFound is the resident memory of the server for one connection, in bytes, and how much of
// it is beyond net/http's own in the same round.
type waitingFound struct {
	Bytes  float64 `unit:"B/connection"`
	Beyond float64 `unit:"beyond-B/connection"`
}

// waitingChild is the server. The clients are a process of their own.
var waitingChild = run.NewMeasurement("http-waiting", func(in waitingInput) (waitingFound, error) {
	never := make(chan struct{})
	parked := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-never })
	g, err := openers[in.Middleware](setup{outcome: waits, room: in.Connections, next: parked})
	if err != nil {
		return waitingFound{}, err
	}
	defer g.stop()
	return memoryWaiting(g, in)
})

// memoryWaiting lets requests wait in a middleware.
func memoryWaiting(h http.Handler, in waitingInput) (waitingFound, error) {
	found := waitingFound{Beyond: measure.Unknown}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return found, err
	}
	var came, left atomic.Int64
	server := newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		came.Add(1)
		h.ServeHTTP(w, r)
		left.Add(1)
	}), in.ConnContext)
	go func() { _ = server.Serve(listener) }() // Should it fail, no request comes.
	defer server.Close()

	before := measure.ResidentBytes()
	stop, err := startCallers(callersInput{listener.Addr().String(), in.Body, in.Connections})
	if err != nil {
		return found, err
	}
	defer func() { _ = stop() }()
	if err := settle(&came, in.Connections); err != nil {
		return found, errors.Join(err, stop())
	}
	found.Bytes = (measure.ResidentBytes() - before) / float64(in.Connections)
	if n := left.Load(); n > 0 {
		return found, fmt.Errorf("%d of %d requests did not wait", n, in.Connections)
	}
	return found, nil
}

// settleWithin bounds how long settle looks on.
const settleWithin = time.Minute

// settle returns when so many requests have come and nothing runs any more.
func settle(came *atomic.Int64, requests int) error {
	start := time.Now()
	for still := 0; still < 10; still++ {
		// One that runs is this one.
		if came.Load() < int64(requests) || measure.Goroutines("runnable") > 0 || measure.Goroutines("running") > 1 {
			still = 0
			runtime.Gosched()
		}
		if time.Since(start) > settleWithin {
			return fmt.Errorf("%d of %d requests have come after %v, or something still runs", came.Load(), requests, settleWithin)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// waitingCases are none where the system does not tell how much memory is resident.
func waitingCases(o run.Options) (cases []run.Case[waitingInput]) {
	if !measure.MemoryIsTold() {
		return nil
	}
	connections := 10_000
	if o.Quick {
		connections = 500
	}
	add := func(name string, connContext, body bool) {
		cases = append(cases, run.Case[waitingInput]{
			Name: fmt.Sprintf("HTTPWaiting/middleware=%s/conncontext=%s/body=%s/connections=%d",
				name, yesOrNo(connContext), yesOrNo(body), connections),
			Input:  waitingInput{name, connContext, body, connections},
			Rounds: o.Times(3, 1),
		})
	}
	for _, body := range []bool{false, true} {
		add(bareHandler, false, body)
		add(rivals.Ours, false, body)
		add(rivals.Ours, true, body)
		add(chi, false, body)
	}
	return cases
}

// measureWaiting adds to each figure how much of it is beyond net/http itself.
func measureWaiting(ctx context.Context, o run.Options) ([]run.Result[waitingInput, waitingFound], error) {
	results, err := run.InTurns(ctx, o, waitingChild.Take, waitingCases(o))
	return run.Beyond(results, func(bare, of waitingInput) bool { return bare.Middleware == bareHandler && bare.Body == of.Body },
		func(bare waitingFound, from *waitingFound) { from.Beyond = from.Bytes - bare.Bytes }), err
}

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
