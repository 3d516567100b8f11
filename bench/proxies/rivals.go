package proxies

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/gob"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/shaper"
)

// A rival is a proxy that can be started with a limit.
type rival struct {
	name  string
	limit limit
	file  string // for its configuration, in a folder of its own, where its command runs; "": it is this program
	// In its configuration {listen}, {port}, {upstream}, {rate}, {line}, {at-once} and {files} stand for parts of a setting.
	config  string
	command []string
}

// A limit is the kind of limit that a proxy has.
type limit int

const (
	unlimited   limit = iota
	byRate            // so many requests a second; the others wait in the proxy
	bySessions        // so many connections a second; the others wait in the kernel, before the proxy
	byResponses       // a request as soon as another is answered; the others wait in the proxy
)

const (
	ours            = "shaperd"
	middleware      = "middleware"
	nginx           = "nginx"
	haproxySessions = "haproxy-sessions"
	haproxyMaxconn  = "haproxy-maxconn"
	caddy           = "caddy"
)

//go:embed nginx.conf
var nginxConfig string

//go:embed haproxy.cfg
var haproxyConfig string

//go:embed Caddyfile
var caddyConfig string

var (
	runNginx   = []string{"nginx", "-p", ".", "-c", "nginx.conf"}
	runHAProxy = []string{"haproxy", "-db", "-f", "haproxy.cfg"}
	runCaddy   = []string{shaperd, "run", "--config", "Caddyfile"} // shaperd stands for where it was built.
)

// rivals are compared in this order. Caddy with the shaper has a bucket for each client's address, as nginx has.
var rivals = []rival{
	{ours, byRate, "Caddyfile", with(caddyConfig, "{order}", "order shape before reverse_proxy", "{shape}", "shape {\n\t\tlimits {rate}/s depth {line}\n\t}"), runCaddy},
	{middleware, byRate, "", "", nil},
	{nginx, byRate, "nginx.conf", nginxConfig, runNginx},
	{haproxySessions, bySessions, "haproxy.cfg", with(haproxyConfig, "{sessions}", "rate-limit sessions {rate}", "{maxconn}", ""), runHAProxy},
	{haproxyMaxconn, byResponses, "haproxy.cfg", with(haproxyConfig, "{sessions}", "", "{maxconn}", "maxconn {at-once}"), runHAProxy},
	{caddy, unlimited, "Caddyfile", with(caddyConfig, "{order}", "", "{shape}", ""), runCaddy},
}

// with puts values in the places of names.
func with(config string, namesAndValues ...string) string {
	return strings.NewReplacer(namesAndValues...).Replace(config)
}

// named returns the rival of that name. It panics if there is none: all names are the
// experiment's own.
func named(name string) rival {
	at := slices.IndexFunc(rivals, func(r rival) bool { return r.name == name })
	if at < 0 {
		panic("no proxy is named " + name)
	}
	return rivals[at]
}

// noLimit is a rate far above what any of them can serve.
const noLimit = 1_000_000

// A setting says how a proxy is started.
type setting struct {
	Listen, Upstream string
	Rate             int // per second
	Line             int // for so many requests it has room
	AtOnce           int // at the upstream, where the proxy limits that
}

// A stage is an upstream and a proxy before it. [programs.stage] sets it up.
type stage struct {
	*upstream
	*run.Process
	address   string // of the proxy
	callers   []caller
	sent      time.Time // the first of their requests
	responses chan response
}

// stage starts an upstream, and a proxy with a limit and with room for a line. If the
// upstream holds requests, it answers none. A proxy that only limits how many requests
// are at the upstream at once is paced by it: then the upstream takes an interval of the
// rate for each. The stage must be closed.
func (p *programs) stage(ctx context.Context, name string, rate, line int, holds bool) (*stage, error) {
	r := named(name)
	s := setting{Rate: rate, Line: line}
	takes := time.Duration(0)
	if r.limit == byResponses {
		s.AtOnce = ceilingCallers
		if rate < noLimit {
			s.AtOnce, takes = 1, measure.Interval(float64(rate))
		}
	}
	u, err := startUpstream(takes, holds)
	if err != nil {
		return nil, err
	}
	s.Upstream = u.address
	process, err := run.AtFreeAddress(func(address string) (*run.Process, error) {
		s.Listen = address
		return p.start(ctx, r, s)
	})
	if err != nil {
		u.close()
		return nil, err
	}
	return &stage{upstream: u, Process: process, address: s.Listen}, nil
}

