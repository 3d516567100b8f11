package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/internal/servers"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "worker" { // The processes that share a rate are this program once more.
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// The reader's goroutines wait for the processes, so goleak tells if one of these is left.
func TestAllShareTheRateUntilOneIsKilled(t *testing.T) {
	servers.Need(t, "apt-get install redis-server", "redis-server")
	t.Setenv("TMPDIR", t.TempDir())
	var out bytes.Buffer
	require.NoError(t, show(t.Context(), "", &out))
	before, after, killed := strings.Cut(out.String(), "process c is killed\n")
	require.True(t, killed, out.String())
	require.Regexp(t, `(?s)1 s .*c.*3 s `, before)
	require.Regexp(t, `(?s)4 s .*6 s +\d+  [ab]+\n$`, after, "the others go on")
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	require.NoError(t, err)
	require.Empty(t, left)
	conn, err := net.Dial("tcp", regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(out.String()))
	if err == nil {
		conn.Close()
	}
	require.Error(t, err, "the server still runs")
}

func TestWithoutAServerItSaysHowToGetOne(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	require.ErrorContains(t, show(t.Context(), "", &bytes.Buffer{}), "apt-get install redis-server, or use -redis HOST:PORT")
}

func TestAnInterruptEndsAll(t *testing.T) {
	servers.Need(t, "apt-get install redis-server", "redis-server")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, show(ctx, "", &bytes.Buffer{}), context.Canceled)
}
