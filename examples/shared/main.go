// Command shared shows three processes that share one rate through Redis, and that the rate is kept
// when one of them is killed:
//
//	go run ./examples/shared
//
// It prints a line for each second: a letter for each departure, which tells the process. worker.go
// is all that a program needs to share a rate; this file starts processes and prints.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

const (
	perSecond = 20 // departures of all processes together
	callers   = 4  // in each process
	seconds   = 6  // to watch them; one process is killed half-way
	letters   = "abc"
)

func main() {
	if len(os.Args) == 4 && os.Args[1] == "worker" { // Each process is this program once more.
		signal.Ignore(os.Interrupt) // It ends when its parent says so, or has ended.
		fail(work(os.Args[2], os.Args[3], os.Stdin, os.Stdout))
		return
	}
	address := flag.String("redis", "", "`address` (host:port) of a server of Redis or Valkey that runs; without it redis-server is started")
	flag.Parse()
	if flag.NArg() > 0 {
		fail(fmt.Errorf("unexpected argument %q (-h shows the flags)", flag.Arg(0)))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logging.Disable() // What the client of Redis would log are errors that this program prints.
	fail(show(ctx, *address, os.Stdout))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "shared: %v\n", err)
		os.Exit(1)
	}
}

// show starts the processes and prints who leaves when. When it returns, all that it has started
// has ended.
func show(ctx context.Context, address string, out io.Writer) error {
	if address == "" {
		started, stop, err := startRedis()
		if err != nil {
			return err
		}
		defer stop()
		address = started
	}
	if err := ping(ctx, address); err != nil {
		return fmt.Errorf("no server answers at %q: %w", address, err)
	}
	departures := make(chan byte)
	done := make(chan struct{})
	var reading sync.WaitGroup
	defer reading.Wait()
	defer close(done)
	key := fmt.Sprint("example:", time.Now().UnixNano()) // a bucket of this run alone
	var victim *os.Process
	for _, letter := range []byte(letters) {
		process := exec.Command(os.Args[0], "worker", address, key)
		process.Stderr = os.Stderr
		departed, err := process.StdoutPipe()
		if err != nil {
			return err
		}
		stdin, err := process.StdinPipe()
		if err != nil {
			return err
		}
		if err := process.Start(); err != nil {
			return err
		}
		defer stdin.Close()
		victim = process.Process
		reading.Go(func() {
			for lines := bufio.NewScanner(departed); lines.Scan(); {
				select {
				case departures <- letter:
				case <-done:
				}
			}
			_ = process.Wait() // The killed one has a status of its own.
		})
	}
	fmt.Fprintf(out, "Three processes share %d/s through Redis at %s. A letter is a departure of process a, b or c.\n\n", perSecond, address)
	second := time.NewTicker(time.Second)
	defer second.Stop()
	var line strings.Builder
	for n := 1; n <= seconds; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case letter := <-departures:
			line.WriteByte(letter)
		case <-second.C:
			if _, err := fmt.Fprintf(out, "%d s  %3d  %s\n", n, line.Len(), line.String()); err != nil {
				return err
			}
			line.Reset()
			if n++; n == seconds/2+1 {
				if err := victim.Kill(); err != nil { // SIGKILL: it can't give back what it has leased.
					return err
				}
				fmt.Fprintf(out, "          process %c is killed\n", letters[len(letters)-1])
			}
		}
	}
	return nil
}

// startRedis starts a server on a free port, in a temporary folder, and returns its address and a
// function that stops it.
func startRedis() (address string, stop func(), err error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", nil, fmt.Errorf("%w: apt-get install redis-server, or use -redis HOST:PORT for a server that runs", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	address = listener.Addr().String()
	_ = listener.Close()
	folder, err := os.MkdirTemp("", "shared-redis-")
	if err != nil {
		return "", nil, err
	}
	_, port, _ := net.SplitHostPort(address)
	server := exec.Command(path, "--port", port, "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "no")
	if err := server.Start(); err != nil {
		_ = os.RemoveAll(folder)
		return "", nil, err
	}
	return address, func() {
		_ = server.Process.Kill() // There is nothing to save.
		_ = server.Wait()
		_ = os.RemoveAll(folder)
	}, nil
}

// ping returns an error if no server of Redis answers at the address within ten seconds.
func ping(ctx context.Context, address string) error {
	const pause = 20 * time.Millisecond
	client := redis.NewClient(&redis.Options{Addr: address, MaxRetries: 400, MinRetryBackoff: pause, MaxRetryBackoff: pause, DialerRetries: 1})
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return client.Ping(ctx).Err()
}
