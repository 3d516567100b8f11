package shaper_test

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
)

// sendEnd closes the sending half of a connection, and waits until the other side's system knows
// of it. On a busy machine that may take a while even on loopback.
func sendEnd(t testing.TB, conn *net.TCPConn) {
	t.Helper()
	const finWait1 = 4 // of enum tcp_state in the kernel's tcp_states.h
	require.NoError(t, conn.CloseWrite())
	raw, err := conn.SyscallConn()
	require.NoError(t, err)
	realtime.Until(t, func() bool {
		var info int // the first 4 bytes of tcp_info, of which the first is the state
		var failed error
		require.NoError(t, raw.Control(func(fd uintptr) {
			info, failed = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO)
		}))
		require.NoError(t, failed)
		return byte(info) != finWait1
	}, "the end of the stream is acknowledged")
}
