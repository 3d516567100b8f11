package servers_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
)

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
