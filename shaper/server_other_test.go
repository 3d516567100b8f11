//go:build !linux

package shaper_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// sendEnd waits for nothing here.
func sendEnd(t testing.TB, conn *net.TCPConn) {
	t.Helper()
	require.NoError(t, conn.CloseWrite())
}