// close ends the callers and both of them, and returns when they have gone.
func (s *stage) close() {
	s.hangUp()
	s.Process.Stop()
	s.upstream.close()
}

// start runs a rival. The process must be stopped.
func (p *programs) start(ctx context.Context, r rival, s setting) (*run.Process, error) {
	if r.file == "" {
		return startMiddleware(ctx, s)
	}
	folder, err := os.MkdirTemp(p.dir, "")
	if err != nil {
		return nil, err
	}
	// Started by root, the workers of nginx are another user, who must get into the folder.
	if err := os.Chmod(folder, 0o711); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(folder, r.file), []byte(s.in(r.config, p.files)), 0o644); err != nil {
		return nil, err
	}
	started, err := run.StartProcess(ctx, s.Listen, nil, func(ctx context.Context) (*exec.Cmd, error) {
		program := r.command[0]
		if program == shaperd {
			program = p.shaperd
		}
		cmd := exec.CommandContext(ctx, program, r.command[1:]...)
		cmd.Dir = folder
		cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+folder, "XDG_CONFIG_HOME="+folder) // Caddy writes there.
		return cmd, nil
	})
	if err != nil {
		logged, _ := os.ReadFile(filepath.Join(folder, "error.log")) // Only nginx has one.
		return nil, fmt.Errorf("%w\n%s", err, logged)
	}
	return started, nil
}

// in puts the setting into a configuration.
func (s setting) in(config string, files int) string {
	_, port, _ := strings.Cut(s.Listen, ":")
	return with(config,
		"{listen}", s.Listen, "{port}", port, "{upstream}", s.Upstream, "{rate}", fmt.Sprint(s.Rate), "{line}", fmt.Sprint(s.Line),
		"{at-once}", fmt.Sprint(s.AtOnce), "{files}", fmt.Sprint(files))
}

// middlewareChild is the child process that is a proxy of a few lines of Go.
const middlewareChild = "proxies-middleware"

func init() { run.Register(middlewareChild, runMiddleware) }

// startMiddleware runs this program as the proxy.
func startMiddleware(ctx context.Context, s setting) (*run.Process, error) {
	var input bytes.Buffer
	if err := gob.NewEncoder(&input).Encode(s); err != nil {
		return nil, err
	}
	return run.StartProcess(ctx, s.Listen, input.Bytes(), func(ctx context.Context) (*exec.Cmd, error) {
		return run.Command(ctx, middlewareChild)
	})
}

// runMiddleware is the proxy. It ends when its input does, which is when the process
// that has started it ends.
func runMiddleware(in io.Reader, _ io.Writer) error {
	var s setting
	if err := gob.NewDecoder(in).Decode(&s); err != nil {
		return err
	}
	limits, err := shaper.ParseLimits(fmt.Sprintf("%d/s depth %d", s.Rate, s.Line))
	if err != nil {
		return err
	}
	line, err := shaper.New(limits)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", s.Listen)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: shaper.Middleware(line)(forward(s.Upstream)), ConnContext: shaper.ConnContext, ReadHeaderTimeout: time.Minute,
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(0)
	}()
	return server.Serve(listener)
}

// forward is httputil.ReverseProxy in its best documented use: it keeps enough
// connections to the upstream open, and its buffers.
func forward(upstream string) http.Handler {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns = 0 // No bound, as with nginx's keepalive.
	transport.MaxIdleConnsPerHost = 1024
	transport.DisableCompression = true
	target := &url.URL{Scheme: "http", Host: upstream}
	return &httputil.ReverseProxy{
		Rewrite:    func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:  transport,
		BufferPool: &buffers{sync.Pool{New: func() any { return new([32 << 10]byte) }}},
	}
}

// buffers are the buffers of a ReverseProxy, which otherwise makes one of 32 KiB for each response.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte       { return b.pool.Get().(*[32 << 10]byte)[:] }
func (b *buffers) Put(buffer []byte) { b.pool.Put((*[32 << 10]byte)(buffer)) }
