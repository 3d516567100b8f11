package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
)

// statmFile tells the memory of this process, on Linux.
const statmFile = "/proc/self/statm"

// memoryIsTold reports whether this system says how much memory is resident.
func memoryIsTold() bool {
	_, err := os.Stat(statmFile)
	return err == nil
}

// residentBytes is the resident memory of this process, after what is not in
// use has been given back.
func residentBytes() (int64, error) {
	debug.FreeOSMemory()
	text, err := os.ReadFile(statmFile)
	if err != nil {
		return 0, err
	}
	pages, err := residentPages(text)
	return pages * int64(os.Getpagesize()), err
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

// enoughMemory returns an error if this system has not got so many bytes to
// spare.
func enoughMemory(need int64) error {
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
