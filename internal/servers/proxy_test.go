package servers_test

import (
	"bufio"
	"fmt"
	"net"
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
