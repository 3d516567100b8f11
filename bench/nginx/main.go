// Command nginx compares what an upstream sees behind nginx's limit_req with
// what it sees behind httputil.ReverseProxy and this library's middleware: how
// evenly requests arrive, in which order, how many the proxy can hand on, and
// what each costs.
//
//	go run ./bench/nginx
//
// It starts nginx by itself, on loopback and in a temporary folder, and removes
// both in the end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
)

func main() {
	if settings, ok := os.LookupEnv(proxyVariable); ok {
		exit(runProxy(settings))
	}
	// Whatever asks this program to end, be it that nobody reads what it prints:
	// nginx must not stay behind.
	ctx, stop := signal.NotifyContext(context.Background(), endings...)
	defer stop()
	exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// exit ends the program with 0, 130 if it was interrupted, or else 1.
func exit(err error) {
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		os.Exit(0)
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "bench/nginx: interrupted")
		os.Exit(130)
	}
	fmt.Fprintln(os.Stderr, "bench/nginx:", err)
	os.Exit(1)
}

// run is the program. Tables go to out, progress and complaints to progress.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	p, err := parsePlan(args, progress)
	if err != nil {
		return err
	}
	program, err := findNginx(os.Getenv("PATH"))
	if err != nil {
		return err
	}
	found, err := compare(ctx, p, program, progress)
	if err != nil {
		return err
	}
	found.print(out)
	if p.json == "" {
		return nil
	}
	return found.write(p.json)
}
