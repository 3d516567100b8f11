// Command shapereplay tells how the requests of an access log would have fared under rules
// of package config: which would have waited, how long, and which would have been refused.
// With -find it tells which limits would have kept to a goal. With -format usage it tells the same of
// the calls of a gateway of language models under a quota.
//
//	shapereplay -rules FILE[,FILE] [flags] [LOG…]
//	shapereplay -format usage -provider NAME -requests N -tokens N [flags] [LOG…]
//
// docs/replay.md is the guide for operators; -h prints the flags. Package simulate documents
// the simulation and its limits, and package accesslog how logs are read.
//
// The status is 0 if the logs could be read, 1 if not, 2 if the command is used wrongly,
// and 130 after Ctrl-C, which shows the counts so far.
//
// # JSON
//
// With -json one object goes to standard output: a Document of package report, or for -format usage of
// package quota, whose names stay as they are. Its arrays are never null.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/term"
)

// The exit statuses of the program.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

const usage = `shapereplay: which limits are right for the requests of an access log?

  shapereplay -rules FILE[,FILE] [flags] [LOG…]
  shapereplay -format usage -provider NAME -requests N -tokens N [flags] [LOG…]

Replays the requests in virtual time under the rules, and shows who would have
waited, how long, and who would have been refused. A LOG may be compressed with
gzip, zstd, xz or bzip2; without one, or as "-", standard input is read.

What is replayed:
  -rules FILE[,FILE]  the rules, as package config reads them; later files are
                      layers over earlier ones
  -key "PART…"        what makes the key of a request: route, client_ip, host,
                      header:NAME, or all (default client_ip)
  -routes "P[,P]"     patterns for the part route, beside those in the rules
  -ipv6-bits N        how much of an IPv6 address is one client (default 64)
  -candidate          replay the candidates of the rules instead
  -from, -to TIME     only requests from then on, or before then: as in
                      2026-11-22T13:00:00Z, or "2026-11-22 13:00" in UTC
  -status "S[,S]"     only requests with these statuses, such as 200, 5xx or
                      300-399; "!429,503" leaves those out
  -path "P[,P]"       only requests with these paths: /login, /api/ with all
                      below it, *.php; "!/health" leaves that out
  -find GOAL          find for each rule the smallest rate, and the smallest
                      depth with it, that would have kept to a goal such as
                      "wait=200ms refused=0.1%" or "wait=1s burst=20"

How the logs are read:
  -format FORMAT      auto (default), combined (nginx, Apache), caddy, traefik,
                      haproxy, envoy, alb, elb, cloudfront, w3c (IIS) or json;
                      or a log_format of nginx: '$remote_addr [$time_local]
                      "$request" $status $request_time'. -fields means json,
                      and -trailing means combined
  -fields "N=F[,N=F]" of json: the fields that have time, method, uri, host,
                      client, status, duration, header:NAME; a dot leads into
                      an object. unit=ms says what durations count
  -trailing "WORD…"   of combined: what follows the user agent: -, time,
                      duration:UNIT, host, client or header:NAME
  -stamp WHAT         what the times are: arrival or end of the request
  -spread             where times are whole seconds: spread the requests of one
                      second over it, instead of taking them as simultaneous

The usage log of a gateway of language models (shaperd llm), with -format usage;
-from, -to, -top and -json as well:
  -provider NAME      how the API counts: anthropic, bedrock, gemini, openai or
                      openai-compatible
  -requests, -tokens, -input, -output N
                      the quota: what the provider allows in a minute
  -burst SPAN         how much of it may leave at once (default 30s)
  -depth N            how many calls may wait (default 1000)
  -wait SPAN          how long a call may wait (default 2m; 0: any time)
  -weights "T=N,T=N"  the shares of teams where others have 1: gold=4,batch=1

What is shown:
  -top N              how many keys are shown, and exported (default 10)
  -json               print one JSON object
  -export FILE        write the addresses refused most, one per line, for a
                      firewall: of an IPv6 client its prefix
  -h                  print this text

Status: 0, 1 if something could not be read or written, 2 wrong usage,
130 after Ctrl-C, which shows what was counted so far

Examples:
  shapereplay -rules shaper.yaml access.log access.log.1 access.log.2.gz
  shapereplay -rules shaper.yaml -key "route client_ip" access.log
  shapereplay -rules shaper.yaml -find "wait=200ms refused=0.1%" access.log
  shapereplay -rules shaper.yaml -find "wait=0s burst=20" access.log
  shapereplay -format usage -provider openai -tokens 90000 usage.log
  zcat old/*.gz | shapereplay -rules shaper.yaml -from "2026-11-21 08:00" -
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	// A second Ctrl-C ends the program at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], system()))
}

// run is the whole program and returns its exit status. It ends early with the context.
func run(ctx context.Context, args []string, s streams) int {
	a, err := parseArguments(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(s.out, usage)
		return exitOK
	case err != nil:
		fmt.Fprintf(s.err, "shapereplay: %v (-h shows examples)\n", err)
		return exitUsage
	}
	status, err := a.replay(ctx, s)
	if err != nil {
		fmt.Fprintf(s.err, "shapereplay: %v\n", err)
	}
	return status
}

// streams are where the program reads and writes.
type streams struct {
	in       io.Reader
	typed    bool // in is a terminal
	out, err io.Writer
	progress bool // err is a terminal
}

// system returns the streams of the process.
func system() streams {
	return streams{
		in: os.Stdin, typed: term.IsTerminal(int(os.Stdin.Fd())), out: os.Stdout,
		err: os.Stderr, progress: term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb",
	}
}

// A progress shows on a terminal how much of the logs has been read.
type progress struct {
	streams streams
	began   time.Time

	last  time.Time // when it was shown last
	shown int       // how many characters
}

// show shows how many requests have been read, at most ten times a second, and how much of the
// logs unless one is a pipe, whose length is unknown.
func (p *progress) show(now time.Time, requests int, read func() (bytes, total int64)) {
	if !p.streams.progress || now.Sub(p.last) < 100*time.Millisecond {
		return
	}
	p.last = now
	line := fmt.Sprintf("%d requests read", requests)
	if bytes, total := read(); total > 0 {
		const length = 30
		share := min(1, float64(bytes)/float64(total))
		full := int(share * length)
		line = fmt.Sprintf("[%s%s] %3.0f%%  %s", strings.Repeat("#", full), strings.Repeat(".", length-full), 100*share, line)
		if share > 0.05 {
			left := time.Duration(float64(now.Sub(p.began)) / share * (1 - share))
			line += fmt.Sprintf("  %s left", left.Round(time.Second))
		}
	}
	fmt.Fprintf(p.streams.err, "\r%-*s", p.shown, line)
	p.shown = len(line)
}

// end removes the text shown. Blanks are understood by every terminal.
func (p *progress) end() {
	if p.shown > 0 {
		fmt.Fprintf(p.streams.err, "\r%s\r", strings.Repeat(" ", p.shown))
	}
}

// interruptible returns standard input that ends with a context, so that Ctrl-C shows the
// counts so far even while nothing comes. The goroutine that reads it may wait in a call of
// Read for as long as the program runs.
func interruptible(ctx context.Context, from io.Reader) io.Reader {
	out, in := io.Pipe()
	go func() {
		_, err := io.Copy(in, from)
		in.CloseWithError(err) // nil is the end
	}()
	context.AfterFunc(ctx, func() { in.Close() })
	return out
}
