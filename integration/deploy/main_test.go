package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
)

// root is the tree.
const root = "../.."

func TestMain(m *testing.M) {
	status := m.Run()
	if built != "" {
		_ = os.RemoveAll(filepath.Dir(built))
	}
	os.Exit(status)
}

var (
	built     string // the path of shaperd, once it is built
	buildOnce = sync.OnceValues(func() (text []byte, err error) {
		dir, err := os.MkdirTemp("", "deploy-test-")
		if err != nil {
			return nil, err
		}
		built = filepath.Join(dir, "shaperd")
		build := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", built, "./cmd/shaperd")
		build.Dir = root
		workspace, err := filepath.Abs(filepath.Join(root, "all.work"))
		if err != nil {
			return nil, err
		}
		build.Env = append(os.Environ(), "GOWORK="+workspace)
		return build.CombinedOutput()
	})
)

// program returns the path of shaperd, which is built once for all tests that need it.
func program(t *testing.T) string {
	text, err := buildOnce()
	require.NoErrorf(t, err, "%s", text)
	return built
}

// command returns a command of a program that the tests need. pkg is the package of Debian
// that has the program.
func command(t *testing.T, program, pkg string, args ...string) *exec.Cmd {
	return exec.Command(servers.Need(t, "apt-get install "+pkg, program), args...)
}

// read returns the text of a file of the folder.
func read(t *testing.T, path ...string) string {
	text, err := os.ReadFile(filepath.Join(append([]string{folder}, path...)...))
	require.NoError(t, err)
	return string(text)
}
