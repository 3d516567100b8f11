package measure

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
)

// ProcField returns the first value of a field in a file of "field: value" lines,
// as Linux has them below /proc, and "" where there is none.
func ProcField(file, field string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, is := strings.Cut(lines.Text(), ":"); is && strings.TrimSpace(name) == field {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// procBytes returns the value of a field in KiB, such as "1234 kB", in bytes.
func procBytes(file, field string) (float64, error) {
	value := ProcField(file, field)
	var kib float64
	if _, err := fmt.Sscanf(value, "%g kB", &kib); err != nil {
		return 0, fmt.Errorf("%s: %s is %q: %w", file, field, value, err)
	}
	return kib * 1024, nil
}

// statusFile has the memory of this process, on Linux.
const statusFile = "/proc/self/status"

// MemoryIsTold reports whether this system tells how much memory is resident.
func MemoryIsTold() bool {
	_, err := os.Stat(statusFile)
	return err == nil
}

// ResidentBytes returns the resident memory of this process, after what is not
// in use has been given back. It is [Unknown] where the system does not tell.
func ResidentBytes() float64 {
	debug.FreeOSMemory()
	bytes, err := ResidentOf(filepath.Dir(statusFile))
	if err != nil {
		return Unknown
	}
	return bytes
}

// ResidentOf returns the resident memory of a process, in bytes. The folder of /proc is
// the process's.
func ResidentOf(folder string) (float64, error) {
	return procBytes(filepath.Join(folder, "status"), "VmRSS")
}

// LiveHeap returns the bytes that the garbage collector leaves.
func LiveHeap() int64 {
	// The second collection takes what pools have kept over the first.
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
