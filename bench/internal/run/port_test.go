package run

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEachFreeAddressIsAnother(t *testing.T) {
	seen := map[string]bool{}
	for range 50 {
		address, err := FreeAddress()
		require.NoError(t, err)
		require.False(t, seen[address])
		seen[address] = true
		at, err := net.ResolveTCPAddr("tcp", address)
		require.NoError(t, err)
		require.True(t, at.IP.IsLoopback())
		require.Less(t, at.Port, 32768, "no client gets it")
	}
}
