package servers_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
)

// These tests are of the abilities of a Proxy that no test with a real server behind it would
// miss: redisbucket and sharedfaults fail if replies are not lost, connections not cut, and
// clients not sent to another target.

// An echo is a server that answers each line with the line.
type echo struct {
	addr  string
	lines atomic.Int64 // that have arrived
}

func startEcho(t *testing.T) *echo {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	e := &echo{addr: listener.Addr().String()}
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for lines := bufio.NewScanner(c); lines.Scan(); {
					e.lines.Add(1)
					fmt.Fprintln(c, lines.Text())
				}
			}()
		}
	}()
	t.Cleanup(func() { listener.Close() })
	return e
}

// A caller is a connection through a proxy.
type caller struct {
	net.Conn
	answers *bufio.Reader
	t       *testing.T
}

func dial(t *testing.T, p *servers.Proxy) *caller {
	c, err := net.Dial("tcp", p.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return &caller{c, bufio.NewReader(c), t}
}

func (c *caller) send(line string) {
	_, err := fmt.Fprintln(c, line)
	require.NoError(c.t, err)
}

// gets requires that the next answer is want.
func (c *caller) gets(want string) {
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(servers.Failover)))
	got, err := c.answers.ReadString('\n')
	require.NoError(c.t, err)
	require.Equal(c.t, want+"\n", got)
}

// getsNothing requires that no answer comes, and that the connection stays open.
func (c *caller) getsNothing() {
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(60*time.Millisecond)))
	_, err := c.answers.ReadByte()
	var timeout net.Error
	require.ErrorAs(c.t, err, &timeout)
	require.True(c.t, timeout.Timeout(), "%v", err)
}

func TestARoundTripTakesTheDelayWithinItsJitter(t *testing.T) {
	p := servers.StartProxy(t, startEcho(t).addr)
	p.SetDelay(8*time.Millisecond, 4*time.Millisecond)
	c := dial(t, p)
	shortest, longest := time.Hour, time.Duration(0)
	// On a busy machine most round trips take longer; if the delay were added twice, all would
	// take more than the base.
	for begun, trips := time.Now(), 0; trips < 40 || (shortest >= 8*time.Millisecond && time.Since(begun) < servers.Failover); trips++ {
		start := time.Now()
		c.send("hello")
		c.gets("hello")
		took := time.Since(start)
		shortest, longest = min(shortest, took), max(longest, took)
	}
	require.GreaterOrEqual(t, shortest, 4*time.Millisecond)
	require.Less(t, shortest, 8*time.Millisecond, "the delay is added once")
	require.Greater(t, longest, 8*time.Millisecond, "some round trips of 40 take more than the base")
}

func TestABlackHoleKeepsBackEverythingUntilItEnds(t *testing.T) {
	server := startEcho(t)
	p := servers.StartProxy(t, server.addr)
	old := dial(t, p)
	old.send("before")
	old.gets("before")

	p.BlackHole(true)
	p.BlackHole(true) // twice is once
	old.send("into the hole")
	late := dial(t, p)
	late.send("too")
	gone := dial(t, p)
	gone.send("and goes")
	gone.Close()
	old.getsNothing()
	late.getsNothing()
	require.EqualValues(t, 1, server.lines.Load())

	p.BlackHole(false)
	old.gets("into the hole")
	late.gets("too")
	realtime.Until(t, func() bool { return server.lines.Load() == 4 }, "what a client sent before it went arrives too")
}

// So many that two would be the same by chance. The system keeps them apart, so that the ports of
// packages which are tested at the same time differ too.
func TestFreePortsDiffer(t *testing.T) {
	seen := map[int]bool{}
	for range 500 {
		port := servers.FreePort(t)
		require.False(t, seen[port], "port %d has been given before", port)
		seen[port] = true
	}
}

func TestAMissingProgramSkipsTheTestOrFailsIt(t *testing.T) {
	for _, test := range []struct {
		requireAll      string
		skipped, failed bool
	}{{"", true, false}, {"1", false, true}} {
		t.Setenv("SHAPER_REQUIRE_ALL", test.requireAll)
		r := &recorder{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			servers.Need(r, "how to get it", "no-such-program")
			t.Error("Need has returned")
		}()
		<-done
		require.Equal(t, test.skipped, r.skipped, "SHAPER_REQUIRE_ALL=%q", test.requireAll)
		require.Equal(t, test.failed, r.failed, "SHAPER_REQUIRE_ALL=%q", test.requireAll)
		require.Contains(t, r.said, "how to get it")
	}
	require.NotEmpty(t, servers.Need(t, "every system has it", "no-such-program", "go"))
}

// A test must not wait in vain for a program that has ended, nor overlook what it has said last.
func TestAProcessThatHasEndedFailsWhoWaitsForIt(t *testing.T) {
	r := &recorder{TB: t}
	p := servers.Start(r, exec.Command("sh", "-c", "echo first; echo last >&2; exit 3"))
	require.Equal(t, 3, p.Wait())
	p.Says("first\nlast\n")
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Says("more")
	}()
	realtime.Next(t, done)
	require.True(t, r.failed)
	require.Contains(t, r.said, "sh has ended: never: it says more\nfirst\nlast\n")
}

// A test that panics or is killed runs no cleanup.
func TestServersEndWithATestThatIsKilled(t *testing.T) {
	if file := os.Getenv("SERVERS_TEST_ADDRESS"); file != "" {
		require.NoError(t, os.WriteFile(file, []byte(servers.StartRedis(t).Addr), 0o666))
		require.NoError(t, os.Rename(file, file+".done"))
		select {} // It is killed.
	}
	servers.Need(t, "apt-get install redis-server", "redis-server", "valkey-server")
	file := filepath.Join(t.TempDir(), "address")
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), "SERVERS_TEST_ADDRESS="+file, "TMPDIR="+t.TempDir())
	require.NoError(t, child.Start())
	t.Cleanup(func() { _ = child.Process.Kill() }) // It has ended, if the test has come so far.
	var addr string
	realtime.Until(t, func() bool {
		text, err := os.ReadFile(file + ".done")
		addr = string(text)
		return err == nil
	}, "the server has started")
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err, "the server runs")
	require.NoError(t, conn.Close())

	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	realtime.Until(t, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, "the server has ended too")
}

// A recorder notes how the test would have ended, and ends the goroutine as a test does.
type recorder struct {
	testing.TB
	skipped, failed bool
	said            string
}

func (r *recorder) Skipf(format string, args ...any) {
	r.skipped, r.said = true, fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed, r.said = true, fmt.Sprintf(format, args...)
	runtime.Goexit()
}
