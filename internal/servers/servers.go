// Package servers starts the servers that tests need: Redis, PostgreSQL and what stands
// before them. They are programs of this machine, run on free ports of 127.0.0.1 and in
// temporary folders, and end with the test. A server that serves several tests is
// started by the test whose subtests they are.
package servers

import (
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// patience is for how long a server may take to be ready, or to end. It is long because
// the machine may be busy; a test that fails is all that waits for so long.
const patience = time.Minute

// Need returns the path of the first of the programs that is installed. If there is none,
// the test is skipped and says how to get it, which is getIt ("apt-get install
// redis-server"). If SHAPER_REQUIRE_ALL is 1, as in .ci/run, the test fails instead.
func Need(t testing.TB, getIt string, programs ...string) string {
	t.Helper()
	path := find(programs)
	switch {
	case path != "":
	case os.Getenv("SHAPER_REQUIRE_ALL") == "1":
		t.Fatalf("none of %q is installed: %s", programs, getIt)
	default:
		t.Skipf("none of %q is installed: %s", programs, getIt)
	}
	return path
}

// find returns the path of the first program that is installed, or "". Debian keeps the
// programs of PostgreSQL, and those for administrators, where PATH may not lead.
func find(programs []string) string {
	for _, program := range programs {
		if path, err := exec.LookPath(program); err == nil {
			return path
		}
		versions, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // The pattern is well formed.
		slices.Reverse(versions)
		for _, dir := range append(versions, "/usr/sbin", "/usr/local/sbin") {
			if path, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
				return path
			}
		}
	}
	return ""
}

// Ports are taken from below those that the system hands out to clients (from 32768 on
// Linux), as a client could get one between the search and the start of the server.
const firstPort, ports = 10_000, 10_000

// FreePort returns a port of 127.0.0.1, from 10000 to 19999, on which nobody listens, as
// nobody does 10000 ports further. Until the test ends no other call returns it, be it of
// another package that is tested at the same time. A program that does not ask this package
// may take it before it is used.
func FreePort(t testing.TB) int {
	t.Helper()
	for range ports {
		port := firstPort + rand.IntN(ports)
		// The port held is one of UDP, which nobody else wants: servers of HTTP/3 listen on the UDP
		// port of the same number. The system frees it if this process is killed.
		held, err := net.ListenPacket("udp", address(port+ports))
		if err != nil {
			continue
		}
		// The nodes of a cluster of Redis talk to each other at the second port.
		if isFree(port) && isFree(port+ports) {
			t.Cleanup(func() { _ = held.Close() })
			return port
		}
		_ = held.Close()
	}
	t.Fatalf("there is no free port from %d to %d", firstPort, firstPort+ports-1)
	return 0
}

// onFreePort calls start with free ports until one succeeds, as another program may have taken a
// port before the server could.
func onFreePort(t testing.TB, start func(port int) error) {
	t.Helper()
	for attempt := 1; ; attempt++ {
		err := start(FreePort(t))
		if err == nil {
			return
		}
		if attempt == 3 || !strings.Contains(err.Error(), "in use") {
			t.Fatal(err)
		}
	}
}

func isFree(port int) bool {
	l, err := net.Listen("tcp", address(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// address returns the address of a server of this machine.
func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// tempDir returns a new folder that is removed when the test ends. Other than that of
// [testing.T.TempDir], other users may enter it: some servers refuse to run as root.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "servers-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
