package caddyshaper_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	_ "github.com/caddyserver/caddy/v2/modules/logging"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
	"example.com/leakybucket/internal/realtime"
)

// enough is how long a test waits for what must happen, on a machine that may be busy.
const (
	enough = 30 * time.Second
	tick   = 10 * time.Millisecond // between two looks at it
)

// adapt returns the JSON of a Caddyfile.
func adapt(text string) ([]byte, error) {
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	return config, err
}

// A site is a Caddy in this process, with a site on a Unix socket. Caddy keeps such a socket
// open over a reload, so that a connection can't be lost by the system between two sockets.
type site struct {
	t        testing.TB
	socket   string
	log      string // file of the access log
	scheme   string // http, or https
	grace    string // period
	global   string // further global options
	client   *http.Client
	ctx      context.Context // of all requests
	giveUp   func()          // ends them
	upstream *upstream
}

// serve makes a site whose directives are given, and ends it with the test. In them, UPSTREAM
// stands for the address of an upstream.
func serve(t testing.TB, directives string) *site {
	t.Helper()
	s := newSite(t)
	s.reload(directives)
	return s
}

func newSite(t testing.TB) *site {
	dir := t.TempDir()
	s := &site{t: t, scheme: "http", grace: "20s", socket: filepath.Join(dir, "s"), log: filepath.Join(dir, "log.json"), upstream: newUpstream(t)}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.socket)
	}}
	s.client = &http.Client{Transport: transport, Timeout: realtime.Patience}
	s.ctx, s.giveUp = context.WithCancel(context.Background())
	t.Cleanup(func() {
		if text, err := os.ReadFile(s.log + ".app"); t.Failed() && err == nil {
			t.Logf("the log:\n%s", text)
		}
		s.giveUp()
		transport.CloseIdleConnections()
		require.NoError(t, caddy.Stop())
		realtime.Until(t, func() bool {
			_, all := caddyshaper.Names()
			return len(all) == 0
		}, "no lines are left when all configurations have ended")
	})
	return s
}

// caddyfile returns the whole file.
func (s *site) caddyfile(directives string) string {
	return fmt.Sprintf(`{
	admin off
	persist_config off
	auto_https off
	grace_period %s
	%s
	log {
		output file %s.app
		level INFO
	}
}
%s://shop.example {
	bind unix/%s
	log {
		output file %s
		format json
	}
	%s
}
`, s.grace, s.global, s.log, s.scheme, s.socket, s.log, strings.ReplaceAll(directives, "UPSTREAM", s.upstream.addr))
}

// load loads a configuration, as caddy reload does.
func (s *site) load(directives string) error {
	config, err := adapt(s.caddyfile(directives))
	if err != nil {
		return err
	}
	return caddy.Load(config, true)
}

func (s *site) reload(directives string) {
	s.t.Helper()
	require.NoError(s.t, s.load(directives))
}

// An answer is the answer to a client.
type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

func (s *site) get(path string, header ...string) answer {
	return s.send(http.MethodGet, path, nil, header...)
}

// send sends a request; header has names and values of fields in turn.
func (s *site) send(method, path string, body io.Reader, header ...string) answer {
	r, err := http.NewRequestWithContext(s.ctx, method, s.scheme+"://shop.example"+path, body)
	if err != nil {
		return answer{err: err}
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return do(s.client, r)
}

// do sends a request. It repeats one whose connection ends without an answer, as clients may:
// at a reload, net/http closes a new connection whose first request it has just read, and no
// handler sees that request. TestAHundredReloadsUnderLoadLoseNobody holds that handlers see
// none twice.
func do(client *http.Client, r *http.Request) answer {
	resp, err := client.Do(r)
	for range 5 {
		if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			break
		}
		if r.GetBody != nil {
			r.Body, _ = r.GetBody() // It is a text, so there is no error.
		} else if r.Body != nil {
			break
		}
		resp, err = client.Do(r)
	}
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(text), err}
}

// inLine sends requests that wait in the line of a name, in this order. It returns the function
// that waits for their answers.
func (s *site) inLine(name string, paths ...string) (wait func() []answer) {
	s.t.Helper()
	return s.inLineWith(nil, name, paths...)
}

