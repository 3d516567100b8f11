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
	start func(context.Context, *programs, setting) (*run.Process, error)
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

// rivals are compared in this order.
var rivals = []rival{
	{ours, byRate, startShaperd},
	{middleware, byRate, startMiddleware},
	{nginx, byRate, startNginx},
	{haproxySessions, bySessions, startHAProxy},
	{haproxyMaxconn, byResponses, startHAProxy},
	{caddy, unlimited, startCaddy},
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
	Sessions         bool
	AtOnce           int // at the upstream; 0: it does not matter
}

// A stage is an upstream and a proxy before it. [programs.stage] sets it up.
type stage struct {
	*upstream
	*run.Process
	address string // of the proxy
}

// stage starts an upstream, and a proxy with a limit and with room for a line. If the
// upstream holds requests, it answers none. A proxy that only limits how many requests
// are at the upstream at once is paced by it: then the upstream takes an interval of the
// rate for each. The stage must be closed.
func (p *programs) stage(ctx context.Context, name string, rate, line int, holds bool) (*stage, error) {
	r := named(name)
	s := setting{Rate: rate, Line: line, Sessions: r.limit == bySessions}
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
		return r.start(ctx, p, s)
	})
	if err != nil {
		u.close()
		return nil, err
	}
	return &stage{u, process, s.Listen}, nil
}

// close ends both and returns when they have gone.
func (s *stage) close() {
	s.Process.Stop()
	s.upstream.close()
}

// startConfigured runs a command in a new folder with its configuration in a file.
func (p *programs) startConfigured(ctx context.Context, listen, file, config string, command func(context.Context, string) *exec.Cmd) (*run.Process, error) {
	folder, err := os.MkdirTemp(p.dir, "")
	if err != nil {
		return nil, err
	}
	// Started by root, the workers of nginx are another user, who must get into the folder.
	if err := os.Chmod(folder, 0o711); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(folder, file), []byte(config), 0o644); err != nil {
		return nil, err
	}
	started, err := run.StartProcess(ctx, listen, nil, func(ctx context.Context) (*exec.Cmd, error) {
		cmd := command(ctx, folder)
		cmd.Dir = folder
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
	return strings.NewReplacer(
		"{listen}", s.Listen, "{upstream}", s.Upstream, "{rate}", fmt.Sprint(s.Rate), "{line}", fmt.Sprint(s.Line),
		"{at-once}", fmt.Sprint(s.AtOnce), "{files}", fmt.Sprint(files),
	).Replace(config)
}

//go:embed nginx.conf
var nginxConfig string

func startNginx(ctx context.Context, p *programs, s setting) (*run.Process, error) {
	return p.startConfigured(ctx, s.Listen, "nginx.conf", s.in(nginxConfig, p.files), func(ctx context.Context, folder string) *exec.Cmd {
		return exec.CommandContext(ctx, "nginx", "-p", folder, "-c", "nginx.conf")
	})
}

//go:embed haproxy.cfg
var haproxyConfig string

func startHAProxy(ctx context.Context, p *programs, s setting) (*run.Process, error) {
	sessions, maxconn := "", ""
	if s.Sessions {
		sessions = "rate-limit sessions {rate}"
	}
	if s.AtOnce > 0 {
		maxconn = "maxconn {at-once}"
	}
	config := strings.NewReplacer("{sessions}", sessions, "{maxconn}", maxconn).Replace(haproxyConfig)
	return p.startConfigured(ctx, s.Listen, "haproxy.cfg", s.in(config, p.files), func(ctx context.Context, _ string) *exec.Cmd {
		return exec.CommandContext(ctx, "haproxy", "-db", "-f", "haproxy.cfg")
	})
}

//go:embed Caddyfile
var caddyConfig string

// startShaperd runs Caddy with the shaper, with a bucket for each client's address, as
// nginx has.
func startShaperd(ctx context.Context, p *programs, s setting) (*run.Process, error) {
	return p.runCaddy(ctx, s, "order shape before reverse_proxy", "shape {\n\t\tlimits {rate}/s depth {line}\n\t}")
}

// startCaddy runs the same program without the shaper.
func startCaddy(ctx context.Context, p *programs, s setting) (*run.Process, error) {
	return p.runCaddy(ctx, s, "", "")
}

func (p *programs) runCaddy(ctx context.Context, s setting, order, shape string) (*run.Process, error) {
	_, port, _ := strings.Cut(s.Listen, ":")
	config := strings.NewReplacer("{order}", order, "{shape}", shape, "{port}", port).Replace(caddyConfig)
	return p.startConfigured(ctx, s.Listen, "Caddyfile", s.in(config, p.files), func(ctx context.Context, folder string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, p.shaperd, "run", "--config", "Caddyfile")
		cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+folder, "XDG_CONFIG_HOME="+folder) // It writes there.
		return cmd
	})
}

// middlewareChild is the child process that is a proxy of a few lines of Go.
const middlewareChild = "proxies-middleware"

func init() { run.Register(middlewareChild, runMiddleware) }

// startMiddleware runs this program as the proxy.
func startMiddleware(ctx context.Context, _ *programs, s setting) (*run.Process, error) {
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
