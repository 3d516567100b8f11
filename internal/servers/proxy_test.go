package servers_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
)

// patience is how long a test waits for what must come.
const patience = servers.Failover

// silence is how long a test listens before it believes that nothing comes.
const silence = 60 * time.Millisecond

// An echo is a server that answers each line with its name and the line.
type echo struct {
	addr  string
	lines atomic.Int64 // that have arrived
}

func startEcho(t *testing.T, name string) *echo {
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
					fmt.Fprintln(c, name, lines.Text())
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

// requireServes requires that a new connection works.
func requireServes(t *testing.T, p *servers.Proxy) {
	t.Helper()
	c := dial(t, p)
	c.send("hello")
	c.gets("a hello")
}

func (c *caller) send(line string) {
	_, err := fmt.Fprintln(c, line)
	require.NoError(c.t, err)
}

// gets requires that the next answer is want.
func (c *caller) gets(want string) {
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(patience)))
	got, err := c.answers.ReadString('\n')
	require.NoError(c.t, err)
	require.Equal(c.t, want+"\n", got)
}

// getsNothing requires that no answer comes, and that the connection stays open.
func (c *caller) getsNothing() {
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(silence)))
	_, err := c.answers.ReadByte()
	var timeout net.Error
	require.ErrorAs(c.t, err, &timeout)
	require.True(c.t, timeout.Timeout(), "%v", err)
}

// getsReset requires that the connection is reset.
func (c *caller) getsReset() {
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(patience)))
	_, err := c.answers.ReadByte()
	require.ErrorIs(c.t, err, syscall.ECONNRESET)
}

func TestARoundTripTakesTheDelayWithinItsJitter(t *testing.T) {
	p := servers.StartProxy(t, startEcho(t, "a").addr)
	p.SetDelay(8*time.Millisecond, 4*time.Millisecond)
	c := dial(t, p)
	shortest, longest := time.Hour, time.Duration(0)
	// On a busy machine most round trips take longer; if the delay were added twice, all would
	// take more than the base.
	for begun, trips := time.Now(), 0; trips < 40 || (shortest >= 8*time.Millisecond && time.Since(begun) < patience); trips++ {
		start := time.Now()
		c.send("hello")
		c.gets("a hello")
		took := time.Since(start)
		shortest, longest = min(shortest, took), max(longest, took)
	}
	require.GreaterOrEqual(t, shortest, 4*time.Millisecond)
	require.Less(t, shortest, 8*time.Millisecond, "the delay is added once")
	require.Greater(t, longest, 8*time.Millisecond, "some round trips of 40 take more than the base")
}

func TestJitterKeepsTheOrderOfBytes(t *testing.T) {
	p := servers.StartProxy(t, startEcho(t, "a").addr)
	p.SetDelay(4*time.Millisecond, 4*time.Millisecond)
	c := dial(t, p)
	for i := range 100 {
		c.send(fmt.Sprint(i))
		time.Sleep(100 * time.Microsecond) // so that the lines are many chunks
	}
	for i := range 100 {
		c.gets(fmt.Sprint("a ", i))
	}
}

func TestABlackHoleKeepsBackEverythingUntilItEnds(t *testing.T) {
	server := startEcho(t, "a")
	p := servers.StartProxy(t, server.addr)
	old := dial(t, p)
	old.send("before")
	old.gets("a before")

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
	old.gets("a into the hole")
	late.gets("a too")
	realtime.Until(t, func() bool { return server.lines.Load() == 4 }, "what a client sent before it went arrives too")
}

func TestCutConnectionsAreResetAndNewOnesWork(t *testing.T) {
	p := servers.StartProxy(t, startEcho(t, "a").addr)
	old := dial(t, p)
	old.send("before")
	old.gets("a before")
	p.CutAll()
	old.getsReset()
	requireServes(t, p)
}

func TestALostReplyIsCarriedOutAndNeverAnswered(t *testing.T) {
	server := startEcho(t, "a")
	p := servers.StartProxy(t, server.addr)
	c := dial(t, p)
	p.LoseReplies(1)
	c.send("lost")
	realtime.Until(t, func() bool { return server.lines.Load() == 1 }, "it is carried out")
	c.getsNothing()
	c.send("later on the same connection")
	c.getsNothing()
	requireServes(t, p)
}

func TestACutReplyIsCarriedOutAndResetsTheConnection(t *testing.T) {
	server := startEcho(t, "a")
	p := servers.StartProxy(t, server.addr)
	c := dial(t, p)
	p.CutReplies(1)
	c.send("cut")
	c.getsReset()
	require.EqualValues(t, 1, server.lines.Load())
	requireServes(t, p)
}

func TestNewConnectionsGoToTheNewTarget(t *testing.T) {
	p := servers.StartProxy(t, startEcho(t, "a").addr)
	old := dial(t, p)
	old.send("one")
	old.gets("a one")
	p.SetTarget(startEcho(t, "b").addr)
	old.send("two")
	old.gets("a two")
	c := dial(t, p)
	c.send("three")
	c.gets("b three")
}

func TestTheEndOfAConnectionArrivesOnTheOtherSide(t *testing.T) {
	p := servers.StartProxy(t, startEcho(t, "a").addr)
	c := dial(t, p)
	c.send("last")
	require.NoError(t, c.Conn.(*net.TCPConn).CloseWrite())
	c.gets("a last")
	_, err := c.answers.ReadByte()
	require.ErrorIs(t, err, io.EOF, "the server closes when its client has ended")
}

func TestAServerThatIsDownClosesTheConnection(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	listener.Close()
	c, err := net.Dial("tcp", servers.StartProxy(t, listener.Addr().String()).Addr)
	if err == nil { // The reset may be faster than the end of Dial.
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestAProxyLeavesNothingRunning(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("", func(t *testing.T) {
		p := servers.StartProxy(t, startEcho(t, "a").addr)
		c := dial(t, p)
		c.send("hello")
		c.gets("a hello")
		p.LoseReplies(1)
		c.send("lost")
		c.getsNothing()
		p.BlackHole(true)
		dial(t, p).send("never answered")
		p.SetDelay(time.Hour, 0)
		c.send("too late")
	})
	goleak.VerifyNone(t, before)
}
