package proxies

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/shaper"
)

// A rival is a proxy that can be started with a limit.
type rival struct {
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
	runCaddy   = []string{shaperd, "run", "--config", "Caddyfile"}
)

// shaperd is the file of Caddy with the shaper, in the folder that all proxies share.
const shaperd = "shaperd"

// compared are the rivals in their order.
var compared = []string{ours, middleware, nginx, haproxySessions, haproxyMaxconn, caddy}

// rivals are those by name. Caddy with the shaper has a bucket for each client's address, as nginx has.
var rivals = map[string]rival{
	ours:            {byRate, "Caddyfile", with(caddyConfig, "{order}", "order shape before reverse_proxy", "{shape}", "shape {\n\t\tlimits {rate}/s depth {line}\n\t}"), runCaddy},
	middleware:      {byRate, "", "", nil},
	nginx:           {byRate, "nginx.conf", nginxConfig, runNginx},
	haproxySessions: {bySessions, "haproxy.cfg", with(haproxyConfig, "{sessions}", "rate-limit sessions {rate}", "{maxconn}", ""), runHAProxy},
	haproxyMaxconn:  {byResponses, "haproxy.cfg", with(haproxyConfig, "{sessions}", "", "{maxconn}", "maxconn {at-once}"), runHAProxy},
	caddy:           {unlimited, "Caddyfile", with(caddyConfig, "{order}", "", "{shape}", ""), runCaddy},
}

// with puts values in the places of names.
func with(config string, namesAndValues ...string) string {
	return strings.NewReplacer(namesAndValues...).Replace(config)
}

// noLimit is a rate that none of them can serve by far.
const noLimit = 1_000_000

// A setting says how a proxy is started.
type setting struct {
	Listen, Upstream string
	Rate             int // per second
	Line             int // for so many requests it has room
	AtOnce           int // at the upstream, where the proxy limits that
}

// A stage is an upstream and a proxy before it.
type stage struct {
	*upstream
	address   string // of the proxy
	pid       int    // likewise
	callers   []caller
	sent      time.Time // the first of their requests
	responses chan response
}

// newStage starts an upstream, and a proxy with a limit and with room for a line. If the
// upstream holds requests, it answers none. A proxy that only limits how many requests
// are at the upstream at once is paced by it: then the upstream takes an interval of the
// rate for each. Both end with the test.
func newStage(t *testing.T, name string, rate, line int, holds bool) *stage {
	r := rivals[name]
	s := setting{Listen: net.JoinHostPort("127.0.0.1", strconv.Itoa(servers.FreePort(t))), Rate: rate, Line: line}
	takes := time.Duration(0)
	if r.limit == byResponses {
		s.AtOnce = ceilingCallers
		if rate < noLimit {
			s.AtOnce, takes = 1, measure.Interval(float64(rate))
		}
	}
	u := startUpstream(t, takes, holds)
	s.Upstream = u.address
	return &stage{upstream: u, address: s.Listen, pid: start(t, r, s)}
}

// start runs a rival and returns the number of its process when it listens.
func start(t *testing.T, r rival, s setting) (pid int) {
	shared := os.Getenv(folder)
	own, err := os.MkdirTemp(shared, "")
	require.NoError(t, err)
	// Started by root, the workers of nginx are another user, who must get into the folder.
	require.NoError(t, os.Chmod(own, 0o711))
	var command *exec.Cmd
	if r.file == "" {
		command, err = proxy.Command(context.Background(), s)
		require.NoError(t, err)
	} else {
		require.NoError(t, os.WriteFile(filepath.Join(own, r.file), []byte(s.in(r.config, openFiles())), 0o644))
		program := r.command[0]
		if program == shaperd {
			program = filepath.Join(shared, shaperd)
		}
		command = exec.Command(program, r.command[1:]...)
		command.Env = append(os.Environ(), "XDG_DATA_HOME="+own, "XDG_CONFIG_HOME="+own) // Caddy writes there.
	}
	command.Dir = own
	return servers.Listening(t, s.Listen, command).Command.Process.Pid
}

// in puts the setting into a configuration.
func (s setting) in(config string, files int) string {
	_, port, _ := strings.Cut(s.Listen, ":")
	return with(config,
		"{listen}", s.Listen, "{port}", port, "{upstream}", s.Upstream, "{rate}", fmt.Sprint(s.Rate), "{line}", fmt.Sprint(s.Line),
		"{at-once}", fmt.Sprint(s.AtOnce), "{files}", fmt.Sprint(files))
}

// proxy is a child process that is a proxy of a few lines of Go.
var proxy = run.NewChild("proxies-middleware", func(s setting) (none int, err error) {
	limits, err := shaper.ParseLimits(fmt.Sprintf("%d/s depth %d", s.Rate, s.Line))
	if err != nil {
		return none, err
	}
	line, err := shaper.New(limits)
	if err != nil {
		return none, err
	}
	server := &http.Server{
		Addr: s.Listen, Handler: shaper.Middleware(line)(forward(s.Upstream)), ConnContext: shaper.ConnContext, ReadHeaderTimeout: time.Minute,
	}
	return none, server.ListenAndServe()
})

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
