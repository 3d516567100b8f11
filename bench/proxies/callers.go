package proxies

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"example.com/leakybucket/bench/internal/measure"
)

// callers are open connections that are closed when a context ends.
type callers struct {
	all  []caller
	stop func() bool
}

// openCallers opens n connections to address. They must be closed.
func openCallers(ctx context.Context, address string, n int) (*callers, error) {
	c := &callers{}
	var dialer net.Dialer
	for range n {
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			c.hangUp()
			return nil, fmt.Errorf("connection %d of %d: %w", len(c.all)+1, n, err)
		}
		c.all = append(c.all, caller{conn, bufio.NewReaderSize(conn, 1024), new(fasthttp.Response)})
	}
	c.stop = context.AfterFunc(ctx, c.hangUp)
	return c, nil
}

func (c *callers) close() {
	c.stop()
	c.hangUp()
}

func (c *callers) hangUp() {
	for _, one := range c.all {
		// Nothing is sent any more, so that there is nothing to lose.
		_ = one.conn.Close()
	}
}

// waiters are callers; each waits for a response to one request. Their numbers are the numbers of
// the requests, in the order of sending, from 1.
type waiters struct {
	*callers
	began     time.Time
	responses chan response // It has room for all, so that none blocks.
}

// A response is the response that a caller has received.
type response struct {
	number, status int
	err            error
}

// settling is how long connections are open before something is sent, so that
// the proxy has accepted them all.
const settling = 100 * time.Millisecond

// gather opens n connections and sends a request on each, with some time between them.
// The waiters must be closed.
func gather(ctx context.Context, address string, n int, every time.Duration) (*waiters, error) {
	callers, err := openCallers(ctx, address, n)
	if err != nil {
		return nil, err
	}
	w := &waiters{callers: callers, responses: make(chan response, n)}
	for i, one := range callers.all {
		go func() {
			status, err := one.receive()
			w.responses <- response{i + 1, status, err}
		}()
	}
	pause(settling)
	if err := w.send(every); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// send sends one request after another, from one thread, as Go's own timers
// would send three at a time.
func (w *waiters) send(every time.Duration) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w.began = time.Now()
	for i, one := range w.all {
		pause(time.Until(w.began.Add(time.Duration(i) * every)))
		if err := one.send(fmt.Sprintf("/%d", i+1)); err != nil {
			return err
		}
	}
	return nil
}

// answered returns when each request that is not excepted has been answered, with success.
func (w *waiters) answered(ctx context.Context, except func(number int) bool) error {
	for range w.all {
		switch r := <-w.responses; {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case except(r.number):
		case r.err != nil:
			return fmt.Errorf("response %d: %w", r.number, r.err)
		case r.status != http.StatusOK:
			return fmt.Errorf("response %d has status %d", r.number, r.status)
		}
	}
	return nil
}

// patience bounds how long so many requests at a rate may take.
func patience(ctx context.Context, n, rate int) (context.Context, context.CancelFunc) {
	limit := time.Duration(n)*time.Second/time.Duration(rate) + time.Minute
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w within %v", errUnanswered, limit))
}

// errUnanswered is for a proxy that leaves requests in line for good.
var errUnanswered = errors.New("not all requests were answered")

// A caller is an open connection to a proxy. The load generator and the upstream write to
// their connections by themselves, and read from them with fasthttp's parsers: net/http
// would use more of the processors than a fast proxy does, and the measurement would then
// be of net/http.
type caller struct {
	conn net.Conn
	r    *bufio.Reader
	got  *fasthttp.Response // used again for each
}

func (c caller) send(path string) error {
	_, err := c.conn.Write([]byte("GET " + path + " HTTP/1.1\r\nHost: bench\r\n\r\n"))
	return err
}

// receive reads a response and returns its status.
func (c caller) receive() (int, error) {
	err := c.got.Read(c.r)
	return c.got.StatusCode(), err
}

// usage counts the resources that a process and its children use, as Linux tells it.
type usage struct {
	cpu      float64 // user and system, in nanoseconds, since they started
	resident float64 // bytes
	files    int     // open
}

// tick is the unit in which Linux counts processor time, on every architecture.
const tick = 1e9 / 100

// usage asks the system for the usage of the proxy. Where it does not tell, all is unknown, without
// an error.
func (s *stage) usage() (usage, error) {
	if !measure.MemoryIsTold() {
		return usage{measure.Unknown, measure.Unknown, 0}, nil
	}
	sum := usage{}
	for _, pid := range family(strconv.Itoa(s.Cmd.Process.Pid)) {
		one, err := usageOf(filepath.Join("/proc", pid))
		if err != nil {
			return usage{}, err
		}
		sum = usage{sum.cpu + one.cpu, sum.resident + one.resident, sum.files + one.files}
	}
	return sum, nil
}

// family returns a process and all that it has started: nginx has a process for each
// processor.
func family(pid string) []string {
	all := []string{pid}
	lists, _ := filepath.Glob(filepath.Join("/proc", pid, "task/*/children")) // The pattern is well formed.
	for _, list := range lists {
		children, _ := os.ReadFile(list) // The thread may have ended.
		for _, child := range strings.Fields(string(children)) {
			all = append(all, family(child)...)
		}
	}
	return all
}

// usageOf reads the usage from a folder of /proc.
func usageOf(dir string) (usage, error) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return usage{}, err
	}
	// The name of the program, which may have blanks, is the second field, in parentheses.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 13 {
		return usage{}, fmt.Errorf("%s/stat is %q", dir, stat)
	}
	u := usage{}
	for _, ticks := range fields[11:13] {
		n, err := strconv.ParseFloat(ticks, 64)
		if err != nil {
			return usage{}, fmt.Errorf("%s/stat is %q: %w", dir, stat, err)
		}
		u.cpu += n * tick
	}
	if u.resident, err = measure.ResidentOf(dir); err != nil {
		return usage{}, err
	}
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	u.files = len(files)
	return u, err
}
