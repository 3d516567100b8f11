package measure

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFieldsOfProc(t *testing.T) {
	file := filepath.Join(t.TempDir(), "status")
	require.NoError(t, os.WriteFile(file, []byte("Name:\tbench\nVmRSS:\t   1234 kB\nThreads:\tlots kB\n"), 0o600))
	require.Equal(t, "bench", ProcField(file, "Name"))
	require.Empty(t, ProcField(file, "VmSwap"))
	require.Empty(t, ProcField(file+"x", "Name"))
	bytes, err := procBytes(file, "VmRSS")
	require.NoError(t, err)
	require.Equal(t, 1234.0*1024, bytes)
	for _, field := range []string{"Threads", "VmSwap"} {
		_, err = procBytes(file, field)
		require.ErrorContains(t, err, field)
	}
}

func TestResidentMemoryGrowsWithWhatIsInUse(t *testing.T) {
	if !MemoryIsTold() {
		t.Skip("not known on this system")
	}
	before := ResidentBytes()
	kept := make([]byte, 32<<20)
	for i := range kept {
		kept[i] = 1
	}
	after := ResidentBytes()
	// The race detector takes as much again, several times.
	require.Greater(t, after-before, 0.9*float64(len(kept)))
	runtime.KeepAlive(kept)
}
