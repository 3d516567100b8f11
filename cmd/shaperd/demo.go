package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/certmagic"
)

// demoCommand is the command of shaperd without arguments.
const demoCommand = "demo"

// demoCaddyfile is the Caddyfile of the demonstration. It is complete but for the upstream.
//
//go:embed demo.caddyfile
var demoCaddyfile []byte

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  demoCommand,
		Usage: "[--caddyfile]",
		Short: "Serves a demonstration: a fragile upstream, the shaper in front of it, and the page",
		Long: `
Serves a demonstration on the loopback interface until Ctrl-C: an upstream that breaks down
under bursts, the shaper in front of it, and the page that shows the line. It says where to
look, and what to try. Nothing of a Caddy that runs already is touched, nor any of its files.

With --caddyfile it prints the Caddyfile of the demonstration, as a beginning of your own.`,
		Flags: func() *flag.FlagSet {
			fs := flag.NewFlagSet(demoCommand, flag.ExitOnError)
			fs.Bool("caddyfile", false, "Print the Caddyfile of the demonstration, and end")
			return fs
		}(),
		Func: inWords(demoCommand, demo),
	})
}

// inWords returns a command that says on the terminal why it has failed. Caddy would log that, where there is no terminal as JSON.
func inWords(name string, command caddycmd.CommandFunc) caddycmd.CommandFunc {
	return func(flags caddycmd.Flags) (int, error) {
		status, err := command(flags)
		if err != nil {
			fmt.Fprintf(os.Stderr, "shaperd %s: %v\n", name, err)
			os.Exit(status)
		}
		return status, nil
	}
}

// demo serves the demonstration. Like Caddy's run it does not return once it serves: a
// signal ends the process, when the requests in line have been served.
func demo(flags caddycmd.Flags) (int, error) {
	if flags.Bool("caddyfile") {
		_, err := os.Stdout.Write(demoCaddyfile)
		return caddy.ExitCodeSuccess, err
	}
	caddy.TrapSignals()
	front, page, upstream := freePort(8480), freePort(8481), freePort(8482)
	err := inOwnFolder(func() error {
		if err := startUpstream("127.0.0.1:" + upstream); err != nil {
			return err
		}
		for name, value := range map[string]string{"SHAPERD_FRONT": front, "SHAPERD_PAGE": page, "SHAPERD_UPSTREAM": upstream} {
			if err := os.Setenv(name, value); err != nil {
				return err
			}
		}
		config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt(demoCaddyfile, map[string]any{"filename": "demo.caddyfile"})
		if err != nil {
			return err
		}
		return caddy.Load(config, true)
	})
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	fmt.Printf(welcome, front, page, upstream)
	select {}
}

// welcome is printed when the demonstration serves: with the ports of its front, its page and
// the upstream.
const welcome = `shaperd: a demonstration, until Ctrl-C.

  front      http://127.0.0.1:%[1]s   lets 20 requests a second through, evenly; 100 may wait
  page       http://127.0.0.1:%[2]s   shows the line
  upstream   http://127.0.0.1:%[3]s   breaks down for two seconds when more than 8 requests come at once

Open the page, and send a hundred requests at once:

  curl -sZ --parallel-immediate --parallel-max 100 -o /dev/null -w '%%{http_code}\n' 'http://127.0.0.1:%[1]s/?[1-100]' 2>/dev/null | sort | uniq -c

The same without the shaper:

  curl -sZ --parallel-immediate --parallel-max 100 -o /dev/null -w '%%{http_code}\n' 'http://127.0.0.1:%[3]s/?[1-100]' 2>/dev/null | sort | uniq -c

Your own:

  shaperd demo --caddyfile > Caddyfile
  shaperd run
`

// inOwnFolder starts a Caddy that keeps its files in a folder of its own, so that the files of the
// user's own Caddy are left alone. The folder goes when the process ends, or Caddy does not start.
func inOwnFolder(start func() error) error {
	dir, err := os.MkdirTemp("", "shaperd-demo-")
	if err != nil {
		return err
	}
	caddy.OnExit(func(context.Context) { _ = os.RemoveAll(dir) })
	for _, name := range []string{"XDG_DATA_HOME", "XDG_CONFIG_HOME"} {
		err = errors.Join(err, os.Setenv(name, dir))
	}
	caddy.ConfigAutosavePath = filepath.Join(dir, "autosave.json")
	caddy.DefaultStorage = &certmagic.FileStorage{Path: caddy.AppDataDir()}
	if err == nil {
		err = start()
	}
	if err != nil { // OnExit is for a Caddy that has begun.
		_ = os.RemoveAll(dir)
	}
	return err
}

// freePort returns the port that is wanted, or a free one if it is taken.
func freePort(want int) string {
	for _, port := range []int{want, 0} {
		if l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}); err == nil {
			defer l.Close()
			return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
		}
	}
	return strconv.Itoa(want) // The attempt to listen there returns the error.
}

// The capacity of the demonstration's upstream. The welcome and demo.caddyfile have it
// too.
const (
	upstreamWorkers = 8
	upstreamService = 100 * time.Millisecond // of each request
	upstreamDown    = 2 * time.Second        // after more requests than workers were there at once
)

// An upstream is as fragile as a program without a line: one request too many, and it is
// down for a while, also for the requests that it was serving.
type upstream struct {
	mu       sync.Mutex
	busy     int
	served   int
	failed   int
	downs    int
	downTill time.Time
}

// startUpstream serves an upstream. It ends with the process.
func startUpstream(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("the upstream of the demonstration can't listen: %w", err)
	}
	go func() { _ = http.Serve(l, &upstream{}) }()
	return nil
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/upstream" {
		u.mu.Lock()
		defer u.mu.Unlock()
		fmt.Fprintf(w, "served %d\nfailed %d\nbroke down %d\n", u.served, u.failed, u.downs)
		return
	}
	if !u.enter(time.Now()) {
		http.Error(w, "the upstream is down", http.StatusServiceUnavailable)
		return
	}
	time.Sleep(upstreamService)
	if n := u.leave(time.Now()); n > 0 {
		fmt.Fprintf(w, "request %d, served by the upstream\n", n)
		return
	}
	http.Error(w, "the upstream broke down meanwhile", http.StatusBadGateway)
}

// enter reports whether a worker serves a request, and breaks down if there is none left.
func (u *upstream) enter(now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case now.Before(u.downTill):
		u.failed++
		return false
	case u.busy == upstreamWorkers:
		u.failed++
		u.downs++
		u.downTill = now.Add(upstreamDown)
		return false
	}
	u.busy++
	return true
}

// leave gives the worker back, and returns how many requests have been served by now, or 0 if the
// upstream has broken down.
func (u *upstream) leave(now time.Time) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.busy--
	if now.Before(u.downTill) {
		u.failed++
		return 0
	}
	u.served++
	return u.served
}
