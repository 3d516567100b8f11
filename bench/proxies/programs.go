package proxies

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/run"
)

// programs are those that are compared, by the names of the rivals that need them.
// [findPrograms] makes them.
type programs struct {
	dir      string            // for what they write, and for shaperd
	files    int               // so many each of them may have open
	paths    map[string]string // empty if the program is missing
	versions map[string]string
	missing  []error // says what is, and how to get it
}

// A candidate is a program that rivals need.
type candidate struct {
	rivals []string
	find   func(context.Context) (path string, err error)
	// asked is what makes it say its version, which is what the pattern matches in
	// what it says.
	asked   []string
	version *regexp.Regexp
}

// findPrograms looks for programs in the folders of a PATH and builds shaperd into dir.
// A program that is missing is no error.
func findPrograms(ctx context.Context, o run.Options, dir, path string) *programs {
	p := &programs{dir: dir, files: openFiles(), paths: map[string]string{}, versions: map[string]string{}}
	inPath := func(name, debian string) func(context.Context) (string, error) {
		return func(context.Context) (string, error) { return findProgram(path, name, debian) }
	}
	for _, c := range []candidate{
		{[]string{nginx}, inPath("nginx", "nginx-light"), []string{"-v"}, regexp.MustCompile(`nginx/\S+`)},
		{[]string{haproxySessions, haproxyMaxconn}, inPath("haproxy", "haproxy"), []string{"-v"}, regexp.MustCompile(`HAProxy version \S+`)},
		{[]string{ours, caddy}, func(ctx context.Context) (string, error) { return buildShaperd(ctx, o, dir) }, []string{"version"}, regexp.MustCompile(`v\d\S+`)},
	} {
		program, err := c.find(ctx)
		said := ""
		if err == nil {
			said, err = c.askVersion(ctx, program)
		}
		if err != nil {
			p.missing = append(p.missing, err)
			continue
		}
		for _, name := range c.rivals {
			p.paths[name], p.versions[name] = program, said
		}
	}
	return p
}

// has reports whether a rival can be measured.
func (p *programs) has(name string) bool {
	return name == middleware || name == direct || p.paths[name] != ""
}

// askVersion asks a program for its version.
func (c candidate) askVersion(ctx context.Context, program string) (string, error) {
	said, err := exec.CommandContext(ctx, program, c.asked...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, c.asked[0], err, said)
	}
	version := c.version.FindString(string(said))
	if version == "" {
		return "", fmt.Errorf("%s %s says %q", program, c.asked[0], said)
	}
	return version, nil
}

// findProgram looks for a program in the folders of a PATH, and in the sbin beside each,
// where Debian puts servers and which only root has in its PATH.
func findProgram(path, name, debian string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		for _, dir := range []string{dir, filepath.Join(filepath.Dir(dir), "sbin")} {
			if !filepath.IsAbs(dir) {
				continue
			}
			if program, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
				return program, nil
			}
		}
	}
	return "", fmt.Errorf("%s is missing; to get it, on Debian: apt-get install %s", name, debian)
}

// shaperd is the package of Caddy with the shaper. It is built, not imported: this module
// has nothing to do with the many that Caddy requires.
const shaperd = "example.com/leakybucket/cmd/shaperd"

const shaperdMissing = "shaperd is missing; it is built with Go from within this project's tree"

func buildShaperd(ctx context.Context, o run.Options, dir string) (string, error) {
	o.Progress.Logf("builds shaperd, which takes minutes the first time\n")
	program := filepath.Join(dir, "shaperd")
	said, err := exec.CommandContext(ctx, "go", "env", "GOWORK").CombinedOutput()
	if err == nil {
		inUse := string(bytes.TrimSpace(said))
		if !filepath.IsAbs(inUse) {
			return "", fmt.Errorf("%s; go env GOWORK prints %q here", shaperdMissing, inUse)
		}
		// The file beside go.work that uses every module, also Caddy's.
		workspace := filepath.Join(filepath.Dir(inUse), "all.work")
		build := exec.CommandContext(ctx, "go", "build", "-o", program, shaperd)
		build.Env = append(os.Environ(), "GOWORK="+workspace)
		said, err = build.CombinedOutput()
	}
	if ctx.Err() != nil {
		return "", ctx.Err() // The build was interrupted.
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", shaperdMissing, err, bytes.TrimSpace(said))
	}
	return program, nil
}

// required returns an error if a program is missing although none may be.
func (p *programs) required() error {
	if os.Getenv("SHAPER_REQUIRE_ALL") != "1" {
		return nil
	}
	return errors.Join(p.missing...)
}

// A process is a proxy that runs.
type process struct {
	cmd     *exec.Cmd
	cancel  context.CancelFunc
	done    chan struct{} // closed when it has ended
	ended   error         // with what; to be read after that
	printed bytes.Buffer  // likewise
}

const (
	readyWithin = time.Minute // The machine may be busy.
	goneWithin  = time.Minute // then it is killed
)

// startProcess runs a command, which ends with ctx, with some input, and returns
// when something listens on address. The process must be stopped.
func startProcess(ctx context.Context, address string, input []byte, command func(context.Context) (*exec.Cmd, error)) (*process, error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd, err := command(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	p := &process{cmd: cmd, cancel: cancel, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.printed, &p.printed
	// nginx ends its workers when it is asked to end, and leaves them behind
	// when it is killed.
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = goneWithin
	// Our proxy ends when this pipe does, and so also when this process is killed.
	stdin, err := p.cmd.StdinPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	_, _ = stdin.Write(input) // If the process has gone, ready says why.
	go func() {
		p.ended = p.cmd.Wait()
		close(p.done)
	}()
	if err := p.ready(ctx, address); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// ready waits until the process listens.
func (p *process) ready(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("%s does not listen on %s within %v", p.cmd.Path, address, readyWithin))
	defer cancel()
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s: %w: %s", p.cmd.Path, errors.Join(errors.New("it ended at once"), p.ended), bytes.TrimSpace(p.printed.Bytes()))
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// stop ends the process and waits until it has gone.
func (p *process) stop() {
	p.cancel()
	<-p.done
}

// A rival is a proxy that can be started with a limit.
type rival struct {
	name  string
	limit limit
	does  string // what limits, for the table
	start func(context.Context, *programs, setting) (*process, error)
}

// A limit is what a proxy lets pass.
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
	direct          = "no-proxy" // the upstream itself
)

// rivals are compared in this order.
var rivals = []rival{
	{ours, byRate, "requests per second", startShaperd},
	{middleware, byRate, "requests per second", startMiddleware},
	{nginx, byRate, "requests per second", startNginx},
	{haproxySessions, bySessions, "connections per second", startHAProxy},
	{haproxyMaxconn, byResponses, "requests at once", startHAProxy},
	{caddy, unlimited, "nothing", startCaddy},
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
	*process
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
	// Another program may take the address in between.
	for range 3 {
		if s.Listen, err = run.FreeAddress(); err != nil {
			break
		}
		var process *process
		if process, err = r.start(ctx, p, s); err == nil {
			return &stage{u, process, s.Listen}, nil
		}
	}
	u.close()
	return nil, err
}

// close ends both and returns when they have gone.
func (s *stage) close() {
	s.process.stop()
	s.upstream.close()
}

// startConfigured runs a command in a new folder with its configuration in a file.
func (p *programs) startConfigured(ctx context.Context, listen, file, config string, command func(context.Context, string) *exec.Cmd) (*process, error) {
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
	started, err := startProcess(ctx, listen, nil, func(ctx context.Context) (*exec.Cmd, error) {
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
