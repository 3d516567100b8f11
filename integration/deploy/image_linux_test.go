package deploy_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
)

// The image is built by the commands of the Dockerfile, and runs with nothing around it but
// the files that the Dockerfile copies. Building takes minutes where Caddy was not compiled before
// without cgo.
func TestImageServesWithNothingAroundIt(t *testing.T) {
	if os.Getenv("SHAPER_LONG") != "1" {
		t.Skip("SHAPER_LONG=1 builds the image")
	}
	t.Parallel()
	d := readDockerfile(t)
	out := t.TempDir()
	for _, command := range d.build {
		run := exec.Command("sh", "-c", strings.ReplaceAll(command, "/out", out))
		run.Dir = root
		text, err := run.CombinedOutput()
		require.NoErrorf(t, err, "%s\n%s", command, text)
	}
	binary, err := elf.Open(filepath.Join(out, "usr", "bin", "shaperd"))
	require.NoError(t, err)
	defer binary.Close()
	libraries, err := binary.ImportedLibraries()
	require.NoError(t, err)
	require.Empty(t, libraries)
	for _, p := range binary.Progs {
		require.NotEqual(t, elf.PT_INTERP, p.Type, "scratch has no interpreter")
	}
	if os.Getuid() != 0 {
		t.Skip("only root may change the root directory")
	}

	together(t, func(redis *servers.Redis, upstream string) *shaperd {
		image := t.TempDir()
		for from, to := range d.copies {
			require.NoError(t, os.CopyFS(filepath.Join(image, to), os.DirFS(filepath.Join(out, strings.TrimPrefix(from, "/out")))))
			if d.owned[to] {
				require.NoError(t, os.Chown(filepath.Join(image, to), 65532, 65532))
			}
		}
		// What compose.yaml mounts.
		require.NoError(t, os.MkdirAll(filepath.Join(image, "etc", "shaperd"), 0o755))
		for _, name := range []string{"Caddyfile", "shaper.yaml"} {
			require.NoError(t, os.WriteFile(filepath.Join(image, "etc", "shaperd", name), []byte(read(t, name)), 0o644))
		}
		openFolders(t, image)
		cmd := &exec.Cmd{Path: d.entrypoint[0], Args: d.entrypoint, Dir: "/", Env: d.env}
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: image, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
		s := settle(t, cmd, redis, upstream)
		s.data = filepath.Join(image, "data")
		return s
	})
}

// openFolders lets other users reach a folder of the test.
func openFolders(t *testing.T, path string) {
	for range 3 { // the folder, that of the test, and that of the run
		require.NoError(t, os.Chmod(path, 0o755))
		path = filepath.Dir(path)
		if path == filepath.Clean(os.TempDir()) {
			return
		}
	}
}
