package measure

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
)

// statmFile has the memory of this process, on Linux.
const statmFile = "/proc/self/statm"

// MemoryIsTold reports whether this system tells how much memory is resident.
func MemoryIsTold() bool {
	_, err := os.Stat(statmFile)
	return err == nil
}

// ResidentBytes returns the resident memory of this process, after what is not
// in use has been given back. It is [Unknown] where [MemoryIsTold] is false.
func ResidentBytes() (float64, error) {
	if !MemoryIsTold() {
		return Unknown, nil
	}
	debug.FreeOSMemory()
	text, err := os.ReadFile(statmFile)
	if err != nil {
		return 0, err
	}
	pages, err := residentPages(text)
	return float64(pages * int64(os.Getpagesize())), err
}

// residentPages reads the second number of the statm file.
func residentPages(text []byte) (int64, error) {
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0, fmt.Errorf("%s has no second number: %q", statmFile, text)
	}
	return strconv.ParseInt(string(fields[1]), 10, 64)
}

// availableBytes reads how much memory can be had without swapping from the
// text of the meminfo file.
func availableBytes(text []byte) (int64, error) {
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte("MemAvailable:")); ok {
			kib, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte("kB")))), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("%s does not say how much memory is available", meminfoFile)
}

const meminfoFile = "/proc/meminfo"

// EnoughMemory returns an error if this system does not have so many bytes to
// spare.
func EnoughMemory(need int64) error {
	text, err := os.ReadFile(meminfoFile)
	if err != nil {
		return err
	}
	available, err := availableBytes(text)
	if err != nil {
		return err
	}
	if available < need {
		return fmt.Errorf("-full needs %.1f GiB of memory, and %.1f GiB are available", float64(need)/(1<<30), float64(available)/(1<<30))
	}
	return nil
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
