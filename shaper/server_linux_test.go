package shaper_test

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// acceptWhenHeard lets a listener accept a connection only when its first bytes have come. A
// server's ReadTimeout begins when it accepts, and on a busy machine a client may send later
// than that.
func acceptWhenHeard(t testing.TB, l net.Listener) {
	t.Helper()
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	require.NoError(t, err)
	var failed error
	require.NoError(t, raw.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_DEFER_ACCEPT, int(enough.Seconds()))
	}))
	require.NoError(t, failed)
}
