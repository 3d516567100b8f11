// Command limitsfile serves with the limits in a file. It tries the candidates of that
// file on the same requests, and takes a changed file without a restart:
//
//	go run ./examples/limitsfile examples/limitsfile/shaper.yaml
//	curl -i localhost:8080/login    # Trial says what the candidate would have done
//	curl localhost:8081             # for the operator: status, and which keys meet their limits
//
// Several files are layers, later ones over earlier ones.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"example.com/leakybucket/shaper"
)

func main() {
	site := flag.String("site", "localhost:8080", "`address` of the site")
	ops := flag.String("ops", "localhost:8081", "`address` of the operator's page")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: limitsfile [-site ADDRESS] [-ops ADDRESS] FILE…")
		os.Exit(2)
	}
	if err := run(*site, *ops, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

// run serves until SIGINT or SIGTERM, and reads the files again at each SIGHUP.
func run(site, ops string, files []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)

	s, err := newService(files...)
	if err != nil {
		return err
	}
	defer s.close()
	public := &http.Server{Addr: site, Handler: s.site(), ConnContext: shaper.ConnContext, ReadHeaderTimeout: 10 * time.Second}
	private := &http.Server{Addr: ops, Handler: http.HandlerFunc(s.report), ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 2) // one for each server
	go func() { failed <- public.ListenAndServe() }()
	go func() { failed <- private.ListenAndServe() }()
	for {
		select {
		case <-hangups:
			if err := s.limits.Reload(); err != nil {
				log.Printf("the limits stay as they are:\n%v", err)
			}
			continue
		case err = <-failed:
		case <-ctx.Done():
		}
		break
	}

	// The servers first: they stop listening and wait for the requests in line. Those that are
	// left after the 10 seconds are refused, and their answers need a moment to be sent.
	end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err = errors.Join(err, public.Shutdown(end), private.Shutdown(end), s.live.Close())
	moment, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = public.Shutdown(moment)
	return err
}