// inLineWith is inLine for requests with header fields.
func (s *site) inLineWith(header []string, name string, paths ...string) (wait func() []answer) {
	s.t.Helper()
	answers := make([]answer, len(paths))
	var all sync.WaitGroup
	for i, path := range paths {
		before := caddyshaper.Waiting(name)
		answered := make(chan struct{})
		all.Go(func() {
			defer close(answered)
			answers[i] = s.get(path, header...)
		})
		realtime.Until(s.t, func() bool {
			select {
			case <-answered:
				require.Fail(s.t, "a request does not wait", "for %s: %+v", path, answers[i])
			default:
			}
			return caddyshaper.Waiting(name) > before
		}, "a request for "+path+" waits")
	}
	return func() []answer {
		all.Wait()
		return answers
	}
}

// logged returns the lines of the access log, once there are so many.
func (s *site) logged(n int) []string {
	s.t.Helper()
	return linesOf(s.t, s.log, n)
}

func linesOf(t testing.TB, file string, n int) (lines []string) {
	t.Helper()
	realtime.Until(t, func() bool {
		text, _ := os.ReadFile(file)
		lines = strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
		return len(lines) >= n && lines[0] != ""
	}, "the file has so many lines")
	return lines
}

// An upstream notes when requests come.
type upstream struct {
	addr string

	mu   sync.Mutex
	came []arrival
	do   http.HandlerFunc // nil: it says the path
}

type arrival struct {
	at   time.Time
	path string
}

func newUpstream(t testing.TB) *upstream {
	u := &upstream{}
	server := httptest.NewServer(u)
	realtime.Close(t, server)
	u.addr = server.Listener.Addr().String()
	return u
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	u.came = append(u.came, arrival{time.Now(), r.URL.Path})
	do := u.do
	u.mu.Unlock()
	if do != nil {
		do(w, r)
		return
	}
	_, _ = io.WriteString(w, "served "+r.URL.Path)
}

func (u *upstream) serves(do http.HandlerFunc) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.do = do
}

// arrivals returns the requests that have come so far.
func (u *upstream) arrivals() []arrival {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]arrival(nil), u.came...)
}

func (u *upstream) paths() (paths []string) {
	for _, a := range u.arrivals() {
		paths = append(paths, a.path)
	}
	return paths
}

func containsAll(text string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

// dial returns a connection to the site.
func (s *site) dial() net.Conn {
	s.t.Helper()
	conn, err := net.Dial("unix", s.socket)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(s.t, conn.SetDeadline(time.Now().Add(enough)))
	return conn
}

// sendOn sends a request that waits in the line of a name. It returns the function that ends
// the connection.
func (s *site) sendOn(request, name string) (hangUp func()) {
	s.t.Helper()
	conn := s.dial()
	_, err := io.WriteString(conn, request)
	require.NoError(s.t, err)
	realtime.Until(s.t, func() bool { return caddyshaper.Waiting(name) == 1 }, "it waits")
	return func() {
		require.NoError(s.t, conn.Close())
		realtime.Until(s.t, func() bool { return caddyshaper.Waiting(name) == 0 }, "it has left the line")
	}
}

// upgrade makes a connection of another protocol through the site.
func (s *site) upgrade() (send func(string), receive func() string) {
	s.t.Helper()
	conn := s.dial()
	_, err := io.WriteString(conn, "GET /ws HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\nUpgrade: shout\r\n\r\n")
	require.NoError(s.t, err)
	from := bufio.NewReader(conn)
	resp, err := http.ReadResponse(from, nil)
	require.NoError(s.t, err)
	require.Equal(s.t, http.StatusSwitchingProtocols, resp.StatusCode)
	send = func(text string) {
		_, err := io.WriteString(conn, text)
		require.NoError(s.t, err)
	}
	receive = func() string {
		line, err := from.ReadString('\n')
		require.NoError(s.t, err)
		return line
	}
	return send, receive
}

// echoUpgraded is an upstream that answers each line in capitals.
func echoUpgraded(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", "shout")
	w.WriteHeader(http.StatusSwitchingProtocols)
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	for {
		line, err := buffered.ReadString('\n')
		if err != nil {
			return
		}
		if _, err := io.WriteString(conn, strings.ToUpper(line)); err != nil {
			return
		}
	}
}

func readAll(t testing.TB, r io.Reader) string {
	t.Helper()
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(text)
}

func TestMain(m *testing.M) {
	if file := os.Getenv(serveFile); file != "" {
		serveAlone(file)
	}
	caddyshaper.SetLinger(50 * time.Millisecond)
	// Caddy keeps certificates and its last configuration in the home folder otherwise.
	home, err := os.MkdirTemp("", "caddyshaper")
	if err != nil {
		panic(err)
	}
	for _, folder := range []string{"HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"} {
		if err := os.Setenv(folder, home); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	_ = os.RemoveAll(home)
	os.Exit(code)
}
