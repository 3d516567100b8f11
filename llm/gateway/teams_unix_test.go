//go:build unix

package gateway_test

import (
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/llm/gateway"
)

// A file of tokens on a disk that hangs holds up the one call that looks at it. The others are known by what it said before.
func TestADiskThatHangsHoldsUpOneCall(t *testing.T) {
	file := filepath.Join(t.TempDir(), "teams")
	require.NoError(t, os.WriteFile(file, []byte(teamLine("gold", "secret")), 0o600))
	teams, err := gateway.OpenTeams(file, nil)
	require.NoError(t, err)
	of := func() string {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://gateway/", nil)
		require.NoError(t, err)
		r.Header.Set("X-Api-Key", "secret")
		team, _ := teams.Of(r)
		return team
	}
	require.NoError(t, os.Remove(file))
	require.NoError(t, syscall.Mkfifo(file, 0o600)) // A read of it waits until somebody writes.
	looked := ""
	first := done(func() { looked = of() })
	var writer *os.File
	realtime.Until(t, func() bool { // Somebody reads the pipe once it can be opened without waiting.
		writer, err = os.OpenFile(file, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		return err == nil
	}, "a call looks at the file")
	for range 3 {
		team := ""
		realtime.Until(t, done(func() { team = of() }), "another call passes")
		require.Equal(t, "gold", team)
	}
	require.False(t, first())
	_, err = writer.WriteString(teamLine("silver", "secret"))
	require.NoError(t, err)
	require.NoError(t, writer.Close())
	realtime.Until(t, first, "the disk is back")
	require.Equal(t, "silver", looked)
	require.Equal(t, "silver", of())
}
